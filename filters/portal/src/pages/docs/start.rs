//! Quick start: from sign-up to a first request.

use maud::html;
use tollgate_pages::format::{price as amount, single_line};
use tollgate_pages::parts::{self, Cell, Column};

use super::section::Section;
use crate::context::PortalContext;
use crate::samples::ChatExample;

pub(super) fn sections(context: &PortalContext) -> Vec<Section> {
    vec![
        base_address(context),
        first_request(context),
        streaming(context),
        cached_answers(),
        models(context),
    ]
}

fn base_address(context: &PortalContext) -> Section {
    let api = context.address.api();
    let prefix = context.key_form.prefix();
    Section {
        anchor: "base-address",
        heading: "Base address and key",
        content: html! {
            p { "The API is compatible with OpenAI’s. Any OpenAI library works: change the base address and the key." }
            (parts::code("base", "Base address", &api))
            p {
                "A key begins with " code { (prefix) } ". Make one under " a href="/keys" { "API keys" }
                "; it is shown once. Send it as " code { "Authorization: Bearer …" }
                ", never in a URL. Apps that act for other people use OAuth 2.0 with PKCE; the metadata is at "
                code { (context.address.base_url()) "/.well-known/oauth-authorization-server" } "."
            }
        },
    }
}

fn first_request(context: &PortalContext) -> Section {
    let hello = ChatExample::hello(example_model(context));
    Section {
        anchor: "first-request",
        heading: "First request",
        content: html! {
            p { "Put the key into the environment as " code { (context.address.variable()) } ", then:" }
            (parts::samples("first", "A chat request", &hello.samples(&context.address)))
            p {
                "The response has the usual members, and " code { "x_" (context.service.name) } " with what it cost: "
                code { "credits_used" } ", " code { "credits_remaining" } " and whether it came from the cache."
            }
        },
    }
}

fn streaming(context: &PortalContext) -> Section {
    let streamed = ChatExample {
        stream: Some(true),
        ..ChatExample::hello(example_model(context))
    };
    Section {
        anchor: "streaming",
        heading: "Streaming",
        content: html! {
            p {
                "With " code { "stream" } " the response is a stream of server-sent events that ends with " code { "data: [DONE]" }
                ". The cost is in the last event before it. An error during the stream is one event with the error; there is no "
                code { "[DONE]" } " after it."
            }
            (parts::samples("streamed", "The same request, streamed", &streamed.samples(&context.address)))
        },
    }
}

fn cached_answers() -> Section {
    Section {
        anchor: "cache",
        heading: "Cached answers",
        content: html! {
            p {
                "A repeated request may be answered from the cache. Send " code { "\"cache\": false" }
                " for a new answer; it is then neither read from the cache nor stored."
            }
        },
    }
}

fn models(context: &PortalContext) -> Section {
    let models: Vec<Vec<Cell>> = context
        .settings
        .installation
        .catalog
        .models()
        .iter()
        .map(|model| {
            let price = &model.price;
            vec![
                Cell::new(html! { (single_line(&model.id)) }),
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
    Section {
        anchor: "models",
        heading: "Models and prices",
        content: html! {
            @if models.is_empty() { p { "No model is available at the moment." } }
            @else { (parts::table("Models and prices", &columns, &models, None)) }
            @if let Some(price) = &context.settings.installation.credit_price { p { (price) } }
            p { code { "GET " (context.address.api()) "/models" } " lists those that your key may use." }
        },
    }
}

/// The model of the examples.
fn example_model(context: &PortalContext) -> &str {
    let model = context
        .settings
        .installation
        .catalog
        .default_model()
        .or(context.settings.installation.catalog.models().first());
    model.map_or("MODEL", |model| &model.id)
}
