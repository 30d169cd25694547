//! A payment provider in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::Notify;
use tollgate_money::Usd;
use tollgate_purchase::FailureKind;
use tollgate_purchase::mandates::{
    Charge, ChargeStatus, CreatedSubscription, NewSubscription, ProviderPlan, ProviderSubscription,
    Recurring, RecurringError, Status,
};
use tollgate_purchase::plan::PRICE;

pub(crate) const PLAN: &str = "P-5ML4271244454362WXNWU5NQ";

pub(crate) const DAY: i64 = 86_400_000_000;

/// The fault of the coming calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Fault {
    #[default]
    None,
    /// The provider is out of service.
    Down,
    /// The process crashes before the call is carried out.
    DeathBefore,
    /// The process crashes after it.
    DeathAfter,
}

/// A subscription at the provider.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    mandate: String,
    pub(crate) status: Status,
    pub(crate) charges: Vec<Charge>,
    pub(crate) is_changed: bool,
}

#[derive(Default)]
struct State {
    subscriptions: HashMap<String, Kept>,
    created: HashMap<String, String>,
    fault: Fault,
    /// Successful calls before the fault.
    after: usize,
}

/// The provider, and time.
#[derive(Clone, Default)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    pub(crate) now: Arc<AtomicI64>,
    pub(crate) died: Arc<Notify>,
}

impl World {
    pub(crate) fn new() -> World {
        let world = World::default();
        world.now.store(1_800_000_000_000_000, Relaxed);
        world
    }

    pub(crate) fn now(&self) -> i64 {
        self.now.load(Relaxed)
    }

    pub(crate) fn advance(&self, micros: i64) {
        self.now.fetch_add(micros, Relaxed);
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("nobody panics while holding it"))
    }

    /// Sets a fault that starts after the next `after` calls.
    pub(crate) fn fault(&self, fault: Fault, after: usize) {
        self.with(|state| (state.fault, state.after) = (fault, after));
    }

    /// The number of all subscriptions.
    pub(crate) fn made(&self) -> usize {
        self.with(|state| state.subscriptions.len())
    }

    /// The number of subscriptions that continue to charge.
    pub(crate) fn running(&self) -> usize {
        let runs = |kept: &&Kept| kept.status == Status::Active;
        self.with(|state| state.subscriptions.values().filter(runs).count())
    }

    /// The number of charges that were received and not refunded.
    pub(crate) fn takings(&self) -> usize {
        let is_there = |charge: &&Charge| charge.status == ChargeStatus::Completed;
        self.with(|state| {
            let all = state.subscriptions.values();
            all.map(|kept| kept.charges.iter().filter(is_there).count())
                .sum()
        })
    }

    pub(crate) fn change(&self, id: &str, change: impl FnOnce(&mut Kept)) {
        self.with(|state| change(state.subscriptions.get_mut(id).expect("there is one")));
    }

    /// The owner approves, and nothing is charged yet.
    pub(crate) fn agree(&self, id: &str) {
        self.change(id, |kept| kept.status = Status::Active);
    }

    /// The first payment is collected.
    pub(crate) fn charge(&self, id: &str) {
        let at = self.now();
        self.change(id, |kept| {
            kept.charges.push(Charge {
                id: format!("SALE-{id}-{}", kept.charges.len()),
                status: ChargeStatus::Completed,
                amount: Some(PRICE),
                at,
            });
        });
    }

    /// The owner approves and pays.
    pub(crate) fn pay(&self, id: &str) {
        self.agree(id);
        self.charge(id);
    }

    async fn call<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, FailureKind>,
    ) -> Result<T, RecurringError> {
        let fault = self.with(|state| match state.after {
            0 => state.fault,
            _ => {
                state.after -= 1;
                Fault::None
            }
        });
        let failed = |kind| RecurringError {
            kind,
            message: format!("{kind:?}"),
        };
        match fault {
            Fault::Down => return Err(failed(FailureKind::Unavailable)),
            Fault::DeathBefore => self.die().await,
            Fault::None | Fault::DeathAfter => {}
        }
        let done = self.with(act);
        if fault == Fault::DeathAfter {
            self.die().await;
        }
        done.map_err(failed)
    }

    async fn die(&self) {
        self.died.notify_one();
        std::future::pending::<()>().await;
    }
}

#[async_trait]
impl Recurring for World {
    async fn plan(&self) -> Result<ProviderPlan, RecurringError> {
        Ok(ProviderPlan {
            id: PLAN.to_owned(),
            is_active: true,
            monthly: Some(PRICE),
        })
    }

    async fn create(
        &self,
        new: &NewSubscription<'_>,
    ) -> Result<CreatedSubscription, RecurringError> {
        self.call(|state| {
            let known = state.created.get(new.key).cloned();
            let id = known.unwrap_or_else(|| {
                let id = format!("I-{}", state.created.len() + 1);
                let kept = Kept {
                    mandate: new.mandate.to_string(),
                    status: Status::Waiting,
                    charges: Vec::new(),
                    is_changed: false,
                };
                state.subscriptions.insert(id.clone(), kept);
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
        self.call(|state| {
            let kept = state
                .subscriptions
                .get(subscription)
                .ok_or(FailureKind::Gone)?;
            let last = kept.charges.last();
            Ok(ProviderSubscription {
                status: kept.status,
                plan_id: PLAN.to_owned(),
                mandate: Some(kept.mandate.clone()),
                is_changed: kept.is_changed,
                next_charge: last.map(|charge| charge.at + 30 * DAY),
                last_payment: last.map(|charge| (charge.amount, charge.at)),
                outstanding: Some(Usd::ZERO),
                failed_at: None,
                failed_why: None,
            })
        })
        .await
    }

    async fn charges(
        &self,
        subscription: &str,
        from: i64,
        to: i64,
    ) -> Result<Vec<Charge>, RecurringError> {
        self.call(|state| {
            let kept = state
                .subscriptions
                .get(subscription)
                .ok_or(FailureKind::Gone)?;
            let listed = kept.charges.iter();
            Ok(listed
                .filter(|charge| (from..=to).contains(&charge.at))
                .cloned()
                .collect())
        })
        .await
    }

    async fn activate(&self, _subscription: &str, _reason: &str) -> Result<(), RecurringError> {
        Ok(())
    }

    async fn cancel(&self, subscription: &str, _reason: &str) -> Result<(), RecurringError> {
        self.call(|state| {
            let kept = state
                .subscriptions
                .get_mut(subscription)
                .ok_or(FailureKind::Gone)?;
            kept.status = Status::Cancelled;
            Ok(())
        })
        .await
    }

    async fn refund(&self, charge: &str, _key: &str, _reason: &str) -> Result<(), RecurringError> {
        self.call(|state| {
            let all = state.subscriptions.values_mut();
            let mut charges = all.flat_map(|kept| kept.charges.iter_mut());
            let found = charges
                .find(|one| one.id == charge)
                .ok_or(FailureKind::Gone)?;
            found.status = ChargeStatus::Returned;
            Ok(())
        })
        .await
    }
}
