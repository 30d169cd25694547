//! A stand-in PayPal: token endpoint, orders, plans and subscriptions with monthly charges, the buyer's approval pages, and signed webhook
//! notifications.
//!
//! It keeps PayPal's guarantees (idempotency keys, an order is paid once, an invoice is paid once) and can be scripted to lose responses,
//! fail, lag, decline and send invalid notifications. A test uses it in process; other programs use `/_control/...` ([`control`]).

mod call;
pub mod control;
mod fault;
mod merchant;
mod notices;
mod orders;
mod page;
mod plans;
mod resources;
mod routes;
mod signer;
mod state;
mod subscriptions;

use std::io;
use std::sync::Arc;

pub use fault::{Effect, Fault, Operation};
pub use merchant::{CLIENT_ID, CLIENT_SECRET, PLAN_ID, PRODUCT_ID, WEBHOOK_ID};
pub use notices::{Delivery, Event};
pub use resources::{Charge, Order, Plan, Purse, Status, Subscription};

use crate::gate::Gate;
use crate::server::Server;
use state::Shared;

/// A PayPal that listens on this machine.
pub struct PayPal {
    server: Server,
    shared: Arc<Shared>,
}

impl PayPal {
    /// Starts one on a free port, on the caller's runtime.
    ///
    /// # Panics
    ///
    /// When this machine has no free port.
    pub async fn start() -> PayPal {
        let (server, shared) = Server::start(Shared::new).await;
        PayPal { server, shared }
    }

    /// Starts one on its own thread, for a program without a runtime.
    ///
    /// # Errors
    ///
    /// When no port or no thread is available.
    pub fn start_own_thread() -> io::Result<PayPal> {
        let (server, shared) = Server::start_own_thread("paypal stand-in", Shared::new)?;
        Ok(PayPal { server, shared })
    }

    /// Its address, for `payments.paypal.base_url`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The authority of its signing certificate, PEM.
    pub fn ca_pem(&self) -> &str {
        self.shared.signer.ca_pem()
    }

    /// Sends notifications to this address from now on.
    pub fn send_notices_to(&self, url: &str) {
        self.shared
            .with(|state| state.notices_to = Some(url.to_owned()));
    }

    /// Stops sending notifications, as if all of them were lost.
    pub fn send_no_notices(&self) {
        self.shared.with(|state| state.notices_to = None);
    }

    /// Faults for the next calls; the first match applies first.
    pub fn fault(&self, fault: Fault) {
        self.shared.with(|state| state.faults.add(fault));
    }

    /// Removes all scripted faults.
    pub fn no_faults(&self) {
        self.shared.with(|state| state.faults.clear());
    }

    /// The gate for calls that were scripted to wait.
    pub fn gate(&self) -> Gate {
        self.shared.gate.clone()
    }

    /// The buyer approves an order; false when the order does not exist, or it is too late.
    pub async fn approve(&self, order: &str) -> bool {
        orders::approve(&self.shared, order).await
    }

    /// Number of reads of an order that do not show the buyer's approval yet.
    pub fn lag(&self, reads: u32) {
        self.shared.with(|state| state.lag = reads);
    }

    /// A pending payment arrives, or does not.
    pub async fn resolve(&self, order: &str, arrives: bool) -> bool {
        orders::resolve(&self.shared, order, arrives).await
    }

    /// Refunds an amount of a payment.
    pub async fn refund(&self, order: &str, cents: i64) -> bool {
        orders::refund(&self.shared, order, cents).await
    }

    /// Invalidates every issued token.
    pub fn expire_tokens(&self) {
        self.shared.with(|state| state.tokens.clear());
    }

    /// Forgets the idempotency keys of requests, as PayPal does after six hours or after three days.
    pub fn forget_keys(&self) {
        self.shared.with(|state| state.answers.clear());
    }

    /// All orders, in order of creation.
    pub fn orders(&self) -> Vec<Order> {
        self.shared
            .with(|state| state.orders.values().cloned().collect())
    }

    /// All subscriptions, in the order of their ids, which is the order of creation.
    pub fn subscriptions(&self) -> Vec<Subscription> {
        self.shared
            .with(|state| state.subscriptions.values().cloned().collect())
    }

