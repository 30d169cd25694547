//! Credits owed for returned payments: held or spent when the payment was returned, and to be taken back.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, PaymentId, TopUpId};

use crate::plan::{PaymentRow, PlanPart};
use crate::topup::{TopUpPart, TopUpRow};
use crate::unit::Part;

/// The payment of a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DebtKey {
    /// A purchase of credits.
    TopUp(TopUpId),
    /// A payment for the plan.
    Plan(PaymentId),
}

/// Credits owed for a returned payment. Owed credits are not spendable: the account's available credit goes to the debt first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    /// The payment.
    pub key: DebtKey,
    /// The payment's account.
    pub account: AccountId,
    /// Owed credits; zero when every credit is taken back.
    pub credits: Micros,
    /// Time of the debt's last change.
    pub at: Timestamp,
}

impl TopUpRow {
    /// The debt of the purchase.
    pub fn debt(&self) -> Debt {
        Debt {
            key: DebtKey::TopUp(self.id),
            account: self.account,
            credits: self.owed,
            at: self.updated_at,
        }
    }
}

impl PaymentRow {
    /// The debt of the payment.
    pub fn debt(&self) -> Debt {
        Debt {
            key: DebtKey::Plan(self.id),
            account: self.account,
            credits: self.owed.unwrap_or_default(),
            at: self.returned_at.unwrap_or(self.at),
        }
    }
}

impl Part {
    /// The new debt of the payment that the part changes.
    pub fn debt(&self) -> Option<Debt> {
        match self {
            Part::TopUp(part) => match &**part {
                TopUpPart::Change(row) => Some(row.debt()),
                _ => None,
            },
            Part::Plan(part) => match &**part {
                PlanPart::ChangePayment { row, .. } => Some(row.debt()),
                _ => None,
            },
            _ => None,
        }
    }
}
