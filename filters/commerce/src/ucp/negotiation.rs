//! Capability negotiation with platforms (UCP 2026-08-25, Overview, "Version Selection" and "Intersection Algorithm").

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{CHECKOUT, IDENTITY, VERSIONS};

/// The negotiated part of a platform profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    version: String,
    /// Versions of each capability, by name.
    capabilities: BTreeMap<String, Vec<String>>,
}

/// A document that is not a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Why negotiation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mismatch {
    /// Another protocol version.
    Version,
    /// A required capability is missing.
    Capabilities,
}

/// A capability of this service.
struct Capability {
    name: &'static str,
    versions: &'static [&'static str],
    /// The extended capabilities, at least one of which is required. Empty for a root capability.
    extends: &'static [&'static str],
}

impl Capability {
    /// Whether checkouts report the capability: the checkout capability and its extensions.
    fn is_of_checkouts(&self) -> bool {
        self.name == CHECKOUT || self.extends.contains(&CHECKOUT)
    }
}

/// All capabilities in the service's profile for a version of the protocol, each of this version.
fn capabilities(version: &'static &'static str) -> [Capability; 2] {
    [CHECKOUT, IDENTITY].map(|name| Capability {
        name,
        versions: std::slice::from_ref(version),
        extends: &[],
    })
}

/// Negotiated capabilities with their version.
pub(crate) type Common = BTreeMap<&'static str, &'static str>;

/// Parses a profile (`schemas/ucp.json`, `platform_schema`): `ucp` with a version, and capabilities with a version in each entry. Members
/// outside the negotiation are ignored.
pub(crate) fn parse(document: &[u8]) -> Result<Profile, Malformed> {
    #[derive(Deserialize)]
    struct Document {
        ucp: Ucp,
    }
    #[derive(Deserialize)]
    struct Ucp {
        version: String,
        #[serde(default)]
        capabilities: BTreeMap<String, Vec<Entry>>,
    }
    #[derive(Deserialize)]
    struct Entry {
        version: String,
    }
    let Document { ucp } = serde_json::from_slice(document).map_err(|_| Malformed)?;
    let entries = ucp.capabilities.values().flatten();
    let mut versions = entries.map(|entry| &entry.version);
    if !is_date(&ucp.version) || !versions.all(|version| is_date(version)) {
        return Err(Malformed);
    }
    let versions = |entries: Vec<Entry>| entries.into_iter().map(|entry| entry.version).collect();
    let capabilities = ucp.capabilities.into_iter();
    Ok(Profile {
        version: ucp.version,
        capabilities: capabilities
            .map(|(name, entries)| (name, versions(entries)))
            .collect(),
    })
}

/// The negotiated capabilities of a checkout in the version of the platform's profile: the checkout capability and its extensions.
pub(crate) fn for_checkout(profile: &Profile) -> Result<Common, Mismatch> {
    let version = VERSIONS.iter().find(|one| **one == profile.version);
    let ours = capabilities(version.ok_or(Mismatch::Version)?);
    let mut common = intersect(&ours, profile);
    if !common.contains_key(CHECKOUT) {
        return Err(Mismatch::Capabilities);
    }
    for one in ours.iter().filter(|one| !one.is_of_checkouts()) {
        common.remove(one.name);
    }
    Ok(common)
}

fn intersect(ours: &[Capability], theirs: &Profile) -> Common {
    let mut common: Common = ours
        .iter()
        .filter_map(|one| {
            let listed = theirs.capabilities.get(one.name)?;
            // Dates in this notation sort chronologically.
            let both = one.versions.iter().copied();
            let both = both.filter(|version| listed.iter().any(|listed| listed == version));
            Some((one.name, both.max()?))
        })
        .collect();
    // Removing an extension removes the extensions of it.
    loop {
        let orphan = ours.iter().find(|one| {
            let kept = |parent: &&str| common.contains_key(*parent);
            common.contains_key(one.name)
                && !one.extends.is_empty()
                && !one.extends.iter().any(kept)
        });
        match orphan {
            Some(orphan) => common.remove(orphan.name),
            None => return common,
        };
    }
}

