//! State machine of a checkout. Only these transitions change a checkout row. Pure: no I/O, no clock.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CheckoutId, CredentialId, MandateId, SubscriptionId};
use tollgate_store::{CheckoutPart, CheckoutRow, CheckoutState, Part, SubscriptionRow};

use crate::versioned::Versioned;

/// A stored checkout, read through `Deref`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkout(Versioned<CheckoutRow>);

/// Status of a checkout, in the terms of the protocol (UCP 2026-04-08, Checkout, "Checkout Status Lifecycle").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The platform can still supply something.
    Incomplete,
    /// The owner has to agree, on a page of this service.
    RequiresEscalation,
    /// The owner returned from the payment provider, and the decision is not known yet.
    ReadyForComplete,
    /// The owner has agreed, and the first payment is pending.
    CompleteInProgress,
    /// The owner has the plan.
    Completed,
    /// Cancelled or expired.
    Canceled,
}

impl Status {
    /// The status at `now`.
    pub fn of(row: &CheckoutRow, now: Timestamp) -> Status {
        let has_ended = now >= row.expires_at;
        match row.state {
            CheckoutState::Incomplete | CheckoutState::Waiting if has_ended => Status::Canceled,
            CheckoutState::Incomplete => Status::Incomplete,
            CheckoutState::Waiting => Status::RequiresEscalation,
            // Money may be moving: it does not expire before the outcome is known.
            CheckoutState::Ready => Status::ReadyForComplete,
            CheckoutState::Placing => Status::CompleteInProgress,
            CheckoutState::Completed => Status::Completed,
            // A state of a later version counts as cancelled too.
            _ => Status::Canceled,
        }
    }

    /// The value on the wire.
    pub const fn word(self) -> &'static str {
        match self {
            Status::Incomplete => "incomplete",
            Status::RequiresEscalation => "requires_escalation",
            Status::ReadyForComplete => "ready_for_complete",
            Status::CompleteInProgress => "complete_in_progress",
            Status::Completed => "completed",
            Status::Canceled => "canceled",
        }
    }

    /// Whether the status is final.
    pub const fn is_final(self) -> bool {
        matches!(self, Status::Completed | Status::Canceled)
    }
}

/// A checkout to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewCheckout {
    /// The owner of the credential; an account named in the request is ignored.
    pub account: AccountId,
    /// The credential of the request.
    pub credential: Option<CredentialId>,
    /// The host of the platform's profile.
    pub platform: Option<Arc<str>>,
    /// Content set by the platform.
    pub content: CheckoutContent,
}

/// Content set by a platform; always complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckoutContent {
    /// Whether the plan is among the line items.
    pub has_plan: bool,
    /// Data about the buyer, as JSON.
    pub buyer: Option<Arc<str>>,
}

/// The owner's decision, as read from the payment provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnerDecision {
    /// The owner has the plan.
    Active(SubscriptionId),
    /// The owner has agreed; no charge is paid yet.
    Agreed,
    /// The owner has not agreed, or only to something that is no longer offered.
    Open,
    /// The owner returned, and the provider could not be read.
    Returned,
}

/// A change that comes too late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotModifiable(pub Status);

impl Checkout {
    pub(super) fn stored(row: CheckoutRow) -> Checkout {
        Checkout(Versioned::stored(row))
    }

    /// A new checkout at `now`, of an account with the subscription `active`.
    pub(super) fn begin(
        id: CheckoutId,
        new: NewCheckout,
        active: Option<SubscriptionId>,
        (now, lifetime): (Timestamp, Duration),
    ) -> Checkout {
        let state = match (active, new.content.has_plan) {
            (Some(_), true) => CheckoutState::Completed,
            (None, true) => CheckoutState::Waiting,
            (_, false) => CheckoutState::Incomplete,
        };
        Checkout::stored(CheckoutRow {
            id,
            account: new.account,
            state,
            version: 0,
            credential: new.credential,
            platform: new.platform,
            buyer: new.content.buyer,
            mandate: None,
            asked: None,
            subscription: active.filter(|_| state == CheckoutState::Completed),
            created_at: now,
            updated_at: now,
            expires_at: now + lifetime,
        })
    }

    /// The checkout with new content from the platform.
    pub(super) fn updated(
        &self,
        content: CheckoutContent,
        now: Timestamp,
    ) -> Result<Checkout, NotModifiable> {
        self.check_modifiable(now)?;
        Ok(self.change(now, |row| {
            row.buyer = content.buyer;
            row.state = match (content.has_plan, row.state) {
                (false, _) => CheckoutState::Incomplete,
                (true, CheckoutState::Incomplete) => CheckoutState::Waiting,
                (true, state) => state,
            };
        }))
    }

    /// The checkout after cancellation. The mandate stays: other checkouts and routes share the mandate.
    pub(super) fn cancelled(&self, now: Timestamp) -> Result<Checkout, NotModifiable> {
        self.check_modifiable(now)?;
        Ok(self.change(now, |row| row.state = CheckoutState::Canceled))
    }

