//! Where checkouts are begun, looked at and changed.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_money::{AccountId, CheckoutId};
use tollgate_store::{
    Admission, CheckoutPart, CheckoutRow, CommitError, MandateRow, Part, Refusal, Store,
    SubscriptionRow, UnitOfWork, commit, reading,
};

use super::error::CheckoutError;
use super::session::{self, CheckoutRequest, NewCheckout, OwnerDecision, Status};
use crate::mandates::{Mandates, OpenError, Urls, Verified, is_past_due};
use crate::plan::{PlanState, Plans};
use crate::topups::Draw;

/// Checkouts of one account that wait for something. The oldest gives way.
const WAITING_MAX: u32 = 20;

/// Tries at a change while others change the same checkout.
const TRIES: usize = 16;

/// A checkout for which the provider was asked so lately is not asked about again for somebody who only reads it.
const FRESH: i64 = 2_000_000;

/// How long a checkout is known after its last change.
const KEPT: i64 = 400 * 86_400 * 1_000_000;

/// What a desk works with.
pub struct CheckoutDeps {
    /// Where checkouts are kept.
    pub store: Arc<dyn Store>,
    /// What accounts have.
    pub plans: Plans,
    /// Where owners agree to be charged; without it nothing is sold by checkout.
    pub mandates: Option<Mandates>,
    /// For how long a checkout waits for its owner, microseconds.
    pub lifetime: i64,
    /// Unix microseconds.
    pub now: Box<dyn Fn() -> i64 + Send + Sync>,
    /// Fills a slice with random bytes.
    pub draw: Draw,
}

/// The desk. Cheap to clone.
#[derive(Clone)]
pub struct Checkouts {
    inner: Arc<Inner>,
}

struct Inner {
    parts: CheckoutDeps,
    /// When the provider was last asked for somebody who only reads.
    asked: Mutex<HashMap<CheckoutId, i64>>,
}

/// A checkout at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The checkout.
    pub row: CheckoutRow,
    /// What its owner has of the plan, while that gives access.
    pub active: Option<SubscriptionRow>,
    /// Whether no payment of its owner is under way on another route: as long as one is, nobody is shown how to pay.
    pub is_clear: bool,
    /// The moment, Unix microseconds.
    pub now: i64,
}

impl View {
    /// How it stands.
    pub fn status(&self) -> Status {
        Status::of(&self.row, self.now)
    }
}

/// What is written together with a change, made from the checkout as it will be.
pub type AttachParts<'a> = &'a (dyn Fn(&View) -> Vec<Part> + Send + Sync);

impl Checkouts {
    /// A desk.
    pub fn new(parts: CheckoutDeps) -> Checkouts {
        Checkouts {
            inner: Arc::new(Inner {
                parts,
                asked: Mutex::default(),
            }),
        }
    }

    fn parts(&self) -> &CheckoutDeps {
        &self.inner.parts
    }

    /// Begins a checkout, and writes `beside` in the same unit of work. Nothing is asked of the payment provider.
    ///
    /// # Errors
    ///
    /// Nothing was written.
    pub async fn begin(
        &self,
        new: NewCheckout,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        let parts = self.parts();
        let state = parts.plans.state(new.account).await?;
        let active = state.active().cloned();
        let mut agreed = None;
        if active.is_none() && new.request.has_plan {
            agreed = self.check_open(&state).await?;
        }
        let mut id = [0; 16];
        (parts.draw)(&mut id);
        let now = (parts.now)();
        let id = CheckoutId::from_bytes(id);
        let subscription = active.as_ref().map(|row| row.id);
        let mut row = session::begin(id, new, subscription, (now, parts.lifetime));
        if let Some(mandate) = agreed {
            // Agreed to on another way: this one waits for the same payment.
            row = session::apply_decision(&row, OwnerDecision::Agreed, now).unwrap_or(row);
            row.mandate = Some(mandate.id);
        }
        let view = View {
            row,
            active,
            is_clear: state.authorization.is_none(),
            now,
        };
        let begin = CheckoutPart::Begin {
            row: view.row.clone(),
            waiting_max: WAITING_MAX,
        };
        let mut unit = vec![part(begin)];
        unit.extend(attach(&view));
        self.write(unit).await.map_err(CheckoutError::Store)?;
        Ok(view)
    }

