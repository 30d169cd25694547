//! Certificates by ACME (RFC 8555): obtained from a certificate authority, stored, and renewed while the gateway runs.
//!
//! Each certificate has a task (`renewal`). The task reads the certificate's row, waits until an order is due, and claims the attempt by a
//! write that names the version of the row. Of several processes on a database, one process orders, and the other processes load the stored
//! certificate. An attempt counts as failed from its claim on: a process that ends during an attempt neither repeats the attempt
//! immediately nor forgets the backoff. `order` proves control over the names and exchanges a request for the certificate. `records` seals
//! the account's key and the private keys of certificates under the root secret of the store. `crate::proxy` answers the challenges, at
//! every gateway of the database (`challenges`).

mod challenges;
mod client;
mod order;
mod records;
mod renewal;
mod status;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate_clock::{Clock, Entropy};
use tollgate_store::Store;

use crate::config::{AcmeOrder, Certificate};
use crate::proxy::AcmeChallenges;
use challenges::OfOthers;
use records::{Records, SharedResponses};
pub(crate) use status::AcmeStatus;

/// Wait before a panicked task begins again.
const RESTART_BACKOFF: Duration = Duration::from_secs(60);

/// The dependencies of obtaining certificates.
pub(crate) struct AcmeDeps {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    pub(crate) challenges: Arc<AcmeChallenges>,
    /// Puts the certificate of an order in force.
    pub(crate) install: Install,
}

/// Puts the certificate with this id in force for the next handshake.
pub(crate) type Install = Box<dyn Fn([u8; 32], Certificate) + Send + Sync>;

/// The certificates of one gateway. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Acme {
    context: Arc<Context>,
    orders: watch::Sender<Vec<Arc<AcmeOrder>>>,
}

/// The state shared by the tasks.
struct Context {
    deps: AcmeDeps,
    records: Arc<Records>,
    status: AcmeStatus,
    of_others: Mutex<OfOthers>,
}

impl Acme {
    /// Puts the stored certificates of these orders in force, and answers the challenges of other gateways. Orders begin only with
    /// [`Acme::run`]. Blocks.
    pub(crate) fn new(deps: AcmeDeps, orders: Vec<Arc<AcmeOrder>>) -> Acme {
        let records = Arc::new(Records::new(deps.store.clone()));
        let context = Arc::new(Context {
            records,
            deps,
            status: AcmeStatus::default(),
            of_others: Mutex::default(),
        });
        if context.deps.store.has_allotments() && !orders.is_empty() {
            match context.records.shared(context.deps.clock.now()) {
                Ok(shared) => context.answer_for_others(shared),
                // The read is repeated soon.
                Err(error) => tracing::debug!(%error, "reading responses to challenges failed"),
            }
        }
        for order in &orders {
            context.status.begin(order);
            match context.records.best(order, context.deps.clock.now()) {
                Ok(Some(certificate)) => context.install(order, certificate),
                Ok(None) => {}
                Err(error) => {
                    let cause = crate::telemetry::chain(&error);
                    tracing::error!(certificate = %order.label(), %cause, "loading stored certificate failed");
                }
            }
        }
        Acme {
            context,
            orders: watch::Sender::new(orders),
        }
    }

    /// Obtains certificates for these orders from now on. Attempts under way continue for orders that stay.
    pub(crate) fn configure(&self, orders: Vec<Arc<AcmeOrder>>) {
        self.orders.send_replace(orders);
    }

    /// The state of the certificates.
    pub(crate) fn status(&self) -> AcmeStatus {
        self.context.status.clone()
    }

    /// Obtains and renews certificates, and answers the challenges of other gateways of the database, until a cancellation.
    pub(crate) async fn run(self) {
        let follow = challenges::follow(self.context.clone(), self.orders.subscribe());
        tokio::join!(self.maintain(), follow);
    }

    async fn maintain(self) {
        let mut orders = self.orders.subscribe();
        // Dropping the set cancels its tasks.
        let mut tasks = JoinSet::new();
        let mut running: HashMap<[u8; 32], (Arc<AcmeOrder>, tokio::task::AbortHandle)> =
            HashMap::new();
        loop {
            let wanted: HashMap<[u8; 32], Arc<AcmeOrder>> = orders
                .borrow_and_update()
                .iter()
                .rev()
                .map(|order| (order.id(), order.clone()))
                .collect();
            running.retain(|id, (order, task)| {
                let stays = wanted.get(id).is_some_and(|new| new == order);
                if !stays {
                    task.abort();
                    if !wanted.contains_key(id) {
                        self.context.status.end(order);
                    }
                }
                stays
            });
            for (id, order) in wanted {
                running.entry(id).or_insert_with(|| {
                    self.context.status.begin(&order);
                    let maintained = renewal::maintain(self.context.clone(), order.clone());
                    (order, tasks.spawn(maintained))
                });
            }
            tokio::select! {
                changed = orders.changed() => if changed.is_err() { return },
                Some(ended) = tasks.join_next() => {
                    // A cancelled task has left the map already; a panicked task begins again.
                    if ended.is_err_and(|error| error.is_panic()) {
                        tracing::error!("task of a certificate panicked, starting it again");
                        tokio::time::sleep(RESTART_BACKOFF).await;
                        running.retain(|_, (_, task)| !task.is_finished());
                    }
                }
            }
        }
    }
}

impl Context {
    /// Answers the challenges of orders of other gateways.
    fn answer_for_others(&self, shared: Vec<SharedResponses>) {
        (self.of_others.lock()).replace(shared, &self.deps.challenges);
    }

    fn install(&self, order: &AcmeOrder, certificate: Certificate) {
        self.status.installed(order);
        (self.deps.install)(order.id(), certificate);
    }
}
