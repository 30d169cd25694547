//! The x402 processor: settles each payment at most once through lost messages, wrong facilitator answers and crashes, by single flight,
//! a write ahead of each submission, and reconciliation against the chain.
//!
//! Invariants after every call, and after a crash at any write:
//!
//! 1. A payment is stored as submitted before it is submitted, and an account has at most one such payment.
//! 2. The plan is activated in the same unit of work in which a payment becomes settled, and a payment becomes settled once.
//! 3. An offer is shown only while no payment of the account can still move money.
//! 4. The outcome of a payment is never guessed: with a node it is settled or dead when a chain lookup proves it, and open until then,
//!    whatever the facilitator answers; without one the facilitator is trusted.
//! 5. A transaction pays for one payment, or for as many as it has transfers for on the chain.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tollgate_clock::{Clock, Timestamp};
use tollgate_counters::Counters;
use tollgate_money::AccountId;
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::idempotency::{Answer, IdempotencyKeys};
use tollgate_purchase::plan::{PlanError, PlanState, Plans};
use tollgate_purchase::wire::{CommerceSubscription, Product, Subscription};
use tollgate_store::{
    AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState, CommitError, Part,
    ReadError, Store, SubscriptionRow, reading,
};

use super::counters::X402Event;
use super::decide::{BuyerState, Decision, decide};
use super::facilitator::{CallError, Facilitator, Node, Operation, supports};
use super::health::Health;
use super::offer::Terms;
use super::payment::Payment;
use super::rows;
use super::sealing::Sealer;
use super::signature_limit::UnverifiedSignatureLimit;
use super::single_flight::{FlightKey, Joined, SingleFlight, finished};

/// Default time for which a request waits for the outcome of its payment. The attempt continues after it.
pub const WAIT: Duration = Duration::from_secs(25);

/// How long the chain is read to confirm a success that the facilitator reports, before its buyer is asked to retry: two or three blocks.
pub const CONFIRM: Duration = Duration::from_secs(6);

/// Interval of the facilitator's health check: twice within the time for which a good result counts.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_secs(12);

/// Interval at which the processor reads the due payments from the store.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);

/// Payments reconciled concurrently.
const CONCURRENT_MAX: usize = 8;

/// How many payments of an account may be refused after submission within [`REFUSED_WINDOW`] where there is no node: each stays for the
/// operator, and any of them may have moved money.
const REFUSED_MAX: usize = 8;

/// See [`REFUSED_MAX`].
const REFUSED_WINDOW: Duration = Duration::from_hours(24);

/// How long after its expiry a payment that was refused after submission is kept for the operator.
const REFUSED_RETENTION: Duration = Duration::from_hours(30 * 24);

/// Passes of reconciliation between two deletions of expired payments.
const DELETE_EVERY: u32 = 600;

/// Dependencies of the processor.
pub struct X402Deps {
    /// The store of payments.
    pub store: Arc<dyn Store>,
    /// Subscriptions of accounts.
    pub plans: Plans,
    /// Idempotency keys.
    pub idempotency_keys: IdempotencyKeys,
    /// The service that submits transfers to the chain.
    pub facilitator: Arc<dyn Facilitator>,
    /// A node of the chain: with one, the chain decides a payment's outcome; without one, the facilitator is trusted, and a payment whose
    /// outcome it does not report stays open.
    pub node: Option<Arc<dyn Node>>,
    /// The price, the token and the payee.
    pub terms: Terms,
    /// The product, as responses name it.
    pub product: Product,
    /// The clock.
    pub clock: Clock,
    /// How long a request waits for the outcome of its payment ([`WAIT`]).
    pub wait: Duration,
    /// How long the chain is read to confirm a reported success ([`CONFIRM`]).
    pub confirm: Duration,
    /// Runs attempts, so that a client that disconnects does not cancel them.
    pub runtime: PurchaseTasks,
}

/// The x402 processor. Cheap to clone.
#[derive(Clone)]
pub struct Processor {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) deps: X402Deps,
    pub(super) health: Health,
    pub(super) sealer: Sealer,
    pub(super) signature_limit: UnverifiedSignatureLimit,
    pub(super) counters: Counters<X402Event>,
    /// Notified when a failed facilitator call of a buyer has suspended offers: the health check runs at once.
    check_now: Notify,
    single_flight: SingleFlight<PurchaseOutcome>,
}

/// A purchase request.
#[derive(Clone, Debug)]
pub struct PurchaseRequest {
    /// The account that gets the plan: the owner of the credential.
    pub account: AccountId,
    /// The payment, if there is one.
    pub payment: Option<Payment>,
    /// The idempotency keys of the request, if any.
    pub idempotency_keys: Vec<Arc<str>>,
}

