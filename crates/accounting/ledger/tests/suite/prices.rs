//! Prices stored once, and charges recomputed from them.

use std::sync::Arc;
use std::time::Duration;

use super::open;
use crate::support::*;
use tollgate_clock::Timestamp;
use tollgate_ledger::audit::audit;
use tollgate_ledger::{Charge, PricesError, record_prices};
use tollgate_money::{Micros, Price};
use tollgate_store::{PriceRow, Store, UsageFlags, UsageRecord};

/// A price for a million input tokens, and no other price.
fn row(version: i64, input: &str, valid_from: Timestamp) -> PriceRow {
    PriceRow {
        version,
        model: Arc::from("small"),
        price: Price {
            input: input.parse().expect("a price"),
            ..Price::default()
        },
        valid_from,
    }
}

fn stored(store: &Arc<dyn Store>) -> Vec<PriceRow> {
    let mut rows = Vec::new();
    store.prices(&mut |row| rows.push(row)).expect("a read");
    rows
}

#[test]
fn a_price_version_is_stored_once_and_a_change_is_a_new_row() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let (first, second) = (
        row(1, "0.15", NOW),
        row(2, "0.2", NOW + Duration::from_micros(1)),
    );
    assert_eq!(record_prices(&*store, [first.clone()]).expect("new"), 1);
    // The next start, and the start after a change.
    let again = row(1, "0.15", NOW + Duration::from_micros(7));
    assert_eq!(record_prices(&*store, [again.clone()]).expect("known"), 0);
    assert_eq!(record_prices(&*store, [second.clone()]).expect("new"), 1);
    // The old price returns, together with its old version.
    assert_eq!(record_prices(&*store, [again]).expect("known"), 0);
    assert_eq!(stored(&store), [first, second]);
}

#[test]
fn a_price_version_never_changes_its_amounts() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    // Both rows are new to the reader, and the second row conflicts with the first row.
    let error = record_prices(&*store, [row(1, "0.15", NOW), row(1, "0.16", NOW)]);
    assert!(matches!(error, Err(PricesError::Commit(_))), "{error:?}");
    assert_eq!(stored(&store), [], "nothing of it was written");
}

/// Three input tokens at a credit per token cost three credits, at any current price.
#[test]
fn the_audit_recomputes_every_cost_at_its_price_version() {
    //    charged at version, charged, clean
    check(1, 3_000_000, true);
    check(1, 2_999_999, true);
    check(1, 3_000_001, false);
    check(2, 6_000_000, true);
    check(2, 6_000_001, false);
}

fn check(version: i64, charged: i64, clean: bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = start(&store);
    let payer = account_with(&store, &ledger, 1, 100_000_000, 0);
    let prices = [
        row(1, "1000000", NOW),
        row(2, "2000000", NOW + Duration::from_micros(1)),
    ];
    record_prices(&*store, prices).expect("new prices");
    let charge = Charge {
        operation: operation(1),
        account: payer,
        amount: Micros::new(charged),
        price_version: Some(version),
        usage: usage(),
        at: NOW,
    };
    wait(ledger.charge(charge).expect("the queue has capacity")).expect("it is durable");
    let report = audit(&store).expect("the audit runs");
    assert_eq!(report.priced, 1);
    assert_eq!(
        report.clean(),
        clean,
        "{charged} at version {version}: {:?}",
        report.violations
    );
}

/// An answer from the cache, posted before a new price is durable but later than the start of the new price. The price was chosen by time,
/// so the totals of the audit differed from the posted totals.
#[test]
fn an_answer_from_the_cache_saves_the_price_of_its_version_whenever_it_is_computed() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = start(&store);
    let payer = account_with(&store, &ledger, 1, 100_000_000, 0);
    let later = |micros| NOW + Duration::from_micros(micros);
    record_prices(&*store, [row(1, "1000000", NOW)]).expect("a new price");
    let hit = |number: u64, version, flags, at| {
        let charge = Charge {
            operation: operation(number),
            account: payer,
            amount: Micros::ZERO,
            price_version: Some(version),
            usage: UsageRecord { flags, ..usage() },
            at,
        };
        wait(ledger.charge(charge).expect("the queue has capacity")).expect("it is durable");
    };
    let hits = |numbers: std::ops::Range<u64>, version, flags, at| {
        numbers.for_each(|number| hit(number, version, flags, at));
    };
    let versioned = UsageFlags::CACHE_HIT | UsageFlags::PRICE_OF_VERSION;
    // More hits than a posting has. So the hits are posted before the new price arrives, although the price begins before the hits.
    hits(1..20, 1, versioned, later(7));
    record_prices(&*store, [row(2, "2000000", later(5))]).expect("a new price");
    assert_ledger_balances(&store);
    // Hits at the returned price, although the other price began later.
    hits(20..40, 2, versioned, later(8));
    hits(40..60, 1, versioned, later(9));
    // Like records of earlier releases, whose totals are posted by their time.
    hits(60..80, 1, UsageFlags::CACHE_HIT, later(9));
    assert_ledger_balances(&store);
    let days = store.usage_days(payer, Timestamp::MIN, Timestamp::MAX);
    let saved: i64 = (days.expect("a read").iter())
        .map(|day| day.saved.get())
        .sum();
    // Three input tokens per hit, at one or two credits per token.
    let tokens = (19 + 20) * 3 + (20 + 20) * 3 * 2;
    assert_eq!(saved, tokens * 1_000_000);
    store.close();
}
