//! `/credits`: balance, statement and receipts.

pub(crate) mod add;
pub(crate) mod order;

use std::time::Duration;

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_filter::Reply;
use tollgate_identity::KeyId;
use tollgate_ledger::Balance;
use tollgate_money::AccountId;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Cell, Column, Tone, table};
use tollgate_pages::{NavItem, Page};
use tollgate_store::{EntryKind, ReadError, Reader, TopUpRow, TopUpState, reading};

use crate::amounts::{amount, usd};
use crate::context::PortalContext;
use crate::credential_names::CredentialNames;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::statement::{Line, LineKind, lines, truncate_at_day};
use crate::usage::{DAY, Period};

/// Lines per page.
const LINES: usize = 50;

/// Days read at once.
const WINDOW: Duration = DAY.saturating_mul(31);

/// Windows read for one page at most; an account with little activity has few lines in many days.
const WINDOWS: usize = 12;

/// Number of receipts shown.
const RECEIPTS: usize = 10;

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let (account, now) = (request.require_session()?.account, request.now);
    let before = request.query.text("before").to_owned();
    let until = Period::read(&before, &before, now)
        .ok()
        .filter(|_| !before.is_empty())
        .map(Period::from);
    let read = move |read: &Reader| {
        let end = until.unwrap_or(Timestamp::MAX);
        Ok((
            ledger(read, account, end, now)?,
            CredentialNames::read(read, account)?,
            read.top_ups_of(account, Timestamp::MAX, 4 * RECEIPTS)?,
        ))
    };
    let ((lines, next), names, bought) = reading(&context.store, read).await?;
    let balance = context.ledger.balance(account).unwrap_or_default();
    let newer = until.map(|_| "/credits");
    let older = next.map(|day| format!("/credits?before={}", format::day(day)));
    let is_sold = context.sells_credits();
    let content = html! {
        (parts::heading("Credits", is_sold.then(|| parts::link_button("/credits/add", "Add credits", true))))
        @if !balance.available.is_positive() {
            (parts::notice(Tone::Bad, "Your balance is used up.", html! { "Requests are refused until you have credits." }))
        }
        (sum(&balance))
        section.panel {
            h2 { "Ledger" }
            @if lines.is_empty() {
                (parts::empty("No entries yet.", None))
            } @else {
                (ledger_table(&lines, &names, now))
            }
            (parts::pager(newer, older.as_deref()))
        }
        (receipts(&bought, now))
    };
    let page = Page::dashboard("Credits", NavItem::Credits, viewer, content);
    Ok(request.page(context, &page))
}

/// The lines of a page that ends before a day, and the end day of the next page.
fn ledger(
    read: &Reader,
    account: AccountId,
    end: Timestamp,
    now: Timestamp,
) -> Result<(Vec<Line>, Option<Timestamp>), ReadError> {
    let newest = end.min(now.start_of_day() + DAY);
    let mut from = newest - WINDOW;
    for window in 1..=WINDOWS {
        let Some(statement) = read.statement(account, from, end)? else {
            break;
        };
        let mut found = lines(&statement);
        if let Some(next) = truncate_at_day(&mut found, LINES) {
            return Ok((found, Some(next)));
        }
        let Some(older) = statement.older else {
            return Ok((found, None));
        };
        if window == WINDOWS || found.len() >= LINES {
            return Ok((found, Some(from)));
        }
        from = older.start_of_day() - WINDOW;
    }
    Ok((Vec::new(), None))
}

fn sum(balance: &Balance) -> Markup {
    html! {
        section.panel aria-label="Balance" {
            dl.sum {
                div { dt { "Balance" } dd.number { (format::credits_6(balance.total())) } }
                div { dt { "Held for running requests" } dd.number { (format::signed_credits_6(-balance.held)) } }
                div.total { dt { "Available" } dd.number { (format::credits_6(balance.available)) " " small { "credits" } } }
            }
        }
    }
}

fn ledger_table(lines: &[Line], names: &CredentialNames, now: Timestamp) -> Markup {
    let columns = [
        Column::text("Time"),
        Column::text("What"),
        Column::number("Change"),
        Column::number("Balance after"),
    ];
    let rows: Vec<Vec<Cell>> = lines
        .iter()
        .map(|line| {
            vec![
                Cell::new(format::relative_time(line.at, now)),
                Cell::new(words(line, names)),
                Cell::labelled(html! { (format::signed_credits_6(line.change)) }),
                Cell::labelled(html! { (format::credits_6(line.after)) }),
            ]
        })
        .collect();
    table("Ledger", &columns, &rows, None)
}

/// A line as text. The text contains ledger data only, and nothing from a request.
fn words(line: &Line, names: &CredentialNames) -> Markup {
    match &line.kind {
        LineKind::Spent {
            credential,
            requests,
        } => {
            let day = format::day(line.at);
            let key = credential
                .map(|id| format!("&key={}", KeyId(id)))
                .unwrap_or_default();
            let requests = match requests {
                1 => String::from("1 request"),
                many => format!("{} requests", format::count(*many)),
            };
            html! {
                "Spent by " (names.of(*credential)) ", "
                a href={ "/usage?from=" (day) "&to=" (day) (key) } { (requests) }
            }
        }
        LineKind::Credit { kind, reference } => {
            let text = match kind {
                EntryKind::TopUp => "Added by PayPal",
                EntryKind::Grant if reference == "sign-up" => "Welcome credits",
                EntryKind::Grant if reference.starts_with("plan/") => "Credits of the plan",
                EntryKind::Grant => "Granted by the operator",
                EntryKind::Refund => "Refunded by the operator",
                EntryKind::Expiry => "Expired unused",
                _ if reference.starts_with("plan/") => {
                    "Taken back: the payment for the plan was returned"
                }
                _ if reference.starts_with("paypal/") => "Taken back: PayPal returned the payment",
                _ => "Corrected by the operator",
            };
            html! { (text) }
        }
    }
}

fn receipts(bought: &[TopUpRow], now: Timestamp) -> Markup {
    let paid: Vec<Vec<Cell>> = bought
        .iter()
        .filter(|row| row.state == TopUpState::Captured)
        .take(RECEIPTS)
        .map(|row| {
            vec![
                Cell::new(html! {
                    a href={ "/credits/add/" (row.id) } aria-label={ "Receipt of " (format::date(row.created_at, now)) } {
                        (format::date(row.created_at, now))
                    }
                }),
                Cell::labelled(html! { (usd(row.price)) }),
                Cell::labelled(html! { (amount(row.credits)) }),
                Cell::labelled(html! { (row.capture.as_deref().unwrap_or_default()) }),
            ]
        })
        .collect();
    if paid.is_empty() {
        return html! {};
    }
    let columns = [
        Column::text("Date"),
        Column::number("Paid"),
        Column::number("Credits"),
        Column::text("PayPal transaction"),
    ];
    parts::panel("Receipts", table("Receipts", &columns, &paid, None))
}