    /// One subscription.
    ///
    /// # Panics
    ///
    /// When the id is unknown.
    pub fn subscription(&self, id: &str) -> Subscription {
        let found = self
            .shared
            .with(|state| state.subscriptions.get(id).cloned());
        found.expect("a subscription of this stand-in")
    }

    /// Limits the page size of charge lists, and reports the number of pages.
    pub fn list_at_most(&self, charges: usize) {
        self.shared.with(|state| state.listed_max = charges);
    }

    /// Cents charged to subscriptions and not refunded.
    pub fn charged_cents(&self) -> i64 {
        let all = self.subscriptions();
        all.iter().map(Subscription::kept_cents).sum()
    }

    /// The buyer approves monthly charges; false when the subscription does not exist, or it is too late.
    pub async fn agree(&self, subscription: &str) -> bool {
        subscriptions::approve(&self.shared, subscription).await
    }

    /// The outcome of future subscription charges.
    pub fn purse(&self, purse: Purse) {
        self.shared.with(|state| state.purse = purse);
    }

    /// Changes a subscription without a notification; false when the id is unknown.
    pub fn change(&self, subscription: &str, change: impl FnOnce(&mut Subscription)) -> bool {
        self.shared.change(subscription, change)
    }

    /// Changes a plan, as the merchant may in PayPal's own pages; false when the id is unknown.
    pub fn change_plan(&self, plan: &str, change: impl FnOnce(&mut Plan)) -> bool {
        self.shared.with(|state| match state.plans.get_mut(plan) {
            Some(plan) => {
                change(plan);
                true
            }
            None => false,
        })
    }

    /// Charges a subscription now.
    pub async fn charge(&self, subscription: &str) -> bool {
        subscriptions::charge(&self.shared, subscription).await
    }

    /// A pending charge arrives, or does not.
    pub async fn resolve_charge(&self, subscription: &str, arrives: bool) -> bool {
        subscriptions::resolve(&self.shared, subscription, arrives).await
    }

    /// The last charge is reversed by a chargeback.
    pub async fn reverse(&self, subscription: &str) -> bool {
        subscriptions::give_back(&self.shared, subscription, "PAYMENT.SALE.REVERSED").await
    }

    /// The last charge is refunded by the merchant.
    pub async fn refund_charge(&self, subscription: &str) -> bool {
        subscriptions::give_back(&self.shared, subscription, "PAYMENT.SALE.REFUNDED").await
    }

    /// Changes the status of a subscription on PayPal's own pages: `CANCELLED`, `SUSPENDED`, `ACTIVE`, `EXPIRED`.
    pub async fn set_status(&self, subscription: &str, status: &'static str) -> bool {
        subscriptions::set(&self.shared, subscription, status).await
    }

    /// Advances PayPal's clock, and what is due is charged.
    pub async fn pass(&self, time: std::time::Duration) {
        let whole_seconds = std::time::Duration::from_secs(time.as_secs());
        subscriptions::pass(&self.shared, whole_seconds).await;
    }

    /// The time until the next charge of a running subscription, in whole seconds, rounded up; zero where one is overdue.
    pub fn until_next_charge(&self) -> Option<std::time::Duration> {
        let now = self.shared.now();
        let running = |state: &mut state::State| {
            let running = state.subscriptions.values().filter(|one| one.runs());
            running.filter_map(|one| one.next_charge).min()
        };
        let next = self.shared.with(running)?;
        let micros = next.as_micros().saturating_sub(now.as_micros());
        let secs = u64::try_from(micros).unwrap_or(0).div_ceil(1_000_000);
        Some(std::time::Duration::from_secs(secs))
    }

    /// Cents captured and not refunded.
    pub fn taken_cents(&self) -> i64 {
        self.orders().iter().map(Order::kept_cents).sum()
    }

    /// How often an operation was called, answered or not.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.shared.with(|state| state.faults.calls(operation))
    }

    /// The last request body of an operation.
    pub fn asked(&self, operation: Operation) -> Option<serde_json::Value> {
        self.shared
            .with(|state| state.asked.get(&operation).cloned())
    }

    /// Sends one notification and returns the response status; 0 for no response.
    pub async fn notify(&self, event: &Event, delivery: Delivery) -> u16 {
        notices::deliver(&self.shared, event, delivery).await
    }
}