    /// Whether the plan can be sold to somebody now; the mandate that they have agreed to, if they have.
    async fn check_open(&self, state: &PlanState) -> Result<Option<MandateRow>, CheckoutError> {
        let Some(mandates) = &self.parts().mandates else {
            return Err(CheckoutError::Closed(String::from(
                "the settings name no payment provider",
            )));
        };
        if state.authorization.is_some() {
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

    /// A checkout of an account; `None` where there is none, or it is another's.
    pub async fn find(
        &self,
        account: AccountId,
        id: CheckoutId,
    ) -> Result<Option<View>, CheckoutError> {
        for _ in 0..TRIES {
            let row = reading(&self.parts().store, move |store| store.checkout(id)).await?;
            let Some(row) = row.filter(|row| row.account == account) else {
                return Ok(None);
            };
            let state = self.parts().plans.state(account).await?;
            let view = View {
                active: state.active().cloned(),
                is_clear: state.authorization.is_none(),
                now: state.now,
                row,
            };
            // Begun while the plan was being paid for: the unit that gave it did not know this one.
            let seen = view
                .active
                .as_ref()
                .map(|row| OwnerDecision::Active(row.id));
            let next = seen.and_then(|seen| session::apply_decision(&view.row, seen, view.now));
            let Some(next) = next else {
                return Ok(Some(view));
            };
            if let Some(view) = self.put(View { row: next, ..view }, vec![]).await? {
                return Ok(Some(view));
            }
        }
        Err(CheckoutError::Busy)
    }

    /// Asks the payment provider what the owner of a checkout has decided, does what is to be done, and writes `beside` with what comes of
    /// it.
    pub async fn reconcile(
        &self,
        view: View,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        let seen = self.owner_decision(&view).await?;
        let change = |view: &View| {
            Ok(seen.and_then(|seen| session::apply_decision(&view.row, seen, view.now)))
        };
        self.change(view, change, attach).await
    }

    /// The same for somebody who only reads: an answer that is a moment old will do, and a mandate that this checkout has not led to is
    /// none of its business.
    pub async fn refresh(&self, view: View) -> Result<View, CheckoutError> {
        if view.row.mandate.is_none() || !self.may_ask(&view) {
            return Ok(view);
        }
        self.reconcile(view, &attach_nothing).await
    }

    /// What the owner of a checkout has decided, as the payment provider tells it now; `None` where there is nothing to ask.
    async fn owner_decision(&self, view: &View) -> Result<Option<OwnerDecision>, CheckoutError> {
        let waits = matches!(
            view.status(),
            Status::RequiresEscalation | Status::ReadyForComplete | Status::CompleteInProgress
        );
        let Some(mandates) = self.parts().mandates.as_ref().filter(|_| waits) else {
            return Ok(None);
        };
        let Some(mandate) = mandates.of(view.row.account).await? else {
            return Ok(None);
        };
        let mut verified = mandates.verify(mandate.id).await?;
        // One that cannot be collected stays until another is agreed to, which this checkout may have led to.
        let is_nothing = match &verified {
            Verified::Over(_) => true,
            Verified::Unpaid(row) => is_past_due(row),
            _ => false,
        };
        if let Some(led) = view
            .row
            .mandate
            .filter(|led| is_nothing && *led != mandate.id)
        {
            verified = mandates.verify(led).await?;
        }
        Ok(Some(match verified {
            Verified::Paid(subscription, _) => OwnerDecision::Active(subscription.id),
            Verified::Unpaid(mandate) if is_past_due(&mandate) => OwnerDecision::Open,
            Verified::Unpaid(_) => OwnerDecision::Agreed,
            Verified::Waiting(_) | Verified::Over(_) => OwnerDecision::Open,
        }))
    }

    /// Notes that the owner came back from the payment provider, which could not be asked.
    pub async fn owner_returned(&self, view: View) -> Result<View, CheckoutError> {
        self.apply_decision(view, OwnerDecision::Returned).await
    }

    async fn apply_decision(&self, view: View, seen: OwnerDecision) -> Result<View, CheckoutError> {
        self.change(
            view,
            |view| Ok(session::apply_decision(&view.row, seen, view.now)),
            &attach_nothing,
        )
        .await
    }

    /// Notes that a request of this name asks for completion, before anything is done for it. Whether the same request had asked before.
    pub async fn note_completion_request(
        &self,
        view: View,
        name: [u8; 32],
    ) -> Result<(View, bool), CheckoutError> {
        let before = view.row.asked == Some(name);
        let turned = self
            .change(
                view,
                |view| Ok(session::request_completion(&view.row, name, view.now)),
                &attach_nothing,
            )
            .await?;
        Ok((turned, before))
    }

    /// Says everything that a platform may say anew.
    pub async fn update(
        &self,
        view: View,
        request: CheckoutRequest,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        let state = self.parts().plans.state(view.row.account).await?;
        let begins = request.has_plan && view.status() == Status::Incomplete;
        if begins && !state.is_active() {
            self.check_open(&state).await?;
        }
        let change = |view: &View| {
            let next = session::update(&view.row, request.clone(), view.now)?;
            let seen = view
                .active
                .as_ref()
                .map(|row| OwnerDecision::Active(row.id));
            let done = seen.and_then(|seen| session::apply_decision(&next, seen, view.now));
            Ok(Some(match done {
                // One change to the store, however many steps.
                Some(done) => CheckoutRow {
                    version: next.version,
                    ..done
                },
                None => next,
            }))
        };
        self.change(view, change, attach).await
    }

    /// Ends a checkout. What its owner was led to stays.
    pub async fn cancel(&self, view: View, attach: AttachParts<'_>) -> Result<View, CheckoutError> {
        let change = |view: &View| Ok(Some(session::cancel(&view.row, view.now)?));
        self.change(view, change, attach).await
    }

    /// Opens the mandate that the owner of a checkout is led to: what there is, or a new one. `None` when there is nothing left to agree to.
    pub async fn open_mandate(
        &self,
        view: View,
        urls: Urls,
    ) -> Result<(View, Option<MandateRow>), CheckoutError> {
        if view.status() != Status::RequiresEscalation {
            return Ok((view, None));
        }
        let Some(mandates) = &self.parts().mandates else {
            return Err(CheckoutError::Closed(String::from(
                "the settings name no payment provider",
            )));
        };
        let state = self.parts().plans.state(view.row.account).await?;
        if state.authorization.is_some() {
            return Err(CheckoutError::Processing);
        }
        match mandates.open(view.row.account, urls).await {
            Ok(mandate) => {
                let lead = |view: &View| Ok(session::link_mandate(&view.row, mandate.id, view.now));
                let view = self.change(view, lead, &attach_nothing).await?;
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

    /// Forgets checkouts that nobody has touched for more than a year. Nobody waits for it.
    pub fn forget(&self) {
        let forget = CheckoutPart::Forget {
            before: (self.parts().now)() - KEPT,
            limit: 10_000,
        };
        let unit = UnitOfWork::of(part(forget), Admission::Notes);
        let done = Box::new(|result: Result<_, CommitError>| {
            if let Err(error) = result {
                tracing::warn!(%error, "could not forget old checkouts");
            }
        });
        // A store that has stopped or is behind is asked again the next time.
        let _ = self.parts().store.submit(unit, done);
    }

    /// Changes a checkout, from what it is by then when somebody else has changed it meanwhile.
    async fn change(
        &self,
        mut view: View,
        change: impl Fn(&View) -> Result<Option<CheckoutRow>, CheckoutError>,
        attach: AttachParts<'_>,
    ) -> Result<View, CheckoutError> {
        for _ in 0..TRIES {
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
                // It is never taken away while somebody works on it.
                None => view = self.find(account, id).await?.ok_or(CheckoutError::Busy)?,
            }
        }
        Err(CheckoutError::Busy)
    }

    /// Writes a changed row, with others beside it; `None` when somebody else has changed it meanwhile.
    async fn put(&self, view: View, beside: Vec<Part>) -> Result<Option<View>, CheckoutError> {
        let mut unit = vec![part(CheckoutPart::Change(view.row.clone()))];
        unit.extend(beside);
        match self.write(unit).await {
            Ok(()) => Ok(Some(view)),
            Err(CommitError::Refused(Refusal::CheckoutMoved(_))) => Ok(None),
            Err(error) => Err(CheckoutError::Store(error)),
        }
    }

    async fn write(&self, parts: Vec<Part>) -> Result<(), CommitError> {
        let unit = UnitOfWork::of_all(parts, Admission::Begins);
        commit(&*self.parts().store, unit).await.map(|_| ())
    }

    /// Whether the provider may be asked again for somebody who only reads, and notes that it is.
    fn may_ask(&self, view: &View) -> bool {
        let mut asked = self
            .inner
            .asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        asked.retain(|_, at| (*at..*at + FRESH).contains(&view.now));
        asked.insert(view.row.id, view.now).is_none()
    }
}

/// Nothing beside.
pub fn attach_nothing(_: &View) -> Vec<Part> {
    Vec::new()
}

/// What completes the checkouts of an account that has the plan now, for the unit of work that gives it.
pub(crate) fn completed(subscription: &SubscriptionRow, at: i64) -> Part {
    part(CheckoutPart::Complete {
        account: subscription.account,
        subscription: subscription.id,
        at,
    })
}

fn part(part: CheckoutPart) -> Part {
    Part::Checkout(Box::new(part))
}

impl fmt::Debug for Checkouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkouts").finish_non_exhaustive()
    }
}
