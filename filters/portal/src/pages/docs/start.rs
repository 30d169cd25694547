//! From nothing to one request that works.

use maud::html;
use tollgate_pages::format::{line, price as amount};
use tollgate_pages::parts::{self, Cell, Column};

use super::Section;
use crate::context::PortalContext;
use crate::samples::ChatExample;

pub(super) fn sections(context: &PortalContext) -> Vec<Section> {
    let api = context.address.api();
    let model = context.installation.catalog.default_model().or(context
        .installation
        .catalog
        .models()
        .first());
    let id = model.map_or("MODEL", |model| &model.id);
    let hello = ChatExample::hello(id);
    let streamed = ChatExample {
        stream: Some(true),
        ..ChatExample::hello(id)
    };
    let prefix = context.key_form.prefix();
    let models: Vec<Vec<Cell>> = context
        .installation
        .catalog
        .models()
        .iter()
        .map(|model| {
            let price = &model.price;
            vec![
                Cell::new(html! { (line(&model.id)) }),
                Cell::labelled(html! { (amount(price.input.per_million())) }),
                Cell::labelled(html! { (amount(price.output.per_million())) }),
                Cell::labelled(html! { (amount(price.request)) }),
            ]
        })
        .collect();
    let columns = [
        Column::text("Model"),
        Column::number("Credits per million tokens in"),
        Column::number("Out"),
        Column::number("Per request"),
    ];
    vec![
        Section {
            anchor: "base-address",
            heading: "Base address and key",
            content: html! {
                p { "The API speaks the protocol of OpenAI’s. Any of its libraries works: change the base address and the key." }
                (parts::code("base", "Base address", &api))
                p {
                    "A key begins with " code { (prefix) } ". Make one under " a href="/keys" { "API keys" }
                    "; it is shown once. Send it as " code { "Authorization: Bearer …" }
                    ", never in an address. Apps that act for other people use OAuth 2.0 with PKCE; they find everything at "
                    code { (context.address.base_url()) "/.well-known/oauth-authorization-server" } "."
                }
            },
        },
        Section {
            anchor: "first-request",
            heading: "One request that works",
            content: html! {
                p { "Put the key into the environment as " code { (context.address.variable()) } ", then:" }
                (parts::samples("first", "A chat request", &hello.samples(&context.address)))
                p {
                    "The answer has the usual members, and " code { "x_" (context.service.name) } " with what it cost: "
                    code { "credits_used" } ", " code { "credits_remaining" } " and whether it came from the cache."
                }
            },
        },
        Section {
            anchor: "streaming",
            heading: "Streaming",
            content: html! {
                p {
                    "With " code { "stream" } " the answer comes as server-sent events and ends with " code { "data: [DONE]" }
                    ". The cost stands in the last event before it. An error in the middle is one event with the error; there is no "
                    code { "[DONE]" } " after it."
                }
                (parts::samples("streamed", "The same request, streamed", &streamed.samples(&context.address)))
            },
        },
        Section {
            anchor: "cache",
            heading: "Cached answers",
            content: html! {
                p {
                    "A request that was answered before may be answered from the cache. Send " code { "\"cache\": false" }
                    " to have it answered anew; it is then neither read from the cache nor stored."
                }
            },
        },
        Section {
            anchor: "models",
            heading: "Models and prices",
            content: html! {
                @if models.is_empty() { p { "No model is on sale at the moment." } }
                @else { (parts::table("Models and prices", &columns, &models, None)) }
                @if let Some(price) = &context.installation.credit_price { p { (price) } }
                p { code { "GET " (api) "/models" } " lists those that your key may use." }
            },
        },
    ]
}
