//! Processor of checkouts: creation, reconciliation with the owner's mandate, changes and cancellation.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_clock::{Clock, Timestamp};
use tollgate_money::{AccountId, CheckoutId};
use tollgate_store::{
    Admission, CheckoutPart, CommitError, MandateRow, Part, Refusal, Route, Store, SubscriptionRow,
    UnitOfWork, commit, reading,
};

use super::error::CheckoutError;
use super::session::{Checkout, CheckoutContent, NewCheckout, OwnerDecision, Status, part};
use crate::mandates::{Mandates, OpenError, Urls, Verified, is_past_due};
use crate::plan::{PlanState, Plans, Question};
use crate::topups::Draw;

/// Waiting checkouts per account. A new checkout cancels the oldest above this number.
const WAITING_MAX: u32 = 20;

/// Attempts at a write under optimistic locking.
const WRITE_ATTEMPTS: usize = 16;

/// Age up to which a reconciled checkout is fresh enough for a read.
const FRESH_FOR: Duration = Duration::from_secs(2);

/// Retention of a checkout after its last change.
const RETENTION: Duration = Duration::from_hours(400 * 24);

/// Dependencies of [`Checkouts`].
pub struct CheckoutDeps {
    /// Store of the checkouts.
    pub store: Arc<dyn Store>,
    /// Subscriptions of accounts.
    pub plans: Plans,
    /// Mandates; `None` disables sales by checkout.
    pub mandates: Option<Mandates>,
    /// Lifetime of a checkout that waits for the owner.
    pub lifetime: Duration,
    pub clock: Clock,
    /// Fills a slice with random bytes.
    pub draw: Draw,
}

/// Creates and changes checkouts. Cheap to clone.
#[derive(Clone)]
pub struct Checkouts {
    inner: Arc<CheckoutContext>,
}

struct CheckoutContext {
    deps: CheckoutDeps,
    /// When a checkout was last reconciled for a read.
    reconciled_at: Mutex<HashMap<CheckoutId, Timestamp>>,
}

/// A checkout at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The checkout.
    pub row: Checkout,
    /// The owner's subscription while access lasts.
    pub active: Option<SubscriptionRow>,
    /// Whether the owner has no pending payment on another route. A pending payment there withholds every offer here.
    pub is_clear: bool,
    /// The moment.
    pub now: Timestamp,
}

impl View {
    pub fn status(&self) -> Status {
        Status::of(&self.row, self.now)
    }

    fn written(self) -> View {
        View {
            row: self.row.written(),
            ..self
        }
    }
}

/// Builds parts to write together with a change, from the checkout after it.
pub type AttachParts<'a> = &'a (dyn Fn(&View) -> Vec<Part> + Send + Sync);

impl Checkouts {
    /// A processor.
    pub fn new(deps: CheckoutDeps) -> Checkouts {
        Checkouts {
            inner: Arc::new(CheckoutContext {
                deps,
                reconciled_at: Mutex::default(),
            }),
        }
    }

    fn deps(&self) -> &CheckoutDeps {
        &self.inner.deps
    }

    /// Creates a checkout, and writes the parts of `attach` in the same unit of work. A checkout with the plan first asks the other rails
    /// for open payments, for at most five seconds, and may read the provider's plan.
    ///
    /// # Errors
    ///
    /// Nothing was written.
    pub async fn begin(
        &self,
        new: NewCheckout,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        let deps = self.deps();
        let state = match new.content.has_plan {
            true => self.buyer_state(new.account).await?,
            false => deps.plans.state(new.account).await?,
        };
        let active = state.active().cloned();
        let mut agreed = None;
        if active.is_none() && new.content.has_plan {
            agreed = self.check_open(&state).await?;
        }
        let mut id = [0; 16];
        (deps.draw)(&mut id);
        let now = deps.clock.now();
        let id = CheckoutId::from_bytes(id);
        let subscription = active.as_ref().map(|row| row.id);
        let mut row = Checkout::begin(id, new, subscription, (now, deps.lifetime));
        if let Some(mandate) = agreed {
            // The owner agreed to a mandate by another way: this checkout waits for that payment.
            row = row.decided(OwnerDecision::Agreed, now).unwrap_or(row);
            row = row.linked(mandate.id, now).unwrap_or(row);
        }
        let view = View {
            row,
            active,
            is_clear: !has_transfer(&state),
            now,
        };
        let mut unit = vec![view.row.begin_part(WAITING_MAX)];
        unit.extend(attach(&view));
        self.write(unit).await.map_err(CheckoutError::Store)?;
        Ok(view.written())
    }

    /// The owner's state after a transfer that may be under way was reconciled.
    async fn buyer_state(&self, account: AccountId) -> Result<PlanState, CheckoutError> {
        let plans = &self.deps().plans;
        Ok((plans.state_across_rails(account, Route::PayPal, Question::Offer)).await?)
    }

