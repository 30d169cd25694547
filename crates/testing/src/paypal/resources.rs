//! What PayPal keeps for the merchant: orders, plans, and subscriptions with their charges.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_clock::Timestamp;

/// An order.
#[derive(Clone, Debug)]
pub struct Order {
    /// PayPal's id.
    pub id: String,
    /// State of the order.
    pub status: Status,
    /// The merchant's reference.
    pub custom_id: String,
    /// The merchant's invoice id.
    pub invoice_id: String,
    /// The description for the buyer.
    pub description: String,
    /// The price in cents.
    pub cents: i64,
    /// The URL the buyer returns to.
    pub return_url: String,
    /// The URL the buyer returns to after declining.
    pub cancel_url: String,
    /// The payment's id and status word.
    pub capture: Option<(String, &'static str)>,
    /// Refunds: ids and cents.
    pub refunds: Vec<(String, i64)>,
    /// Number of reads that do not show the buyer's approval yet.
    pub lag: u32,
}

/// The state of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Waits for the buyer's approval.
    PayerActionRequired,
    /// The buyer has approved it.
    Approved,
    /// Captured.
    Completed,
}

impl Order {
    /// Cents captured and not refunded. Pending payments are not captured.
    pub fn kept_cents(&self) -> i64 {
        match &self.capture {
            Some((_, "COMPLETED" | "PARTIALLY_REFUNDED" | "REFUNDED")) => {
                let back: i64 = self.refunds.iter().map(|(_, cents)| cents).sum();
                self.cents - back
            }
            _ => 0,
        }
    }
}

impl Status {
    pub(super) fn word(self) -> &'static str {
        match self {
            Status::PayerActionRequired => "PAYER_ACTION_REQUIRED",
            Status::Approved => "APPROVED",
            Status::Completed => "COMPLETED",
        }
    }
}

/// A plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// PayPal's id.
    pub id: String,
    /// Its product.
    pub product_id: String,
    /// The status, such as `ACTIVE`.
    pub status: &'static str,
    /// The price in cents.
    pub cents: i64,
    /// The body it was created with.
    pub(super) body: Value,
}

impl Plan {
    /// A plan with a monthly charge of so much, without end.
    pub(super) fn monthly(id: &str, product_id: &str, cents: i64) -> Plan {
        let cycle = json!({"frequency": {"interval_unit": "MONTH", "interval_count": 1}, "tenure_type": "REGULAR", "sequence": 1,
            "total_cycles": 0, "pricing_scheme": {"fixed_price": money(cents)}});
        let preferences = json!({"auto_bill_outstanding": false, "setup_fee_failure_action": "CANCEL", "payment_failure_threshold": 1});
        Plan {
            id: id.to_owned(),
            product_id: product_id.to_owned(),
            status: "ACTIVE",
            cents,
            body: json!({"name": "Pro monthly", "billing_cycles": [cycle], "payment_preferences": preferences}),
        }
    }
}

/// Time until a failed charge is retried (guide "Payment failures and recovering balances").
const AGAIN: Duration = Duration::from_hours(5 * 24);

/// A subscription.
#[derive(Clone, Debug)]
pub struct Subscription {
    /// PayPal's id.
    pub id: String,
    /// The name of its approval page.
    pub token: String,
    /// PayPal's plan.
    pub plan_id: String,
    /// The merchant's reference.
    pub custom_id: String,
    /// The status, such as `APPROVAL_PENDING`.
    pub status: &'static str,
    /// The price in cents.
    pub cents: i64,
    /// The URL the buyer returns to.
    pub return_url: String,
    /// The URL the buyer returns to after declining.
    pub cancel_url: String,
    /// Charges, oldest first.
    pub charges: Vec<Charge>,
    /// When the next charge is due.
    pub next_charge: Option<Timestamp>,
    /// The outcome of charges.
    pub purse: Purse,
    /// Number of reads that do not show the buyer's approval yet.
    pub lag: u32,
    /// Number of reads of the list that do not have the newest charge yet.
    pub unlisted: u32,
    pub(super) made_at: Timestamp,
    pub(super) failed_at: Option<Timestamp>,
    pub(super) tries: u32,
}

/// A charge of a subscription.
#[derive(Clone, Debug)]
pub struct Charge {
    /// PayPal's id of the payment.
    pub id: String,
    /// The status, such as `COMPLETED`.
    pub status: &'static str,
    /// The amount.
    pub cents: i64,
    /// When it was made.
    pub at: Timestamp,
}

/// The outcome of charges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Purse {
    /// Paid at once.
    #[default]
    Full,
    /// The payment is pending, as with an e-check, until it is resolved.
    Slow,
    /// Insufficient funds: retried after five days, twice, and then the subscription is suspended.
    Empty,
    /// Nothing is charged until a test triggers it: active but unpaid.
    Late,
}

impl Purse {
    /// The purse with this name.
    pub(super) fn named(name: &str) -> Option<Purse> {
        match name {
            "full" => Some(Purse::Full),
            "slow" => Some(Purse::Slow),
            "empty" => Some(Purse::Empty),
            "late" => Some(Purse::Late),
            _ => None,
        }
    }
}

impl Subscription {
    /// Cents captured and not refunded. Pending payments are not captured.
    pub fn kept_cents(&self) -> i64 {
        let here = self.charges.iter().filter(|one| one.status == "COMPLETED");
        here.map(|one| one.cents).sum()
    }

    /// Charges once; returns the resulting notifications.
    pub(super) fn charge(&mut self, at: Timestamp, number: u64) -> Vec<&'static str> {
        let (status, event) = match self.purse {
            Purse::Late => return Vec::new(),
            Purse::Full => ("COMPLETED", "PAYMENT.SALE.COMPLETED"),
            Purse::Slow => ("PENDING", "PAYMENT.SALE.PENDING"),
            Purse::Empty => ("DECLINED", "BILLING.SUBSCRIPTION.PAYMENT.FAILED"),
        };
        self.charges.push(Charge {
            id: format!("9S{number:015}"),
            status,
            cents: self.cents,
            at,
        });
        if status != "DECLINED" {
            let due = self.next_charge.unwrap_or(at) - AGAIN * self.tries;
            self.next_charge = Some(month_after(due));
            self.failed_at = None;
            self.tries = 0;
            return vec![event];
        }
        self.failed_at = Some(at);
        self.tries += 1;
        if self.tries > 2 {
            self.status = "SUSPENDED";
            self.next_charge = None;
            return vec![event, "BILLING.SUBSCRIPTION.SUSPENDED"];
        }
        self.next_charge = Some(at + AGAIN);
        vec![event]
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.status, "ACTIVE")
    }
}

/// The same day of the next month, or the last of a shorter one.
fn month_after(time: Timestamp) -> Timestamp {
    use jiff::ToSpan;
    let then = jiff::Timestamp::from(time)
        .to_zoned(jiff::tz::TimeZone::UTC)
        .checked_add(1.month());
    then.expect("there is a next month").timestamp().into()
}

/// An amount in PayPal's format.
pub(super) fn money(cents: i64) -> Value {
    json!({"currency_code": "USD", "value": format!("{}.{:02}", cents / 100, cents % 100)})
}
