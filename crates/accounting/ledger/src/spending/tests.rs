//! Tests of spending: caps, months, reservations, loads.

use proptest::prelude::*;
use tollgate_money::AccountId;
use tollgate_store::entries::LedgerPart;
use tollgate_store::{CredentialChange, Done};

use super::*;
use crate::{Charge, Ledger};

const KEY: CredentialId = CredentialId::from_bytes([1; 16]);
/// 2026-11-30T23:59:59Z
const NOVEMBER: Timestamp = Timestamp::from_secs(1_796_083_199);
const DECEMBER: Timestamp = Timestamp::from_secs(1_796_083_200);

fn cap(max: i64, period: CapPeriod) -> SpendingCap {
    SpendingCap {
        max: Micros::new(max),
        period,
    }
}

/// The remainder of a cap; loads the spending first.
fn left(
    spending: &Spending,
    key: CredentialId,
    cap: SpendingCap,
    at: Timestamp,
) -> Result<Micros, CapReached> {
    if spending.left(key, cap, at).is_none() {
        let loaded = spending.read((key, AccountId::from_bytes([1; 16])), cap.period, at);
        loaded.expect("nothing is recorded");
    }
    spending.left(key, cap, at).expect("it is loaded")
}

fn reserve(
    spending: &Arc<Spending>,
    key: CredentialId,
    cap: SpendingCap,
    amount: i64,
) -> Result<Reservation, CapReached> {
    let _ = left(spending, key, cap, NOVEMBER);
    let reserved = spending.reserve(key, cap, Micros::new(amount), NOVEMBER);
    reserved.expect("it is loaded")
}

fn changed(spending: &Spending, cap: Option<SpendingCap>, spent: i64, at: Timestamp) {
    let change = CredentialChange {
        id: KEY,
        account: AccountId::from_bytes([1; 16]),
        version: 0,
        label: Arc::from("ci"),
        models: None,
        spending_cap: cap,
        spent: Micros::new(spent),
        expires_at: None,
        at,
    };
    spending.committed(&Part::ChangeCredential(Box::new(change)), Effect::Applied);
}

#[test]
fn a_charge_of_another_process_counts_in_its_month() {
    let spending = Arc::new(Spending::default());
    let monthly = cap(100, CapPeriod::Month);
    assert_eq!(
        left(&spending, KEY, monthly, NOVEMBER),
        Ok(Micros::new(100))
    );
    spending.count(KEY, Micros::new(60), NOVEMBER);
    assert_eq!(left(&spending, KEY, monthly, NOVEMBER), Ok(Micros::new(40)));
    spending.count(KEY, Micros::new(30), DECEMBER);
    assert_eq!(left(&spending, KEY, monthly, DECEMBER), Ok(Micros::new(70)));
    let other = CredentialId::from_bytes([2; 16]);
    spending.count(other, Micros::new(60), NOVEMBER);
    assert_eq!(
        left(&spending, other, monthly, NOVEMBER),
        Ok(Micros::new(100)),
        "it had no cap"
    );
}

#[test]
fn a_changed_cap_counts_what_was_spent_in_its_period() {
    let spending = Arc::new(Spending::default());
    let left = |cap, at| left(&spending, KEY, cap, at).map_err(|reached| reached.left);
    let (month, total) = (cap(100, CapPeriod::Month), cap(100, CapPeriod::Total));
    assert_eq!(left(total, NOVEMBER), Ok(Micros::new(100)), "it is loaded");
    changed(&spending, Some(month), 30, NOVEMBER);
    assert_eq!(left(month, NOVEMBER), Ok(Micros::new(70)));
    let running = reserve(&spending, KEY, month, 20);
    let running = running.expect("the cap allows it");
    // A higher cap with an unchanged period keeps the count of this node, even if the sum in the change is older.
    let higher = cap(200, CapPeriod::Month);
    changed(&spending, Some(higher), 0, NOVEMBER);
    assert_eq!(left(higher, NOVEMBER), Ok(Micros::new(150)));
    changed(&spending, Some(total), 90, NOVEMBER);
    assert_eq!(left(total, NOVEMBER), Err(Micros::ZERO), "20 are reserved");
    // Without a cap in between, the reservation ends normally.
    changed(&spending, None, 0, NOVEMBER);
    drop(running);
    changed(&spending, Some(month), 40, NOVEMBER);
    assert_eq!(left(month, NOVEMBER), Ok(Micros::new(60)));
    assert_eq!(left(month, DECEMBER), Ok(Micros::new(100)), "a new month");
}

