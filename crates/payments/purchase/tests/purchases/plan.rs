//! The plan over a real store: what payments grant, under concurrency and repetition.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Handle;
use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_ledger::audit::audit;
use tollgate_ledger::{Credit, Ledger};
use tollgate_money::{Micros, OperationId};
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::plan::{
    OwedCredits, PRICE, Paid, PayOutcome, Period, Plans, Renewal, Reversal,
};
use tollgate_store::{
    Admission, PaymentStatus, Route, Store, SubscriptionRow, SubscriptionStatus, UnitOfWork,
    block_on, commit,
};

use crate::support::process::{self, ACCOUNT, DAY, Disk, START, new_account};

struct TestBed {
    disk: Disk,
    store: Arc<dyn Store>,
    ledger: Ledger,
    plans: Plans,
    clock: ManualClock,
}

impl TestBed {
    async fn new() -> TestBed {
        let disk = Disk::new();
        let store = disk.open_store(START);
        let (clock, manual) = Clock::manual(START);
        let (ledger, plans) = disk.plans(&store, clock);
        let unit = UnitOfWork::of(new_account(ACCOUNT), Admission::Normal);
        commit(&*store, unit).await.expect("an account");
        TestBed {
            disk,
            store,
            ledger,
            plans,
            clock: manual,
        }
    }

    fn at(&self, at: Timestamp) {
        self.clock.jump_to(at);
    }

    async fn pay(&self, paid: Paid) -> PayOutcome {
        let done = self.plans.pay(paid, |_| Vec::new()).await;
        done.expect("it is noted")
    }

    /// Credit that is bought or spent by another way; nothing for zero.
    async fn correct(&self, name: &str, micros: i64) {
        if micros == 0 {
            return;
        }
        let mut random = [0; 10];
        random[..8].copy_from_slice(&self.disk.number().to_be_bytes());
        let credit = Credit {
            operation: OperationId::from_parts(9, random),
            account: ACCOUNT,
            amount: Micros::new(micros),
            reference: Arc::from(name),
            at: START,
        };
        self.ledger.correct(credit).await.expect("there is enough");
    }

    fn check_books(&self) {
        let report = audit(&self.store).expect("the audit runs");
        assert!(report.clean(), "{:?}", report.violations);
    }

    fn row(&self) -> SubscriptionRow {
        self.store
            .subscription(ACCOUNT)
            .expect("a read")
            .expect("a subscription")
    }

    fn class_at(&self, at: Timestamp) -> String {
        let account = self
            .store
            .account(ACCOUNT)
            .expect("a read")
            .expect("an account");
        account.class_at(at).to_string()
    }

    /// In memory, and after a restart.
    fn has_paid(&self) -> [bool; 2] {
        let loaded = block_on(self.ledger.load(ACCOUNT));
        loaded.expect("no panic").expect("it can be loaded");
        let balance = self.ledger.balance(ACCOUNT).expect("an account");
        let row = self.store.account(ACCOUNT).expect("a read");
        [balance.has_paid, row.expect("an account").has_paid]
    }

    fn credits(&self) -> i64 {
        let loaded = block_on(self.ledger.load(ACCOUNT));
        loaded.expect("no panic").expect("it can be loaded");
        self.ledger.available(ACCOUNT).expect("an account").get()
    }
}

fn transfer(name: &str) -> Paid {
    Paid {
        receipt: Some(Arc::from("proof")),
        ..process::transfer(name, START)
    }
}

/// A monthly charge under the mandate `leave`, made at `at`, that pays until a day after the next one.
fn charge(leave: &str, name: &str, at: Timestamp) -> Paid {
    Paid {
        account: ACCOUNT,
        route: Route::PayPal,
        payment: Arc::from(name),
        reference: Arc::from(leave),
        amount: PRICE,
        period: Period::Until(at + 31 * DAY),
        renews: true,
        receipt: None,
        at,
    }
}

