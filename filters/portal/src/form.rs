//! Parsed form bodies and query strings.

/// The fields of a form or query, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// Parses `application/x-www-form-urlencoded` (WHATWG URL, section 5). Invalid UTF-8 is replaced, as browsers do.
    pub(crate) fn read(bytes: &[u8]) -> Form {
        Form(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// The first value of a field, trimmed; empty if the field is absent.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.find(name).unwrap_or("")
    }

    /// The first value of a field, trimmed.
    pub(crate) fn find(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.trim())
    }

    /// Every value of a field, for checkboxes.
    pub(crate) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let fields = self.0.iter().filter(move |(known, _)| known == name);
        fields.map(|(_, value)| value.as_str())
    }

    /// Every field in order, unchanged.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Serialises the form as a browser would, without the field `left_out`.
    pub(crate) fn write_without(&self, left_out: &str) -> String {
        let mut text = form_urlencoded::Serializer::new(String::new());
        for (name, value) in &self.0 {
            if name != left_out {
                text.append_pair(name, value);
            }
        }
        text.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_fields_round_trip() {
        let form = Form::read(b"name=+ci+%26+r%C3%BCnner+&may=chat&may=models&csrf=x&empty=");
        assert_eq!(form.text("name"), "ci & rünner");
        assert_eq!(form.all("may").collect::<Vec<_>>(), ["chat", "models"]);
        assert_eq!(form.find("empty"), Some(""));
        assert_eq!(form.find("none"), None);
        let again = Form::read(form.write_without("csrf").as_bytes());
        assert_eq!(again.text("name"), "ci & rünner");
        assert_eq!(again.find("csrf"), None);
    }
}
