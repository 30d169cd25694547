//! Shared state of the steps of a payment: the dependencies, the attempts in progress, and the reads and writes of stored payments.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tollgate_clock::{Clock, Timestamp};
use tollgate_counters::Counters;
use tollgate_module::Snapshot;
use tollgate_money::AccountId;
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::idempotency::{Answer, IdempotencyKeys};
use tollgate_purchase::plan::{PlanState, Plans, Question};
use tollgate_purchase::wire::{CommerceSubscription, Product, Subscription};
use tollgate_store::{
    Admission, AuthorizationKey, AuthorizationRow, CommitError, Part, Route, Sealer, Store,
    SubscriptionRow, UnitOfWork, commit, reading,
};

use super::counters::X402Event;
use super::decide::BuyerState;
use super::facilitator::{Facilitator, Node};
use super::health::WatchedFacilitator;
use super::offer::Terms;
use super::purchase::{PurchaseOutcome, StoreFailure};
use super::rows;
use super::signature_limit::UnverifiedSignatureLimit;
use super::single_flight::SingleFlight;
use super::token::TokenCheck;
use super::transfer::{Change, Transfer};

/// What payments are sealed as, in the store.
const SEALED_KIND: &str = "tollgate x402 payments";

/// Dependencies of the processor.
pub struct X402Deps {
    /// The store of payments.
    pub store: Arc<dyn Store>,
    /// Subscriptions of accounts.
    pub plans: Plans,
    pub idempotency_keys: IdempotencyKeys,
    /// The service that submits transfers to the chain.
    pub facilitator: Arc<dyn Facilitator>,
    /// A node of the chain. With a node, the chain decides a payment's outcome. Without a node, the facilitator is trusted, and a payment
    /// without a reported outcome stays open.
    pub node: Option<Arc<dyn Node>>,
    /// Whether the token on the chain matches the terms.
    pub token: TokenCheck,
    /// The price, the token and the payee.
    pub terms: Terms,
    /// The product, as responses name it.
    pub product: Snapshot<Product>,
    pub clock: Clock,
    /// Whether other nodes use the store: a payment not submitted by this process may be in progress on another node.
    pub is_one_of_several: bool,
    /// How long a request waits for the outcome of its payment ([`super::processor::WAIT`]).
    pub wait: Duration,
    /// How long the chain is read to confirm a reported success ([`super::processor::CONFIRM`]).
    pub confirm: Duration,
    /// Runs attempts, so that a disconnected client does not cancel an attempt.
    pub runtime: PurchaseTasks,
}

/// The shared state of the steps. Each step is a method in a separate file.
pub(super) struct X402 {
    pub(super) deps: X402Deps,
    pub(super) facilitator: WatchedFacilitator,
    pub(super) signature_limit: UnverifiedSignatureLimit,
    pub(super) counters: Counters<X402Event>,
    pub(super) single_flight: SingleFlight<PurchaseOutcome>,
    sealer: Sealer,
}

/// The stored body of a facilitator call, and the terms that the payment is judged by.
pub(super) struct StoredCall {
    pub(super) body: Bytes,
    pub(super) terms: Terms,
}

impl X402 {
    pub(super) fn new(deps: X402Deps) -> X402 {
        X402 {
            facilitator: WatchedFacilitator::new(
                deps.facilitator.clone(),
                deps.clock.clone(),
                &deps.terms.network,
            ),
            single_flight: SingleFlight::new(deps.runtime.clone()),
            sealer: Sealer::new(&deps.store.root_secret(), SEALED_KIND),
            signature_limit: UnverifiedSignatureLimit::default(),
            counters: Counters::default(),
            deps,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.deps.clock.now()
    }

    /// The plan state of an account before an offer or a payment: the other rails are reconciled first.
    pub(super) async fn plan_state(
        &self,
        account: AccountId,
        question: Question,
    ) -> Result<PlanState, StoreFailure> {
        let plans = &self.deps.plans;
        Ok((plans.state_across_rails(account, Route::X402, question)).await?)
    }

    /// The plan state of an account, and the stored state of a payment.
    pub(super) async fn read(
        &self,
        account: AccountId,
        key: &AuthorizationKey,
    ) -> Result<(PlanState, Option<Transfer>), StoreFailure> {
        let wanted = key.clone();
        let row = reading(&self.deps.store, move |store| store.authorization(&wanted)).await?;
        let plan_state = self.deps.plans.state(account).await?;
        Ok((plan_state, row.map(Transfer::stored)))
    }

    /// Stores a transition.
    pub(super) async fn store(&self, change: Change) -> Result<Transfer, CommitError> {
        let (part, after) = change.into_parts();
        self.write(part).await?;
        Ok(after)
    }

    pub(super) async fn write(&self, part: Part) -> Result<(), CommitError> {
        // A started operation is never rejected by admission control: money may have moved.
        let unit = UnitOfWork::of(part, Admission::Always);
        commit(&*self.deps.store, unit).await.map(|_| ())
    }

    /// The body of a facilitator call, encrypted for the row of its payment.
    pub(super) fn seal(&self, row: &AuthorizationRow, body: &[u8]) -> Arc<[u8]> {
        let name = rows::reference(&row.key);
        self.sealer.seal(name.as_bytes(), &row.digest, body).into()
    }

    /// The facilitator call stored with a payment, decrypted.
    pub(super) fn unseal(&self, row: &AuthorizationRow) -> Option<StoredCall> {
        let name = rows::reference(&row.key);
        let body = self
            .sealer
            .open(name.as_bytes(), &row.digest, row.sealed.as_deref()?)?;
        let request: Value = serde_json::from_slice(&body).ok()?;
        Some(StoredCall {
            terms: Terms::read(request.get("paymentRequirements")?)?,
            body: body.into(),
        })
    }

    /// Whether another node may be submitting a payment without an attempt in progress here. A concurrent second call would get an answer
    /// about the first: the nonce is used, or the wallet has no money left.
    pub(super) fn is_submitted_elsewhere(&self, row: &AuthorizationRow) -> bool {
        self.deps.is_one_of_several && rows::is_being_submitted(row, self.now())
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
        let product = Product::clone(&self.deps.product.load());
        let body = CommerceSubscription::active(product, subscription, already_active);
        let body = serde_json::to_vec(&body).expect("texts and numbers are JSON");
        let fields = receipt.map(|receipt| ("PAYMENT-RESPONSE".to_owned(), receipt.to_owned()));
        Answer {
            status: 200,
            fields: fields.into_iter().collect(),
            body: body.into(),
        }
    }
}

pub(super) fn buyer_state(plan_state: &PlanState) -> BuyerState {
    BuyerState {
        has_open: plan_state.money_may_move(),
        is_active: plan_state.is_active(),
        may_renew: plan_state.may_renew(),
    }
}
