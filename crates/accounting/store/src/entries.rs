//! Double-entry ledger entries, and the parts that write entries. Only the crate `tollgate-ledger` builds these parts, after checking the
//! available credit.

use std::fmt;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use crate::codes::{Contra, EntryKind};
pub use crate::journal::{Body, DecodeError, Record};
use crate::rows::{UsageRecord, UsageRow};

/// A ledger entry: append-only, never changed.
///
/// An entry adds `d_available` and `d_held` to its account and `-(d_available + d_held)` to the contra account. A row is therefore a
/// complete double entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The operation; together with the phase of `kind` the key of the entry.
    pub operation: OperationId,
    /// The effect of the entry.
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
    /// The price version of the operation's bill.
    pub price_version: Option<i64>,
    /// The entry's time.
    pub at: Timestamp,
}

impl Entry {
    /// The entry of a part; `None` for a charge of zero.
    pub fn of(part: &LedgerPart) -> Option<Entry> {
        // Wraps on amounts that only a damaged record can contain: the record's seal shows the damage.
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

    /// 0 for an entry that opens an operation (or is the whole operation), 1 for an entry that resolves a hold.
    pub fn phase(&self) -> i64 {
        self.kind.phase()
    }
}

/// Summary of one commit, hash-chained to the previous summary: lost or edited history is detected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seal {
    /// The node of the commit.
    pub node: i64,
    /// The run of the node.
    pub epoch: i64,
    /// 1, 2, 3 ... within node and epoch.
    pub number: i64,
    /// How many entries the commit had.
    pub entries: i64,
    /// The sum of their `d_available`.
    pub sum_available: Micros,
    /// The sum of their `d_held`.
    pub sum_held: Micros,
    /// The hash of the node's previous seal, across epochs; zero for the very first seal.
    pub previous: [u8; 32],
    /// BLAKE3 over `previous`, the numbers above and below, and the commit's body in the journal.
    pub hash: [u8; 32],
    /// The time of the commit.
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
        /// Time of the hold.
        at: Timestamp,
        /// The planned end, by the wall clock at the time of the hold. Only recorded: the process that placed the hold decides by its
        /// monotonic clock. The next run of the node releases the hold in any case.
        expires_at: Timestamp,
    },
    /// Resolves a hold by charging the operation's cost.
    Settle {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount of the hold.
        held: Micros,
        /// The amount charged, from the hold, and beyond the hold from the available balance.
        charged: Micros,
        /// Cost of the operation beyond the charge.
        written_off: Micros,
        /// The price version fixed at the hold.
        price_version: Option<i64>,
        /// Usage of the operation.
        usage: UsageRecord,
        /// Time of the settlement.
        at: Timestamp,
    },
    /// Resolves a hold by returning the full amount.
    Release {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount of the hold.
        held: Micros,
        /// Time of the release.
        at: Timestamp,
    },
    /// Charges a cost that had no hold. A charge of zero is only a usage record.
    Charge {
        /// The operation.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount charged.
        charged: Micros,
        /// Cost of the operation beyond the charge.
        written_off: Micros,
        /// The price version of the charge.
        price_version: Option<i64>,
        /// Usage of the operation.
        usage: UsageRecord,
        /// Time of the charge.
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
        /// Time of the booking.
        at: Timestamp,
    },
    /// Moves credit from the account's shared balance to the node, or back with a negative amount. Written by the store for an
    /// [`crate::AllotmentPart`].
    Allot {
        /// A new id.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The amount.
        amount: Micros,
        /// Time of the move.
        at: Timestamp,
    },
    /// Seals the carried state after a removal of exported commits. Written by the store for a [`crate::CarryPart`].
    Carry {
        /// A new id.
        operation: OperationId,
        /// The number of the removal: 1, 2, 3 ... over all nodes.
        number: i64,
        /// The sum of the digests of all rows of the carried state.
        digest: [u8; 32],
        /// Time of the removal.
        at: Timestamp,
    },
}

/// The account in the head of a record without an account.
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
    /// The part's operation.
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

    /// The part's account; zero for a carry, which has no account.
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

    /// The part's usage record, for a settlement or a charge.
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

    /// Whether the part reads or writes only the node's journal and balances.
    pub(crate) fn is_of_node(&self) -> bool {
        matches!(
            self,
            LedgerPart::Hold { .. }
                | LedgerPart::Settle { .. }
                | LedgerPart::Release { .. }
                | LedgerPart::Charge { .. }
        )
    }

    /// Whether the part moves credit under a reference, rather than for an operation.
    pub fn is_credit(&self) -> bool {
        matches!(self, LedgerPart::Credit { .. })
    }

    /// The part's time.
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
