//! Form fields and validation messages.

use maud::{Markup, html};

/// The hidden CSRF token field.
pub fn csrf(token: &str) -> Markup {
    html! { input type="hidden" name="csrf" value=(token); }
}

/// A validation problem of one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The `name` of the field.
    pub field: String,
    /// What to do, as a sentence.
    pub text: String,
}

impl Problem {
    /// A problem of the field called `field`.
    pub fn new(field: impl Into<String>, text: impl Into<String>) -> Problem {
        Problem {
            field: field.into(),
            text: text.into(),
        }
    }
}

/// The error summary above a rejected form, with a link to each field; empty without problems. The summary takes the focus when the page
/// opens.
pub fn problems(problems: &[Problem]) -> Markup {
    if problems.is_empty() {
        return html! {};
    }
    html! {
        div.notice.bad.problems role="alert" tabindex="-1" autofocus aria-labelledby="problems-title" {
            div {
                h2 #problems-title { "There is a problem" }
                ul {
                    @for problem in problems {
                        li { a href={ "#" (problem.field) } { (problem.text) } }
                    }
                }
            }
        }
    }
}

/// Type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A line of text.
    Text,
    /// A one-time code: digits, spaces allowed.
    Code,
    /// A decimal number.
    Decimal,
    /// A date (`2026-11-21`).
    Date,
    /// Several lines; the number of visible lines.
    Lines(u32),
}

/// A field with label, hint and problem. The label is above the field, the hint between them.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    name: &'a str,
    label: &'a str,
    kind: FieldKind,
    value: &'a str,
    hint: Option<Markup>,
    autocomplete: &'a str,
    optional: bool,
    quiet: bool,
    narrow: bool,
    form: Option<&'a str>,
    problem: Option<&'a Problem>,
}

impl<'a> Field<'a> {
    /// A required line of text without a value.
    pub fn new(name: &'a str, label: &'a str) -> Field<'a> {
        Field {
            name,
            label,
            kind: FieldKind::Text,
            value: "",
            hint: None,
            autocomplete: "off",
            optional: false,
            quiet: false,
            narrow: false,
            form: None,
            problem: None,
        }
    }

    /// Sets the type.
    #[must_use]
    pub fn kind(self, kind: FieldKind) -> Self {
        Field { kind, ..self }
    }

    /// Sets the value. Never a submitted code or secret.
    #[must_use]
    pub fn value(self, value: &'a str) -> Self {
        Field { value, ..self }
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(self, hint: Markup) -> Self {
        Field {
            hint: Some(hint),
            ..self
        }
    }

    /// Sets the autofill name (HTML, autofill field names).
    #[must_use]
    pub fn autocomplete(self, autocomplete: &'a str) -> Self {
        Field {
            autocomplete,
            ..self
        }
    }

    /// Marks the field as optional, visibly.
    #[must_use]
    pub fn optional(self) -> Self {
        Field {
            optional: true,
            ..self
        }
    }

    /// Marks the field as optional, without a visible mark.
    #[must_use]
    pub fn quiet(self) -> Self {
        Field {
            quiet: true,
            ..self
        }
    }

    /// Makes the field narrow.
    #[must_use]
    pub fn narrow(self) -> Self {
        Field {
            narrow: true,
            ..self
        }
    }

    /// Associates the field with a form of this id elsewhere on the page.
    #[must_use]
    pub fn form(self, form: &'a str) -> Self {
        Field {
            form: Some(form),
            ..self
        }
    }

    /// Selects the problem of this field.
    #[must_use]
    pub fn problem(self, problems: &'a [Problem]) -> Self {
        let problem = problems.iter().find(|problem| problem.field == self.name);
        Field { problem, ..self }
    }

    /// Renders it.
    pub fn show(&self) -> Markup {
        let hint = format!("{}-hint", self.name);
        let error = format!("{}-error", self.name);
        let mut described = Vec::new();
        if self.hint.is_some() {
            described.push(hint.as_str());
        }
        if self.problem.is_some() {
            described.push(&error);
        }
        let described = (!described.is_empty()).then(|| described.join(" "));
        let invalid = self.problem.map(|_| "true");
        let required = !self.optional && !self.quiet;
        let (mode, class) = match self.kind {
            FieldKind::Code => (Some("numeric"), Some("code-field")),
            FieldKind::Decimal => (Some("decimal"), None),
            _ => (None, None),
        };
        let kind = if self.kind == FieldKind::Date {
            "date"
        } else {
            "text"
        };
        html! {
            div.field.wrong[self.problem.is_some()] {
                label for=(self.name) {
                    (self.label)
                    @if self.optional { span.optional { " (optional)" } }
                }
                @if let Some(text) = &self.hint { div.hint id=(hint) { (text) } }
                @if let Some(problem) = self.problem { p.error id=(error) { (problem.text) } }
                @if let FieldKind::Lines(rows) = self.kind {
                    textarea id=(self.name) name=(self.name) form=[self.form] rows=(rows) autocomplete=(self.autocomplete) required[required]
                        aria-invalid=[invalid] aria-describedby=[described.as_deref()] { (self.value) }
                } @else {
                    input.narrow[self.narrow].(class.unwrap_or("input")) type=(kind) id=(self.name) name=(self.name) form=[self.form] value=(self.value)
                        autocomplete=(self.autocomplete) inputmode=[mode] required[required] spellcheck="false" autocapitalize="off"
                        aria-invalid=[invalid] aria-describedby=[described.as_deref()];
                }
            }
        }
    }
}

