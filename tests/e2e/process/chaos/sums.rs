//! Comparison of the charges received by clients, the ledger, `tollgate usage` and the metrics.

use std::collections::HashMap;

use tollgate_ledger::audit::Report;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{OperationRows, Reader};
use tollgate_testing::Client;

use super::super::installation::Installation;
use super::{client::Tally, print_line};
use crate::rig::{audited_store, micros, poll_mut};

/// A page of metrics.
pub(super) struct Metrics(String);

impl Metrics {
    /// The metrics after the end of every request.
    pub(super) async fn when_quiet(admin: u16) -> Metrics {
        let client = Client::new(&format!("http://127.0.0.1:{admin}"));
        loop {
            let page = Metrics(client.get("/metrics").await.text().to_owned());
            if page.sum("tollgate_open_holds") == 0 && page.sum("tollgate_commit_queue_depth") == 0
            {
                return page;
            }
            let mut waited = false;
            poll_mut(|| std::mem::replace(&mut waited, true)).await;
        }
    }

    /// The sum of a metric's values.
    fn sum(&self, name: &str) -> i64 {
        self.sum_of(name, "")
    }

    /// The sum of a metric's values with `label`.
    pub(super) fn sum_of(&self, name: &str, label: &str) -> i64 {
        let lines = self.0.lines().filter_map(|line| line.strip_prefix(name));
        lines
            .filter(|rest| rest.starts_with(['{', ' ']) && rest.contains(label))
            .map(|rest| {
                let value = rest.rsplit(' ').next().expect("a value");
                value.parse::<f64>().expect("a number") as i64
            })
            .sum()
    }
}

/// The books, after a comparison of every operation with the answers seen by clients.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) report: Report,
    spent: i64,
    /// The spent credit by account, and late charges.
    pub(super) spent_of: HashMap<AccountId, i64>,
    /// Sum of the charges of requests whose holds were released before.
    late: i64,
    prompt: i64,
    completion: i64,
}

/// The charge of a request.
struct Charged {
    id: String,
    account: AccountId,
    cost: i64,
    written_off: i64,
    /// Whether the charge came after the release of the hold. A late charge is a correction, and a correction does not show the uncovered
    /// amount.
    is_late: bool,
}

impl Charged {
    fn of(rows: &OperationRows) -> Option<Charged> {
        if let Some(usage) = &rows.usage {
            return Some(Charged {
                id: rows.id.to_string(),
                account: usage.account,
                cost: usage.cost.get(),
                written_off: usage.written_off.get(),
                is_late: false,
            });
        }
        rows.entries.iter().find_map(|entry| {
            let reference = entry.reference.as_ref()?;
            Some(Charged {
                id: reference.strip_prefix("late/")?.to_owned(),
                account: entry.account,
                cost: -entry.d_available.get(),
                written_off: 0,
                is_late: true,
            })
        })
    }

    /// Whether the cost is the charge received by a client, or the covered part of the charge.
    fn is(&self, charge: i64, runs_out: bool) -> bool {
        self.cost == charge
            || runs_out
                && self.cost < charge
                && (self.is_late || self.cost + self.written_off == charge)
    }
}