#[tokio::test]
async fn a_transfer_gives_thirty_days_the_class_and_credits_once() {
    let bed = TestBed::new().await;
    assert_eq!(bed.has_paid(), [false; 2]);
    let PayOutcome::New(row) = bed.pay(transfer("a")).await else {
        panic!("it is new");
    };
    assert_eq!(bed.has_paid(), [true; 2]);
    assert_eq!(
        (row.period_start, row.period_end),
        (START, START + 30 * DAY)
    );
    let last = row.period_end - Duration::from_micros(1);
    assert_eq!(bed.class_at(last), "pro");
    assert_eq!(bed.class_at(row.period_end), "free");
    assert_eq!(bed.credits(), 5_000_000);
    assert_eq!(
        bed.pay(transfer("a")).await,
        PayOutcome::Repeated(row.clone())
    );
    assert_eq!((bed.row(), bed.credits()), (row.clone(), 5_000_000));

    bed.at(START + 29 * DAY);
    let state = bed.plans.state(ACCOUNT).await.expect("a read");
    assert!(state.is_active() && state.may_renew());
    let PayOutcome::New(longer) = bed.pay(transfer("b")).await else {
        panic!("it is new");
    };
    assert_eq!(longer.id, row.id, "the same subscription");
    assert_eq!(
        longer.period_end,
        START + 60 * DAY,
        "nothing of the first is lost"
    );
    assert!(!bed.plans.state(ACCOUNT).await.expect("a read").may_renew());

    bed.at(START + 60 * DAY);
    assert_eq!(
        bed.row().status_at(START + 60 * DAY),
        SubscriptionStatus::Expired
    );
    let PayOutcome::New(again) = bed.pay(transfer("c")).await else {
        panic!("it is new");
    };
    assert_ne!(again.id, row.id, "another one, after the first had ended");
    assert_eq!(again.period_start, START + 60 * DAY);
}

#[tokio::test]
async fn a_mandate_renews_ends_and_becomes_past_due() {
    let bed = TestBed::new().await;
    bed.pay(charge("I-1", "first", START)).await;
    assert_eq!(bed.row().period_end, START + 31 * DAY);
    assert!(!bed.plans.state(ACCOUNT).await.expect("a read").may_renew());
    bed.at(START + 30 * DAY);
    bed.pay(charge("I-1", "second", START + 30 * DAY)).await;
    assert_eq!(
        bed.row().period_end,
        START + 61 * DAY,
        "a day of grace does not add up"
    );
    let by = (Route::PayPal, "I-1");
    for (what, status, renews) in [
        (Renewal::PastDue, SubscriptionStatus::PastDue, true),
        (Renewal::Runs, SubscriptionStatus::Active, true),
        (Renewal::Ends, SubscriptionStatus::Active, false),
    ] {
        bed.plans
            .set_renewal(ACCOUNT, by, what, Vec::new())
            .await
            .expect("noted");
        let row = bed.row();
        assert_eq!((row.status, row.renews), (status, renews), "{what:?}");
        assert_eq!(row.period_end, START + 61 * DAY, "what is paid for stays");
    }
    let version = bed.row().version;
    let other = (Route::PayPal, "I-2");
    bed.plans
        .set_renewal(ACCOUNT, other, Renewal::Runs, Vec::new())
        .await
        .expect("nothing to do");
    assert_eq!(
        bed.row().version,
        version,
        "another leave says nothing about this one"
    );
    assert_eq!(
        bed.row().status_at(START + 61 * DAY),
        SubscriptionStatus::Canceled
    );
}

