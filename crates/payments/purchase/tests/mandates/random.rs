//! Random sequences of events around mandates: buyers, the provider, time, and process crashes.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_money::MandateId;
use tollgate_purchase::mandates::{ChargeStatus, Status};

use crate::support::process::DAY;
use crate::support::recurring_provider::{Fault, Funding};
use crate::testbed::{ACCOUNT, TestBed};

/// An event. Numbers choose among the existing mandates.
#[derive(Clone, Debug)]
enum Event {
    Open,
    Verify(usize),
    Approve(usize),
    Cancel,
    Resume,
    Transfer,
    Funding(usize, Funding),
    Resolve(usize, bool),
    Unlist(usize, u32),
    Lag(usize, u32),
    /// The newest charge is refunded by another party.
    Return(usize),
    /// The buyer or the merchant changes the subscription at the provider.
    Status(usize, Status),
    Turn,
    /// That many hours.
    Pass(u64),
    /// The gateway's clock is off by that many hours.
    Skew(i64),
    Faults(Vec<Fault>),
    Crash,
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        Just(Fault::None),
        Just(Fault::AnswerLost),
        Just(Fault::CallLost),
        Just(Fault::Unavailable),
        Just(Fault::CrashBefore),
        Just(Fault::CrashAfter),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let which = 0usize..4;
    prop_oneof![
        6 => Just(Event::Open),
        4 => which.clone().prop_map(Event::Verify),
        6 => which.clone().prop_map(Event::Approve),
        2 => Just(Event::Cancel),
        2 => Just(Event::Resume),
        1 => Just(Event::Transfer),
        2 => (which.clone(), prop_oneof![Just(Funding::Instant), Just(Funding::Slow), Just(Funding::Empty)])
            .prop_map(|(at, funding)| Event::Funding(at, funding)),
        2 => (which.clone(), any::<bool>()).prop_map(|(at, arrives)| Event::Resolve(at, arrives)),
        1 => (which.clone(), 1u32..4).prop_map(|(at, reads)| Event::Unlist(at, reads)),
        1 => (which.clone(), 1u32..4).prop_map(|(at, reads)| Event::Lag(at, reads)),
        1 => which.clone().prop_map(Event::Return),
        1 => (which, prop_oneof![Just(Status::Cancelled), Just(Status::Suspended), Just(Status::Active)])
            .prop_map(|(at, status)| Event::Status(at, status)),
        4 => Just(Event::Turn),
        4 => (1u64..24 * 40).prop_map(Event::Pass),
        1 => (-48i64..48).prop_map(Event::Skew),
        4 => proptest::collection::vec(fault(), 1..6).prop_map(Event::Faults),
        1 => Just(Event::Crash),
    ]
}

/// A mandate with an approval link, the oldest first.
fn known(bed: &TestBed, at: usize) -> Option<MandateId> {
    let rows = bed.rows();
    let mut offered = rows.iter().rev().filter(|row| row.approve_url.is_some());
    offered.nth(at).map(|row| row.id)
}

fn happen(bed: &mut TestBed, event: Event, transfers: &mut u32) {
    let at = |bed: &TestBed, at| known(bed, at);
    match event {
        Event::Open => drop(bed.open()),
        Event::Verify(one) => {
            if let Some(id) = at(bed, one) {
                bed.verify(id);
            }
        }
        Event::Approve(one) => {
            if let Some(id) = at(bed, one) {
                bed.provider.approve(id);
            }
        }
        Event::Cancel => drop(bed.run(|processor| async move { processor.cancel(ACCOUNT).await })),
        Event::Resume => drop(bed.run(|processor| async move { processor.resume(ACCOUNT).await })),
        Event::Transfer => {
            *transfers += 1;
            bed.transfer(&format!("0x{transfers}"));
        }
        Event::Funding(one, funding) => {
            if let Some(id) = at(bed, one) {
                bed.provider.change(id, |made| made.funding = funding);
            }
        }
        Event::Resolve(one, arrives) => {
            if let Some(id) = at(bed, one) {
                bed.provider.resolve(id, arrives);
            }
        }
        Event::Unlist(one, reads) => {
            if let Some(id) = at(bed, one) {
                bed.provider.change(id, |made| made.unlisted = reads);
            }
        }
        Event::Lag(one, reads) => {
            if let Some(id) = at(bed, one) {
                bed.provider.change(id, |made| made.lag = reads);
            }
        }
        Event::Return(one) => {
            if let Some(id) = at(bed, one) {
                bed.provider.change(id, |made| {
                    let mut charges = made.charges.iter_mut().rev();
                    let paid = charges.find(|one| one.status == ChargeStatus::Completed);
                    if let Some(charge) = paid {
                        charge.status = ChargeStatus::Returned;
                    }
                });
            }
        }
        Event::Status(one, status) => {
            if let Some(id) = at(bed, one) {
                bed.provider.set(id, status);
            }
        }
        Event::Turn => drop(bed.run(|processor| async move { processor.reconcile_due().await })),
        Event::Pass(hours) => bed.provider.advance(Duration::from_hours(hours)),
        Event::Skew(hours) => bed.provider.skew(hours),
        Event::Faults(faults) => bed.provider.faults(faults),
        Event::Crash => bed.crash(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Under any sequence of events: once nothing is pending, the money kept at the provider equals the periods granted, no two
    /// subscriptions charge, and an account that has paid for the present has the plan.
    #[test]
    fn money_that_stayed_is_periods_that_were_given(events in proptest::collection::vec(event(), 1..30)) {
        let mut bed = TestBed::new();
        let mut transfers = 0;
        for event in events {
            happen(&mut bed, event, &mut transfers);
        }
        bed.provider.skew(0);
        for made in 0..8 {
            if let Some(id) = known(&bed, made) {
                bed.provider.resolve(id, true);
                bed.provider.change(id, |made| {
                    made.lag = 0;
                    made.unlisted = 0;
                });
            }
        }
        bed.pass(3);
        // Final mandates are reconciled on a notification only.
        for row in bed.rows() {
            bed.verify(row.id);
        }
        bed.pass(1);
        bed.check_books();
        prop_assert!(bed.provider.charging() <= 1, "two subscriptions charge one buyer");
        let now = bed.provider.now();
        if bed.provider.kept().iter().any(|charge| charge.at + 26 * DAY > now) {
            prop_assert!(bed.state().is_active(), "who has paid has the plan");
        }
    }
}