/// A select element: value and text of each option, the first for no choice.
pub fn select(
    name: &str,
    label: &str,
    none: (&str, &str),
    options: &[(String, String)],
    chosen: Option<&str>,
) -> Markup {
    html! {
        div.field {
            label for=(name) { (label) }
            select id=(name) name=(name) {
                option value=(none.0) { (none.1) }
                @for (value, words) in options {
                    option value=(value) selected[chosen == Some(value)] { (words) }
                }
            }
        }
    }
}

/// A group of radio buttons or checkboxes.
#[derive(Clone, Debug)]
pub struct Choice<'a> {
    /// The `name` shared by the options.
    pub name: &'a str,
    pub legend: &'a str,
    pub hint: Option<Markup>,
    /// Value, label, secondary text, and whether it is selected.
    pub options: Vec<(&'a str, Markup, Option<Markup>, bool)>,
    /// Checkboxes instead of radio buttons.
    pub several: bool,
}

impl Choice<'_> {
    /// Renders it.
    pub fn show(&self, problems: &[Problem]) -> Markup {
        let kind = if self.several { "checkbox" } else { "radio" };
        let problem = problems.iter().find(|problem| problem.field == self.name);
        let error = format!("{}-error", self.name);
        html! {
            fieldset.field.choice.wrong[problem.is_some()] aria-describedby=[problem.map(|_| error.as_str())] {
                legend { (self.legend) }
                @if let Some(hint) = &self.hint { div.hint { (hint) } }
                @if let Some(problem) = problem { p.error id=(error) { (problem.text) } }
                @for (at, (value, words, more, chosen)) in self.options.iter().enumerate() {
                    @let id = if at == 0 { self.name.to_owned() } else { format!("{}-{at}", self.name) };
                    div.option {
                        input type=(kind) id=(id) name=(self.name) value=(value) checked[*chosen]
                            aria-describedby=[more.as_ref().map(|_| format!("{id}-more"))];
                        div {
                            label for=(id) { (words) }
                            @if let Some(more) = more { div.more id={ (id) "-more" } { (more) } }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_field_is_linked_to_its_problem() {
        let wrong = [Problem::new("name", "Give the key a name.")];
        let field = Field::new("name", "Name")
            .hint(html! { "Says what for" })
            .value("a<b")
            .problem(&wrong)
            .show()
            .into_string();
        assert!(
            field.contains("aria-describedby=\"name-hint name-error\""),
            "{field}"
        );
        assert!(field.contains("aria-invalid=\"true\""), "{field}");
        assert!(field.contains("value=\"a&lt;b\""), "{field}");
        let over = problems(&wrong).into_string();
        assert!(over.contains("href=\"#name\""), "{over}");
        assert!(over.contains("autofocus"), "{over}");
        assert_eq!(problems(&[]).into_string(), "");
    }

    #[test]
    fn a_valid_field_has_no_problem() {
        let other = [Problem::new("other", "Wrong.")];
        let field = Field::new("name", "Name").optional().problem(&other).show();
        let field = field.into_string();
        assert!(!field.contains("aria-"), "{field}");
        assert!(!field.contains(" required"), "{field}");
        assert!(field.contains("(optional)"), "{field}");
    }
}
