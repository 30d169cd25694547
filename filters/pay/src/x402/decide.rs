//! The decision about a purchase request, so that no buyer pays twice.
//!
//! Invariant: while an earlier authorization may still move money, the account sees no offer, and no authorization of the account is sent
//! to the chain.

use tollgate_store::AuthorizationState;

/// Whether an authorization in this state may still move money.
pub(super) fn is_open(state: AuthorizationState) -> bool {
    use AuthorizationState::{Dead, Refused, RefusedAfterSubmit, Seen, Settled};
    // The meaning of a later version's state is unknown: no conclusion.
    !matches!(state, Seen | Settled | Dead | Refused | RefusedAfterSubmit)
}

/// The stored state of the authorization that a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredPayment {
    pub state: AuthorizationState,
    /// Whether the requesting account presented the payment first.
    pub same_owner: bool,
    /// Whether the payment is byte for byte equal: another signature for the nonce is another payment.
    pub same_payment: bool,
}

/// The state of the requesting account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuyerState {
    /// Another authorization of the account may still move money.
    pub has_open: bool,
    /// The account has the plan.
    pub is_active: bool,
    /// The account may buy the next period already, because the plan does not renew itself and its end is near.
    pub may_renew: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Show the offer.
    Offer,
    /// Answer that the plan is active. A payment in the request stays unspent.
    AlreadyActive,
    /// Replay the stored answer.
    Replay,
    /// Join the payment's attempt in progress.
    Join,
    /// Reconcile this payment.
    Reconcile,
    /// Look up a payment refused after submission again, and submit again if the account may make another payment.
    Recheck,
    /// Verify the payment at the facilitator, then submit.
    Pay,
    /// Another account has used this payment: 409. No offer, since a buyer's program would pay an offer.
    UsedByAnother,
    /// The payment is not acceptable: 402 with an offer.
    Refuse,
    /// The outcome of an earlier payment is not known: 503, and no offer.
    Wait,
}

/// Decides about a request. `payment` is `None` for a request without a payment, and `Some(None)` for a payment not stored yet.
pub fn decide(buyer: BuyerState, payment: Option<Option<StoredPayment>>) -> Decision {
    let settled_for_now = buyer.is_active && !buyer.may_renew;
    let Some(stored) = payment else {
        return match buyer {
            BuyerState { has_open: true, .. } => Decision::Wait,
            _ if settled_for_now => Decision::AlreadyActive,
            _ => Decision::Offer,
        };
    };
    if let Some(stored) = stored {
        // Ownership is checked before the state: another account does not learn the state.
        if !stored.same_owner {
            return Decision::UsedByAnother;
        }
        match stored.state {
            _ if !stored.same_payment => return refused(buyer),
            AuthorizationState::Settled => return Decision::Replay,
            AuthorizationState::Settling => return Decision::Join,
            AuthorizationState::Dead | AuthorizationState::Refused => return refused(buyer),
            AuthorizationState::RefusedAfterSubmit if !buyer.has_open => return Decision::Recheck,
            AuthorizationState::RefusedAfterSubmit | AuthorizationState::Seen => {}
            // Unknown, or a state of a later version.
            _ => return Decision::Reconcile,
        }
    }
    match buyer {
        BuyerState { has_open: true, .. } => Decision::Wait,
        _ if settled_for_now => Decision::AlreadyActive,
        _ => Decision::Pay,
    }
}