/// The outcome of a purchase request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurchaseOutcome {
    /// No payment in the request: an offer may be shown.
    Offer,
    /// The payment is invalid, and moves no money: an offer may be shown.
    Refused {
        /// The reason, as the protocol names it.
        why: String,
        /// The value of `PAYMENT-RESPONSE` for a payment that was tried.
        failure: Option<String>,
        /// Whether it is proved that no money has moved. Otherwise it was submitted, and only the facilitator says so.
        is_proven: bool,
    },
    /// The facilitator refused the payment after submission, and the chain does not rule out yet that it settles: no offer.
    NotFinal {
        /// The reason of the refusal, as the protocol names it.
        why: String,
        /// Seconds for which it can still settle.
        secs: u64,
    },
    /// The account has the plan.
    Done(Answer),
    /// The payment was presented by another account before.
    UsedByAnother,
    /// An idempotency key of the request was used with another request.
    OtherRequest,
    /// A request with the same idempotency key is in progress.
    InProgress,
    /// Money may be moving.
    Processing,
    /// The facilitator is unavailable; no money has moved.
    Unavailable,
    /// Too many signatures that could not be verified locally.
    TooManyUnverified(Duration),
    /// Too many payments of the account were refused after submission, and no node confirms that. This one was not submitted.
    TooManyRefused(Duration),
    /// The store could not be read or written.
    StoreUnavailable,
}

