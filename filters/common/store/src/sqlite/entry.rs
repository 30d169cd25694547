//! The entries that parts make.

use tollgate_money::{AccountId, Micros, OperationId};

use crate::books::{Entry, LedgerPart};
use crate::codes::EntryKind;

/// What every entry of one commit has in common.
#[derive(Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) node: i64,
    pub(crate) epoch: i64,
    pub(crate) batch: i64,
}

impl Stamp {
    /// The entry that a part makes.
    pub(crate) fn of(&self, part: &LedgerPart) -> Entry {
        match *part {
            LedgerPart::Hold {
                operation,
                account,
                amount,
                price_version,
                at,
                ..
            } => Entry {
                price_version,
                ..self.row((operation, account), EntryKind::Hold, -amount, amount, at)
            },
            LedgerPart::Settle {
                operation,
                account,
                held,
                charged,
                price_version,
                at,
                ..
            } => Entry {
                price_version,
                ..self.row(
                    (operation, account),
                    EntryKind::Settle,
                    held - charged,
                    -held,
                    at,
                )
            },
            LedgerPart::Release {
                operation,
                account,
                held,
                at,
            } => self.row((operation, account), EntryKind::Release, held, -held, at),
            LedgerPart::Charge {
                operation,
                account,
                charged,
                price_version,
                at,
                ..
            } => Entry {
                price_version,
                ..self.row(
                    (operation, account),
                    EntryKind::Charge,
                    -charged,
                    Micros::ZERO,
                    at,
                )
            },
            LedgerPart::Credit {
                operation,
                account,
                kind,
                amount,
                ref reference,
                at,
            } => Entry {
                reference: Some(reference.clone()),
                ..self.row((operation, account), kind, amount, Micros::ZERO, at)
            },
            LedgerPart::Restate { .. } => unreachable!("a restatement makes no entry"),
        }
    }

    pub(crate) fn row(
        &self,
        (operation, account): (OperationId, AccountId),
        kind: EntryKind,
        d_available: Micros,
        d_held: Micros,
        at: i64,
    ) -> Entry {
        Entry {
            operation,
            kind,
            account,
            d_available,
            d_held,
            contra: kind.contra(),
            reference: None,
            price_version: None,
            node: self.node,
            epoch: self.epoch,
            batch: self.batch,
            at,
        }
    }
}
