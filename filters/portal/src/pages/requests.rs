//! Table of requests, for the overview and usage pages.

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_pages::format::{self, count, credits_4};
use tollgate_pages::parts::{Cell, Column, Tone, pill, table};
use tollgate_store::{Endpoint, UsageFlags, UsageRow};

use crate::credential_names::CredentialNames;

/// Result of a request, from its usage flags.
pub(crate) fn result(flags: UsageFlags) -> Markup {
    let (tone, word) = if flags.contains(UsageFlags::CUT_UPSTREAM) {
        (Tone::Bad, "Upstream failed")
    } else if flags.contains(UsageFlags::INCOMPLETE) {
        (Tone::Warn, "Cut off by client")
    } else if flags.contains(UsageFlags::CACHE_HIT) {
        (Tone::Info, "From cache")
    } else {
        (Tone::Good, "Done")
    };
    pill(tone, word)
}

/// Requests, newest first. With `details`, each row can be expanded and shows date and time.
pub(crate) fn requests(
    caption: &str,
    rows: &[UsageRow],
    names: &CredentialNames,
    now: Timestamp,
    details: bool,
) -> Markup {
    let columns = [
        Column::text("Model and key"),
        Column::text("Time"),
        Column::number("Tokens"),
        Column::text("Result"),
        Column::number("Credits"),
    ];
    let rows: Vec<Vec<Cell>> = rows
        .iter()
        .map(|row| {
            let usage = &row.usage;
            vec![
                Cell::new(html! {
                    (format::single_line(&usage.model))
                    span.fine { (names.of(usage.credential)) }
                    @if details { (details_list(row)) }
                }),
                Cell::new(html! {
                    time datetime=(row.at.rfc3339()) title=(format::date_time(row.at)) {
                        @if details { (format::date(row.at, now)) " " }
                        (format::time_of_day(row.at))
                    }
                }),
                Cell::new(html! {
                    (count(usage.prompt_tokens)) span.second { " in " } (count(usage.completion_tokens)) span.second { " out" }
                }),
                Cell::new(result(usage.flags)),
                Cell::new(html! { (credits_4(row.cost)) }),
            ]
        })
        .collect();
    html! { div.requests { (table(caption, &columns, &rows, None)) } }
}

/// Further fields of a request.
fn details_list(row: &UsageRow) -> Markup {
    let usage = &row.usage;
    let flag = |flag| usage.flags.contains(flag);
    let address = match usage.endpoint {
        Endpoint::Chat => "Chat completions",
        _ => "Text completions",
    };
    let lasted = |micros: u64| format!("{} ms", count(micros / 1000));
    html! {
        details.about {
            summary { "Details" }
            dl {
                dt { "Request id" } dd { code { (row.operation) } }
                dt { "Operation" } dd { (address) @if flag(UsageFlags::STREAMED) { ", streamed" } }
                dt { "Cost" } dd { (format::credits_6(row.cost)) " credits" }
                @if let Some(micros) = usage.ttfb_us { dt { "First byte" } dd { (lasted(micros)) } }
                @if let Some(micros) = usage.total_us { dt { "Took" } dd { (lasted(micros)) } }
                @if flag(UsageFlags::ESTIMATED) { dt { "Tokens" } dd { "Estimated: the model provider did not report them." } }
            }
        }
    }
}
