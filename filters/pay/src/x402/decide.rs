//! The decision about a purchase request, so that no buyer pays twice.
//!
//! Invariant: an account is never shown an offer, and none of its authorizations is ever sent to the chain, while an earlier one may still
//! move its money.

/// The state of one authorization. It is stored before each irreversible step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Passed the local checks; no remote call was made.
    Seen,
    /// Submitted, or about to be.
    Settling,
    /// Submitted, with an unknown outcome.
    Unknown,
    /// The money has moved, and the plan was activated for it.
    Settled,
    /// It has not moved money, and never can.
    Dead,
    /// Refused by the facilitator before submission.
    Refused,
    /// Submitted and refused by the facilitator; no chain lookup has confirmed the refusal.
    RefusedAfterSubmit,
}

impl State {
    /// Whether it may still move money.
    pub fn is_open(self) -> bool {
        matches!(self, State::Settling | State::Unknown)
    }
}

/// The stored state of the authorization that a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// Its state.
    pub state: State,
    /// Whether the requesting account presented it first.
    pub same_owner: bool,
    /// Whether it is byte for byte the same: another signature for the same nonce is another payment.
    pub same_payment: bool,
}

/// The state of the requesting account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// Another authorization of the account may still move money.
    pub has_open: bool,
    /// The account has the plan.
    pub is_active: bool,
    /// The account may buy the next period already, because the plan does not renew itself and its end is near.
    pub may_renew: bool,
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Show the offer.
    Offer,
    /// Answer that the plan is active. A payment in the request stays unspent.
    AlreadyActive,
    /// Replay the stored answer of this payment.
    Replay,
    /// Join the attempt that is in progress with this payment.
    Join,
    /// Reconcile this payment.
    Reconcile,
    /// Look up a payment again that was refused after submission, and submit it again if another payment is allowed.
    Recheck,
    /// Verify this payment at the facilitator, then submit it.
    Pay,
    /// Another account has used this payment: 409, and no offer, which a buyer's program would pay.
    UsedByAnother,
    /// The payment is not acceptable: 402 with an offer.
    Refuse,
    /// The outcome of an earlier payment is not known: 503, and no offer.
    Wait,
}

/// Decides about a request. `payment` is `None` for a request without a payment, and `Some(None)` for a payment that is not stored yet.
pub fn decide(asker: Asker, payment: Option<Option<Known>>) -> Act {
    let settled_for_now = asker.is_active && !asker.may_renew;
    let Some(known) = payment else {
        return match asker {
            Asker { has_open: true, .. } => Act::Wait,
            _ if settled_for_now => Act::AlreadyActive,
            _ => Act::Offer,
        };
    };
    if let Some(known) = known {
        // Ownership is checked before the state: another account does not learn the state.
        if !known.same_owner {
            return Act::UsedByAnother;
        }
        match known.state {
            _ if !known.same_payment => return refused(asker),
            State::Settled => return Act::Replay,
            State::Settling => return Act::Join,
            State::Unknown => return Act::Reconcile,
            State::Dead | State::Refused => return refused(asker),
            State::RefusedAfterSubmit if !asker.has_open => return Act::Recheck,
            State::RefusedAfterSubmit | State::Seen => {}
        }
    }
    match asker {
        Asker { has_open: true, .. } => Act::Wait,
        _ if settled_for_now => Act::AlreadyActive,
        _ => Act::Pay,
    }
}

