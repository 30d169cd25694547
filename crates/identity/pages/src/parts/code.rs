//! Code blocks with copy buttons.

use maud::{Markup, html};

/// One code example.
#[derive(Clone, Debug)]
pub struct Sample<'a> {
    /// Name: `curl`, `Python`, `JavaScript`.
    pub name: &'a str,
    /// The code.
    pub text: String,
}

/// A code block. `id` is unique on the page.
pub fn code(id: &str, label: &str, text: &str) -> Markup {
    html! {
        div.code {
            (copy(id, label))
            pre id=(id) tabindex="0" role="region" aria-label=(label) { code { (text) } }
        }
    }
}

/// A request in several languages, one visible; at most four. Works without JavaScript.
pub fn samples(id: &str, legend: &str, samples: &[Sample<'_>]) -> Markup {
    html! {
        fieldset.samples {
            legend { (legend) }
            div.switch {
                @for (at, sample) in samples.iter().enumerate() {
                    @let own = format!("{id}-pick-{at}");
                    span {
                        input.{ "pick-" (at) } type="radio" id=(own) name={ (id) "-pick" } value=(at) checked[at == 0] autocomplete="off";
                        label for=(own) { (sample.name) }
                    }
                }
            }
            @for (at, sample) in samples.iter().enumerate() {
                div.sample.{ "sample-" (at) } { (code(&format!("{id}-{at}"), &format!("{legend}: {}", sample.name), &sample.text)) }
            }
        }
    }
}

/// The copy button, shown by a script.
fn copy(id: &str, label: &str) -> Markup {
    html! {
        button.button.small.copy type="button" hidden data-copy=(id) { "Copy" span.unseen { " " (label) } }
    }
}