#[tokio::test]
async fn a_charge_for_an_active_plan_grants_nothing_and_a_transfer_adds_its_days() {
    let bed = TestBed::new().await;
    bed.pay(transfer("a")).await;
    let row = bed.row();
    assert_eq!(
        bed.pay(charge("I-1", "x", START)).await,
        PayOutcome::Duplicate(row.clone())
    );
    assert_eq!(bed.row(), row);
    assert!(
        bed.store
            .payment(Route::PayPal, "x")
            .expect("a read")
            .is_none()
    );

    bed.at(START + 30 * DAY);
    let now = START + 30 * DAY;
    bed.pay(charge("I-1", "y", now)).await;
    bed.pay(transfer("b")).await;
    assert_eq!(bed.row().period_end, now + 61 * DAY);
    assert_eq!(
        bed.row().route,
        Route::PayPal,
        "it is still charged every month"
    );
    bed.at(now + 30 * DAY);
    bed.pay(charge("I-1", "z", now + 30 * DAY)).await;
    assert_eq!(
        bed.row().period_end,
        now + 91 * DAY,
        "the days of the transfer stand behind it"
    );
    let again = bed.pay(charge("I-2", "w", now)).await;
    assert!(
        matches!(again, PayOutcome::Duplicate(_)),
        "a second leave is one too many"
    );
}

#[tokio::test]
async fn a_refund_takes_its_time_and_credits_back() {
    let bed = TestBed::new().await;
    bed.pay(charge("I-1", "x", START)).await;
    bed.at(START + 10 * DAY);
    let back = bed
        .plans
        .reverse_payment(Route::PayPal, "x", Vec::new())
        .await
        .expect("noted");
    let Reversal::New {
        subscription,
        taken,
        missing,
    } = back
    else {
        panic!("it is new");
    };
    assert_eq!(subscription.period_end, START + 10 * DAY);
    assert_eq!(subscription.status, SubscriptionStatus::Canceled);
    assert_eq!((taken.get(), missing.get()), (5_000_000, 0));
    assert_eq!(
        (bed.credits(), bed.class_at(START + 10 * DAY)),
        (0, "free".into())
    );
    let payment = bed
        .store
        .payment(Route::PayPal, "x")
        .expect("a read")
        .expect("a payment");
    assert_eq!(payment.status, PaymentStatus::Returned);
    let again = bed
        .plans
        .reverse_payment(Route::PayPal, "x", Vec::new())
        .await;
    assert_eq!(again.expect("nothing to do"), Reversal::Nothing);
    let again = bed.pay(charge("I-1", "x", START)).await;
    assert!(
        matches!(again, PayOutcome::Repeated(_)),
        "recorded late, it grants nothing"
    );
    assert_eq!(bed.row().period_end, START + 10 * DAY);
}

/// Credits of a returned payment that were spent stayed with the account for ever: they were logged as missing, and no later credit made
/// up for them. They are owed, and taken back as they become free, also after a restart, each once.
#[tokio::test]
async fn spent_credits_of_a_returned_payment_are_taken_back_when_they_become_free() {
    let bed = TestBed::new().await;
    bed.pay(charge("I-1", "x", START)).await;
    bed.correct("spent", -4_000_000).await;
    let back = bed
        .plans
        .reverse_payment(Route::PayPal, "x", Vec::new())
        .await;
    let Reversal::New { taken, missing, .. } = back.expect("noted") else {
        panic!("it is new");
    };
    assert_eq!((taken.get(), missing.get()), (1_000_000, 4_000_000));
    let payment = || {
        let row = bed.store.payment(Route::PayPal, "x").expect("a read");
        row.expect("a payment")
    };
    let owed = || payment().owed.expect("it is returned").get();
    assert_eq!(owed(), 4_000_000);
    bed.check_books();
    // Nothing is free at the first attempt, a part at the second, the rest at the third.
    for (day, bought, left, credits) in [
        (1, 0, 4_000_000, 0),
        (3, 1_500_000, 2_500_000, 0),
        (5, 6_000_000, 0, 3_500_000),
    ] {
        let worker = OwedCredits::worker(&bed.plans, PurchaseTasks::new(Handle::current()));
        assert_eq!(worker.run_once().await, 0, "not due yet");
        bed.correct(&format!("bought {day}"), bought).await;
        bed.at(START + day * DAY);
        assert_eq!(worker.run_once().await, 1);
        assert_eq!((owed(), bed.credits()), (left, credits), "day {day}");
        bed.check_books();
    }
    bed.at(START + 300 * DAY);
    let worker = OwedCredits::worker(&bed.plans, PurchaseTasks::new(Handle::current()));
    assert_eq!(worker.run_once().await, 0, "nothing is owed any more");
    assert_eq!(payment().status, PaymentStatus::Returned);
}

