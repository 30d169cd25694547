//! The x402 processor: settles each payment at most once through lost messages, wrong facilitator answers and crashes. Means: single flight
//! within the process; a write ahead of each submission, respected by the other nodes; reconciliation against the chain.
//!
//! Invariants after every call, and after a crash at any write:
//!
//! 1. A payment is stored as submitted before the submission, and an account has at most one submitted payment.
//! 2. One unit of work activates the plan and settles the payment; a payment is settled once.
//! 3. An offer is shown only while no payment of the account can still move money.
//! 4. The outcome of a payment is never guessed. With a node, only a chain lookup proves a payment settled or dead; until the proof the
//!    payment is open, for any answer of the facilitator. Without a node the facilitator is trusted.
//! 5. A transaction pays for one payment, or for as many as the chain shows transfers in the transaction.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_counters::Counters;
use tollgate_flight::value;
use tollgate_module::Snapshot;
use tollgate_money::AccountId;
use tollgate_purchase::DueWorker;
use tollgate_purchase::plan::{Question, Rail};
use tollgate_purchase::wire::Product;

use super::context::{X402, X402Deps, buyer_state};
use super::counters::X402Event;
use super::decide::{Decision, decide};
use super::offer::Terms;
use super::purchase::{PurchaseOutcome, PurchaseRequest, Stop};
use super::reconcile::Reconciliation;
use super::record::Presented;
use super::rows;
use super::single_flight::{FlightKey, Joined};

/// Default wait of a request for the outcome of the payment. The attempt continues afterwards.
pub const WAIT: Duration = Duration::from_secs(25);

/// Time of chain reads to confirm a success reported by the facilitator, before the buyer is asked to retry: two or three blocks.
pub const CONFIRM: Duration = Duration::from_secs(6);

/// Interval at which expired payments are deleted.
const DELETE_INTERVAL: Duration = Duration::from_mins(10);

/// The x402 processor. Cheap to clone.
#[derive(Clone)]
pub struct Processor {
    context: Arc<X402>,
    reconciliation: Arc<Reconciliation>,
    worker: Arc<DueWorker<Reconciliation>>,
}

impl Processor {
    /// A processor with these dependencies. Reconciliation starts with [`Processor::run`].
    pub fn new(deps: X402Deps) -> Processor {
        let context = Arc::new(X402::new(deps));
        let deps = &context.deps;
        let reconciliation = Arc::new(Reconciliation(Arc::clone(&context)));
        let rail: Arc<dyn Rail> = reconciliation.clone();
        deps.plans.add_rail(&rail);
        let tasks = deps.runtime.clone();
        let worker = DueWorker::new(reconciliation.clone(), deps.clock.clone(), tasks);
        Processor {
            worker: Arc::new(worker),
            reconciliation,
            context,
        }
    }

    /// The price, the token and the payee.
    pub fn terms(&self) -> &Terms {
        &self.context.deps.terms
    }

    pub fn product(&self) -> &Snapshot<Product> {
        &self.context.deps.product
    }

    /// Counters of payment outcomes.
    pub fn counters(&self) -> &Counters<X402Event> {
        &self.context.counters
    }

    /// Whether offers may be shown: a recent health check of the facilitator lists our scheme and network, and the token is verified.
    pub fn is_available(&self) -> bool {
        self.context.facilitator.is_healthy() && self.context.deps.token.is_verified()
    }

    /// Answers a purchase request. A started attempt continues when the caller disconnects.
    pub async fn purchase(&self, request: PurchaseRequest) -> PurchaseOutcome {
        self.context.deps.token.first_check().await;
        let Some(payment) = request.payment else {
            return self.context.without_payment(request.account).await;
        };
        let presented = Presented {
            flight_key: FlightKey {
                account: request.account,
                digest: rows::digest(&payment),
            },
            key: rows::key(&payment, self.terms()),
            payment,
        };
        let attempt = async {
            let outcome = loop {
                let context = Arc::clone(&self.context);
                let keys = request.idempotency_keys.clone();
                let joined =
                    self.context
                        .single_flight
                        .join(&presented.key, presented.flight_key, || {
                            context.submit(presented.clone(), keys)
                        });
                match joined {
                    Joined::Started(end) => {
                        break value(end).await.unwrap_or(PurchaseOutcome::Processing);
                    }
                    // The attempt was started by a request with other idempotency keys: one more run stores the answer under this request's
                    // keys.
                    Joined::Same(end) => match value(end).await {
                        Some(PurchaseOutcome::Done(_)) if !request.idempotency_keys.is_empty() => {}
                        outcome => break outcome.unwrap_or(PurchaseOutcome::Processing),
                    },
                    Joined::Other(end) => {
                        value(end).await;
                    }
                }
            };
            match outcome {
                refusal @ PurchaseOutcome::Refused { .. } => {
                    let context = &self.context;
                    context.unless_superseded(request.account, refusal).await
                }
                outcome => outcome,
            }
        };
        // The timeout covers the whole answer, including the questions to the other rails.
        let outcome = tokio::time::timeout(self.context.deps.wait, attempt).await;
        let outcome = outcome.unwrap_or(PurchaseOutcome::Processing);
        if outcome == PurchaseOutcome::UsedByAnother {
            self.context.counters.inc(X402Event::Taken);
            tracing::warn!(account = %request.account, payer = %presented.payment.authorization.from,
                "rejected payment: another account presented it first");
        }
        outcome
    }

    /// Checks the health of the facilitator and the token until it is dropped.
    pub async fn run_checks(&self) {
        let context = &self.context;
        tokio::join!(
            context.facilitator.run_checks(),
            context.deps.token.run_checks()
        );
    }

    /// Reconciles open payments and deletes expired payments, until the future is dropped. Payments left open by an earlier run come first.
    pub async fn run(&self) {
        let reconciliation = async {
            self.recover().await;
            self.worker.run().await;
        };
        let deletion = async {
            loop {
                self.delete_expired().await;
                tokio::time::sleep(DELETE_INTERVAL).await;
            }
        };
        tokio::join!(reconciliation, deletion);
    }

    /// Reconciles all payments left open by an earlier run, a few at a time. Payments due meanwhile are reconciled in between.
    pub async fn recover(&self) {
        self.reconciliation.recover(&self.worker).await;
    }

    /// Reconciles due payments, up to the bound of the worker, and returns their number.
    pub async fn reconcile_due(&self) -> usize {
        self.worker.run_once().await
    }

    /// Deletes expired payments without submission, and refused payments at the end of their retention.
    pub async fn delete_expired(&self) {
        self.context.delete_expired().await;
    }
}

impl X402 {
    async fn without_payment(&self, account: AccountId) -> PurchaseOutcome {
        let plan_state = match self.plan_state(account, Question::Offer).await {
            Ok(plan_state) => plan_state,
            Err(error) => return Stop::from(error).into_outcome(),
        };
        match decide(buyer_state(&plan_state), None) {
            Decision::AlreadyActive => self.already_active(&plan_state),
            Decision::Wait => self.outcome_while_open(&plan_state),
            _ => PurchaseOutcome::Offer,
        }
    }

    /// The refusal, or the outcome that takes precedence: a refusal shows an offer, and the account may have bought the plan meanwhile.
    async fn unless_superseded(
        &self,
        account: AccountId,
        refusal: PurchaseOutcome,
    ) -> PurchaseOutcome {
        match self.without_payment(account).await {
            PurchaseOutcome::Offer => refusal,
            outcome => outcome,
        }
    }
}

impl fmt::Debug for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processor")
            .field("terms", self.terms())
            .finish_non_exhaustive()
    }
}
