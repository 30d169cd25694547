//! The outcome of a payment, decided from the facilitator's answer and the state of the chain, without I/O.
//!
//! With a node the chain alone decides: an answer of the facilitator that it does not confirm leaves the outcome open, whatever the answer
//! was. Without a node the facilitator is trusted.

use tollgate_evm::TxHash;

use super::answer::Settled;
use super::chain_lookup::OnChainStatus;

/// The state of a payment on the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainEvidence {
    /// No node is configured.
    NoNode,
    /// The node is unavailable, or the answers are inconsistent.
    Unreadable,
    /// A chain lookup.
    Read {
        /// Its result.
        status: OnChainStatus,
        /// Whether the authorization has expired on the chain.
        is_expired: bool,
    },
}

impl ChainEvidence {
    /// The outcome proved by the chain alone.
    pub fn outcome(self) -> Option<PaymentOutcome> {
        let ChainEvidence::Read { status, is_expired } = self else {
            return None;
        };
        match status {
            OnChainStatus::Paid(transaction) => Some(PaymentOutcome::Paid {
                transaction,
                is_proven: true,
            }),
            OnChainStatus::Canceled => Some(PaymentOutcome::VoidAtLatest {
                why: "the wallet cancelled the authorization",
                reported: None,
            }),
            OnChainStatus::OtherTransfer => Some(PaymentOutcome::VoidAtLatest {
                why: "its nonce was used for another transfer",
                reported: None,
            }),
            OnChainStatus::Unspent { .. } if is_expired => {
                Some(PaymentOutcome::Void("it expired without being submitted"))
            }
            OnChainStatus::Unspent { .. } | OnChainStatus::Spent => None,
        }
    }
}

/// The known outcome of a payment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PaymentOutcome {
    /// It was paid.
    Paid {
        /// In this transaction.
        transaction: TxHash,
        /// Whether the chain proves the transfer of this authorization in the transaction. Otherwise the facilitator reports the transfer,
        /// without a node.
        is_proven: bool,
    },
    /// No money has moved and none ever will: the chain has passed the expiry, and proves this.
    Void(&'static str),
    /// [`Void`](Self::Void) as of a block that may still be replaced by a block with the transfer.
    VoidAtLatest {
        why: &'static str,
        /// The transaction reported by the facilitator: with a report, one lookup is not final.
        reported: Option<TxHash>,
    },
    /// Refused by the facilitator after submission, without a node to confirm the refusal.
    Refused(String),
    /// Not known yet.
    Open {
        /// A transaction that may contain the transfer.
        transaction: Option<TxHash>,
        /// The last reported reason.
        why: String,
        /// Whether the facilitator gave no usable answer: an identical call is permitted at once.
        may_resubmit: bool,
    },
}

