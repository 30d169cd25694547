//! Versioning, deprecation and sunset.

use maud::html;
use tollgate_clock::Timestamp;
use tollgate_pages::format;
use tollgate_pages::parts::{Cell, Column, table};

use super::section::Section;
use crate::context::PortalContext;

pub(super) fn sections(context: &PortalContext) -> Vec<Section> {
    vec![
        Section {
            anchor: "versions",
            heading: "Versions",
            content: html! {
                p {
                    "The version is part of the path: " code { (context.address.api()) } " is version 1. Within it, members, codes and models may be "
                    "added; nothing that a program relies on is removed or changes its meaning. Ignore members that you do not know."
                }
            },
        },
        Section {
            anchor: "deprecation",
            heading: "Deprecation and sunset",
            content: html! {
                @if context.settings.installation.deprecations.is_empty() { p { "Nothing is deprecated." } }
                @else { (table("Deprecated addresses", &columns(), &deprecations(context), None)) }
                p {
                    "A deprecated address says so in every response, in the header " code { "Deprecation" }
                    " (RFC 9745: the time in seconds since 1970, after an " code { "@" } "). The date in " code { "Sunset" }
                    " (RFC 8594) is the first on which it may be removed; until then it works as before. " code { "Link" } " leads to this page ("
                    code { "rel=\"deprecation\"" } ", " code { "rel=\"sunset\"" } ") and to its successor ("
                    code { "rel=\"successor-version\"" } "). The OpenAPI document marks the operation as " code { "deprecated" } "."
                }
                p { "Programs should log these headers and alert their maintainers." }
            },
        },
        Section {
            anchor: "credentials",
            heading: "Keys and tokens",
            content: html! {
                p {
                    "A key works until it is revoked or expires. A token of an app expires by itself; revoking the app "
                    "ends all of its tokens. Revoked credentials are refused from the next request, everywhere within 2 seconds. A stream that is "
                    "in progress continues to its end."
                }
                p {
                    "A person who finds a leaked key can end it without an account: "
                    code { "curl -X POST -H \"Authorization: Bearer KEY\" " (context.address.base_url()) "/keys/revoke" }
                    ". The key is read from that header only. The answer is 200 for every key, also for an unknown one. The owner of the account gets a mail "
                    "with the name of the key, the time and what to do."
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
    ["Address", "Deprecated from", "May be removed from", "Use"].map(Column::text)
}

fn deprecations(context: &PortalContext) -> Vec<Vec<Cell>> {
    let date = |at: Option<Timestamp>| {
        Cell::labelled(html! {
            @if let Some(at) = at { time datetime=(at.rfc3339()) { (format::date_time(at)) } } @else { "Not set" }
        })
    };
    let rows = context.settings.installation.deprecations.iter().map(|path_suffix| {
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
