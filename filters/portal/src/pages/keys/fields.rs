//! Fields of a key set by the owner at creation and changeable later: name, end, models, spending cap.

use std::sync::Arc;

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_money::{CapPeriod, Micros, SpendingCap};
use tollgate_pages::format;
use tollgate_pages::parts::{Choice, Field, FieldKind, Problem};

use crate::context::PortalContext;
use crate::form::{Chosen, Form, TypedChoice};
use crate::usage::{DAY, Period};

const NAME_CHARS_MAX: usize = 80;

/// The options for the end of a new key, the preselected one first: value and text.
const ENDS: [(&str, &str); 4] = [
    ("never", "Never"),
    ("30", "In 30 days"),
    ("90", "In 90 days"),
    ("date", "On a date"),
];

const END: TypedChoice<'_> = TypedChoice {
    choice: "ends",
    other: "date",
    preselected: ENDS[0].0,
    typed: "ends_on",
};

/// The name, if valid.
pub(super) fn name<'f>(form: &'f Form, problems: &mut Vec<Problem>) -> Option<&'f str> {
    let name = form.text("name");
    let wrong = if name.is_empty() {
        "Give the key a name, for example ci-runner."
    } else if name.chars().count() > NAME_CHARS_MAX {
        "Use at most 80 characters for the name."
    } else if format::single_line(name) != name {
        "Use only printable characters in the name, on one line."
    } else {
        return Some(name);
    };
    problems.push(Problem::new("name", wrong));
    None
}

/// The problem of a name that another active key has.
pub(super) fn taken(name: &str) -> Problem {
    let name = format::single_line(name);
    Problem::new("name", format!("You already have a key called {name}."))
}

/// The chosen models among the offered; `None` for all.
pub(super) fn models(form: &Form, offered: &[Arc<str>]) -> Option<Arc<[Arc<str>]>> {
    let is_chosen = |model: &&Arc<str>| form.all("models").any(|chosen| chosen == &***model);
    let models: Vec<Arc<str>> = offered.iter().filter(is_chosen).cloned().collect();
    (!models.is_empty()).then(|| models.into())
}

/// The spending cap, if any.
pub(super) fn cap(form: &Form, problems: &mut Vec<Problem>) -> Option<SpendingCap> {
    let cap = form.text("cap");
    if cap.is_empty() {
        return None;
    }
    match cap.parse::<Micros>() {
        Ok(max) if max.is_positive() => {
            let period = match form.text("cap_period") {
                "total" => CapPeriod::Total,
                _ => CapPeriod::Month,
            };
            Some(SpendingCap { max, period })
        }
        _ => {
            let text = "Write the cap in credits, like 50 or 2.5.";
            problems.push(Problem::new("cap", text));
            None
        }
    }
}

/// The end of a new key by the choice and the day beside it.
pub(super) fn end(form: &Form, now: Timestamp, problems: &mut Vec<Problem>) -> Option<Timestamp> {
    match form.chosen(&END) {
        Chosen::Option("30") => Some(now + 30 * DAY),
        Chosen::Option("90") => Some(now + 90 * DAY),
        Chosen::Option(_) => None,
        Chosen::Typed(day) => last_day(day, now, problems),
        Chosen::Both { option, .. } => {
            let known = ENDS.iter().find(|(value, _)| *value == option);
            let option = known.map_or(option, |(_, text)| *text);
            let [choice, typed] = [
                format!(
                    "You chose “{option}” and typed an end date. Choose “On a date” to use the date."
                ),
                format!("Leave the end date empty for a key that ends “{option}”."),
            ];
            problems.push(Problem::new(END.choice, choice));
            problems.push(Problem::new(END.typed, typed));
            None
        }
    }
}

/// The end of a typed last day: a key works until that is over.
pub(super) fn last_day(
    day: &str,
    now: Timestamp,
    problems: &mut Vec<Problem>,
) -> Option<Timestamp> {
    let wrong = match Period::read(day, day, now) {
        Ok(last) if !day.is_empty() && last.to() > now => return Some(last.to()),
        Ok(_) if !day.is_empty() => "Choose today or a later day.".to_owned(),
        _ => format!("Write the day like {}.", format::day(now + 90 * DAY)),
    };
    problems.push(Problem::new(END.typed, wrong));
    None
}

/// The models of this installation.
pub(super) fn sold(context: &PortalContext) -> Vec<Arc<str>> {
    let models = context.settings.installation.catalog.models().iter();
    models.map(|model| model.id.clone()).collect()
}

pub(super) fn name_field(form: &Form, problems: &[Problem]) -> Markup {
    let field = Field::new("name", "Name").value(form.text("name"));
    let field = field.hint(html! { "What the key is for, for example ci-runner." });
    field.problem(problems).show()
}

/// The choice of an end, and the field for a day.
pub(super) fn end_fields(form: &Form, problems: &[Problem]) -> Markup {
    let chosen = form.find(END.choice).unwrap_or(END.preselected);
    let options = ENDS.map(|(value, words)| (value, html! { (words) }, None, value == chosen));
    let choice = Choice {
        name: END.choice,
        legend: "Ends",
        hint: None,
        options: options.to_vec(),
        several: false,
    };
    html! {
        (choice.show(problems))
        (end_field(form, "For “On a date”: the last day (UTC) on which it works.", problems))
    }
}

/// The field for the last day.
pub(super) fn end_field(form: &Form, hint: &str, problems: &[Problem]) -> Markup {
    let field = Field::new(END.typed, "End date").kind(FieldKind::Date);
    let field = field.value(form.text(END.typed)).narrow().optional();
    field.hint(html! { (hint) }).problem(problems).show()
}

/// The models and the spending cap, each folded while empty.
pub(super) fn limit_fields(form: &Form, offered: &[Arc<str>], problems: &[Problem]) -> Markup {
    let models: Vec<_> = offered
        .iter()
        .map(|model| {
            let chosen = form.all("models").any(|chosen| chosen == &**model);
            (
                &**model,
                html! { (format::single_line(model)) },
                None,
                chosen,
            )
        })
        .collect();
    let period = form.find("cap_period").unwrap_or("month");
    let periods = [
        ("month", "Each calendar month (UTC)"),
        ("total", "All time"),
    ]
    .map(|(value, words)| (value, html! { (words) }, None, value == period))
    .to_vec();
    let choice = |name, legend, hint: Option<&str>, options, several| Choice {
        name,
        legend,
        hint: hint.map(|hint| html! { (hint) }),
        options,
        several,
    };
    html! {
        @if !models.is_empty() {
            details.more-fields open[form.all("models").next().is_some()] {
                summary { "Limit it to some models" }
                (choice("models", "Models (optional)", Some("Leave all unchecked to allow every model, including new ones."), models, true)
                    .show(problems))
            }
        }
        details.more-fields open[!form.text("cap").is_empty()] {
            summary { "Limit what it spends" }
            (Field::new("cap", "Spending cap in credits").kind(FieldKind::Decimal).value(form.text("cap")).narrow().optional()
                .hint(html! { "Requests with this key are refused once it has spent this much." }).problem(problems).show())
            (choice("cap_period", "The cap counts", None, periods, false).show(problems))
        }
    }
}
