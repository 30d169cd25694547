//! Credit movements: top-ups, grants, refunds, expiries and corrections, idempotent by reference.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, MICROS_PER_CREDIT, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{CommitError, EntryKind, Failure, Part, Refusal};

use crate::hold_request::HoldError;
use crate::resident::LoadError;

/// A movement of credit between an account and the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credit {
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The amount; never zero, and negative for a correction or expiry that removes credit.
    pub amount: Micros,
    /// The idempotency key within the account. A repeat with equal kind and amount changes no balance.
    pub reference: Arc<str>,
    /// The time of the booking.
    pub at: Timestamp,
}

/// A durable credit movement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credited {
    /// The operation id of the movement. For a repeated reference, the id of the earlier operation.
    pub operation: OperationId,
    /// Whether the reference was booked before, so that the unit wrote no entry.
    pub repeated: bool,
    /// The available balance right after the movement.
    pub available: Micros,
}

/// Why a credit movement failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// An invalid amount for this kind of movement.
    #[error("a {kind:?} of {amount} credits cannot be booked; {remedy}")]
    Amount {
        /// The movement.
        kind: EntryKind,
        /// The requested amount.
        amount: Micros,
        /// The valid amounts.
        remedy: &'static str,
    },
    /// The account's balance would overflow.
    #[error("account `{account}` cannot take {amount} credits more")]
    TooMuch {
        /// The account.
        account: AccountId,
        /// The requested amount.
        amount: Micros,
    },
    /// A reference of invalid length.
    #[error("a reference is 1 to 255 characters; this one has {length}")]
    Reference { length: usize },
    /// The account does not exist on this node.
    #[error("there is no account `{account}`")]
    NoAccount {
        /// The requested account.
        account: AccountId,
    },
    /// The account has less than the amount to be removed.
    #[error(
        "account `{account}` has {available} credits free; {requested} cannot be taken from it"
    )]
    InsufficientCredit {
        /// The account.
        account: AccountId,
        /// The removable amount, including the credit limit.
        available: Micros,
        /// The requested amount.
        requested: Micros,
    },
    /// The reference or the operation is in use for another movement.
    #[error(transparent)]
    Conflict(Refusal),
    /// The store's queue is full.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The database does not answer.
    #[error("the database does not answer; try again when it does")]
    CutOff,
    /// The store has stopped. Repeat the movement after the restart: the reference prevents a second booking.
    #[error("could not write `{reference}`")]
    Store {
        /// The reference.
        reference: Arc<str>,
        /// The cause.
        #[source]
        source: Failure,
    },
}

const REFERENCE_CHARS_MAX: usize = 255;

/// A billion credits. A larger amount is more likely a typing error than a sale. A thousand movements of this amount still fit an account.
const AMOUNT_MAX: i64 = 1_000_000_000 * MICROS_PER_CREDIT;

impl Credit {
    /// The part of this movement, for a unit together with other parts: the account of the credit, the payment behind the credit. Only for
    /// incoming credit; the ledger has to decide outgoing credit first.
    pub fn part(&self, kind: EntryKind) -> Result<Part, CreditError> {
        if !self.amount.is_positive() {
            return Err(self.amount_error(kind, "use an amount above zero"));
        }
        self.check(kind)
    }

    /// Validates everything that does not depend on the account, and builds the part.
    pub(crate) fn check(&self, kind: EntryKind) -> Result<Part, CreditError> {
        let remedy = match (kind, self.amount.get().signum()) {
            (EntryKind::TopUp | EntryKind::Grant | EntryKind::Refund, 1) => None,
            (EntryKind::Expiry, -1) | (EntryKind::Correction, -1 | 1) => None,
            (EntryKind::TopUp | EntryKind::Grant | EntryKind::Refund, _) => {
                Some("use an amount above zero")
            }
            (EntryKind::Expiry, _) => Some("use an amount below zero"),
            (EntryKind::Correction, _) => Some("use an amount other than zero"),
            _ => Some("it belongs to an operation"),
        };
        if let Some(remedy) = remedy {
            return Err(self.amount_error(kind, remedy));
        }
        if self.amount.get().unsigned_abs() > AMOUNT_MAX as u64 {
            return Err(self.amount_error(kind, "book at most a billion credits at once"));
        }
        let length = self.reference.chars().count();
        if length == 0 || length > REFERENCE_CHARS_MAX {
            return Err(CreditError::Reference { length });
        }
        Ok(Part::Ledger(LedgerPart::Credit {
            operation: self.operation,
            account: self.account,
            kind,
            amount: self.amount,
            reference: self.reference.clone(),
            at: self.at,
        }))
    }