/// The outcome by an answer of the facilitator and the subsequent chain lookup.
pub fn decide_outcome(answer: &Settled, chain: ChainEvidence) -> PaymentOutcome {
    match (chain.outcome(), answer) {
        (Some(PaymentOutcome::VoidAtLatest { why, .. }), Settled::Done { transaction, .. }) => {
            return PaymentOutcome::VoidAtLatest {
                why,
                reported: Some(*transaction),
            };
        }
        (Some(outcome), _) => return outcome,
        (None, _) => {}
    }
    let open = |transaction, why: &str, may_resubmit| PaymentOutcome::Open {
        transaction,
        why: why.to_owned(),
        may_resubmit,
    };
    let is_used = matches!(
        chain,
        ChainEvidence::Read {
            status: OnChainStatus::Spent,
            ..
        }
    );
    match answer {
        Settled::Done { transaction, .. } if chain == ChainEvidence::NoNode => {
            PaymentOutcome::Paid {
                transaction: *transaction,
                is_proven: false,
            }
        }
        Settled::Refused(why) if chain == ChainEvidence::NoNode => {
            PaymentOutcome::Refused(why.clone())
        }
        Settled::Done { transaction, .. } => {
            let why = "the facilitator reports a settlement that the chain does not show";
            open(Some(*transaction), why, false)
        }
        Settled::Refused(_) | Settled::Unknown { .. } if is_used => {
            let why = "the authorization was used, and its transfer was not found";
            open(None, why, false)
        }
        Settled::Refused(why) => open(None, why, false),
        Settled::Unknown { transaction, why } => open(*transaction, why, true),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REPORTED: TxHash = TxHash([1; 32]);
    const PROVEN: TxHash = TxHash([2; 32]);

    fn done() -> Settled {
        Settled::Done {
            transaction: REPORTED,
            payer: None,
        }
    }

    fn refused() -> Settled {
        Settled::Refused("insufficient_funds".to_owned())
    }

    fn unknown() -> Settled {
        Settled::Unknown {
            transaction: None,
            why: "cut".to_owned(),
        }
    }

    fn read(status: OnChainStatus, is_expired: bool) -> ChainEvidence {
        ChainEvidence::Read { status, is_expired }
    }

    const UNSPENT: OnChainStatus = OnChainStatus::Unspent { until: 1 };

    /// Every pair of facilitator answer and chain state, with its outcome.
    #[test]
    fn every_answer_and_every_state_of_the_chain_have_one_outcome() {
        let paid = |transaction, is_proven| PaymentOutcome::Paid {
            transaction,
            is_proven,
        };
        let open = |transaction, why: &str, may_resubmit| PaymentOutcome::Open {
            transaction,
            why: why.to_owned(),
            may_resubmit,
        };
        let proven = paid(PROVEN, true);
        let void_at = |why, reported| PaymentOutcome::VoidAtLatest { why, reported };
        let void = |reported| void_at("the wallet cancelled the authorization", reported);
        let other_transfer =
            |reported| void_at("its nonce was used for another transfer", reported);
        let late = PaymentOutcome::Void("it expired without being submitted");
        let reported = open(
            Some(REPORTED),
            "the facilitator reports a settlement that the chain does not show",
            false,
        );
        let doubted = open(None, "insufficient_funds", false);
        let lost = open(None, "cut", true);
        let used = "the authorization was used, and its transfer was not found";
        for (chain, when_done, when_refused, when_unknown) in [
            (
                ChainEvidence::NoNode,
                paid(REPORTED, false),
                PaymentOutcome::Refused("insufficient_funds".to_owned()),
                lost.clone(),
            ),
            (
                ChainEvidence::Unreadable,
                reported.clone(),
                doubted.clone(),
                lost.clone(),
            ),
            (read(UNSPENT, false), reported.clone(), doubted, lost),
            (
                read(OnChainStatus::Spent, false),
                reported,
                open(None, used, false),
                open(None, used, false),
            ),
            (
                read(OnChainStatus::Paid(PROVEN), false),
                proven.clone(),
                proven.clone(),
                proven,
            ),
            (
                read(OnChainStatus::Canceled, false),
                void(Some(REPORTED)),
                void(None),
                void(None),
            ),
            (
                read(OnChainStatus::OtherTransfer, false),
                other_transfer(Some(REPORTED)),
                other_transfer(None),
                other_transfer(None),
            ),
            (read(UNSPENT, true), late.clone(), late.clone(), late),
        ] {
            for (answer, outcome) in [
                (done(), when_done),
                (refused(), when_refused),
                (unknown(), when_unknown),
            ] {
                assert_eq!(
                    decide_outcome(&answer, chain),
                    outcome,
                    "{answer:?} {chain:?}"
                );
            }
        }
    }

    fn any_answer() -> impl Strategy<Value = Settled> {
        prop_oneof![Just(done()), Just(refused()), Just(unknown())]
    }

    fn any_chain() -> impl Strategy<Value = ChainEvidence> {
        let status = prop::sample::select(vec![
            OnChainStatus::Paid(PROVEN),
            OnChainStatus::Canceled,
            OnChainStatus::OtherTransfer,
            OnChainStatus::Spent,
            UNSPENT,
        ]);
        prop_oneof![
            Just(ChainEvidence::Unreadable),
            (status, any::<bool>()).prop_map(|(status, is_expired)| read(status, is_expired)),
        ]
    }

    proptest! {
        #[test]
        fn with_a_node_only_the_chain_ends_a_payment(answer in any_answer(), other in any_answer(), chain in any_chain()) {
            let outcome = decide_outcome(&answer, chain);
            match chain.outcome() {
                Some(PaymentOutcome::VoidAtLatest { .. }) => prop_assert!(matches!(outcome, PaymentOutcome::VoidAtLatest { .. }), "{outcome:?}"),
                Some(proven) => prop_assert_eq!(&outcome, &proven),
                None => prop_assert!(matches!(outcome, PaymentOutcome::Open { .. }), "{outcome:?}"),
            }
            // The final outcome is independent of the facilitator's answer.
            let ends = |outcome: &PaymentOutcome| !matches!(outcome, PaymentOutcome::Open { .. });
            prop_assert_eq!(ends(&outcome), ends(&decide_outcome(&other, chain)));
        }
    }
}
