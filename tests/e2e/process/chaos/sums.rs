//! Comparison of the charges that clients received, the ledger, `tollgate usage` and the metrics.

use std::collections::HashMap;

use tollgate_ledger::audit::Report;
use tollgate_money::{AccountId, Micros};
use tollgate_store::Read;
use tollgate_testing::Client;

use super::super::installation::Installation;
use super::{client::Tally, print_line};
use crate::rig::{audited_store, micros, poll_mut};

/// A page of metrics.
pub(super) struct Metrics(String);

impl Metrics {
    /// The metrics after all requests have ended.
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

    /// All values of a metric together.
    fn sum(&self, name: &str) -> i64 {
        self.sum_of(name, "")
    }

    /// The values of a metric that have this label.
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

/// The books, when each operation was compared with what the clients have seen of it.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) report: Report,
    spent: i64,
    /// The same, by account.
    pub(super) spent_of: HashMap<AccountId, i64>,
    prompt: i64,
    completion: i64,
}

impl Compared {
    /// Compares the books of gateways that have stopped.
    pub(super) fn of(store: &dyn Read, tally: &Tally) -> Compared {
        let mut books = Compared {
            report: audited_store(store),
            ..Compared::default()
        };
        let (mut delivered, mut lost, mut unknown, mut records) = (0, Vec::new(), 0u64, 0u64);
        let mut missing = tally.look(|seen| seen.charges.clone());
        let view = store.snapshot().expect("a view");
        view.operations(&mut |rows| {
            let Some(usage) = rows.usage else { return };
            records += 1;
            let cost = usage.cost.get();
            books.spent += cost;
            *books.spent_of.entry(usage.account).or_default() += cost;
            books.prompt += usage.usage.prompt_tokens as i64;
            books.completion += usage.usage.completion_tokens as i64;
            match missing.remove(&rows.id.to_string()) {
                Some(charge) => {
                    assert_eq!(charge, cost, "{}: delivered and charged", rows.id);
                    delivered += charge;
                }
                None => {
                    let broken = tally.look(|seen| seen.broken.contains(&rows.id.to_string()));
                    unknown += u64::from(!broken);
                    lost.push((rows.id, cost));
                }
            }
        })
        .expect("the operations are read");
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
            "spent {}, delivered {}, charged and not delivered in whole {} in {} operations, written off {}",
            Micros::new(spent),
            Micros::new(delivered),
            Micros::new(undelivered),
            lost.len(),
            report.usage_written_off
        ));
        for (operation, cost) in lost.iter().take(20) {
            let cost = Micros::new(*cost);
            print_line(format_args!("  not delivered in whole: {operation} {cost}"));
        }
        assert_eq!(delivered + undelivered, spent);
        assert_eq!(report.sums.spent.get(), spent, "entries and usage records");
        assert_eq!(report.usage, records);
        books
    }
}

/// Compares all of it. The books are those of a program that has stopped.
pub(super) async fn check(
    installation: &Installation,
    accounts: &[(String, String)],
    tally: &Tally,
    metrics: &Metrics,
) {
    let books = Compared::of(&*installation.store(), tally);
    let (spent, report) = (books.spent, &books.report);
    // What operators see, two ways.
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