    /// The account's balance would overflow.
    pub(crate) fn too_much(&self) -> CreditError {
        CreditError::TooMuch {
            account: self.account,
            amount: self.amount,
        }
    }

    fn amount_error(&self, kind: EntryKind, remedy: &'static str) -> CreditError {
        CreditError::Amount {
            kind,
            amount: self.amount,
            remedy,
        }
    }

    /// The error for outgoing credit that could not be held.
    pub(crate) fn hold_error(&self, error: HoldError) -> CreditError {
        match error {
            HoldError::InsufficientCredit {
                account,
                available,
                requested,
            } => CreditError::InsufficientCredit {
                account,
                available,
                requested,
            },
            HoldError::NoAccount { account } => CreditError::NoAccount { account },
            HoldError::Overloaded { waiting } => CreditError::Overloaded { waiting },
            HoldError::CutOff => CreditError::CutOff,
            HoldError::CreditUnavailable { .. } | HoldError::NotLoaded => {
                CreditError::Overloaded { waiting: 0 }
            }
            HoldError::Repeated { operation } => {
                CreditError::Conflict(Refusal::OperationExists(operation))
            }
            HoldError::Store { source, .. } => self.error(CommitError::Stopped(source)),
        }
    }

    /// The error for an account that could not be loaded.
    pub(crate) fn load_error(&self, error: LoadError) -> CreditError {
        match error {
            LoadError::Overloaded { waiting } => CreditError::Overloaded { waiting },
            LoadError::CutOff => CreditError::CutOff,
            LoadError::Store(failure) => self.error(CommitError::Stopped(failure)),
        }
    }

    pub(crate) fn error(&self, error: CommitError) -> CreditError {
        match error {
            CommitError::Refused(Refusal::NoAccount(account)) => CreditError::NoAccount { account },
            CommitError::Refused(refusal) => CreditError::Conflict(refusal),
            CommitError::Overloaded { waiting } => CreditError::Overloaded { waiting },
            CommitError::CutOff => CreditError::CutOff,
            CommitError::Stopped(source) => CreditError::Store {
                reference: self.reference.clone(),
                source,
            },
            _ => CreditError::Store {
                reference: self.reference.clone(),
                source: Failure::closed(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_takes_only_amounts_that_make_sense_for_it() {
        use EntryKind::{Correction, Expiry, Grant, Hold, Refund, TopUp};
        //    kind        above zero, zero, below
        check(TopUp, [true, false, false]);
        check(Grant, [true, false, false]);
        check(Refund, [true, false, false]);
        check(Expiry, [false, false, true]);
        check(Correction, [true, false, true]);
        check(Hold, [false, false, false]);
    }

    fn check(kind: EntryKind, allowed: [bool; 3]) {
        for (amount, allowed) in [1, 0, -1].into_iter().zip(allowed) {
            let credit = credit(amount, "r");
            assert_eq!(credit.check(kind).is_ok(), allowed, "{kind:?} of {amount}");
        }
    }

    #[test]
    fn an_amount_is_at_most_a_billion_credits() {
        for (amount, allowed) in [
            (AMOUNT_MAX, true),
            (-AMOUNT_MAX, true),
            (AMOUNT_MAX + 1, false),
            (i64::MAX, false),
            (i64::MIN, false),
        ] {
            let credit = credit(amount, "r");
            let checked = credit.check(EntryKind::Correction);
            assert_eq!(checked.is_ok(), allowed, "{amount} micros");
        }
    }

    #[test]
    fn a_reference_has_1_to_255_characters() {
        for (length, allowed) in [(0, false), (1, true), (255, true), (256, false)] {
            let credit = credit(1, &"ü".repeat(length));
            assert_eq!(
                credit.check(EntryKind::Grant).is_ok(),
                allowed,
                "{length} characters"
            );
        }
    }

    fn credit(amount: i64, reference: &str) -> Credit {
        Credit {
            operation: OperationId::from_parts(1, [0; 10]),
            account: AccountId::from_parts(1, [0; 10]),
            amount: Micros::new(amount),
            reference: Arc::from(reference),
            at: Timestamp::UNIX_EPOCH,
        }
    }
}
