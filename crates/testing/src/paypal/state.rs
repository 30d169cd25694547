//! The state of the stand-in.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_clock::{Clock, Timestamp};

use super::fault::{Effect, Operation};
use super::merchant::{PLAN_CENTS, PLAN_ID, PRODUCT_ID};
use super::resources::{Order, Plan, Purse, Subscription};
use super::signer::Signer;
use crate::fault::Faults;
use crate::gate::Gate;

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
    pub(super) faults: Faults<Operation, Effect>,
    pub(super) lag: u32,
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
        let product = serde_json::json!({"id": PRODUCT_ID, "name": "Pro", "type": "SERVICE",
            "create_time": "2026-11-01T12:00:00Z", "links": []});
        let plan = Plan::monthly(PLAN_ID, PRODUCT_ID, PLAN_CENTS);
        State {
            products: BTreeMap::from([(String::from(PRODUCT_ID), product)]),
            plans: BTreeMap::from([(plan.id.clone(), plan)]),
            ..State::default()
        }
    }

    /// A new, unique number.
    pub(super) fn number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }
}

pub(super) struct Shared {
    pub(super) address: SocketAddr,
    pub(super) signer: Signer,
    pub(super) gate: Gate,
    state: Mutex<State>,
}

impl Shared {
    pub(super) fn new(address: SocketAddr) -> Shared {
        Shared {
            address,
            signer: Signer::new(),
            gate: Gate::new(),
            state: Mutex::new(State::new()),
        }
    }

    pub(super) fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock())
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
