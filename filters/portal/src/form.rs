//! Fields of forms and queries.

/// The fields of a form or of a query, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// Reads `application/x-www-form-urlencoded` (WHATWG URL, section 5). What is no UTF-8 is replaced, as browsers do.
    pub(crate) fn read(bytes: &[u8]) -> Form {
        Form(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// The first value of a field, without space around it; empty where there is none.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.find(name).unwrap_or("")
    }

    /// The first value of a field, without space around it.
    pub(crate) fn find(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.trim())
    }

    /// Every value of a field, for boxes.
    pub(crate) fn all<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> {
        let fields = self.0.iter().filter(move |(known, _)| known == name);
        fields.map(|(_, value)| value.as_str())
    }

    /// Every field in its order, as it was sent.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// As a browser would send it, without the field `left_out`.
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
    fn fields_come_back_as_they_were_typed() {
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
