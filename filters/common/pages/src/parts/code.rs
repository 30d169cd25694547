//! Code to copy.

use maud::{Markup, html};

/// One way to write a request.
#[derive(Clone, Debug)]
pub struct Sample<'a> {
    /// What it is called: `curl`, `Python`, `JavaScript`.
    pub name: &'a str,
    /// The text.
    pub text: String,
}

/// One block of code. `id` is unlike every other on the page.
pub fn code(id: &str, label: &str, text: &str) -> Markup {
    html! {
        div.code {
            (copy(id, label))
            pre id=(id) tabindex="0" role="region" aria-label=(label) { code { (text) } }
        }
    }
}

/// The same request in several languages, of which one shows; at most four. Works without a script.
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

/// The button that copies, which a script brings to sight.
fn copy(id: &str, label: &str) -> Markup {
    html! {
        button.button.small.copy type="button" hidden data-copy=(id) { "Copy" span.unseen { " " (label) } }
    }
}