/// A refusal shows an offer, so it is one only where an offer may be shown.
fn refused(asker: Asker) -> Act {
    match asker {
        Asker { has_open: true, .. } => Act::Wait,
        Asker {
            is_active: true,
            may_renew: false,
            ..
        } => Act::AlreadyActive,
        _ => Act::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEW: Asker = Asker {
        has_open: false,
        is_active: false,
        may_renew: false,
    };
    const ACTIVE: Asker = Asker {
        is_active: true,
        ..NEW
    };
    const RENEWING: Asker = Asker {
        may_renew: true,
        ..ACTIVE
    };
    const OPEN: Asker = Asker {
        has_open: true,
        ..NEW
    };

    fn own(state: State) -> Option<Option<Known>> {
        Some(Some(Known {
            state,
            same_owner: true,
            same_payment: true,
        }))
    }

    #[test]
    fn every_request_has_its_answer() {
        let others = Some(Some(Known {
            state: State::Settled,
            same_owner: false,
            same_payment: true,
        }));
        let twin = Some(Some(Known {
            state: State::Settled,
            same_owner: true,
            same_payment: false,
        }));
        for (what, asker, payment, act) in [
            ("nothing paid", NEW, None, Act::Offer),
            (
                "nothing paid, plan active",
                ACTIVE,
                None,
                Act::AlreadyActive,
            ),
            ("nothing paid, end is near", RENEWING, None, Act::Offer),
            ("nothing paid, earlier one unclear", OPEN, None, Act::Wait),
            ("a new payment", NEW, Some(None), Act::Pay),
            (
                "a new payment, plan active",
                ACTIVE,
                Some(None),
                Act::AlreadyActive,
            ),
            ("a new payment, end is near", RENEWING, Some(None), Act::Pay),
            (
                "a new payment, earlier one unclear",
                OPEN,
                Some(None),
                Act::Wait,
            ),
            ("again after a fault", NEW, own(State::Seen), Act::Pay),
            (
                "again after it worked",
                ACTIVE,
                own(State::Settled),
                Act::Replay,
            ),
            (
                "again while it is sent",
                OPEN,
                own(State::Settling),
                Act::Join,
            ),
            (
                "again while it is unclear",
                OPEN,
                own(State::Unknown),
                Act::Reconcile,
            ),
            ("again after it died", NEW, own(State::Dead), Act::Refuse),
            (
                "again after a refusal",
                NEW,
                own(State::Refused),
                Act::Refuse,
            ),
            (
                "again after it was sent and refused",
                NEW,
                own(State::RefusedAfterSubmit),
                Act::Recheck,
            ),
            (
                "the same with the plan active",
                ACTIVE,
                own(State::RefusedAfterSubmit),
                Act::Recheck,
            ),
            (
                "the same while another one is unclear",
                OPEN,
                own(State::RefusedAfterSubmit),
                Act::Wait,
            ),
            ("somebody else's", NEW, others, Act::UsedByAnother),
            (
                "another signature for a spent nonce",
                NEW,
                twin,
                Act::Refuse,
            ),
            (
                "another signature, plan active",
                ACTIVE,
                twin,
                Act::AlreadyActive,
            ),
        ] {
            assert_eq!(decide(asker, payment), act, "{what}");
        }
    }

    fn any_state() -> impl Strategy<Value = State> {
        prop::sample::select(vec![
            State::Seen,
            State::Settling,
            State::Unknown,
            State::Settled,
            State::Dead,
            State::Refused,
            State::RefusedAfterSubmit,
        ])
    }

    proptest! {
        #[test]
        fn no_offer_is_shown_and_nothing_new_is_sent_while_money_may_move(
            state in any_state(),
            (same_owner, same_payment, is_active, may_renew, has_payment, is_known) in any::<(bool, bool, bool, bool, bool, bool)>(),
        ) {
            let asker = Asker { has_open: true, is_active, may_renew };
            let known = Known { state, same_owner, same_payment };
            let act = decide(asker, has_payment.then_some(is_known.then_some(known)));
            prop_assert!(!matches!(act, Act::Offer | Act::Pay | Act::Recheck | Act::Refuse), "{act:?}");
        }

        #[test]
        fn another_account_gets_nothing_for_a_payment(
            state in any_state(),
            (same_payment, has_open, is_active, may_renew) in any::<(bool, bool, bool, bool)>(),
        ) {
            let known = Known { state, same_owner: false, same_payment };
            let act = decide(Asker { has_open, is_active, may_renew }, Some(Some(known)));
            prop_assert_eq!(act, Act::UsedByAnother);
        }
    }
}