#[test]
fn reserved_spending_is_replaced_by_the_charge() {
    let spending = Arc::new(Spending::default());
    let cap = cap(100, CapPeriod::Total);
    let reserve = |amount| reserve(&spending, KEY, cap, amount);
    let first = reserve(70).expect("the cap allows it");
    let fits = |amount| {
        reserve(amount)
            .map(drop)
            .map_err(|reached| reached.left.get())
    };
    assert_eq!(fits(31), Err(30));
    assert_eq!(fits(30), Ok(()));
    first.settle(cap, Micros::new(20), NOVEMBER);
    assert_eq!(fits(81), Err(80));
    drop(reserve(80).expect("the cap allows it"));
    assert_eq!(fits(80), Ok(()), "what failed is free again");
    let rest = reserve(80).expect("the cap allows it");
    rest.settle(cap, Micros::new(80), NOVEMBER);
    assert!(left(&spending, KEY, cap, NOVEMBER).is_err());
}

fn spend(spending: &Arc<Spending>, key: CredentialId, cap: SpendingCap, amount: i64) {
    let reserved = reserve(spending, key, cap, amount);
    let reserved = reserved.expect("the cap allows it");
    reserved.settle(cap, Micros::new(amount), NOVEMBER);
}

#[test]
fn idle_spending_is_evicted_unless_some_is_reserved() {
    let spending = Arc::new(Spending::default());
    let cap = cap(100, CapPeriod::Month);
    let kept = Duration::from_secs(60);
    let mut now = NOVEMBER;
    let mut evicted = || {
        now += kept;
        spending.evict_idle(now - Duration::from_micros(1), kept);
        spending.evict_idle(now, kept);
        spending.len() == 0
    };
    evicted();
    let running = reserve(&spending, KEY, cap, 10).expect("the cap allows it");
    assert!(!evicted(), "it was just used");
    assert!(!evicted(), "a request is running");
    running.settle(cap, Micros::new(10), NOVEMBER);
    assert!(evicted(), "nothing is running");
    assert!(spending.left(KEY, cap, NOVEMBER).is_none(), "load it again");
    assert!(spending.reserve(KEY, cap, Micros::ZERO, NOVEMBER).is_none());
    assert_eq!(left(&spending, KEY, cap, NOVEMBER), Ok(Micros::new(100)));
    assert!(!evicted());
    assert!(left(&spending, KEY, cap, NOVEMBER).is_ok());
    assert!(!evicted(), "it was used since");
    assert!(evicted());
}

/// A store with an account that has credit, and a key with a cap.
async fn books(folder: &std::path::Path, max: i64) -> (Arc<dyn Store>, Ledger) {
    use tollgate_store::sqlite::{self, Durability, Options};
    use tollgate_store::*;

    let mut options = Options::new(NOVEMBER, RootSecret([7; 32]));
    options.durability = Durability::Process;
    let store = sqlite::open(&folder.join("books.db"), options).expect("a store");
    let (ledger, _) = Ledger::start(store.clone(), NOVEMBER).expect("it starts");
    let account = AccountId::from_bytes([1; 16]);
    let account_made = Part::CreateAccount(Box::new(NewAccount {
        id: account,
        class: Arc::from("free"),
        cache_scope: CacheScope::Account,
        credit_limit: Micros::from_credits(1).expect("in range"),
        created_at: NOVEMBER,
    }));
    let key = Part::InsertCredential(Box::new(NewCredential {
        id: KEY,
        hash: [1; 32],
        kind: CredentialKind::ApiKey,
        account,
        client_id: None,
        grant_id: None,
        resource: 1,
        scopes: 1,
        label: None,
        hint: None,
        models: None,
        spending_cap: Some(cap(max, CapPeriod::Month)),
        created_at: NOVEMBER,
        expires_at: None,
    }));
    let unit = UnitOfWork::of_all([account_made, key], Admission::Normal);
    commit(&*store, unit).await.expect("it is durable");
    (store, ledger)
}

