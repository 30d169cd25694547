//! Double-entry ledger entries, and the parts that write them. Only the crate `tollgate-ledger` builds these parts: it has verified that
//! the credit is available.

use std::fmt;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use crate::codes::{Contra, EntryKind};
pub use crate::journal::{Body, DecodeError, Record};
use crate::rows::{UsageRecord, UsageRow};

/// One ledger entry: append-only, never changed.
///
/// It adds `d_available` and `d_held` to its account and `-(d_available + d_held)` to the contra account, so that each row is a complete
/// double entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The operation; together with the phase of `kind` the key of the entry.
    pub operation: OperationId,
    /// What the entry does.
    pub kind: EntryKind,
    /// The account whose balance changes.
    pub account: AccountId,
    /// Change of the available balance.
    pub d_available: Micros,
    /// Change of the held balance.
    pub d_held: Micros,
    /// The contra account.
    pub contra: Contra,
    /// The reference chosen by the operator or a payment route; unique per account.
    pub reference: Option<Arc<str>>,
    /// The price version that the operation is billed at.
    pub price_version: Option<i64>,
    /// Its time.
    pub at: Timestamp,
}

impl Entry {
    /// The entry that a part writes; a charge of zero writes none.
    pub fn of(part: &LedgerPart) -> Option<Entry> {
        // Wraps on amounts that only a damaged record can contain: its seal shows the damage.
        let less = |amount: Micros| Micros::new(amount.get().wrapping_neg());
        let row = |operation,
                   kind: EntryKind,
                   account,
                   d_available,
                   d_held,
                   price_version,
                   at: Timestamp| Entry {
            operation,
            kind,
            account,
            d_available,
            d_held,
            contra: kind.contra(),
            reference: None,
            price_version,
            at,
        };
        Some(match *part {
            LedgerPart::Hold {
                operation,
                account,
                amount,
                price_version,
                at,
                ..
            } => row(
                operation,
                EntryKind::Hold,
                account,
                less(amount),
                amount,
                price_version,
                at,
            ),
            LedgerPart::Settle {
                operation,
                account,
                held,
                charged,
                price_version,
                at,
                ..
            } => {
                let free = Micros::new(held.get().wrapping_sub(charged.get()));
                row(
                    operation,
                    EntryKind::Settle,
                    account,
                    free,
                    less(held),
                    price_version,
                    at,
                )
            }
            LedgerPart::Release {
                operation,
                account,
                held,
                at,
            } => row(
                operation,
                EntryKind::Release,
                account,
                held,
                less(held),
                None,
                at,
            ),
            LedgerPart::Charge { charged, .. } if charged == Micros::ZERO => return None,
            LedgerPart::Carry { .. } => return None,
            LedgerPart::Charge {
                operation,
                account,
                charged,
                price_version,
                at,
                ..
            } => row(
                operation,
                EntryKind::Charge,
                account,
                less(charged),
                Micros::ZERO,
                price_version,
                at,
            ),
            LedgerPart::Credit {
                operation,
                account,
                kind,
                amount,
                ref reference,
                at,
            } => Entry {
                reference: Some(Arc::clone(reference)),
                ..row(operation, kind, account, amount, Micros::ZERO, None, at)
            },
            LedgerPart::Allot {
                operation,
                account,
                amount,
                at,
            } => row(
                operation,
                EntryKind::Allotment,
                account,
                amount,
                Micros::ZERO,
                None,
                at,
            ),
        })
    }

    /// 0 for an entry that opens an operation (or is all of it), 1 for one that resolves a hold.
    pub fn phase(&self) -> i64 {
        self.kind.phase()
    }
}

/// Summary of one commit, hash-chained to the previous one so that lost or edited history is detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The node that committed.
    pub node: i64,
    /// The run of that node.
    pub epoch: i64,
    /// 1, 2, 3 ... within node and epoch.
    pub number: i64,
    /// How many entries the commit had.
    pub entries: i64,
    /// The sum of their `d_available`.
    pub sum_available: Micros,
    /// The sum of their `d_held`.
    pub sum_held: Micros,
    /// The hash of the previous seal of the same node, across epochs; zero for the very first.
    pub previous: [u8; 32],
    /// BLAKE3 over `previous`, the numbers above and below, and the commit's body in the journal.
    pub hash: [u8; 32],
    /// Its time.
    pub at: Timestamp,
}