    /// The checkout after the owner's decision; `None` if nothing changes.
    pub(super) fn decided(&self, decision: OwnerDecision, now: Timestamp) -> Option<Checkout> {
        use CheckoutState::{Completed, Placing, Ready, Waiting};
        let state = match (Status::of(self, now), decision) {
            (Status::Completed | Status::Canceled | Status::Incomplete, _) => return None,
            (_, OwnerDecision::Active(_)) => Completed,
            (_, OwnerDecision::Agreed) => Placing,
            (_, OwnerDecision::Open) => Waiting,
            (Status::RequiresEscalation, OwnerDecision::Returned) => Ready,
            (_, OwnerDecision::Returned) => self.state,
        };
        if state == self.state {
            return None;
        }
        Some(self.change(now, |row| {
            row.state = state;
            if let OwnerDecision::Active(subscription) = decision {
                row.subscription = Some(subscription);
            }
        }))
    }

    /// The checkout after a redirect of the owner to this mandate; `None` when already recorded.
    pub(super) fn linked(&self, mandate: MandateId, now: Timestamp) -> Option<Checkout> {
        let is_new = self.mandate != Some(mandate);
        is_new.then(|| self.change(now, |row| row.mandate = Some(mandate)))
    }

    /// The checkout after a completion request by this name; `None` when already recorded, or too late.
    pub(super) fn completion_requested(&self, name: [u8; 32], now: Timestamp) -> Option<Checkout> {
        let is_new = self.asked != Some(name) && !Status::of(self, now).is_final();
        is_new.then(|| self.change(now, |row| row.asked = Some(name)))
    }

    /// The part that stores a new checkout. Only the newest `waiting_max` waiting checkouts of the account are kept.
    pub(super) fn begin_part(&self, waiting_max: u32) -> Part {
        let row = (**self).clone();
        part(CheckoutPart::Begin { row, waiting_max })
    }

    /// The part that replaces the stored version.
    pub(super) fn part(&self) -> Part {
        self.0.part()
    }

    /// The row after the commit of its part.
    pub(super) fn written(self) -> Checkout {
        Checkout::stored(self.0.into_row())
    }

    /// Once the owner has agreed, the payment is pending: its content is settled, and a cancellation would be untrue.
    fn check_modifiable(&self, now: Timestamp) -> Result<(), NotModifiable> {
        let status = Status::of(self, now);
        match status.is_final() || status == Status::CompleteInProgress {
            true => Err(NotModifiable(status)),
            false => Ok(()),
        }
    }

    fn change(&self, now: Timestamp, change: impl FnOnce(&mut CheckoutRow)) -> Checkout {
        Checkout(self.0.next(now, change))
    }
}

impl Deref for Checkout {
    type Target = CheckoutRow;

    fn deref(&self) -> &CheckoutRow {
        &self.0
    }
}

/// The part that completes an account's checkouts, for the unit of work of the plan's grant.
pub(crate) fn completed(subscription: &SubscriptionRow, at: Timestamp) -> Part {
    part(CheckoutPart::Complete {
        account: subscription.account,
        subscription: subscription.id,
        at,
    })
}