/// They stayed spendable until the next attempt, which was a minute away, and after vain attempts a day.
#[tokio::test]
async fn owed_credits_of_a_returned_payment_are_taken_back_as_soon_as_credit_is_free() {
    let bed = TestBed::new().await;
    bed.pay(charge("I-1", "x", START)).await;
    bed.correct("spent", -5_000_000).await;
    let back = bed
        .plans
        .reverse_payment(Route::PayPal, "x", Vec::new())
        .await;
    back.expect("noted");
    let owed = || {
        let row = bed.store.payment(Route::PayPal, "x").expect("a read");
        row.and_then(|payment| payment.owed)
            .expect("it is returned")
    };
    let worker = OwedCredits::worker(&bed.plans, PurchaseTasks::new(Handle::current()));
    assert_eq!(worker.run_once().await, 0, "nothing is free");
    // No time passes.
    for (bought, left) in [(1_500_000, 3_500_000), (3_500_000, 0)] {
        bed.correct(&format!("bought {bought}"), bought).await;
        assert_eq!(worker.run_once().await, 1);
        assert_eq!((owed().get(), bed.credits()), (left, 0));
        assert_eq!(worker.run_once().await, 0, "nothing is free");
    }
    bed.check_books();
}

#[tokio::test]
async fn days_of_a_transfer_behind_monthly_charges_count_once() {
    let bed = TestBed::new().await;
    bed.pay(charge("I-1", "first", START)).await;
    bed.pay(transfer("t")).await;
    assert_eq!(bed.row().period_end, START + 61 * DAY);
    // The next charge comes 20 days late: until then the transfer's days were used.
    let late = START + 51 * DAY;
    bed.at(late);
    bed.pay(charge("I-1", "second", late)).await;
    let left = 10 * DAY;
    assert_eq!(bed.row().period_end, late + 31 * DAY + left);

    // The transfer's block is reorganized away: its days go, those of the charge stay.
    let bed = TestBed::new().await;
    bed.pay(charge("I-1", "first", START)).await;
    bed.pay(transfer("t")).await;
    bed.at(START + DAY);
    let taken = bed
        .plans
        .reverse_payment(Route::X402, "t", Vec::new())
        .await;
    taken.expect("it is taken back");
    assert_eq!(
        (bed.row().period_end, bed.row().extra),
        (START + 31 * DAY, Duration::ZERO)
    );
    bed.at(START + 30 * DAY);
    bed.pay(charge("I-1", "second", START + 30 * DAY)).await;
    assert_eq!(bed.row().period_end, START + 61 * DAY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn payments_at_the_same_moment_all_count_and_the_same_one_counts_once() {
    let bed = Arc::new(TestBed::new().await);
    let tasks: Vec<_> = (0..24)
        .map(|number| {
            let bed = bed.clone();
            let name = format!("t{}", number % 4);
            tokio::spawn(async move { bed.pay(transfer(&name)).await })
        })
        .collect();
    let mut new = 0;
    for task in tasks {
        new += usize::from(matches!(task.await.expect("it ends"), PayOutcome::New(_)));
    }
    assert_eq!(new, 4);
    assert_eq!(bed.row().period_end, START + 4 * 30 * DAY);
    assert_eq!(bed.credits(), 4 * 5_000_000);
}

#[derive(Clone, Debug)]
enum Step {
    Transfer(u8),
    Charge(u8, u8),
    Back(u8),
    End(u8),
    /// That many days, and what is owed is taken back as far as it is free.
    Wait(u32),
    /// That many millions of the free credits are spent.
    Spend(i64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..6u8).prop_map(Step::Transfer),
        3 => (0..2u8, 0..6u8).prop_map(|(leave, name)| Step::Charge(leave, name)),
        1 => (0..6u8).prop_map(Step::Back),
        1 => (0..2u8).prop_map(Step::End),
        4 => (0..40u32).prop_map(Step::Wait),
        2 => (1..12i64).prop_map(Step::Spend),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn transfers_buy_exactly_their_days_and_every_payment_counts_at_most_once(steps in prop::collection::vec(step(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let bed = TestBed::new().await;
            let worker = OwedCredits::worker(&bed.plans, PurchaseTasks::new(Handle::current()));
            let (mut now, mut paid, mut given) = (START, std::collections::HashSet::new(), 0i64);
            let mut spent = 0;
            for (number, step) in steps.into_iter().enumerate() {
                let before = bed.store.subscription(ACCOUNT).expect("a read");
                match step {
                    Step::Wait(days) => {
                        now += days * DAY + Duration::from_micros(1);
                        bed.at(now);
                        worker.run_once().await;
                    }
                    Step::Spend(millions) => {
                        let part = bed.credits().min(millions * 1_000_000);
                        bed.correct(&format!("s{number}"), -part).await;
                        spent += part;
                    }
                    Step::Transfer(name) => {
                        let done = bed.pay(transfer(&format!("t{name}"))).await;
                        let was_new = paid.insert(format!("t{name}"));
                        prop_assert_eq!(matches!(done, PayOutcome::New(_)), was_new);
                        if was_new {
                            given += 1;
                            let from = before.map_or(now, |row| row.period_end.max(now));
                            prop_assert_eq!(bed.row().period_end, from + 30 * DAY);
                        } else {
                            prop_assert_eq!(Some(bed.row()), before);
                        }
                    }
                    Step::Charge(leave, name) => {
                        let (by, charged) = (format!("I-{leave}"), format!("c{name}"));
 let done = bed.pay(charge(&by, &charged, now)).await;
                        match done {
                            PayOutcome::New(row) => {
                                prop_assert!(paid.insert(charged), "twice");
                                given += 1;
                                prop_assert!(row.period_end >= now + 31 * DAY);
                                prop_assert!(before.is_none_or(|before| row.period_end >= before.period_end));
                            }
                            PayOutcome::Repeated(_) => prop_assert!(paid.contains(&charged)),
                            PayOutcome::Duplicate(row) => {
                                prop_assert!(row.is_active(now) && *row.reference != *by);
                                prop_assert_eq!(Some(row), before);
                            }
                        }
                    }
                    Step::Back(name) => {
                        let back = bed.plans.reverse_payment(Route::PayPal, &format!("c{name}"), Vec::new()).await.expect("noted");
                        if let Reversal::New { subscription, .. } = back {
                            given -= 1;
                            let before = before.expect("there was one");
                            prop_assert!(subscription.period_end <= before.period_end);
                            prop_assert!(subscription.period_end >= before.period_end.min(now));
                        }
                    }
                    Step::End(leave) => {
                        let by = format!("I-{leave}");
                        let row = bed.plans.set_renewal(ACCOUNT, (Route::PayPal, &by), Renewal::Ends, Vec::new()).await.expect("noted");
                        prop_assert_eq!(row.map(|row| row.period_end), before.map(|row| row.period_end));
                    }
                }
                // What was given back while it was spent is owed, and nothing else is.
                let rows = bed.store.payments_of(ACCOUNT, 100).expect("a read");
                let owed: i64 = rows.iter().filter_map(|row| row.owed).map(Micros::get).sum();
                prop_assert_eq!(bed.credits(), given * 5_000_000 - spent + owed);
                prop_assert!(bed.credits() >= 0);
                if let Some(row) = bed.store.subscription(ACCOUNT).expect("a read") {
                    prop_assert_eq!(bed.class_at(now) == "pro", row.is_active(now));
                }
            }
            let report = audit(&bed.store).expect("the audit runs");
            prop_assert!(report.clean(), "{:?}", report.violations);
            let ours = report.paid.x402 + report.paid.paypal;
            prop_assert_eq!(i64::try_from(ours).expect("few"), given);
            Ok(())
        })?;
    }
}
