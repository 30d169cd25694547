//! What to do with a request to buy, so that nobody pays twice.
//!
//! One rule stands above the others: an account is never shown an offer, and no authorization of it is ever sent to the chain, while an
//! earlier one may still move its money.

/// How far one authorization has come. Written down before each step that cannot be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Found good here; nobody was asked.
    Seen,
    /// Sent, or about to be.
    Settling,
    /// Sent, and nobody knows what became of it.
    Unknown,
    /// The money has moved, and the plan was given for it.
    Settled,
    /// It can never move money any more, and has not.
    Dead,
    /// The facilitator said no, and it was never sent.
    Refused,
    /// It was sent, the facilitator said no, and no chain lookup has confirmed that.
    RefusedAfterSubmit,
}

impl State {
    /// Whether it may still move money.
    pub fn is_open(self) -> bool {
        matches!(self, State::Settling | State::Unknown)
    }
}

/// What is known of the authorization that a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// How far it has come.
    pub state: State,
    /// Whether the account that sends it is the one that sent it first.
    pub same_owner: bool,
    /// Whether it is the same to the last byte: another signature for the same nonce is another payment.
    pub same_payment: bool,
}

/// What is known of the account that asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asker {
    /// Another authorization of it may still move money.
    pub has_open: bool,
    /// It has the plan.
    pub is_active: bool,
    /// It may buy the next period already, because nothing renews the plan by itself and its end is near.
    pub may_renew: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Show the offer.
    Offer,
    /// Say that the plan is active. A payment that came along stays unspent.
    AlreadyActive,
    /// Give the stored answer of this payment again.
    Replay,
    /// Wait for the attempt that is under way with this payment.
    Join,
    /// Find out what became of this payment.
    Reconcile,
    /// Look up a payment again that was refused after it was sent, and submit it again where another one may be.
    Recheck,
    /// Ask the facilitator about this payment, and then send it.
    Pay,
    /// Somebody else has used this payment: 409, and no offer, which a buyer's program would pay.
    UsedByAnother,
    /// The payment cannot be taken: 402 with an offer.
    Refuse,
    /// An earlier payment is not clear: 503, and no offer.
    Wait,
}

/// Decides about a request; `payment` is none for one without a payment, and holds nothing for one whose payment is new.
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
        // Whose it is comes before what became of it: to somebody else it is not told.
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
