//! In-memory payment provider with monthly charges: idempotent, with injected faults.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_money::{MandateId, Usd};
use tollgate_purchase::FailureKind;
use tollgate_purchase::mandates::{
    Charge, ChargeStatus, CreatedSubscription, NewSubscription, ProviderPlan, ProviderSubscription,
    Recurring, RecurringError, Status,
};
use tollgate_purchase::plan::PRICE;

pub(crate) use super::faults::Fault;
use super::faults::Faults;
use super::process::{DAY, START};

pub(crate) const PLAN: &str = "P-MODEL";

/// A billing month of this provider.
pub(crate) const MONTH: Duration = Duration::from_hours(30 * 24);

/// How the charges of a subscription go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Funding {
    /// Completed at once.
    Instant,
    /// Pending until the test resolves them.
    Slow,
    /// Declined.
    Empty,
}

/// A subscription at the provider.
#[derive(Clone, Debug)]
pub(crate) struct FakeSubscription {
    pub(crate) mandate: String,
    made_at: Timestamp,
    pub(crate) plan_id: String,
    pub(crate) status: Status,
    pub(crate) price: Usd,
    pub(crate) charges: Vec<Charge>,
    pub(crate) next_charge: Option<Timestamp>,
    pub(crate) failed_at: Option<Timestamp>,
    pub(crate) failures: u32,
    pub(crate) funding: Funding,
    /// The buyer has changed the terms at the provider.
    pub(crate) is_changed: bool,
    /// The provider refuses to suspend it.
    pub(crate) refuses_suspension: bool,
    /// Reads that still show the status from before the approval.
    pub(crate) lag: u32,
    /// Reads of the list that lack the newest charge.
    pub(crate) unlisted: u32,
}

#[derive(Default)]
struct State {
    subscriptions: BTreeMap<String, FakeSubscription>,
    created: HashMap<String, String>,
    count: u32,
    reads: u32,
    monthly: Option<Usd>,
    keeps_all: bool,
}

/// The provider, its clock, and that of the gateway.
#[derive(Clone)]
pub(crate) struct FakeProvider {
    state: Arc<Mutex<State>>,
    faults: Faults,
    clock: (Clock, ManualClock),
    gateway_clock: (Clock, ManualClock),
}

impl FakeProvider {
    pub(crate) fn new() -> FakeProvider {
        let provider = FakeProvider {
            state: Arc::default(),
            faults: Faults::default(),
            clock: Clock::manual(START),
            gateway_clock: Clock::manual(START),
        };
        provider.with(|state| state.monthly = Some(PRICE));
        provider
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.0.now()
    }

    /// The gateway's clock.
    pub(crate) fn gateway_clock(&self) -> Clock {
        self.gateway_clock.0.clone()
    }

    /// Sets the error of the gateway's clock.
    pub(crate) fn skew(&self, hours: i64) {
        let error = Duration::from_hours(hours.unsigned_abs());
        self.gateway_clock.1.jump_to(match hours < 0 {
            true => self.now() - error,
            false => self.now() + error,
        });
    }

    /// Advances the time, and makes the charges that are due.
    pub(crate) fn advance(&self, by: Duration) {
        let end = self.now() + by;
        loop {
            let due = self.with(|state| {
                let all = state.subscriptions.values();
                let active = all.filter(|one| one.status == Status::Active);
                active.filter_map(|one| one.next_charge).min()
            });
            match due.filter(|due| *due <= end) {
                Some(due) => self.charge_due(due),
                None => break,
            }
        }
        self.clock.1.advance(by);
        self.gateway_clock.1.advance(by);
    }

    fn charge_due(&self, at: Timestamp) {
        self.with(|state| {
            let State {
                subscriptions,
                count,
                ..
            } = state;
            let active = subscriptions
                .values_mut()
                .filter(|one| one.status == Status::Active && one.next_charge == Some(at));
            for made in active {
                *count += 1;
                made.charge(at, *count);
            }
        });
    }

    /// Signals each crash of the process.
    pub(crate) fn crashed(&self) -> Arc<Notify> {
        self.faults.crashed()
    }