    /// Checks that the plan can be sold to the account now; returns the mandate the owner has agreed to, if any.
    async fn check_open(&self, state: &PlanState) -> Result<Option<MandateRow>, CheckoutError> {
        let Some(mandates) = &self.deps().mandates else {
            return Err(CheckoutError::Closed(String::from(
                "the settings name no payment provider",
            )));
        };
        if has_transfer(state) {
            return Err(CheckoutError::Processing);
        }
        if state.awaits_first_charge() {
            return Ok(state.mandate.clone());
        }
        match mandates.closed().await {
            Some(why) => Err(CheckoutError::Closed(why)),
            None => Ok(None),
        }
    }

    /// A checkout of an account; `None` for an unknown checkout or a checkout of another account.
    pub async fn find(
        &self,
        account: AccountId,
        id: CheckoutId,
    ) -> Result<Option<View>, CheckoutError> {
        for _ in 0..WRITE_ATTEMPTS {
            let row = reading(&self.deps().store, move |store| store.checkout(id)).await?;
            let Some(row) = row.filter(|row| row.account == account) else {
                return Ok(None);
            };
            let state = self.deps().plans.state(account).await?;
            let view = View {
                active: state.active().cloned(),
                is_clear: state.authorization.is_none(),
                now: state.now,
                row: Checkout::stored(row),
            };
            // Created while the plan was being paid: the unit of work of the grant did not include this checkout.
            let decision = view
                .active
                .as_ref()
                .map(|row| OwnerDecision::Active(row.id));
            let next = decision.and_then(|decision| view.row.decided(decision, view.now));
            let Some(next) = next else {
                return Ok(Some(view));
            };
            if let Some(view) = self.put(View { row: next, ..view }, vec![]).await? {
                return Ok(Some(view));
            }
        }
        Err(CheckoutError::Busy)
    }

    /// Reconciles the mandate with the payment provider, applies the owner's decision, and writes the parts of `attach` with the result.
    pub async fn reconcile(
        &self,
        view: View,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        let decision = self.owner_decision(&view).await?;
        let change =
            |view: &View| Ok(decision.and_then(|decision| view.row.decided(decision, view.now)));
        self.change(view, change, attach).await
    }

    /// [`reconcile`](Self::reconcile) for a read: a result of the last two seconds is reused, and only the mandate opened by this checkout is
    /// reconciled.
    pub async fn refresh(&self, view: View) -> Result<View, CheckoutError> {
        if view.row.mandate.is_none() || !self.may_reconcile(&view) {
            return Ok(view);
        }
        self.reconcile(view, &attach_nothing).await
    }

    /// The owner's decision according to the payment provider now; `None` without a mandate to reconcile.
    async fn owner_decision(&self, view: &View) -> Result<Option<OwnerDecision>, CheckoutError> {
        let waits = matches!(
            view.status(),
            Status::RequiresEscalation | Status::ReadyForComplete | Status::CompleteInProgress
        );
        let Some(mandates) = self.deps().mandates.as_ref().filter(|_| waits) else {
            return Ok(None);
        };
        let Some(mandate) = mandates.of(view.row.account).await? else {
            return Ok(None);
        };
        let mut verified = mandates.verify(mandate.id).await?;
        // A mandate with a failed charge stays until the owner agrees to another mandate, possibly opened by this checkout.
        let is_nothing = match &verified {
            Verified::Over(_) => true,
            Verified::Unpaid(row) => is_past_due(row),
            _ => false,
        };
        if let Some(opened) = view
            .row
            .mandate
            .filter(|opened| is_nothing && *opened != mandate.id)
        {
            verified = mandates.verify(opened).await?;
        }
        Ok(Some(match verified {
            Verified::Paid(subscription, _) => OwnerDecision::Active(subscription.id),
            Verified::Unpaid(mandate) if is_past_due(&mandate) => OwnerDecision::Open,
            Verified::Unpaid(_) => OwnerDecision::Agreed,
            Verified::Waiting(_) | Verified::Over(_) => OwnerDecision::Open,
        }))
    }

    /// Records the owner's return from the payment provider while the provider could not be read.
    pub async fn owner_returned(&self, view: View) -> Result<View, CheckoutError> {
        self.apply_decision(view, OwnerDecision::Returned).await
    }

    async fn apply_decision(
        &self,
        view: View,
        decision: OwnerDecision,
    ) -> Result<View, CheckoutError> {
        self.change(
            view,
            |view| Ok(view.row.decided(decision, view.now)),
            &attach_nothing,
        )
        .await
    }

    /// Records a completion request by name before any effect, so that a retry is recognised. Returns whether this request was recorded
    /// before.
    pub async fn note_completion_request(
        &self,
        view: View,
        name: [u8; 32],
    ) -> Result<(View, bool), CheckoutError> {
        let before = view.row.asked == Some(name);
        let turned = self
            .change(
                view,
                |view| Ok(view.row.completion_requested(name, view.now)),
                &attach_nothing,
            )
            .await?;
        Ok((turned, before))
    }

