//! The state of the stand-in.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tollgate_clock::{Clock, Timestamp};

use super::fault::{Effect, Fault, Operation};
use super::notices::Signer;
use super::plans::Plan;
use super::subscriptions::{Purse, Subscription};

/// An order.
#[derive(Clone, Debug)]
pub struct Order {
    /// PayPal's id.
    pub id: String,
    /// State of the order.
    pub status: Status,
    /// The merchant's reference.
    pub custom_id: String,
    /// The merchant's invoice id.
    pub invoice_id: String,
    /// The description for the buyer.
    pub description: String,
    /// The price in cents.
    pub cents: i64,
    /// The URL the buyer returns to.
    pub return_url: String,
    /// The URL the buyer returns to after declining.
    pub cancel_url: String,
    /// The payment's id and status word.
    pub capture: Option<(String, &'static str)>,
    /// Refunds: ids and cents.
    pub refunds: Vec<(String, i64)>,
    /// Number of reads that do not show the buyer's approval yet.
    pub lag: u32,
}

/// The state of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Waits for the buyer's approval.
    PayerActionRequired,
    /// The buyer has approved it.
    Approved,
    /// Captured.
    Completed,
}

impl Order {
    /// Cents captured and not refunded. Pending payments are not captured.
    pub fn kept_cents(&self) -> i64 {
        match &self.capture {
            Some((_, "COMPLETED" | "PARTIALLY_REFUNDED" | "REFUNDED")) => {
                let back: i64 = self.refunds.iter().map(|(_, cents)| cents).sum();
                self.cents - back
            }
            _ => 0,
        }
    }
}

impl Status {
    pub(super) fn word(self) -> &'static str {
        match self {
            Status::PayerActionRequired => "PAYER_ACTION_REQUIRED",
            Status::Approved => "APPROVED",
            Status::Completed => "COMPLETED",
        }
    }
}

/// A response stored under its request's idempotency key.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) status: u16,
    pub(super) body: serde_json::Value,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) orders: BTreeMap<String, Order>,
    pub(super) tokens: HashSet<String>,
    pub(super) answers: HashMap<(Operation, String), Kept>,
    pub(super) paid_invoices: HashSet<String>,
    pub(super) faults: VecDeque<Fault>,
    pub(super) lag: u32,
    pub(super) calls: HashMap<Operation, u64>,
    pub(super) notices_to: Option<String>,
    pub(super) count: u64,
    pub(super) products: BTreeMap<String, serde_json::Value>,
    pub(super) plans: BTreeMap<String, Plan>,
    pub(super) subscriptions: BTreeMap<String, Subscription>,
    /// The outcome of future subscription charges.
    pub(super) purse: Purse,
    /// The last body of each kind of call.
    pub(super) asked: HashMap<Operation, serde_json::Value>,
    /// Maximum number of charges in a list; 0 for all.
    pub(super) listed_max: usize,
    /// By how much its clock is ahead of the machine's.
    pub(super) ahead: Duration,
}

impl State {
    /// With the one plan that a gateway may be configured with before the first call.
    fn new() -> State {
        let product = serde_json::json!({"id": super::PRODUCT_ID, "name": "Pro", "type": "SERVICE",
            "create_time": "2026-11-01T12:00:00Z", "links": []});
        let plan = Plan::monthly(super::PLAN_ID, super::PRODUCT_ID, super::PLAN_CENTS);
        State {
            products: BTreeMap::from([(String::from(super::PRODUCT_ID), product)]),
            plans: BTreeMap::from([(plan.id.clone(), plan)]),
            ..State::default()
        }
    }

    /// A new, unique number.
    pub(super) fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Counts a call, and returns its fault.
    pub(super) fn befalls(&mut self, operation: Operation) -> Option<Effect> {
        *self.calls.entry(operation).or_default() += 1;
        let at = self
            .faults
            .iter()
            .position(|fault| fault.operation == operation)?;
        let fault = &mut self.faults[at];
        let effect = fault.effect;
        fault.times = fault.times.saturating_sub(1);
        if fault.times == 0 {
            self.faults.remove(at);
        }
        Some(effect)
    }
}

pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) signer: Signer,
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn new(address: SocketAddr, signer: Signer) -> Arc<Shared> {
        Arc::new(Shared {
            address,
            signer,
            state: Mutex::new(State::new()),
        })
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes a subscription; false when the id is unknown.
    pub(super) fn change(&self, id: &str, change: impl FnOnce(&mut Subscription)) -> bool {
        self.with(|state| match state.subscriptions.get_mut(id) {
            Some(subscription) => {
                change(subscription);
                true
            }
            None => false,
        })
    }

    /// Its clock, in whole seconds.
    pub(super) fn now(&self) -> Timestamp {
        let secs = Clock::system().now().as_secs();
        Timestamp::from_secs(secs) + self.with(|state| state.ahead)
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
