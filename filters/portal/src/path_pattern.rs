//! Path patterns of the route table: matching a path, and its parameters.

/// Path parameters: the values of the `{name}` segments of a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params(Vec<(&'static str, String)>);

impl Params {
    /// The parameter `name`; empty if the pattern has none.
    pub(crate) fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map_or("", |(_, value)| value)
    }
}

/// The parameters of a path matched by the pattern as a whole; `{name}` matches one non-empty segment.
pub(crate) fn match_path(pattern: &'static str, path: &str) -> Option<Params> {
    let mut params = Params::default();
    let (mut left, mut right) = (pattern.split('/'), path.split('/'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Some(params),
            (Some(pattern), Some(part)) => {
                let open = pattern
                    .strip_prefix('{')
                    .and_then(|name| name.strip_suffix('}'));
                match open {
                    Some(name) if !part.is_empty() => params.0.push((name, part.to_owned())),
                    None if pattern == part => {}
                    _ => return None,
                }
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_paths() {
        let id =
            |path| match_path("/keys/{id}/revoke", path).map(|params| params.get("id").to_owned());
        assert_eq!(id("/keys/key_1/revoke").as_deref(), Some("key_1"));
        for path in [
            "/keys//revoke",
            "/keys/1",
            "/keys/1/revoke/",
            "/keys/1/2/revoke",
        ] {
            assert_eq!(id(path), None, "{path}");
        }
        assert!(match_path("/", "/").is_some());
        assert!(match_path("/", "//").is_none());
    }
}