    pub(crate) fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.set(faults);
    }

    /// Waits until a call is held.
    pub(crate) async fn held(&self) {
        self.faults.held().await;
    }

    /// Lets the call that is held continue.
    pub(crate) fn release(&self) {
        self.faults.release();
    }

    /// The provider refuses refunds from now on.
    pub(crate) fn refuse_refunds(&self) {
        self.with(|state| state.keeps_all = true);
    }

    /// Changes the monthly price of the plan at the provider.
    pub(crate) fn reprice(&self, monthly: Option<Usd>) {
        self.with(|state| state.monthly = monthly);
    }

    /// Reads of subscriptions so far.
    pub(crate) fn reads(&self) -> u32 {
        self.with(|state| state.reads)
    }

    pub(crate) fn all(&self) -> Vec<FakeSubscription> {
        self.with(|state| state.subscriptions.values().cloned().collect())
    }

    /// The number of subscriptions that continue to charge.
    pub(crate) fn charging(&self) -> usize {
        let all = self.all();
        all.iter()
            .filter(|made| made.status == Status::Active)
            .count()
    }

    /// The subscription of a mandate.
    pub(crate) fn of(&self, mandate: MandateId) -> Option<FakeSubscription> {
        let name = mandate.to_string();
        self.all().into_iter().find(|made| made.mandate == name)
    }

    /// Changes the subscription with this id, or of this mandate.
    pub(crate) fn change(&self, id: impl Display, change: impl FnOnce(&mut FakeSubscription)) {
        let id = id.to_string();
        self.with(|state| {
            let mut all = state.subscriptions.iter_mut();
            if let Some((_, made)) = all.find(|(own, made)| **own == id || made.mandate == id) {
                change(made);
            }
        });
    }

    /// The buyer approves; the first charge is made at once, as `funding` has it.
    pub(crate) fn approve(&self, id: impl Display) {
        let now = self.now();
        let number = self.with(|state| {
            state.count += 1;
            state.count
        });
        self.change(id, |made| {
            // An approval page expires.
            if made.status == Status::Waiting && now.duration_since(made.made_at) < MONTH {
                made.status = Status::Active;
                made.charge(now, number);
            }
        });
    }

    /// The buyer or the merchant cancels, suspends or resumes a subscription at the provider.
    pub(crate) fn set(&self, mandate: MandateId, status: Status) {
        let now = self.now();
        self.change(mandate, |made| match (made.status, status) {
            (Status::Active | Status::Suspended, Status::Cancelled) => made.status = status,
            (Status::Active, Status::Suspended) => made.status = status,
            (Status::Suspended, Status::Active) => {
                made.status = status;
                made.next_charge = Some(made.next_charge.unwrap_or(now).max(now) + DAY);
            }
            _ => {}
        });
    }

    /// Completes or declines pending charges.
    pub(crate) fn resolve(&self, id: impl Display, arrives: bool) {
        self.change(id, |made| {
            for charge in &mut made.charges {
                if charge.status == ChargeStatus::Pending {
                    charge.status = match arrives {
                        true => ChargeStatus::Completed,
                        false => ChargeStatus::Declined,
                    };
                }
            }
        });
    }

    /// Completed charges that were not refunded.
    pub(crate) fn kept(&self) -> Vec<Charge> {
        let all = self.all().into_iter().flat_map(|made| made.charges);
        all.filter(|charge| charge.status == ChargeStatus::Completed)
            .collect()
    }

    /// Deletes a subscription.
    pub(crate) fn lose(&self, mandate: MandateId) {
        let name = mandate.to_string();
        self.with(|state| state.subscriptions.retain(|_, made| made.mandate != name));
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("no code panics while holding it"))
    }

    /// One call, with its injected fault.
    async fn call<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, FailureKind>,
    ) -> Result<T, RecurringError> {
        let called = self.faults.call(|| self.with(act)).await;
        called.map_err(|(kind, message)| RecurringError { kind, message })
    }
}

impl FakeSubscription {
    /// Makes a charge; a failed one is retried after five days, twice, and then the subscription is suspended.
    fn charge(&mut self, at: Timestamp, number: u32) {
        let status = match self.funding {
            Funding::Instant => ChargeStatus::Completed,
            Funding::Slow => ChargeStatus::Pending,
            Funding::Empty => ChargeStatus::Declined,
        };
        let cycle = self.next_charge.unwrap_or(at);
        self.charges.push(Charge {
            id: format!("T-{number}"),
            status,
            amount: Some(self.price),
            at,
        });
        if status == ChargeStatus::Declined {
            self.failed_at = Some(at);
            self.failures += 1;
            self.next_charge = Some(at + 5 * DAY);
            if self.failures > 2 {
                self.status = Status::Suspended;
                self.next_charge = None;
            }
        } else {
            self.next_charge = Some(cycle - self.failures * 5 * DAY + MONTH);
            self.failures = 0;
            self.failed_at = None;
        }
    }
}

#[async_trait]
impl Recurring for FakeProvider {
    async fn plan(&self) -> Result<ProviderPlan, RecurringError> {
        // Not a step of a purchase: no fault is injected.
        Ok(ProviderPlan {
            id: String::from(PLAN),
            is_active: true,
            monthly: self.with(|state| state.monthly),
        })
    }