    /// Replaces the content that the platform may set.
    pub async fn update(
        &self,
        view: View,
        content: CheckoutContent,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        if content.has_plan && view.status() == Status::Incomplete {
            let state = self.buyer_state(view.row.account).await?;
            if !state.is_active() {
                self.check_open(&state).await?;
            }
        }
        let change = |view: &View| {
            let next = view.row.updated(content.clone(), view.now)?;
            let active = view.active.as_ref();
            let decision = active.map(|row| OwnerDecision::Active(row.id));
            let done = decision.and_then(|decision| next.decided(decision, view.now));
            Ok(Some(done.unwrap_or(next)))
        };
        self.change(view, change, attach).await
    }

    /// Cancels a checkout. The mandate stays.
    pub async fn cancel(&self, view: View, attach: AttachParts<'_>) -> Result<View, CheckoutError> {
        let change = |view: &View| Ok(Some(view.row.cancelled(view.now)?));
        self.change(view, change, attach).await
    }

    /// Opens the mandate for the redirect of the owner: the existing mandate, or a new one. `None` when the owner has nothing left to
    /// approve.
    pub async fn open_mandate(
        &self,
        view: View,
        urls: Urls,
    ) -> Result<(View, Option<MandateRow>), CheckoutError> {
        if view.status() != Status::RequiresEscalation {
            return Ok((view, None));
        }
        let Some(mandates) = &self.deps().mandates else {
            return Err(CheckoutError::Closed(String::from(
                "the settings name no payment provider",
            )));
        };
        match mandates.open(view.row.account, urls).await {
            Ok(mandate) => {
                let link = |view: &View| Ok(view.row.linked(mandate.id, view.now));
                let view = self.change(view, link, &attach_nothing).await?;
                Ok((view, Some(mandate)))
            }
            Err(OpenError::AlreadyActive(subscription)) => {
                let view = self
                    .apply_decision(view, OwnerDecision::Active(subscription.id))
                    .await?;
                Ok((view, None))
            }
            Err(OpenError::Processing(_)) => Ok((
                self.apply_decision(view, OwnerDecision::Agreed).await?,
                None,
            )),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes checkouts that were not changed for more than a year. Does not wait for the write.
    pub fn forget(&self) {
        let forget = CheckoutPart::Forget {
            before: self.deps().clock.now() - RETENTION,
            limit: 10_000,
        };
        let unit = UnitOfWork::of(part(forget), Admission::BestEffort);
        let done = Box::new(|result: Result<_, CommitError>| {
            if let Err(error) = result {
                tracing::warn!(%error, "deleting old checkouts failed");
            }
        });
        // If the store has stopped or is behind, the next run repeats it.
        let _ = self.deps().store.submit(unit, done);
    }

    /// Changes a checkout under optimistic locking: the change is applied again to the current row after a conflict.
    async fn change(
        &self,
        mut view: View,
        change: impl Fn(&View) -> Result<Option<Checkout>, CheckoutError>,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        for _ in 0..WRITE_ATTEMPTS {
            let (account, id) = (view.row.account, view.row.id);
            let (next, is_new) = match change(&view)? {
                Some(row) => (View { row, ..view }, true),
                None => (view, false),
            };
            let others = attach(&next);
            if !is_new && others.is_empty() {
                return Ok(next);
            }
            let put = match is_new {
                true => self.put(next, others).await?,
                false => {
                    self.write(others).await.map_err(CheckoutError::Store)?;
                    Some(next)
                }
            };
            match put {
                Some(view) => return Ok(view),
                // A checkout is not deleted while it is in use.
                None => view = self.find(account, id).await?.ok_or(CheckoutError::Busy)?,
            }
        }
        Err(CheckoutError::Busy)
    }

    /// Writes a changed row and further parts; `None` after a write conflict.
    async fn put(&self, view: View, attached: Vec<Part>) -> Result<Option<View>, CheckoutError> {
        let mut unit = vec![view.row.part()];
        unit.extend(attached);
        match self.write(unit).await {
            Ok(()) => Ok(Some(view.written())),
            Err(CommitError::Refused(Refusal::CheckoutConflict(_))) => Ok(None),
            Err(error) => Err(CheckoutError::Store(error)),
        }
    }

    async fn write(&self, parts: Vec<Part>) -> Result<(), CommitError> {
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        commit(&*self.deps().store, unit).await.map(|_| ())
    }

    /// Whether a read may reconcile now; records the reconciliation as begun.
    fn may_reconcile(&self, view: &View) -> bool {
        let mut reconciled_at = self.inner.reconciled_at.lock();
        reconciled_at.retain(|_, at| (*at..*at + FRESH_FOR).contains(&view.now));
        reconciled_at.insert(view.row.id, view.now).is_none()
    }
}

/// Whether a payment of the account on another rail may still move money.
fn has_transfer(state: &PlanState) -> bool {
    state.is_open_elsewhere || state.authorization.is_some()
}

/// Attaches no parts.
pub fn attach_nothing(_: &View) -> Vec<Part> {
    Vec::new()
}

impl fmt::Debug for Checkouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkouts").finish_non_exhaustive()
    }
}
