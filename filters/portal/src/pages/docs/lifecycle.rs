//! What stays, and how changes are told.

use maud::html;
use tollgate_pages::format;
use tollgate_pages::parts::{Cell, Column, table};

use super::Section;
use crate::context::PortalContext;

pub(super) fn sections(context: &PortalContext) -> Vec<Section> {
    vec![
        Section {
            anchor: "versions",
            heading: "Versions",
            content: html! {
                p {
                    "The version stands in the path: " code { (context.address.api()) } " is version 1. Within it, members, codes and models may be "
                    "added; nothing that a program relies on is taken away or changes its meaning. Pass over members that you do not know."
                }
            },
        },
        Section {
            anchor: "deprecation",
            heading: "Deprecation and sunset",
            content: html! {
                @if context.installation.deprecations.is_empty() { p { "Nothing is deprecated, and no end is set." } }
                @else { (table("What ends", &columns(), &deprecations(context), None)) }
                p {
                    "An address on which nothing new should be built says so in every answer, in the field " code { "Deprecation" }
                    " (RFC 9745: the moment, in seconds since 1970, behind an " code { "@" } "). The date in " code { "Sunset" }
                    " (RFC 8594) is the first on which it may be gone; until then it works as before. " code { "Link" } " leads to this page ("
                    code { "rel=\"deprecation\"" } ", " code { "rel=\"sunset\"" } ") and to what takes its place ("
                    code { "rel=\"successor-version\"" } "). The OpenAPI document marks the operation as " code { "deprecated" } "."
                }
                p { "A program does well to log these fields, and to tell somebody." }
            },
        },
        Section {
            anchor: "credentials",
            heading: "Keys and tokens",
            content: html! {
                p {
                    "A key works until it is revoked, or until the end that it was made with. A token of an app ends by itself; revoking the app "
                    "ends all of its tokens. Whatever is revoked is refused from the next request, everywhere within 2 seconds. A stream that is "
                    "under way goes on to its end."
                }
            },
        },
        Section {
            anchor: "prices",
            heading: "Prices",
            content: html! {
                p { "A request is charged at the price that was in force when it began. What was charged is never changed afterwards." }
            },
        },
    ]
}

fn columns() -> [Column<'static>; 4] {
    ["Address", "Deprecated from", "May be gone from", "Use"].map(Column::text)
}

fn deprecations(context: &PortalContext) -> Vec<Vec<Cell>> {
    let date = |at: Option<i64>| {
        Cell::labelled(html! {
            @if let Some(at) = at { time datetime=(format::rfc3339(at)) { (format::whole(at)) } } @else { "Not set" }
        })
    };
    let rows = context.installation.deprecations.iter().map(|path_suffix| {
        vec![
            Cell::new(html! { code { (path_suffix.route) } }),
            date(path_suffix.deprecated_at),
            date(path_suffix.sunset_at),
            Cell::labelled(html! {
                @if let Some(successor) = &path_suffix.successor { code { (successor) } } @else { "Nothing" }
            }),
        ]
    });
    rows.collect()
}
