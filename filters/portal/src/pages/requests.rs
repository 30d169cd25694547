//! Table of requests, answered and refused, for the overview and usage pages.

use std::cmp::Reverse;

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_money::CredentialId;
use tollgate_openai::Family;
use tollgate_pages::format::{self, count, credits_4};
use tollgate_pages::parts::{Cell, Column, Tone, pill, table};
use tollgate_store::{
    PageCursor, ReadError, Reader, RefusalRow, RequestPosition, RequestsQuery, UsageFlags, UsageRow,
};

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

/// A request of the list: with a usage record, or refused or failed before the answer began.
#[derive(Clone, Debug)]
pub(crate) enum ListedRequest {
    Answered(UsageRow),
    Refused(RefusalRow),
}

impl ListedRequest {
    /// The requests of a query, newest first.
    pub(crate) fn read(
        read: &Reader,
        wanted: &RequestsQuery,
    ) -> Result<Vec<ListedRequest>, ReadError> {
        let answered = read.requests(wanted)?.into_iter();
        let refused = read.refusals(wanted)?.into_iter();
        let mut listed: Vec<_> = answered.map(ListedRequest::Answered).collect();
        listed.extend(refused.map(ListedRequest::Refused));
        listed.sort_by_key(|request| Reverse(request.position()));
        // Requests next to the cursor are kept.
        let beyond = listed.len().saturating_sub(wanted.limit);
        match wanted.cursor {
            PageCursor::NewerThan(_) => drop(listed.drain(..beyond)),
            _ => listed.truncate(wanted.limit),
        }
        Ok(listed)
    }

    /// Its position in the order of time.
    pub(crate) fn position(&self) -> RequestPosition {
        match self {
            ListedRequest::Answered(row) => RequestPosition {
                at: row.at,
                operation: row.operation,
            },
            ListedRequest::Refused(row) => row.position(),
        }
    }

    fn model(&self) -> Option<&str> {
        match self {
            ListedRequest::Answered(row) => Some(&row.usage.model),
            ListedRequest::Refused(row) => row.model.as_deref(),
        }
    }

    fn credential(&self) -> Option<CredentialId> {
        match self {
            ListedRequest::Answered(row) => row.usage.credential,
            ListedRequest::Refused(row) => row.credential,
        }
    }

    fn total_us(&self) -> Option<u64> {
        match self {
            ListedRequest::Answered(row) => row.usage.total_us,
            ListedRequest::Refused(row) => row.total_us,
        }
    }

    /// The result, the status and the error code.
    fn result(&self) -> Markup {
        let (pill, status, code) = match self {
            ListedRequest::Answered(row) => (result(row.usage.flags), row.usage.http_status, None),
            ListedRequest::Refused(row) => {
                let (tone, word) = match row.status {
                    500.. => (Tone::Bad, "Failed"),
                    _ => (Tone::Warn, "Refused"),
                };
                (pill(tone, word), row.status, Some(&row.code))
            }
        };
        html! {
            (pill)
            span.fine { (status) @if let Some(code) = code { " " code { (code) } } }
        }
    }
}

/// Requests, newest first. With `details`, each row can be expanded and shows date and time.
pub(crate) fn requests(
    caption: &str,
    rows: &[ListedRequest],
    names: &CredentialNames,
    now: Timestamp,
    details: bool,
) -> Markup {
    let columns = [
        Column::text("Model and key"),
        Column::text("Time"),
        Column::number("Tokens"),
        Column::text("Result"),
        Column::number("Took"),
        Column::number("Credits"),
    ];
    let rows: Vec<Vec<Cell>> = rows
        .iter()
        .map(|row| {
            let at = row.position().at;
            let several = match row {
                ListedRequest::Refused(row) if row.requests > 1 => Some(row.requests),
                _ => None,
            };
            vec![
                Cell::new(html! {
                    @match (several, row.model()) {
                        (Some(number), _) => { (count(number)) " requests" }
                        (None, Some(model)) => (format::single_line(model)),
                        (None, None) => "No model",
                    }
                    span.fine { @if several.is_some() && row.credential().is_none() { "Several keys" } @else { (names.of(row.credential())) } }
                    @if details { (details_of(row)) }
                }),
                Cell::new(html! {
                    time datetime=(at.rfc3339()) title=(format::date_time(at)) {
                        @if details { (format::date(at, now)) " " }
                        (format::time_of_day(at))
                    }
                }),
                Cell::new(html! {
                    @if let ListedRequest::Answered(UsageRow { usage, .. }) = row {
                        (count(usage.prompt_tokens)) span.second { " in " } (count(usage.completion_tokens)) span.second { " out" }
                    }
                }),
                Cell::new(row.result()),
                Cell::labelled(html! { @if let Some(micros) = row.total_us() { (lasted(micros)) } }),
                Cell::new(html! {
                    @match row {
                        ListedRequest::Answered(row) => (credits_4(row.cost)),
                        ListedRequest::Refused(_) => "0",
                    }
                }),
            ]
        })
        .collect();
    html! { div.requests { (table(caption, &columns, &rows, None)) } }
}

fn lasted(micros: u64) -> String {
    format!("{} ms", count(micros.div_ceil(1000)))
}

fn details_of(row: &ListedRequest) -> Markup {
    match row {
        ListedRequest::Answered(row) => details_list(row),
        ListedRequest::Refused(row) => html! {
            details.about {
                summary { "Details" }
                dl {
                    dt { "Request id" } dd { code { (row.id) } }
                    dt { "Error" } dd { a href={ "/docs/errors#" (row.code) } { code { (row.code) } } }
                    @if row.requests > 1 {
                        dt { "Requests" }
                        dd { (count(row.requests)) " equal ones within an hour; the id is that of the first, the time that of the last." }
                    }
                }
            }
        },
    }
}

/// Further fields of a request.
fn details_list(row: &UsageRow) -> Markup {
    let usage = &row.usage;
    let flag = |flag| usage.flags.contains(flag);
    let operation = Family::stored_as(usage.endpoint.code()).map_or("", |family| family.title);
    html! {
        details.about {
            summary { "Details" }
            dl {
                dt { "Request id" } dd { code { (row.operation) } }
                dt { "Operation" } dd { (operation) @if flag(UsageFlags::STREAMED) { ", streamed" } }
                dt { "Cost" } dd { (format::credits_6(row.cost)) " credits" }
                @if let Some(micros) = usage.ttfb_us { dt { "First byte" } dd { (lasted(micros)) } }
                @if let Some(micros) = usage.total_us { dt { "Took" } dd { (lasted(micros)) } }
                @if flag(UsageFlags::ESTIMATED) { dt { "Tokens" } dd { "Estimated: the model provider did not report them." } }
            }
        }
    }
}