/// A refusal includes an offer, and so is possible only where an offer may be shown.
fn refused(buyer: BuyerState) -> Decision {
    match buyer {
        BuyerState { has_open: true, .. } => Decision::Wait,
        BuyerState {
            is_active: true,
            may_renew: false,
            ..
        } => Decision::AlreadyActive,
        _ => Decision::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NEW: BuyerState = BuyerState {
        has_open: false,
        is_active: false,
        may_renew: false,
    };
    const ACTIVE: BuyerState = BuyerState {
        is_active: true,
        ..NEW
    };
    const RENEWING: BuyerState = BuyerState {
        may_renew: true,
        ..ACTIVE
    };
    const OPEN: BuyerState = BuyerState {
        has_open: true,
        ..NEW
    };

    fn own(state: AuthorizationState) -> Option<Option<StoredPayment>> {
        Some(Some(StoredPayment {
            state,
            same_owner: true,
            same_payment: true,
        }))
    }

    #[test]
    fn every_request_has_one_decision() {
        let others = Some(Some(StoredPayment {
            state: AuthorizationState::Settled,
            same_owner: false,
            same_payment: true,
        }));
        let twin = Some(Some(StoredPayment {
            state: AuthorizationState::Settled,
            same_owner: true,
            same_payment: false,
        }));
        for (what, buyer, payment, decision) in [
            ("nothing paid", NEW, None, Decision::Offer),
            (
                "nothing paid, plan active",
                ACTIVE,
                None,
                Decision::AlreadyActive,
            ),
            ("nothing paid, end is near", RENEWING, None, Decision::Offer),
            (
                "nothing paid, outcome of an earlier one unknown",
                OPEN,
                None,
                Decision::Wait,
            ),
            ("a new payment", NEW, Some(None), Decision::Pay),
            (
                "a new payment, plan active",
                ACTIVE,
                Some(None),
                Decision::AlreadyActive,
            ),
            (
                "a new payment, end is near",
                RENEWING,
                Some(None),
                Decision::Pay,
            ),
            (
                "a new payment, outcome of an earlier one unknown",
                OPEN,
                Some(None),
                Decision::Wait,
            ),
            (
                "again after a fault",
                NEW,
                own(AuthorizationState::Seen),
                Decision::Pay,
            ),
            (
                "again after it worked",
                ACTIVE,
                own(AuthorizationState::Settled),
                Decision::Replay,
            ),
            (
                "again while it is sent",
                OPEN,
                own(AuthorizationState::Settling),
                Decision::Join,
            ),
            (
                "again while its outcome is unknown",
                OPEN,
                own(AuthorizationState::Unknown),
                Decision::Reconcile,
            ),
            (
                "again after it died",
                NEW,
                own(AuthorizationState::Dead),
                Decision::Refuse,
            ),
            (
                "again after a refusal",
                NEW,
                own(AuthorizationState::Refused),
                Decision::Refuse,
            ),
            (
                "again after it was sent and refused",
                NEW,
                own(AuthorizationState::RefusedAfterSubmit),
                Decision::Recheck,
            ),
            (
                "the same with the plan active",
                ACTIVE,
                own(AuthorizationState::RefusedAfterSubmit),
                Decision::Recheck,
            ),
            (
                "the same while another one is open",
                OPEN,
                own(AuthorizationState::RefusedAfterSubmit),
                Decision::Wait,
            ),
            ("another account's", NEW, others, Decision::UsedByAnother),
            (
                "another signature for a spent nonce",
                NEW,
                twin,
                Decision::Refuse,
            ),
            (
                "another signature, plan active",
                ACTIVE,
                twin,
                Decision::AlreadyActive,
            ),
        ] {
            assert_eq!(decide(buyer, payment), decision, "{what}");
        }
    }

    fn any_state() -> impl Strategy<Value = AuthorizationState> {
        prop::sample::select(AuthorizationState::ALL)
    }

    proptest! {
        #[test]
        fn no_offer_is_shown_and_nothing_new_is_sent_while_money_may_move(
            state in any_state(),
            (same_owner, same_payment, is_active, may_renew, has_payment, is_known) in any::<(bool, bool, bool, bool, bool, bool)>(),
        ) {
            let buyer = BuyerState { has_open: true, is_active, may_renew };
            let stored = StoredPayment { state, same_owner, same_payment };
            let decision = decide(buyer, has_payment.then_some(is_known.then_some(stored)));
            prop_assert!(!matches!(decision, Decision::Offer | Decision::Pay | Decision::Recheck | Decision::Refuse), "{decision:?}");
        }

        #[test]
        fn another_account_gets_nothing_for_a_payment(
            state in any_state(),
            (same_payment, has_open, is_active, may_renew) in any::<(bool, bool, bool, bool)>(),
        ) {
            let stored = StoredPayment { state, same_owner: false, same_payment };
            let decision = decide(BuyerState { has_open, is_active, may_renew }, Some(Some(stored)));
            prop_assert_eq!(decision, Decision::UsedByAnother);
        }
    }
}
