//! The reads behind a usage page: totals of the last 90 days, and a page of requests.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tollgate_clock::{Clock, Timestamp};
use tollgate_money::{AccountId, OperationId};
use tollgate_store::postgres::{self, DatabaseUrl};
use tollgate_store::{PageCursor, Reader, RequestPosition, RequestsQuery, RootSecret, sqlite};

use crate::stats::{median, quantile};

/// Requests of a page, and one more that shows whether there are others.
const ROWS: usize = 26;

const DAY: Duration = Duration::from_secs(86_400);

/// The time of the totals.
const PERIOD: Duration = Duration::from_secs(90 * 86_400);

/// What to read.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The store: a file, or the address of a PostgreSQL database.
    #[arg(long)]
    store: String,
    /// Reads of each kind.
    #[arg(long, default_value_t = 40)]
    times: usize,
}

/// Reads the pages of the account with the most requests and prints the table's rows.
pub(crate) fn run(options: &Options) -> Result<()> {
    let clock = Clock::system();
    let store = match options.store.starts_with("postgres") {
        true => {
            let url = DatabaseUrl::parse(&options.store)?;
            let options = postgres::Options::new(url, clock.now(), RootSecret([0; 32]));
            postgres::open_read(&options)?
        }
        false => sqlite::open_read(options.store.as_ref())?,
    };
    let engine = match options.store.starts_with("postgres") {
        true => "PostgreSQL",
        false => "SQLite",
    };
    let mut accounts = Vec::new();
    store.accounts(&mut |row| accounts.push(row.id))?;
    // Whole days, as the page asks for them: those are kept as totals.
    let to = clock.now().start_of_day() + DAY;
    let from = to - PERIOD;
    let mut most = None;
    for account in accounts {
        let days = store.usage_days(account, from, to)?;
        let requests: u64 = days.iter().map(|day| day.requests).sum();
        if most.is_none_or(|(count, _)| count < requests) {
            most = Some((requests, account));
        }
    }
    let (requests, account) = most.context("a store without accounts")?;
    let middle = RequestPosition {
        at: from + PERIOD / 2,
        operation: OperationId::from_bytes([0; 16]),
    };
    for (what, cursor) in [
        ("the newest", PageCursor::Newest),
        ("from the middle", PageCursor::OlderThan(middle)),
    ] {
        let mut took = Vec::new();
        for _ in 0..options.times {
            let began = Instant::now();
            let found = page(&store, account, (from, to), cursor)?;
            took.push(began.elapsed().as_secs_f64() * 1e3);
            ensure!(found == ROWS, "a page of {found} requests");
        }
        println!(
            "| {engine}, {requests} requests, {what} | {:.1} | {:.1} |",
            median(&took),
            quantile(&took, 0.9)
        );
    }
    Ok(())
}

fn page(
    store: &Reader,
    account: AccountId,
    (from, to): (Timestamp, Timestamp),
    cursor: PageCursor,
) -> Result<usize> {
    store.usage_days(account, from, to)?;
    let found = store.requests(&RequestsQuery {
        account,
        from,
        to,
        model: None,
        credential: None,
        cursor,
        limit: ROWS,
    })?;
    Ok(found.len())
}