/// A read or write of the store that failed during an attempt.
#[derive(Debug, thiserror::Error)]
pub(super) enum StoreFailure {
    #[error("could not read a payment")]
    Read(#[from] ReadError),
    #[error("could not write a payment")]
    Write(#[from] CommitError),
    #[error("could not read or write the plan state of the account")]
    Plan(#[from] PlanError),
    #[error("could not claim an idempotency key")]
    IdempotencyKey(#[from] tollgate_purchase::idempotency::ClaimError),
}

impl Processor {
    /// A processor with these dependencies. Reconciliation starts with [`Processor::run`].
    pub fn new(deps: X402Deps) -> Processor {
        let sealer = Sealer::new(&deps.store.root_secret().0);
        Processor {
            inner: Arc::new(Inner {
                health: Health::new(deps.clock.clone()),
                single_flight: SingleFlight::new(deps.runtime.clone()),
                sealer,
                signature_limit: UnverifiedSignatureLimit::default(),
                counters: Counters::default(),
                check_now: Notify::new(),
                deps,
            }),
        }
    }

    /// The price, the token and the payee.
    pub fn terms(&self) -> &Terms {
        &self.inner.deps.terms
    }

    /// The product.
    pub fn product(&self) -> &Product {
        &self.inner.deps.product
    }

    /// Counters of payment outcomes.
    pub fn counters(&self) -> &Counters<X402Event> {
        &self.inner.counters
    }

    /// Whether offers may be shown: a recent health check of the facilitator lists our scheme and network.
    pub fn is_available(&self) -> bool {
        self.inner.health.is_healthy()
    }

    /// Answers a purchase request. A started attempt continues when the caller disconnects.
    pub async fn purchase(&self, request: PurchaseRequest) -> PurchaseOutcome {
        let Some(payment) = request.payment else {
            return self.inner.without_payment(request.account).await;
        };
        let flight_key = FlightKey {
            account: request.account,
            digest: rows::digest(&payment),
        };
        let key = rows::key(&payment, self.terms());
        let attempt = async {
            loop {
                let inner = Arc::clone(&self.inner);
                let (key, payment, idempotency_keys) = (
                    key.clone(),
                    payment.clone(),
                    request.idempotency_keys.clone(),
                );
                let joined =
                    self.inner
                        .single_flight
                        .join(&key.clone(), flight_key, || async move {
                            inner
                                .process(flight_key, key, payment, idempotency_keys)
                                .await
                        });
                match joined {
                    Joined::Started(end) => {
                        return finished(end).await.unwrap_or(PurchaseOutcome::Processing);
                    }
                    // The attempt was started by a request with other idempotency keys: one more run stores the answer under this request's
                    // keys.
                    Joined::Same(end) => match finished(end).await {
                        Some(PurchaseOutcome::Done(_)) if !request.idempotency_keys.is_empty() => {}
                        outcome => return outcome.unwrap_or(PurchaseOutcome::Processing),
                    },
                    Joined::Other(end) => {
                        finished(end).await;
                    }
                }
            }
        };
        let outcome = tokio::time::timeout(self.inner.deps.wait, attempt).await;
        let mut outcome = outcome.unwrap_or(PurchaseOutcome::Processing);
        if matches!(outcome, PurchaseOutcome::Refused { .. }) {
            outcome = self.inner.unless_superseded(request.account, outcome).await;
        }
        if outcome == PurchaseOutcome::UsedByAnother {
            self.inner.counters.inc(X402Event::Taken);
            tracing::warn!(account = %request.account, payer = %payment.authorization.from,
                "rejected payment: another account presented it first");
        }
        outcome
    }

    /// Runs until it is dropped: health checks of the facilitator, and reconciliation of open payments. Payments left open by an earlier
    /// run come first.
    pub async fn run(&self) {
        tokio::join!(self.run_health_checks(), self.run_reconciliation());
    }

    async fn run_health_checks(&self) {
        loop {
            self.inner.check_health().await;
            let pause = tokio::time::sleep(match self.inner.health.is_healthy() {
                true => HEALTH_CHECK_INTERVAL,
                false => HEALTH_CHECK_INTERVAL / 6,
            });
            // One buyer's payment can cause an error at the facilitator. That suspends offers for all accounts, but only until the next
            // health check.
            tokio::select! {
                () = self.inner.check_now.notified() => {}
                () = pause => {}
            }
        }
    }

    async fn run_reconciliation(&self) {
        self.recover().await;
        let mut passes = 0u32;
        loop {
            self.reconcile_due().await;
            if passes.is_multiple_of(DELETE_EVERY) {
                self.delete_expired().await;
            }
            passes = passes.wrapping_add(1);
            tokio::time::sleep(RECONCILE_INTERVAL).await;
        }
    }

    /// Reconciles all payments that an earlier run left open, a few at a time. Payments that fall due meanwhile are reconciled in between.
    pub async fn recover(&self) {
        let has_node = self.inner.deps.node.is_some();
        let (mut last, mut payments) = (None::<AuthorizationRow>, 0);
        loop {
            let Some(_background) = self.inner.deps.runtime.background() else {
                return;
            };
            let after = last.take();
            let open = reading(&self.inner.deps.store, move |store| {
                store.authorizations_open(after.as_ref(), CONCURRENT_MAX)
            });
            let mut rows = match open.await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::error!(%error, "reading open payments failed");
                    return;
                }
            };
            last = rows.last().cloned();
            if last.is_none() {
                break;
            }
            // Without a node a refused payment cannot be looked up.
            rows.retain(|row| has_node || row.state != AuthorizationState::RefusedAfterSubmit);
            if rows.is_empty() {
                continue;
            }
            payments += self.reconcile_all(rows).await;
            self.reconcile_due().await;
        }
        if payments > 0 {
            tracing::warn!(
                payments,
                "reconciled payments that an earlier run left open"
            );
        }
    }

    /// Reconciles all due payments once and returns their number.
    pub async fn reconcile_due(&self) -> usize {
        let Some(_background) = self.inner.deps.runtime.background() else {
            return 0;
        };
        let now = self.inner.now();
        let due = reading(&self.inner.deps.store, move |store| {
            store.authorizations_due(now, CONCURRENT_MAX)
        });
        match due.await {
            Ok(rows) => self.reconcile_all(rows).await,
            Err(error) => {
                tracing::error!(%error, "reading due payments failed");
                0
            }
        }
    }

    /// Deletes payments that were never submitted and have expired, and refused ones at the end of their retention.
    pub async fn delete_expired(&self) {
        self.inner.delete_expired().await;
    }

    async fn reconcile_all(&self, rows: Vec<AuthorizationRow>) -> usize {
        let mut ends = Vec::new();
        for row in rows {
            // A payment with an attempt in progress is skipped: the attempt decides it.
            if self.inner.single_flight.has(&row.key) {
                continue;
            }
            let flight_key = FlightKey {
                account: row.account,
                digest: row.digest,
            };
            let (inner, key) = (Arc::clone(&self.inner), row.key.clone());
            let joined = self
                .inner
                .single_flight
                .join(&key, flight_key, || async move {
                    inner.reconcile_row(row).await
                });
            if let Joined::Started(end) | Joined::Same(end) = joined {
                ends.push(end);
            }
        }
        let count = ends.len();
        for end in ends {
            finished(end).await;
        }
        count
    }
}

impl Inner {
    pub(super) fn now(&self) -> Timestamp {
        self.deps.clock.now()
    }

    async fn without_payment(&self, account: AccountId) -> PurchaseOutcome {
        let plan_state = match self.deps.plans.state(account).await {
            Ok(plan_state) => plan_state,
            Err(error) => return store_failure(&error.into()),
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

    /// The outcome while an earlier payment of the account is open.
    pub(super) fn outcome_while_open(&self, plan_state: &PlanState) -> PurchaseOutcome {
        let open = plan_state.authorization.as_ref();
        open.map_or(PurchaseOutcome::Processing, |row| self.open_outcome(row))
    }

    /// The outcome for an open payment.
    pub(super) fn open_outcome(&self, row: &AuthorizationRow) -> PurchaseOutcome {
        if self.deps.node.is_none() || !rows::is_refused(row) {
            return PurchaseOutcome::Processing;
        }
        let left = (row.valid_before + rows::GRACE).duration_since(self.now());
        PurchaseOutcome::NotFinal {
            why: row.note.as_deref().unwrap_or_default().to_owned(),
            secs: left.as_secs() + 1,
        }
    }

    /// The plan state of an account, and the stored state of a payment.
    pub(super) async fn read(
        &self,
        account: AccountId,
        key: &AuthorizationKey,
    ) -> Result<(PlanState, Option<AuthorizationRow>), StoreFailure> {
        let wanted = key.clone();
        let row = reading(&self.deps.store, move |store| store.authorization(&wanted)).await?;
        Ok((self.deps.plans.state(account).await?, row))
    }

    pub(super) fn already_active(&self, plan_state: &PlanState) -> PurchaseOutcome {
        match plan_state.active() {
            Some(row) => PurchaseOutcome::Done(self.answer(row, None, true)),
            // The subscription ended between the two reads.
            None => PurchaseOutcome::Offer,
        }
    }

    /// The answer to an account that has the plan.
    pub(super) fn answer(
        &self,
        row: &SubscriptionRow,
        receipt: Option<&str>,
        already_active: bool,
    ) -> Answer {
        let subscription = Subscription::new(self.deps.plans.plan(), row, self.now());
        let body =
            CommerceSubscription::active(self.deps.product.clone(), subscription, already_active);
        let body = serde_json::to_vec(&body).expect("texts and numbers are JSON");
        let fields = receipt.map(|receipt| ("PAYMENT-RESPONSE".to_owned(), receipt.to_owned()));
        Answer {
            status: 200,
            fields: fields.into_iter().collect(),
            body: body.into(),
        }
    }

    /// Runs a health check of the facilitator.
    async fn check_health(&self) {
        let response = self
            .call_facilitator(Operation::Supported, Bytes::new())
            .await;
        let network = &self.deps.terms.network;
        if let Ok(response) = response {
            let good = supports(&response, network);
            if !good && self.health.last_result() != Some(false) {
                tracing::warn!(status = response.status, %network, "suspending offers: the facilitator does not support the scheme on this network");
            }
            self.health.record(good);
        }
    }

    /// Calls the facilitator. A failed call suspends offers until a health check succeeds, which runs at once.
    pub(super) async fn call_facilitator(
        &self,
        operation: Operation,
        body: Bytes,
    ) -> Result<super::facilitator::Response, CallError> {
        let response = self.deps.facilitator.call(operation, body).await;
        match &response {
            Err(error) => {
                // Health checks run every few seconds: an outage is logged once.
                if operation != Operation::Supported || self.health.last_result() != Some(false) {
                    tracing::warn!(operation = operation.word(), %error, "facilitator call failed");
                }
            }
            Ok(response) if response.status >= 500 && operation == Operation::Verify => {}
            Ok(_) => return response,
        }
        self.health.record(false);
        if operation != Operation::Supported {
            self.check_now.notify_one();
        }
        response
    }

    /// How long an account has to wait until another payment of it may be submitted, if too many were refused afterwards. This limit alone
    /// bounds the rows of an account: no row is deleted before the end of its retention, since it may be the proof of a transfer.
    pub(super) async fn refused_wait(
        &self,
        account: AccountId,
    ) -> Result<Option<Duration>, ReadError> {
        if self.deps.node.is_some() {
            return Ok(None);
        }
        let since = self.now() - REFUSED_WINDOW;
        let refused = reading(&self.deps.store, move |store| {
            store.authorizations_refused(account, since, REFUSED_MAX)
        });
        let refused = refused.await?;
        let oldest = refused.get(REFUSED_MAX - 1);
        Ok(oldest.map(|oldest| oldest.duration_since(since).max(rows::SECOND)))
    }

    async fn delete_expired(&self) {
        let deletion = part(AuthorizationPart::Forget {
            before: self.now() - 60 * rows::MINUTE,
            refused_before: self.now() - REFUSED_RETENTION,
            limit: 10_000,
        });
        if let Err(error) = self.write(deletion).await {
            tracing::warn!(%error, "deleting expired payments failed");
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

pub(super) fn buyer_state(plan_state: &PlanState) -> BuyerState {
    BuyerState {
        has_open: plan_state.money_may_move(),
        is_active: plan_state.is_active(),
        may_renew: plan_state.may_renew(),
    }
}

pub(super) fn store_failure(error: &StoreFailure) -> PurchaseOutcome {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::error!(%error, cause, "payment attempt failed");
    PurchaseOutcome::StoreUnavailable
}

pub(super) fn part(part: AuthorizationPart) -> Part {
    Part::Authorization(Box::new(part))
}
