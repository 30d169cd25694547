//! Rate limits, as configured.

use maud::html;
use tollgate_pages::format::count;
use tollgate_pages::parts::{self, Cell, Column};

use super::section::Section;
use crate::context::PortalContext;

pub(super) fn sections(context: &PortalContext) -> Vec<Section> {
    let columns = [
        Column::text("Class"),
        Column::number("Requests"),
        Column::number("Window"),
        Column::number("Tokens in it"),
        Column::number("At once"),
    ];
    let no_limit = || "no limit".to_owned();
    let rows: Vec<Vec<Cell>> = context.settings
        .installation
        .classes
        .iter()
        .map(|class| {
            vec![
                Cell::new(html! { (class.name) }),
                Cell::labelled(html! { (count(class.requests.into())) }),
                Cell::labelled(html! { (class.window_secs) " s" }),
                Cell::labelled(html! { (class.tokens.map_or_else(no_limit, count)) }),
                Cell::labelled(html! { (class.concurrent.map_or_else(no_limit, |at_once| count(at_once.into()))) }),
            ]
        })
        .collect();
    let first = context
        .settings
        .installation
        .classes
        .iter()
        .find(|class| &*class.name == "free")
        .or(context.settings.installation.classes.first());
    let (quota, window) = first.map_or((60, 60), |class| (class.requests, class.window_secs));
    let example = format!(
        "HTTP/1.1 429 Too Many Requests\nRateLimit-Policy: \"requests\";q={quota};w={window}\nRateLimit: \"requests\";r=0;t=12\n\
         RateLimit-Limit: {quota}\nRateLimit-Remaining: 0\nRateLimit-Reset: 12\nRetry-After: 12"
    );
    vec![
        Section {
            anchor: "classes",
            heading: "Requests",
            content: html! {
                p {
                    "Every account has a class. Its quota refills continuously over the window; a full quota may be used at once. Requests "
                    "without credentials count as " code { "anonymous" } ", by client address."
                }
                (parts::table("Limits by class", &columns, &rows, None))
            },
        },
        Section {
            anchor: "headers",
            heading: "Response headers",
            content: html! {
                p { "Every counted response reports the remaining quota. When the quota is used up the response is 429, with the time to wait:" }
                (parts::code("fields", "Headers of a 429 response", &example))
            },
        },
        Section {
            anchor: "sizes",
            heading: "Sizes",
            content: html! {
                p {
                    "A request for a completion has at most " (count(context.settings.installation.completion_bytes_max / 1024)) " KiB. What a model can read and write "
                    "together is its context length; " code { "GET " (context.address.api()) "/models" } " lists it for each."
                }
            },
        },
        Section {
            anchor: "credits",
            heading: "Credits",
            content: html! {
                p {
                    "Before a request is sent to a model, the most that it can cost is held; when it ends you pay for what was used, and the rest "
                    "is released. A request that the balance does not cover is refused with 402, and nothing is charged. A key can have its own spending cap."
                }
            },
        },
    ]
}