impl Compared {
    /// Compares the books of stopped gateways. `runs_out` is the account with a possible lack of credit for a charge of a spool.
    pub(super) fn of(store: &Reader, tally: &Tally, runs_out: Option<usize>) -> Compared {
        let mut books = Compared {
            report: audited_store(store),
            ..Compared::default()
        };
        let (mut delivered, mut lost, mut unknown, mut records) = (0, Vec::new(), 0u64, 0u64);
        let mut missing = tally.look(|seen| seen.charges.clone());
        let view = store.snapshot().expect("a view");
        view.operations(&mut |rows| {
            let Some(charged) = Charged::of(&rows) else {
                return;
            };
            let cost = charged.cost;
            *books.spent_of.entry(charged.account).or_default() += cost;
            match rows.usage {
                Some(usage) => {
                    records += 1;
                    books.spent += cost;
                    books.prompt += usage.usage.prompt_tokens as i64;
                    books.completion += usage.usage.completion_tokens as i64;
                }
                None => books.late += cost,
            }
            match missing.remove(&charged.id) {
                Some((by, charge)) => {
                    let id = &charged.id;
                    let is_whole = charged.is(charge, runs_out == Some(by));
                    assert!(is_whole, "{id}: {charge} delivered and {cost} charged");
                    delivered += cost;
                }
                None => {
                    let broken = tally.look(|seen| seen.broken.contains(&charged.id));
                    unknown += u64::from(!broken);
                    lost.push((charged.id, cost));
                }
            }
        })
        .expect("the operations are read");
        // Without credit of the account, no late charge is booked. A request answered again under an idempotency key has no late charge
        // either.
        let unconfirmed = tally.look(|seen| seen.unconfirmed.clone());
        missing.retain(|id, (by, _)| {
            runs_out.is_none_or(|runs_out| runs_out != *by && !unconfirmed.contains(id))
        });
        assert!(
            missing.is_empty(),
            "clients received charges that are not in the ledger: {missing:?}"
        );
        let nameless = tally.look(|seen| seen.nameless);
        assert!(
            unknown <= nameless,
            "{unknown} charges belong to no client that left, and only {nameless} left without a word"
        );
        let undelivered: i64 = lost.iter().map(|(_, cost)| cost).sum();
        let (spent, report) = (books.spent, &books.report);
        print_line(format_args!(
            "spent {}, late {}, delivered {}, charged and not delivered in whole {} in {} operations, written off {}",
            Micros::new(spent),
            Micros::new(books.late),
            Micros::new(delivered),
            Micros::new(undelivered),
            lost.len(),
            report.usage_written_off
        ));
        for (operation, cost) in lost.iter().take(20) {
            let cost = Micros::new(*cost);
            print_line(format_args!("  not delivered in whole: {operation} {cost}"));
        }
        assert_eq!(delivered + undelivered, spent + books.late);
        assert_eq!(report.sums.spent.get(), spent, "entries and usage records");
        assert_eq!(report.usage, records);
        books
    }
}

/// Compares charges, ledger, usage and metrics. The program of the books has stopped.
pub(super) async fn check(
    installation: &Installation,
    accounts: &[(String, String)],
    tally: &Tally,
    metrics: &Metrics,
) {
    let books = Compared::of(&installation.store(), tally, None);
    let repeated_anew = tally.look(|seen| seen.repeated_anew.clone());
    assert!(repeated_anew.is_empty(), "other answers: {repeated_anew:?}");
    let (spent, report) = (books.spent, &books.report);
    // The view of operators, from two sources.
    let charged = metrics.sum("tollgate_charged_microcredits_total");
    assert_eq!(charged, spent, "the metrics and the books");
    let written_off = metrics.sum("tollgate_written_off_microcredits_total");
    assert_eq!(written_off, report.usage_written_off.get());
    for (direction, tokens) in [("prompt", books.prompt), ("completion", books.completion)] {
        let counted = metrics.sum_of("tollgate_tokens_total", direction);
        assert_eq!(counted, tokens, "{direction} tokens");
    }
    let mut used = 0;
    for (account, _) in accounts {
        let printed = installation
            .run(&["usage", "--account", account, "--json"])
            .await;
        let line = printed.lines().find(|line| line.starts_with('['));
        let days: serde_json::Value =
            serde_json::from_str(line.expect("a list")).expect("what it prints is JSON");
        let days = days.as_array().expect("a list");
        used += days.iter().map(|day| micros(&day["credits"])).sum::<i64>();
    }
    assert_eq!(used, spent, "`tollgate usage` and the books");
    assert_eq!(report.open_holds, 0);
}
