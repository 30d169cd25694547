//! Parsed form bodies and query strings.

/// A choice with an option whose value is typed into a field beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypedChoice<'a> {
    /// The field of the choice.
    pub(crate) choice: &'a str,
    /// The option that refers to the typed value.
    pub(crate) other: &'a str,
    /// The option preselected by the page: sent without a choice, and no contradiction of a typed value.
    pub(crate) preselected: &'a str,
    /// The field of the typed value.
    pub(crate) typed: &'a str,
}

/// The form's answer to a [`TypedChoice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen<'a> {
    /// One of the options; empty without a selection.
    Option(&'a str),
    /// The typed value; empty if the option is selected and no value is typed.
    Typed(&'a str),
    /// An option that the sender selected, and a typed value.
    Both { option: &'a str, typed: &'a str },
}

/// The fields of a form or query, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form(Vec<(String, String)>);

impl Form {
    /// Parses `application/x-www-form-urlencoded` (WHATWG URL, section 5). Invalid UTF-8 is replaced, as browsers do.
    pub(crate) fn read(bytes: &[u8]) -> Form {
        Form(form_urlencoded::parse(bytes).into_owned().collect())
    }

    /// A form with these fields, as filled by a page.
    pub(crate) fn of(fields: Vec<(&str, String)>) -> Form {
        let own = |(name, value): (&str, String)| (name.to_owned(), value);
        Form(fields.into_iter().map(own).collect())
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

    /// The form's answer to a choice and to the field beside the choice.
    pub(crate) fn chosen(&self, fields: &TypedChoice<'_>) -> Chosen<'_> {
        let (option, typed) = (self.text(fields.choice), self.text(fields.typed));
        if option == fields.other {
            return Chosen::Typed(typed);
        }
        match typed {
            "" => Chosen::Option(option),
            _ if option.is_empty() || option == fields.preselected => Chosen::Typed(typed),
            _ => Chosen::Both { option, typed },
        }
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
    fn a_typed_value_counts_unless_another_option_was_selected() {
        let fields = TypedChoice {
            choice: "ends",
            other: "date",
            preselected: "never",
            typed: "on",
        };
        for (form, says) in [
            ("", Chosen::Option("")),
            ("ends=never", Chosen::Option("never")),
            ("ends=30&on=+", Chosen::Option("30")),
            ("on=x", Chosen::Typed("x")),
            ("ends=never&on=x", Chosen::Typed("x")),
            ("ends=date&on=x", Chosen::Typed("x")),
            ("ends=date", Chosen::Typed("")),
            (
                "ends=30&on=x",
                Chosen::Both {
                    option: "30",
                    typed: "x",
                },
            ),
        ] {
            assert_eq!(Form::read(form.as_bytes()).chosen(&fields), says, "{form}");
        }
    }

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
