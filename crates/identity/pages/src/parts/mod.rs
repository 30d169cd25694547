//! UI components of pages.

mod bar_chart;
mod code;
mod form;
mod table;

use maud::{Markup, html};

pub use bar_chart::{BarChart, BarDay};
pub use code::{Sample, code, samples};
pub use form::{Choice, Field, FieldKind, Problem, csrf, problems, select};
pub use table::{Cell, Column, table};

/// Status tone; text, shape and colour always appear together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Done, active: a disc.
    Good,
    /// Expires soon, may spend: a triangle.
    Warn,
    /// Failed, revoked by force: a diamond.
    Bad,
    /// New, cached, running: a ring.
    Info,
    /// Ended, off: a grey ring.
    Off,
}

impl Tone {
    fn class(self) -> &'static str {
        match self {
            Tone::Good => "good",
            Tone::Warn => "warn",
            Tone::Bad => "bad",
            Tone::Info => "info",
            Tone::Off => "off",
        }
    }

    fn shape(self) -> Markup {
        html! {
            svg aria-hidden="true" viewBox="0 0 10 10" width="10" height="10" {
                @match self {
                    Tone::Good => circle cx="5" cy="5" r="4" {},
                    Tone::Warn => path d="M5 1 9.5 9h-9z" {},
                    Tone::Bad => path d="M5 .5 9.5 5 5 9.5.5 5z" {},
                    Tone::Info | Tone::Off => circle.ring cx="5" cy="5" r="3.2" {},
                }
            }
        }
    }
}

/// The heading of a dashboard page, with an optional action at the right.
pub fn heading(title: &str, action: Option<Markup>) -> Markup {
    html! {
        div.head {
            h1 { (title) }
            @if let Some(action) = action { div.head-action { (action) } }
        }
    }
}

/// A panel with a heading.
pub fn panel(title: &str, content: Markup) -> Markup {
    panel_beside(title, html! {}, content)
}

/// A panel with a heading and content at its right.
pub fn panel_beside(title: &str, beside: Markup, content: Markup) -> Markup {
    html! {
        section.panel {
            div.panel-head { h2 { (title) } div { (beside) } }
            (content)
        }
    }
}

/// A notice: an event, and the next action. Errors are announced at once, other notices politely.
pub fn notice(tone: Tone, lead: &str, text: Markup) -> Markup {
    let role = if tone == Tone::Bad { "alert" } else { "status" };
    html! {
        div.notice.(tone.class()) role=(role) {
            (tone.shape())
            div { p { b { (lead) } " " (text) } }
        }
    }
}

/// A status pill of one or two words.
pub fn pill(tone: Tone, word: &str) -> Markup {
    html! { span.pill.(tone.class()) { (tone.shape()) (word) } }
}

/// An empty state, with a link to the first action.
pub fn empty(text: &str, link: Option<(&str, &str)>) -> Markup {
    html! {
        div.empty {
            p { (text) }
            @if let Some((address, words)) = link { p { a href=(address) { (words) } } }
        }
    }
}

/// A link styled as a button; filled for the primary action of a page.
pub fn link_button(address: &str, words: &str, filled: bool) -> Markup {
    html! { a.button.filled[filled] href=(address) { (words) } }
}

/// A submit button; filled for the primary action of a page.
pub fn submit(words: &str, filled: bool) -> Markup {
    html! { button.button.filled[filled] type="submit" { (words) } }
}

/// A check mark beside a success message.
pub fn tick() -> Markup {
    html! {
        svg.tick aria-hidden="true" viewBox="0 0 20 20" width="20" height="20" {
            circle cx="10" cy="10" r="8.2" {}
            path d="M6.2 10.4 8.8 13l5-5.6" {}
        }
    }
}

/// The red button that confirms a deletion.
pub fn destroy(words: &str) -> Markup {
    html! { button.button.destroy type="submit" { (words) } }
}

/// Key figures side by side: name, value, remark.
pub fn figures(label: &str, each: &[(&str, Markup, Markup)]) -> Markup {
    html! {
        section.panel.figures aria-label=(label) {
            @for (name, figure, about) in each {
                div {
                    p.figure-name { (name) }
                    p.figure { (figure) }
                    div.figure-about { (about) }
                }
            }
        }
    }
}

/// Links with one selected: periods of a chart.
pub fn switch(label: &str, each: &[(&str, &str, bool)]) -> Markup {
    html! {
        ul.switch aria-label=(label) {
            @for (address, words, chosen) in each {
                li { a href=(address) aria-current=[chosen.then_some("true")] { (words) } }
            }
        }
    }
}

/// Links to newer and older entries.
pub fn pager(newer: Option<&str>, older: Option<&str>) -> Markup {
    if newer.is_none() && older.is_none() {
        return html! {};
    }
    html! {
        nav.pager aria-label="Pages of this list" {
            @if let Some(address) = newer { a href=(address) rel="prev" { "Newer" } }
            @if let Some(address) = older { a href=(address) rel="next" { "Older" } }
        }
    }
}