pub(super) fn part(part: CheckoutPart) -> Part {
    Part::Checkout(Box::new(part))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SUBSCRIPTION: SubscriptionId = SubscriptionId::from_bytes([5; 16]);
    const BEGUN: Timestamp = Timestamp::UNIX_EPOCH;
    const LASTS: Duration = Duration::from_micros(100);
    const ENDS: Timestamp = Timestamp::from_micros(100);

    /// A moment while it waits.
    const NOW: Timestamp = Timestamp::from_micros(1);

    fn row(state: CheckoutState) -> Checkout {
        let new = NewCheckout {
            account: AccountId::from_bytes([1; 16]),
            credential: None,
            platform: None,
            content: CheckoutContent {
                has_plan: true,
                buyer: None,
            },
        };
        let begun = Checkout::begin(CheckoutId::from_bytes([2; 16]), new, None, (BEGUN, LASTS));
        Checkout::stored(begun.change(BEGUN, |row| row.state = state).0.into_row())
    }

    #[test]
    fn a_checkout_waits_for_its_owner_for_a_while_and_longer_once_they_agreed() {
        use CheckoutState as S;
        for (state, before, after) in [
            (S::Incomplete, Status::Incomplete, Status::Canceled),
            (S::Waiting, Status::RequiresEscalation, Status::Canceled),
            (S::Ready, Status::ReadyForComplete, Status::ReadyForComplete),
            (
                S::Placing,
                Status::CompleteInProgress,
                Status::CompleteInProgress,
            ),
            (S::Completed, Status::Completed, Status::Completed),
            (S::Canceled, Status::Canceled, Status::Canceled),
        ] {
            let last = ENDS - Duration::from_micros(1);
            assert_eq!(Status::of(&row(state), last), before, "{state:?}");
            assert_eq!(Status::of(&row(state), ENDS), after, "{state:?}");
        }
    }

    #[test]
    fn each_state_and_decision_has_one_transition() {
        use CheckoutState as S;
        //  state, decision, next state; `None` where nothing changes
        for (state, decision, expected) in [
            (S::Waiting, OwnerDecision::Open, None),
            (S::Waiting, OwnerDecision::Returned, Some(S::Ready)),
            (S::Waiting, OwnerDecision::Agreed, Some(S::Placing)),
            (
                S::Waiting,
                OwnerDecision::Active(SUBSCRIPTION),
                Some(S::Completed),
            ),
            (S::Ready, OwnerDecision::Open, Some(S::Waiting)),
            (S::Ready, OwnerDecision::Returned, None),
            (S::Ready, OwnerDecision::Agreed, Some(S::Placing)),
            (
                S::Ready,
                OwnerDecision::Active(SUBSCRIPTION),
                Some(S::Completed),
            ),
            (S::Placing, OwnerDecision::Open, Some(S::Waiting)),
            (S::Placing, OwnerDecision::Returned, None),
            (S::Placing, OwnerDecision::Agreed, None),
            (
                S::Placing,
                OwnerDecision::Active(SUBSCRIPTION),
                Some(S::Completed),
            ),
            (S::Incomplete, OwnerDecision::Active(SUBSCRIPTION), None),
            (S::Completed, OwnerDecision::Open, None),
            (S::Canceled, OwnerDecision::Active(SUBSCRIPTION), None),
        ] {
            let before = row(state);
            let after = before.decided(decision, NOW);
            assert_eq!(
                after.as_ref().map(|row| row.state),
                expected,
                "{state:?} meets {decision:?}"
            );
            if let Some(after) = after {
                assert_eq!(after.version, before.version + 1);
                let has = after.subscription.is_some();
                assert_eq!(
                    has,
                    after.state == S::Completed,
                    "{state:?} meets {decision:?}"
                );
            }
        }
    }

    #[test]
    fn an_agreed_checkout_is_neither_changed_nor_cancelled() {
        use CheckoutState as S;
        for (state, may) in [
            (S::Incomplete, true),
            (S::Waiting, true),
            (S::Ready, true),
            (S::Placing, false),
            (S::Completed, false),
            (S::Canceled, false),
        ] {
            assert_eq!(row(state).cancelled(NOW).is_ok(), may, "{state:?}");
            assert_eq!(
                row(state).updated(CheckoutContent::default(), NOW).is_ok(),
                may,
                "{state:?}"
            );
        }
        let over = row(S::Waiting).cancelled(ENDS);
        assert_eq!(over, Err(NotModifiable(Status::Canceled)));
    }

    #[test]
    fn a_checkout_of_an_account_with_the_plan_starts_completed() {
        let content = |has_plan| CheckoutContent {
            has_plan,
            buyer: None,
        };
        for (has_plan, active, expected) in [
            (true, Some(SUBSCRIPTION), Status::Completed),
            (true, None, Status::RequiresEscalation),
            (false, Some(SUBSCRIPTION), Status::Incomplete),
            (false, None, Status::Incomplete),
        ] {
            let new = NewCheckout {
                account: AccountId::from_bytes([1; 16]),
                credential: None,
                platform: None,
                content: content(has_plan),
            };
            let begun =
                Checkout::begin(CheckoutId::from_bytes([2; 16]), new, active, (BEGUN, LASTS));
            assert_eq!(Status::of(&begun, BEGUN), expected);
            assert_eq!(begun.subscription.is_some(), expected == Status::Completed);
        }
        let filled = row(CheckoutState::Incomplete).updated(content(true), NOW);
        assert_eq!(filled.map(|row| row.state), Ok(CheckoutState::Waiting));
        let emptied = row(CheckoutState::Waiting).updated(content(false), NOW);
        assert_eq!(emptied.map(|row| row.state), Ok(CheckoutState::Incomplete));
    }

    proptest! {
        /// Under any sequence of events: a final status stays, and only the plan completes a checkout.
        #[test]
        fn a_final_status_stays(acts in prop::collection::vec((0u8..7, 0u64..8), 0..40)) {
            let mut row = row(CheckoutState::Waiting);
            let mut now = BEGUN;
            for (act, later) in acts {
                now += Duration::from_micros(later);
                let before = Status::of(&row, now);
                let content = |has_plan| CheckoutContent { has_plan, buyer: None };
                let next = match act {
                    0 => row.decided(OwnerDecision::Active(SUBSCRIPTION), now),
                    1 => row.decided(OwnerDecision::Agreed, now),
                    2 => row.decided(OwnerDecision::Open, now),
                    3 => row.decided(OwnerDecision::Returned, now),
                    4 => row.cancelled(now).ok(),
                    5 => row.updated(content(false), now).ok(),
                    _ => row.updated(content(true), now).ok(),
                };
                if let Some(next) = next {
                    prop_assert!(!before.is_final(), "{before:?} was changed by {act}");
                    prop_assert_eq!(next.version, row.version + 1);
                    row = next.written();
                }
                let after = Status::of(&row, now);
                prop_assert_eq!(after == Status::Completed, row.subscription.is_some());
                prop_assert!(after != Status::Completed || before == Status::Completed || act == 0);
            }
        }
    }
}