/// A charge of the key, of one micro-credit.
fn charge(number: u64) -> Charge {
    let mut random = [0; 10];
    random[2..].copy_from_slice(&number.to_be_bytes());
    Charge {
        operation: tollgate_money::OperationId::from_parts(1, random),
        account: AccountId::from_bytes([1; 16]),
        amount: Micros::new(1),
        price_version: None,
        usage: tollgate_store::UsageRecord {
            credential: Some(KEY),
            endpoint: tollgate_store::Endpoint::Chat,
            model: Arc::from("m"),
            upstream: None,
            prompt_tokens: 1,
            completion_tokens: 0,
            flags: tollgate_store::UsageFlags::NONE,
            http_status: 200,
            ttfb_us: None,
            total_us: None,
        },
        at: NOVEMBER,
    }
}

/// [`charge`] as a separate unit of work.
fn charged(number: u64) -> UnitOfWork {
    let Charge {
        operation,
        account,
        amount,
        price_version,
        usage,
        at,
    } = charge(number);
    let part = LedgerPart::Charge {
        operation,
        account,
        charged: amount,
        written_off: Micros::ZERO,
        price_version,
        usage,
        at,
    };
    UnitOfWork::of(Part::Ledger(part), Admission::Always)
}

#[tokio::test]
async fn a_load_has_the_charges_that_were_queued_before_and_those_announced_meanwhile_once() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let (store, ledger) = books(folder.path(), 1_000_000).await;
    let spending = Arc::new(Spending::open(&store));
    let monthly = cap(1_000_000, CapPeriod::Month);
    let account = AccountId::from_bytes([1; 16]);
    let mut spent = 0;
    for round in 0..20u64 {
        spending.cells.clear();
        // Charges of requests that ended before the eviction of the cell.
        let settlements: Vec<_> = (0..100)
            .map(|number| ledger.charge(charge(round << 32 | number)).expect("queued"))
            .collect();
        spent += 100;
        let read = || spending.read((KEY, account), CapPeriod::Month, NOVEMBER);
        read().expect("it can be read");
        let left = spending.left(KEY, monthly, NOVEMBER).expect("it is loaded");
        assert_eq!(left, Ok(Micros::new(1_000_000 - spent)), "round {round}");
        for settlement in settlements {
            settlement.await.expect("it is durable");
        }

        // Charges of the predecessor, announced when durable.
        spending.cells.clear();
        std::thread::scope(|scope| {
            let loading = scope.spawn(read);
            for number in 100..200 {
                let unit = charged(round << 32 | number);
                let spending = Arc::clone(&spending);
                let done: Done = Box::new(move |result| {
                    result.expect("it is durable");
                    spending.count(KEY, Micros::new(1), NOVEMBER);
                });
                store.submit(unit, done).expect("it is queued");
            }
            let loaded = loading.join().expect("no panic");
            loaded.or_else(|_| read()).expect("it can be read");
        });
        spent += 100;
        flush(&*store).expect("it is durable");
        let left = spending.left(KEY, monthly, NOVEMBER).expect("it is loaded");
        assert_eq!(left, Ok(Micros::new(1_000_000 - spent)), "round {round}");
    }
    store.close();
}

/// The writer commits the first unit of a load together with a charge. The writer announces the charge after the read of the load.
#[tokio::test]
async fn a_charge_that_a_load_has_read_before_its_announcement_counts_once() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let (store, _ledger) = books(folder.path(), 1_000_000).await;
    let spending = Arc::new(Spending::open(&store));
    let account = AccountId::from_bytes([1; 16]);
    // A callback on the writer's thread, which blocks the writer until the gate opens.
    let gate = || {
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let (reached, is_there) = std::sync::mpsc::channel();
        let wait = move || {
            reached.send(()).expect("it is waited for");
            gate.recv().expect("the gate opens");
        };
        (open, is_there, wait)
    };
    let is_queued = |units| store.gauges().queue_depth.load(Relaxed) >= units;
    let (open, is_there, wait) = gate();
    let nothing = UnitOfWork::of_all([], Admission::Always);
    let done: Done = Box::new(move |_| wait());
    store.submit(nothing, done).expect("it is queued");
    is_there.recv().expect("the writer is there");
    std::thread::scope(|scope| {
        let read = || spending.read((KEY, account), CapPeriod::Month, NOVEMBER);
        let loading = scope.spawn(read);
        while !is_queued(1) {
            std::thread::yield_now();
        }
        let (announce, is_committed, wait) = gate();
        let announced = Arc::clone(&spending);
        let done: Done = Box::new(move |result| {
            result.expect("it is durable");
            wait();
            announced.count(KEY, Micros::new(1), NOVEMBER);
        });
        store.submit(charged(1), done).expect("it is queued");
        open.send(()).expect("the writer waits");
        is_committed.recv().expect("the writer is there");
        // The load has read the charge, and waits for the writer.
        while !loading.is_finished() && !is_queued(1) {
            std::thread::yield_now();
        }
        announce.send(()).expect("the writer waits");
        let loaded = loading.join().expect("no panic");
        loaded.expect("it can be read");
    });
    flush(&*store).expect("it is durable");
    let monthly = cap(1_000_000, CapPeriod::Month);
    let left = spending.left(KEY, monthly, NOVEMBER).expect("it is loaded");
    assert_eq!(left, Ok(Micros::new(999_999)));
    store.close();
}