/// `2026-04-08`
fn is_date(text: &str) -> bool {
    text.len() == 10
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ucp::{CURRENT, OLDER};

    fn profile(version: &str, capabilities: &[(&str, &[&str])]) -> Profile {
        let capabilities = capabilities.iter().map(|(name, versions)| {
            let versions = versions.iter().map(|version| json!({"version": version}));
            ((*name).to_owned(), versions.collect::<Value>())
        });
        let capabilities: serde_json::Map<String, Value> = capabilities.collect();
        let document = json!({"ucp": {"version": version, "capabilities": capabilities}});
        parse(document.to_string().as_bytes()).expect("a profile")
    }

    #[test]
    fn a_profile_has_a_version_and_capabilities_that_have_one_each() {
        for (text, sound) in [
            (r#"{"ucp":{"version":"2026-04-08"}}"#, true),
            (
                r#"{"ucp":{"version":"2026-04-08","capabilities":{"a.b":[{"version":"2026-01-11"}]},"services":{}},"signing_keys":[]}"#,
                true,
            ),
            (
                r#"{"ucp":{"version":"2026-04-08","capabilities":{"a.b":[]}}}"#,
                true,
            ),
            ("", false),
            ("[]", false),
            ("{}", false),
            (r#"{"ucp":[]}"#, false),
            (r#"{"ucp":{"version":20260408}}"#, false),
            (r#"{"ucp":{"version":"draft"}}"#, false),
            (r#"{"ucp":{"version":"2026-4-08"}}"#, false),
            (
                r#"{"ucp":{"version":"2026-04-08","capabilities":["a.b"]}}"#,
                false,
            ),
            (
                r#"{"ucp":{"version":"2026-04-08","capabilities":{"a.b":{}}}}"#,
                false,
            ),
            (
                r#"{"ucp":{"version":"2026-04-08","capabilities":{"a.b":[{}]}}}"#,
                false,
            ),
            (
                r#"{"ucp":{"version":"2026-04-08","capabilities":{"a.b":[{"version":"1"}]}}}"#,
                false,
            ),
            (r#"{"ucp":{"version":"2026-04-08"}} more"#, false),
        ] {
            assert_eq!(parse(text.as_bytes()).is_ok(), sound, "{text}");
        }
    }

    #[test]
    fn a_checkout_needs_a_platform_with_this_version_and_capability() {
        use Mismatch::{Capabilities, Version};
        type Listed<'a> = &'a [(&'a str, &'a [&'a str])];
        const VERSION: &str = CURRENT;
        let cases: [(&str, Listed<'_>, Result<&str, Mismatch>); 11] = [
            (OLDER, &[(CHECKOUT, &[OLDER])], Ok(OLDER)),
            (VERSION, &[(CHECKOUT, &[OLDER])], Err(Capabilities)),
            (VERSION, &[(CHECKOUT, &[VERSION])], Ok(VERSION)),
            (
                VERSION,
                &[(CHECKOUT, &["2026-01-11", VERSION, "2099-01-01"])],
                Ok(VERSION),
            ),
            (
                VERSION,
                &[
                    (CHECKOUT, &[VERSION]),
                    (IDENTITY, &[VERSION]),
                    ("com.example.x", &[VERSION]),
                ],
                Ok(VERSION),
            ),
            (VERSION, &[], Err(Capabilities)),
            (VERSION, &[(CHECKOUT, &[])], Err(Capabilities)),
            (VERSION, &[(CHECKOUT, &["2026-01-11"])], Err(Capabilities)),
            (VERSION, &[(IDENTITY, &[VERSION])], Err(Capabilities)),
            ("2026-01-11", &[(CHECKOUT, &[VERSION])], Err(Version)),
            ("2099-01-01", &[], Err(Version)),
        ];
        for (version, listed, expected) in cases {
            let found = for_checkout(&profile(version, listed));
            let expected = expected.map(|version| Common::from([(CHECKOUT, version)]));
            assert_eq!(found, expected, "{version} {listed:?}");
        }
    }

    #[test]
    fn the_latest_common_version_is_chosen_and_orphaned_extensions_are_removed() {
        const BOTH: &[&str] = &["2026-04-08", "2026-01-11", "2026-02-01"];
        let one = |name, extends| Capability {
            name,
            versions: BOTH,
            extends,
        };
        let ours = [
            one("a.gift", &["a.discount"] as &[_]),
            one("a.discount", &["a.checkout", "a.cart"]),
            one("a.checkout", &[]),
            one("a.cart", &[]),
        ];
        let now: &[&str] = &["2026-04-08"];
        // platform capabilities, expected
        type Listed<'a> = &'a [(&'a str, &'a [&'a str])];
        type Left<'a> = &'a [(&'a str, &'a str)];
        let cases: [(Listed<'_>, Left<'_>); 5] = [
            (
                &[("a.checkout", &["2026-02-01", "2026-01-11", "2026-03-01"])],
                &[("a.checkout", "2026-02-01")],
            ),
            (
                &[("a.gift", now), ("a.discount", now), ("a.cart", now)],
                &[
                    ("a.cart", now[0]),
                    ("a.discount", now[0]),
                    ("a.gift", now[0]),
                ],
            ),
            // First one is removed, then its extension.
            (&[("a.gift", now), ("a.discount", now)], &[]),
            (
                &[("a.gift", now), ("a.checkout", now)],
                &[("a.checkout", now[0])],
            ),
            // A parent without a common version does not count.
            (&[("a.discount", now), ("a.cart", &["2025-01-01"])], &[]),
        ];
        for (listed, left) in cases {
            let found = intersect(&ours, &profile(OLDER, listed));
            let left: Vec<(&str, &str)> = left.to_vec();
            assert_eq!(found.into_iter().collect::<Vec<_>>(), left, "{listed:?}");
        }
    }
}
