//! Strict parsing of queries and form bodies (`application/x-www-form-urlencoded`), without ambiguity.

/// Decoded parameters in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

/// Maximum number of parameters. Requests have about ten; the duplicate check is quadratic and must stay cheap.
const PARAMETERS_MAX: usize = 64;

/// Invalid encoding: a `%` without two hex digits, invalid UTF-8, or more than [`PARAMETERS_MAX`] parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InvalidEncoding;

impl Form {
    /// Parses a query or body.
    pub(crate) fn parse(text: &[u8]) -> Result<Form, InvalidEncoding> {
        let pairs = || {
            text.split(|&byte| byte == b'&')
                .filter(|pair| !pair.is_empty())
        };
        if pairs().nth(PARAMETERS_MAX).is_some() {
            return Err(InvalidEncoding);
        }
        pairs()
            .map(|pair| {
                let (name, value) = match pair.iter().position(|&byte| byte == b'=') {
                    Some(at) => (&pair[..at], &pair[at + 1..]),
                    None => (pair, &[][..]),
                };
                Ok((decode(name)?, decode(value)?))
            })
            .collect::<Result<_, _>>()
            .map(Form)
    }

    /// Number of occurrences of a parameter.
    pub(crate) fn count(&self, name: &str) -> usize {
        self.all(name).count()
    }

    /// Every value of a parameter.
    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .filter(move |(known, _)| known == name)
            .map(|(_, value)| value.as_str())
    }

    /// The first non-empty value of a parameter: an empty one counts as absent (RFC 6749 section 3.1).
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next().filter(|value| !value.is_empty())
    }

    /// A parameter with more than one occurrence, except names in `allowed`.
    pub(crate) fn duplicate(&self, allowed: &[&str]) -> Option<&str> {
        self.0
            .iter()
            .map(|(name, _)| name.as_str())
            .filter(|name| !allowed.contains(name))
            .find(|name| self.count(name) > 1)
    }
}

fn decode(text: &[u8]) -> Result<String, InvalidEncoding> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, after @ ..] = rest {
        rest = after;
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let [high, low, after @ ..] = rest else {
                    return Err(InvalidEncoding);
                };
                rest = after;
                hex(*high)? << 4 | hex(*low)?
            }
            byte => *byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| InvalidEncoding)
}

fn hex(digit: u8) -> Result<u8, InvalidEncoding> {
    char::from(digit)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
        .ok_or(InvalidEncoding)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_form_with_too_many_parameters_is_rejected() {
        let form = |count: usize| (0..count).map(|at| format!("p{at}=&")).collect::<String>();
        assert!(Form::parse(form(PARAMETERS_MAX).as_bytes()).is_ok());
        assert!(Form::parse(form(PARAMETERS_MAX + 1).as_bytes()).is_err());
    }

    #[test]
    fn a_form_is_parsed_unambiguously_or_rejected() {
        let form = Form::parse(b"a=1&b=x+y%26%C3%A9&c&=d&&a=2&e=").expect("a form");
        assert_eq!(form.get("a"), Some("1"));
        assert_eq!(form.all("a").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(form.get("b"), Some("x y&é"));
        assert_eq!((form.get("c"), form.count("c")), (None, 1));
        assert_eq!(form.get("e"), None, "empty is left out");
        assert_eq!(form.duplicate(&[]), Some("a"));
        assert_eq!(form.duplicate(&["a"]), None);
        for broken in [&b"a=%"[..], b"a=%4", b"a=%zz", b"%=1", b"a=%ff", b"a=\xff"] {
            assert_eq!(Form::parse(broken), Err(InvalidEncoding), "{broken:?}");
        }
        assert_eq!(Form::parse(b""), Ok(Form(Vec::new())));
    }

    proptest! {
        #[test]
        fn form_parsing_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Form::parse(&bytes);
        }
    }
}
