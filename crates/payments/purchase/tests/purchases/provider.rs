//! In-memory payment provider with orders: idempotent, with injected faults.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tollgate_clock::{Clock, ManualClock};
use tollgate_money::Usd;
use tollgate_purchase::{
    Capture, CaptureStatus, CreatedOrder, FailureKind, NewOrder, Order, OrderError, OrderStatus,
    Orders,
};

use crate::support::faults::{Fault, Faults};
use crate::support::process::START;

/// An order at the provider.
#[derive(Clone, Debug)]
pub(crate) struct FakeOrder {
    pub(crate) top_up: String,
    pub(crate) price: Usd,
    pub(crate) status: OrderStatus,
    pub(crate) capture: Option<Capture>,
    pub(crate) returned: Usd,
    /// The next capture is declined.
    pub(crate) declines: bool,
    /// Captures stay pending until the test resolves them.
    pub(crate) slow: bool,
}

#[derive(Default)]
struct State {
    orders: HashMap<String, FakeOrder>,
    /// Stored answers by idempotency key.
    created: HashMap<String, String>,
    captured: HashMap<String, Result<(), FailureKind>>,
    /// Captures that were carried out.
    takings: u32,
}

/// The provider and the clock.
#[derive(Clone)]
pub(crate) struct FakeProvider {
    state: Arc<Mutex<State>>,
    faults: Faults,
    pub(crate) clock: Clock,
    manual_clock: ManualClock,
}

impl FakeProvider {
    pub(crate) fn new() -> FakeProvider {
        let (clock, manual_clock) = Clock::manual(START);
        FakeProvider {
            state: Arc::default(),
            faults: Faults::default(),
            clock,
            manual_clock,
        }
    }

    pub(crate) fn advance(&self, secs: u64) {
        self.manual_clock.advance(Duration::from_secs(secs));
    }

    /// Signals each crash of the process.
    pub(crate) fn crashed(&self) -> Arc<Notify> {
        self.faults.crashed()
    }

    pub(crate) fn faults(&self, faults: impl IntoIterator<Item = Fault>) {
        self.faults.set(faults);
    }

    pub(crate) fn takings(&self) -> u32 {
        self.with(|state| state.takings)
    }

    /// All orders of a purchase; more than one where a call was repeated after its key had expired.
    pub(crate) fn orders_of(&self, top_up: &str) -> Vec<FakeOrder> {
        self.with(|state| {
            let mine = state.orders.values().filter(|made| made.top_up == top_up);
            mine.cloned().collect()
        })
    }

    /// Changes the orders of a purchase.
    pub(crate) fn change(&self, top_up: &str, mut change: impl FnMut(&mut FakeOrder)) {
        self.with(|state| {
            let mine = state
                .orders
                .values_mut()
                .filter(|made| made.top_up == top_up);
            mine.for_each(&mut change);
        });
    }

    /// Deletes the orders of a purchase.
    pub(crate) fn lose(&self, top_up: &str) {
        self.with(|state| state.orders.retain(|_, made| made.top_up != top_up));
    }

    /// Deletes the idempotency keys, as the provider does after six hours.
    pub(crate) fn forget_keys(&self) {
        self.with(|state| {
            state.created.clear();
            state.captured.clear();
        });
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.state.lock().expect("no code panics while holding it"))
    }

    /// One call, with its injected fault.
    async fn call<T>(
        &self,
        act: impl FnOnce(&mut State) -> Result<T, FailureKind>,
    ) -> Result<T, OrderError> {
        let called = self.faults.call(|| self.with(act)).await;
        called.map_err(|(kind, message)| OrderError { kind, message })
    }
}

#[async_trait]
impl Orders for FakeProvider {
    async fn create(&self, order: &NewOrder<'_>) -> Result<CreatedOrder, OrderError> {
        self.call(|state| {
            let known = state.created.get(order.key).cloned();
            let id = known.unwrap_or_else(|| {
                let id = format!("ORDER-{}", state.orders.len() + 1);
                let made = FakeOrder {
                    top_up: order.top_up.to_string(),
                    price: order.price,
                    status: OrderStatus::Waiting,
                    capture: None,
                    returned: Usd::ZERO,
                    declines: false,
                    slow: false,
                };
                state.orders.insert(id.clone(), made);
                state.created.insert(order.key.to_owned(), id.clone());
                id
            });
            Ok(CreatedOrder {
                approve_url: format!("https://paypal.example/approve/{id}"),
                order: id,
            })
        })
        .await
    }

    async fn read(&self, order: &str) -> Result<Order, OrderError> {
        self.call(|state| {
            let made = state.orders.get(order).ok_or(FailureKind::Gone)?;
            Ok(Order {
                status: made.status,
                price: Some(made.price),
                top_up: Some(made.top_up.clone()),
                capture: made.capture.clone(),
                returned: made.returned,
            })
        })
        .await
    }

    async fn capture(&self, order: &str, key: &str) -> Result<(), OrderError> {
        self.call(|state| {
            if let Some(known) = state.captured.get(key) {
                return *known;
            }
            let number = state.captured.len() + state.orders.len();
            let made = state.orders.get_mut(order).ok_or(FailureKind::Gone)?;
            let answer = if made.capture.is_some() {
                Err(FailureKind::AlreadyDone)
            } else if made.status != OrderStatus::Approved {
                Err(FailureKind::NotApproved)
            } else if std::mem::take(&mut made.declines) {
                Err(FailureKind::Declined)
            } else {
                let status = match made.slow {
                    true => CaptureStatus::Pending,
                    false => CaptureStatus::Completed,
                };
                made.status = OrderStatus::Completed;
                made.capture = Some(Capture {
                    id: format!("CAPTURE-{order}-{number}"),
                    status,
                    amount: Some(made.price),
                });
                state.takings += 1;
                Ok(())
            };
            state.captured.insert(key.to_owned(), answer);
            answer
        })
        .await
    }
}
