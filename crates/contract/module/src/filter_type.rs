//! Names of filters with their order constraints. The check of the settings enforces the constraints for every chain.

/// A filter by its name in chains, and its place in the chain.
///
/// The constraints name other filters. A filter declared [`FilterType::in_place_of`] another filter also counts as the other filter.
#[derive(Clone, Copy, Debug)]
pub struct FilterType {
    name: &'static str,
    needs: &'static [&'static str],
    after: &'static [&'static str],
    before: &'static [&'static str],
    in_place_of: &'static [&'static str],
}

impl FilterType {
    /// A filter of the name, without order constraints.
    pub const fn named(name: &'static str) -> FilterType {
        FilterType {
            name,
            needs: &[],
            after: &[],
            before: &[],
            in_place_of: &[],
        }
    }

    /// The filter comes after the `needs` filters, and the chain must contain every `needs` filter. The filter cannot decide without the
    /// values that the `needs` filters put on the exchange.
    #[must_use]
    pub const fn needs(self, needs: &'static [&'static str]) -> FilterType {
        FilterType { needs, ..self }
    }

    /// The filter comes after the named filters that are in the chain.
    #[must_use]
    pub const fn after(self, after: &'static [&'static str]) -> FilterType {
        FilterType { after, ..self }
    }

    /// The filter comes before the named filters that are in the chain.
    #[must_use]
    pub const fn before(self, before: &'static [&'static str]) -> FilterType {
        FilterType { before, ..self }
    }

    /// The filter can replace the named filters: a filter that needs a named filter is satisfied by this filter. Example: a second way to
    /// authenticate, in place of `auth`.
    #[must_use]
    pub const fn in_place_of(self, in_place_of: &'static [&'static str]) -> FilterType {
        FilterType {
            in_place_of,
            ..self
        }
    }

    /// The filter's name in chains.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    fn counts_as(&self, name: &str) -> bool {
        self.name == name || self.in_place_of.contains(&name)
    }
}

impl From<&'static str> for FilterType {
    fn from(name: &'static str) -> FilterType {
        FilterType::named(name)
    }
}

/// A filter in the wrong place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    /// The filter's position in the chain, from 0.
    pub position: usize,
    /// Both filters and the remedy.
    pub message: String,
}

/// The filters of a chain that stand in the wrong place. Of a pair in the wrong order: the filter with the constraint, or the first filter
/// where both filters have the constraint. Empty for a chain with an unknown or a repeated name, which is a separate error.
pub fn misplaced(chain: &[&str], filters: &[FilterType]) -> Vec<Misplaced> {
    let types: Vec<FilterType> = chain
        .iter()
        .filter_map(|name| filters.iter().find(|known| known.name == *name).copied())
        .collect();
    let is_repeated = (1..chain.len()).any(|at| chain[..at].contains(&chain[at]));
    if types.len() < chain.len() || is_repeated {
        // Reported at the position of the name; an unknown name may be meant as the missing filter.
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut pairs = Vec::new();
    for (position, filter) in types.iter().enumerate() {
        let name = filter.name;
        let mut wrong = |other: usize, side: &str, rule: &str| {
            let pair = (position.min(other), position.max(other));
            if !pairs.contains(&pair) {
                pairs.push(pair);
                let other = types[other].name;
                let reason = match other == rule {
                    true => format!("`{other}`"),
                    // Nothing else shows why the rule is about this filter.
                    false => format!("`{rule}`, and `{other}` is `in_place_of` it"),
                };
                found.push(Misplaced {
                    position,
                    message: format!(
                        "is `{name}`, which has to come {side} {reason}; move `{name}` {side} `{other}`"
                    ),
                });
            }
        };
        for earlier in filter.needs.iter().chain(filter.after) {
            for (at, other) in types.iter().enumerate().skip(position + 1) {
                if other.counts_as(earlier) {
                    wrong(at, "after", earlier);
                }
            }
        }
        for later in filter.before {
            for (at, other) in types.iter().enumerate().take(position) {
                if other.counts_as(later) {
                    wrong(at, "before", later);
                }
            }
        }
        for needed in filter.needs {
            if !types.iter().any(|other| other.counts_as(needed)) {
                found.push(Misplaced {
                    position,
                    message: format!(
                        "is `{name}`, which needs `{needed}`, and the chain has none; add `{needed}` before `{name}`"
                    ),
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILTERS: &[FilterType] = &[
        FilterType::named("auth"),
        FilterType::named("badge").in_place_of(&["auth"]),
        FilterType::named("meter").needs(&["auth"]),
        FilterType::named("tags").before(&["meter"]),
        FilterType::named("cache").after(&["meter", "tags"]),
    ];

    fn check(chain: &[&str], wanted: &[(usize, &str)]) {
        let found = misplaced(chain, FILTERS);
        let found: Vec<(usize, &str)> = found
            .iter()
            .map(|one| (one.position, one.message.as_str()))
            .collect();
        assert_eq!(found, wanted, "{chain:?}");
    }

    #[test]
    fn a_chain_is_checked_against_the_constraints_of_its_filters() {
        check(&["auth", "tags", "meter", "cache"], &[]);
        check(&["badge", "meter"], &[]);
        check(&["auth", "cache"], &[]);
        check(
            &["meter", "badge"],
            &[(
                0,
                "is `meter`, which has to come after `auth`, and `badge` is `in_place_of` it; move `meter` after `badge`",
            )],
        );
        check(
            &["tags", "meter"],
            &[(
                1,
                "is `meter`, which needs `auth`, and the chain has none; add `auth` before `meter`",
            )],
        );
        check(
            &["auth", "meter", "tags"],
            &[(
                2,
                "is `tags`, which has to come before `meter`; move `tags` before `meter`",
            )],
        );
        check(
            &["auth", "cache", "tags", "meter"],
            &[
                (
                    1,
                    "is `cache`, which has to come after `meter`; move `cache` after `meter`",
                ),
                (
                    1,
                    "is `cache`, which has to come after `tags`; move `cache` after `tags`",
                ),
            ],
        );
        check(&["meter", "unknown", "auth"], &[]);
    }
}