/// A part of a unit of work that writes ledger entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LedgerPart {
    /// Reserves credit for one operation.
    Hold {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount.
        amount: Micros,
        /// The price version fixed for the operation.
        price_version: Option<i64>,
        /// Its time.
        at: Timestamp,
        /// When it is to end, by the wall clock at its time. Recorded only: the process that placed it decides by its monotonic clock, and
        /// the next run of its node releases it in any case.
        expires_at: Timestamp,
    },
    /// Resolves a hold by charging what the operation cost.
    Settle {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount of its hold.
        held: Micros,
        /// The amount charged: from the hold, and beyond it from the available balance.
        charged: Micros,
        /// Cost of the operation beyond that.
        written_off: Micros,
        /// The price version fixed at the hold.
        price_version: Option<i64>,
        /// Usage of the operation.
        usage: UsageRecord,
        /// Its time.
        at: Timestamp,
    },
    /// Resolves a hold by returning it in full.
    Release {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount of its hold.
        held: Micros,
        /// Its time.
        at: Timestamp,
    },
    /// Charges a cost that had no hold. With nothing to charge it is a usage record alone.
    Charge {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount charged.
        charged: Micros,
        /// Cost of the operation beyond that.
        written_off: Micros,
        /// The price version it was billed at.
        price_version: Option<i64>,
        /// Usage of the operation.
        usage: UsageRecord,
        /// Its time.
        at: Timestamp,
    },
    /// Moves credit in or out, idempotent by reference.
    Credit {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// Top-up, grant, refund, expiry or correction.
        kind: EntryKind,
        /// The amount; negative to remove credit.
        amount: Micros,
        /// The idempotency reference, unique within the account.
        reference: Arc<str>,
        /// Its time.
        at: Timestamp,
    },
    /// Moves credit from the account's shared balance to the node, or back with a negative amount. Written by the store for an
    /// [`crate::AllotmentPart`].
    Allot {
        /// An id of its own.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount.
        amount: Micros,
        /// Its time.
        at: Timestamp,
    },
    /// Seals the carried state after a removal of exported commits. Written by the store for a [`crate::CarryPart`].
    Carry {
        /// An id of its own.
        operation: OperationId,
        /// The number of the removal: 1, 2, 3 ... over all nodes.
        number: i64,
        /// The sum of the digests of all rows of the carried state.
        digest: [u8; 32],
        /// Its time.
        at: Timestamp,
    },
}

/// The account in the head of a record that belongs to none.
pub(crate) const NO_ACCOUNT: AccountId = AccountId::from_bytes([0; 16]);

/// One line for an operator: `req_... of acct_...: settlement of 1.5 (2 held)`.
impl fmt::Display for LedgerPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}: ", self.operation(), self.account())?;
        match self {
            LedgerPart::Hold { amount, .. } => write!(f, "hold of {amount}"),
            LedgerPart::Settle { held, charged, .. } => {
                write!(f, "settlement of {charged} ({held} held)")
            }
            LedgerPart::Release { held, .. } => write!(f, "release of {held}"),
            LedgerPart::Charge { charged, .. } => write!(f, "charge of {charged}"),
            LedgerPart::Credit {
                kind,
                amount,
                reference,
                ..
            } => write!(f, "{kind:?} of {amount} as `{reference}`"),
            LedgerPart::Allot { amount, .. } => write!(f, "allotment of {amount}"),
            LedgerPart::Carry { number, .. } => write!(f, "removal {number} of exported commits"),
        }
    }
}

impl LedgerPart {
    /// The operation of this part.
    pub fn operation(&self) -> OperationId {
        match *self {
            LedgerPart::Hold { operation, .. }
            | LedgerPart::Settle { operation, .. }
            | LedgerPart::Release { operation, .. }
            | LedgerPart::Charge { operation, .. }
            | LedgerPart::Credit { operation, .. }
            | LedgerPart::Allot { operation, .. }
            | LedgerPart::Carry { operation, .. } => operation,
        }
    }

    /// The account of this part; zero for a carry, which has none.
    pub fn account(&self) -> AccountId {
        match *self {
            LedgerPart::Hold { account, .. }
            | LedgerPart::Settle { account, .. }
            | LedgerPart::Release { account, .. }
            | LedgerPart::Charge { account, .. }
            | LedgerPart::Credit { account, .. }
            | LedgerPart::Allot { account, .. } => account,
            LedgerPart::Carry { .. } => NO_ACCOUNT,
        }
    }

    /// The usage record that it writes: a settlement's or a charge's.
    pub fn usage(&self) -> Option<UsageRow> {
        match *self {
            LedgerPart::Settle {
                operation,
                account,
                charged,
                written_off,
                price_version,
                ref usage,
                at,
                ..
            }
            | LedgerPart::Charge {
                operation,
                account,
                charged,
                written_off,
                price_version,
                ref usage,
                at,
                ..
            } => Some(UsageRow {
                operation,
                account,
                usage: usage.clone(),
                cost: charged,
                written_off,
                price_version,
                at,
            }),
            _ => None,
        }
    }

    /// Whether it reads or writes nothing but the journal and the balances of its node.
    pub(crate) fn is_of_node(&self) -> bool {
        matches!(
            self,
            LedgerPart::Hold { .. }
                | LedgerPart::Settle { .. }
                | LedgerPart::Release { .. }
                | LedgerPart::Charge { .. }
        )
    }

    /// Whether it moves credit under a reference, rather than for one operation.
    pub fn is_credit(&self) -> bool {
        matches!(self, LedgerPart::Credit { .. })
    }

    /// Its time.
    pub fn at(&self) -> Timestamp {
        match self {
            LedgerPart::Hold { at, .. }
            | LedgerPart::Settle { at, .. }
            | LedgerPart::Release { at, .. }
            | LedgerPart::Charge { at, .. }
            | LedgerPart::Credit { at, .. }
            | LedgerPart::Allot { at, .. }
            | LedgerPart::Carry { at, .. } => *at,
        }
    }
}