    async fn create(
        &self,
        new: &NewSubscription<'_>,
    ) -> Result<CreatedSubscription, RecurringError> {
        let now = self.now();
        self.call(|state| {
            let known = state.created.get(new.key).cloned();
            let id = known.unwrap_or_else(|| {
                let id = format!("I-{}", state.created.len() + 1);
                let made = FakeSubscription {
                    mandate: new.mandate.to_string(),
                    made_at: now,
                    plan_id: new.plan_id.to_owned(),
                    status: Status::Waiting,
                    price: PRICE,
                    charges: Vec::new(),
                    next_charge: None,
                    failed_at: None,
                    failures: 0,
                    funding: Funding::Instant,
                    is_changed: false,
                    refuses_suspension: false,
                    lag: 0,
                    unlisted: 0,
                };
                state.subscriptions.insert(id.clone(), made);
                state.created.insert(new.key.to_owned(), id.clone());
                id
            });
            Ok(CreatedSubscription {
                approve_url: format!("https://paypal.example/approve/{id}"),
                subscription: id,
            })
        })
        .await
    }

    async fn read(&self, subscription: &str) -> Result<ProviderSubscription, RecurringError> {
        self.with(|state| state.reads += 1);
        self.call(|state| {
            let made = state
                .subscriptions
                .get_mut(subscription)
                .ok_or(FailureKind::Gone)?;
            let mut seen = ProviderSubscription {
                status: made.status,
                plan_id: made.plan_id.clone(),
                mandate: Some(made.mandate.clone()),
                is_changed: made.is_changed,
                next_charge: made.next_charge.filter(|_| made.status == Status::Active),
                last_payment: made
                    .charges
                    .iter()
                    .rfind(|charge| charge.status == ChargeStatus::Completed)
                    .map(|charge| (charge.amount, charge.at)),
                outstanding: Some(Usd::ZERO),
                failed_at: made.failed_at,
                failed_why: made.failed_at.map(|_| String::from("PAYER_CANNOT_PAY")),
            };
            if made.status != Status::Waiting && made.lag > 0 {
                made.lag -= 1;
                seen.status = Status::Waiting;
                seen.next_charge = None;
                seen.last_payment = None;
            }
            Ok(seen)
        })
        .await
    }

    async fn charges(
        &self,
        subscription: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Charge>, RecurringError> {
        self.call(|state| {
            let made = state
                .subscriptions
                .get_mut(subscription)
                .ok_or(FailureKind::Gone)?;
            let mut charges: Vec<Charge> = made
                .charges
                .iter()
                .filter(|charge| (from..=to).contains(&charge.at))
                .cloned()
                .collect();
            if made.unlisted > 0 {
                made.unlisted -= 1;
                charges.pop();
            }
            Ok(charges)
        })
        .await
    }

    async fn suspend(&self, subscription: &str, _reason: &str) -> Result<(), RecurringError> {
        self.call(|state| {
            let made = state
                .subscriptions
                .get_mut(subscription)
                .ok_or(FailureKind::Gone)?;
            match made.status {
                Status::Active if made.refuses_suspension => return Err(FailureKind::Refused),
                Status::Active => made.status = Status::Suspended,
                _ => return Err(FailureKind::AlreadyDone),
            }
            Ok(())
        })
        .await
    }

    async fn activate(&self, subscription: &str, _reason: &str) -> Result<(), RecurringError> {
        let now = self.now();
        self.call(|state| {
            let made = state
                .subscriptions
                .get_mut(subscription)
                .ok_or(FailureKind::Gone)?;
            match made.status {
                Status::Approved => made.status = Status::Active,
                // Suspended for failed charges: not by this call.
                Status::Suspended if made.failures > 2 => return Err(FailureKind::Refused),
                Status::Suspended => {
                    made.status = Status::Active;
                    made.next_charge = made.next_charge.map(|due| due.max(now));
                }
                _ => return Err(FailureKind::AlreadyDone),
            }
            Ok(())
        })
        .await
    }

    async fn cancel(&self, subscription: &str, _reason: &str) -> Result<(), RecurringError> {
        self.call(|state| {
            let made = state
                .subscriptions
                .get_mut(subscription)
                .ok_or(FailureKind::Gone)?;
            match made.status {
                Status::Active | Status::Suspended => made.status = Status::Cancelled,
                _ => return Err(FailureKind::AlreadyDone),
            }
            Ok(())
        })
        .await
    }

    async fn refund(&self, charge: &str, _key: &str, _reason: &str) -> Result<(), RecurringError> {
        self.call(|state| {
            if state.keeps_all {
                return Err(FailureKind::Refused);
            }
            let mut all = state
                .subscriptions
                .values_mut()
                .flat_map(|made| &mut made.charges);
            let found = all.find(|one| one.id == charge).ok_or(FailureKind::Gone)?;
            match found.status {
                ChargeStatus::Completed => found.status = ChargeStatus::Returned,
                _ => return Err(FailureKind::AlreadyDone),
            }
            Ok(())
        })
        .await
    }
}
