//! Credits that returned payments owe: held or spent when the payment was returned, and to be taken back.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, PaymentId, TopUpId};

use crate::plan::{PaymentRow, PlanPart};
use crate::topup::{TopUpPart, TopUpRow};
use crate::unit::Part;

/// The payment that a debt is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DebtKey {
    /// A purchase of credits.
    TopUp(TopUpId),
    /// A payment for the plan.
    Plan(PaymentId),
}

/// Credits that a returned payment owes. They are not spendable: what the account has available goes to them first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debt {
    /// The payment.
    pub key: DebtKey,
    /// Its account.
    pub account: AccountId,
    /// Credits that are still owed; zero where all are taken back.
    pub credits: Micros,
    /// When that was last changed.
    pub at: Timestamp,
}

impl TopUpRow {
    /// What the purchase owes.
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
    /// What the payment owes.
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
    /// What the payment that this part changes owes from now on.
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
