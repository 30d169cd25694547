//! Balances and ledger entries.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_money::Micros;
use tollgate_store::{AccountRow, LedgerLine};

use super::Credits;

/// The balance of an account, with the newest ledger entries that changed it.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Balance")]
pub(crate) struct BalanceView {
    /// The account.
    pub(crate) account: String,
    /// The available balance in credits.
    pub(crate) available: Credits,
    /// The credits held for requests in progress.
    pub(crate) held: Credits,
    /// How far below zero the balance may be, in credits.
    pub(crate) credit_limit: Credits,
    /// Entries, newest first.
    pub(crate) lines: Vec<LineView>,
}

impl BalanceView {
    /// The balance of an account, with the entries `lines`.
    pub(crate) fn of(row: &AccountRow, lines: &[LedgerLine]) -> BalanceView {
        BalanceView {
            account: row.id.to_string(),
            available: row.available.into(),
            held: row.held.into(),
            credit_limit: row.credit_limit.into(),
            lines: lines.iter().map(LineView::of).collect(),
        }
    }
}

/// A ledger entry that changed a balance.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "LedgerEntry")]
pub(crate) struct LineView {
    /// RFC 3339.
    pub(crate) at: String,
    /// `settle`, `charge`, `top-up`, `grant`, `refund`, `expiry` or `correction`.
    pub(crate) kind: &'static str,
    /// Its effect on the balance in credits.
    pub(crate) amount: Credits,
    /// The id of the operation: of a request, or of a booking.
    pub(crate) operation: String,
    /// The reference of a booking.
    pub(crate) reference: Option<String>,
    /// The model of a request.
    pub(crate) model: Option<String>,
}

impl LineView {
    /// The view of an entry.
    pub(crate) fn of(line: &LedgerLine) -> LineView {
        LineView {
            at: line.entry.at.rfc3339(),
            kind: line.entry.kind.word(),
            amount: LineView::amount(line).into(),
            operation: line.entry.operation.to_string(),
            reference: line.entry.reference.as_deref().map(str::to_owned),
            model: line.usage.as_ref().map(|row| row.usage.model.to_string()),
        }
    }

    /// The effect of an entry on the balance: available and held credit together.
    pub(crate) fn amount(line: &LedgerLine) -> Micros {
        line.entry.d_available + line.entry.d_held
    }
}
