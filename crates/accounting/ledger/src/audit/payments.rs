//! Reconciliation of payments for the plan with the granted credits.

use std::collections::HashMap;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, Usd};
use tollgate_store::entries::Entry;
use tollgate_store::{
    AccountRow, EntryKind, PaymentRow, PaymentStatus, Route, SubscriptionRow, plan_reference,
};

const DAY: Duration = Duration::from_secs(86_400);

/// Payments for the plan, by route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paid {
    /// Payments by x402 that were kept.
    pub x402: u64,
    /// Sum of the x402 payments.
    pub x402_amount: Usd,
    /// Payments by PayPal that were kept.
    pub paypal: u64,
    /// Sum of the PayPal payments.
    pub paypal_amount: Usd,
    /// Returned payments.
    pub returned: u64,
}

/// The payments and subscriptions of a running audit.
#[derive(Default)]
pub(super) struct Payments {
    pub(super) paid: Paid,
    /// Credits granted by plans, by account and reference, according to the entries.
    booked: HashMap<(AccountId, String), Micros>,
    /// Credits taken back for returned payments, by account and reference of the payment.
    taken: HashMap<(AccountId, String), Micros>,
    /// The paid time of each account.
    spans: HashMap<AccountId, Duration>,
    /// The end of each account's plan.
    until: HashMap<AccountId, Timestamp>,
}

impl Payments {
    /// Adds an entry; entries without a plan are ignored.
    pub(super) fn entry(&mut self, entry: &Entry) {
        let Some(reference) = entry.reference.as_deref() else {
            return;
        };
        if entry.kind == EntryKind::Grant && reference.starts_with("plan/") {
            let key = (entry.account, reference.to_owned());
            self.booked.insert(key, entry.d_available);
        }
        if entry.kind == EntryKind::Correction
            && reference.starts_with("plan/")
            && let Some((payment, _)) = reference.rsplit_once("/returned")
        {
            let taken = self.taken.entry((entry.account, payment.to_owned()));
            let taken = taken.or_default();
            *taken -= entry.d_available;
        }
    }

    /// Checks a payment, after the last entry. Returns the violation.
    pub(super) fn payment(&mut self, row: &PaymentRow) -> Option<String> {
        let name = plan_reference(row.route, &row.provider_ref);
        match (row.status, row.route) {
            (PaymentStatus::Returned, _) => self.paid.returned += 1,
            (_, Route::X402) => {
                self.paid.x402 += 1;
                self.paid.x402_amount = sum(self.paid.x402_amount, row.amount);
            }
            (_, _) => {
                self.paid.paypal += 1;
                self.paid.paypal_amount = sum(self.paid.paypal_amount, row.amount);
            }
        }
        // A returned payment bought no plan time after its return.
        let end = match row.returned_at {
            Some(at) => row.period_end.min(at),
            None => row.period_end,
        };
        let span = self.spans.entry(row.account).or_default();
        *span = span.saturating_add(end.duration_since(row.period_start));
        let booked = self.booked.remove(&(row.account, name.to_string()));
        let booked = booked.unwrap_or_default();
        if booked != row.credits {
            let credits = row.credits;
            return Some(format!(
                "payment `{name}` gave {credits} credits, and {booked} are booked for it"
            ));
        }
        let taken = self.taken.remove(&(row.account, name.to_string()));
        let taken = taken.unwrap_or_default();
        // An earlier release did not record the debt of a returned payment.
        let owed = row.owed.filter(|owed| taken + *owed != row.credits)?;
        Some(format!(
            "payment `{name}` was returned, and of its {} credits {taken} are taken back and {owed} owed",
            row.credits
        ))
    }

    /// Checks a subscription, after the last payment. Returns the violation.
    pub(super) fn subscription(&mut self, row: &SubscriptionRow) -> Option<String> {
        self.until.insert(row.account, row.period_end);
        let given = row.period_end.duration_since(row.period_start);
        let paid = self.spans.get(&row.account).copied().unwrap_or_default();
        // A reported charge that is not listed yet is valid for a day. At most one such charge at a time.
        let advance = match row.route {
            Route::X402 => Duration::ZERO,
            _ => DAY,
        };
        (given > paid.saturating_add(advance)).then(|| {
            format!(
                "its plan runs for {} seconds, and {} are paid for",
                given.as_secs(),
                paid.as_secs()
            )
        })
    }

    /// Checks an account, after the last subscription. Returns the violation.
    pub(super) fn account(&mut self, row: &AccountRow) -> Option<String> {
        let has = row.plan.as_ref().map(|(_, until)| *until);
        (has != self.until.get(&row.id).copied())
            .then(|| String::from("the end of its plan is not that of its subscription"))
    }

    /// Plan credits without a payment.
    pub(super) fn rest(self) -> Vec<(AccountId, String)> {
        let mut left: Vec<_> = self.booked.into_keys().collect();
        left.sort();
        left
    }
}

fn sum(one: Usd, other: Usd) -> Usd {
    Usd::from_cents(one.cents().saturating_add(other.cents()))
}