#[test]
fn a_load_is_repeated_when_a_charge_or_a_change_is_announced_meanwhile() {
    let spending = Arc::new(Spending::default());
    let announce: [&dyn Fn(); 2] = [&|| spending.count(KEY, Micros::new(1), NOVEMBER), &|| {
        changed(&spending, None, 0, NOVEMBER)
    }];
    for announce in announce {
        spending.loading().insert(KEY, false);
        announce();
        assert_eq!(spending.loading().remove(&KEY), Some(true));
    }
}

#[test]
fn the_first_charge_of_a_month_begins_it() {
    let spending = Arc::new(Spending::default());
    let monthly = cap(100, CapPeriod::Month);
    spend(&spending, KEY, monthly, 60);
    let over = reserve(&spending, KEY, monthly, 40);
    let over = over.expect("the cap allows it");
    over.settle(monthly, Micros::new(40), DECEMBER);
    assert_eq!(left(&spending, KEY, monthly, DECEMBER), Ok(Micros::new(60)));
}

#[test]
fn a_month_starts_with_nothing_spent_and_with_open_reservations() {
    let spending = Arc::new(Spending::default());
    let (monthly, total) = (cap(100, CapPeriod::Month), cap(100, CapPeriod::Total));
    let over = reserve(&spending, KEY, monthly, 40);
    let over = over.expect("the cap allows it");
    spend(&spending, KEY, monthly, 60);
    let reached = left(&spending, KEY, monthly, NOVEMBER).expect_err("all of it is gone");
    assert_eq!(reached.until, Some(DECEMBER));
    assert_eq!(left(&spending, KEY, monthly, DECEMBER), Ok(Micros::new(60)));
    over.settle(monthly, Micros::new(30), DECEMBER);
    assert_eq!(
        left(&spending, KEY, monthly, DECEMBER),
        Ok(Micros::new(70)),
        "it was charged in December, and is found there again after a restart"
    );
    let other = CredentialId::from_bytes([2; 16]);
    spend(&spending, other, total, 100);
    assert!(
        left(&spending, other, total, DECEMBER).is_err(),
        "all time is all time"
    );
}

proptest! {
    #[test]
    fn no_order_of_requests_passes_the_cap(
        max in 1i64..1_000,
        steps in prop::collection::vec((0i64..400, any::<bool>(), any::<bool>()), 1..100),
    ) {
        let spending = Arc::new(Spending::default());
        let cap = cap(max, CapPeriod::Total);
        let (mut open, mut spent) = (Vec::new(), 0);
        for (amount, close, fails) in steps {
            if close && !open.is_empty() {
                let (reserved, held): (Reservation, i64) = open.remove(0);
                if fails {
                    drop(reserved);
                } else {
                    let charged = held.min(amount);
                    reserved.settle(cap, Micros::new(charged), NOVEMBER);
                    spent += charged;
                }
            } else if let Ok(reserved) = reserve(&spending, KEY, cap, amount) {
                open.push((reserved, amount));
            }
            let reserved: i64 = open.iter().map(|(_, held)| held).sum();
            prop_assert!(spent + reserved <= max);
        }
        open.clear();
        let left = left(&spending, KEY, cap, NOVEMBER).map_or(0, Micros::get);
        prop_assert_eq!(left, max - spent);
    }
}
