//! Wire format of the plan and of an account's subscription. The same on every route.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate_clock::Timestamp;
use tollgate_store::{Route, SubscriptionRow, SubscriptionStatus};

use crate::plan::{DAYS, PRICE, PaymentState, Plan, PlanProtocols, RetryAction, benefits};

/// The plan on sale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "CommerceProduct", extend("additionalProperties" = true))]
pub struct Product {
    /// Its id: the value of `product_id`.
    pub id: String,
    /// The display name.
    pub name: String,
    /// The price of one period in US dollars.
    pub price_usd: u32,
    /// The length of a period.
    pub billing_interval: String,
    /// Devices included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub included_device_slots: Option<u32>,
    /// Tasks with a computer of its own, for each month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub computer_use_tasks_per_month: Option<u32>,
    /// Credits that each payment adds to the balance, a decimal number; `0` for a plan without credits.
    #[serde(default)]
    pub included_credits_per_month: String,
    /// What each payment buys, as phrases: the credits, or that there are none, and the rate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub includes: Vec<String>,
    /// Further features, as text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// URLs to buy it at: `ucp`, `mpp` and `x402` for programs, `paypal` for people.
    #[schemars(extend("additionalProperties" = {"type": "string", "format": "uri"}))]
    pub purchase: BTreeMap<String, String>,
}

impl Product {
    /// The plan of a service whose URLs begin with `base_url`, without a trailing slash. `quota`: the request quota of its rate class.
    /// Protocols that are not configured are left out.
    pub fn new(
        plan: &Plan,
        quota: Option<String>,
        base_url: &str,
        protocols: PlanProtocols,
    ) -> Product {
        let slug = &plan.slug;
        let PlanProtocols { x402, mpp, paypal } = protocols;
        let purchase = [
            (
                "ucp",
                paypal,
                format!("{base_url}/ucp/v1/checkout-sessions"),
            ),
            (
                "mpp",
                mpp,
                format!("{base_url}/commerce/subscriptions/{slug}/mpp"),
            ),
            (
                "x402",
                x402,
                format!("{base_url}/commerce/subscriptions/{slug}/x402"),
            ),
            ("paypal", paypal, format!("{base_url}/plan")),
        ];
        let configured = purchase
            .into_iter()
            .filter(|(_, configured, _)| *configured);
        Product {
            id: plan.product.to_string(),
            name: plan.name.to_string(),
            price_usd: u32::try_from(PRICE.cents() / 100)
                .expect("the price is a few hundred dollars"),
            billing_interval: "month".into(),
            included_device_slots: plan.device_slots,
            computer_use_tasks_per_month: plan.computer_use_tasks,
            included_credits_per_month: plan.monthly_credits.to_string(),
            includes: benefits(plan, quota),
            features: plan.features.to_vec(),
            purchase: configured
                .map(|(name, _, url)| (name.to_owned(), url))
                .collect(),
        }
    }

    /// What each payment buys, in one phrase.
    pub fn includes(&self) -> String {
        self.includes.join(", ")
    }
}

/// Status of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Paid; it gives access.
    Active,
    /// It gives access until its period ends; the charge for the next period has failed so far.
    PastDue,
    /// Cancelled by its owner, or refunded.
    Canceled,
    /// The period has ended.
    Expired,
}

/// An account's subscription to the plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
pub struct Subscription {
    /// Its id.
    pub id: String,
    /// The product.
    pub product_id: String,
    /// Its status.
    pub status: Status,
    /// The route of payment: `x402`, or `paypal` for every route that ends in a monthly payment there.
    pub route: String,
    /// RFC 3339: the start of the period of 30 days, or of the month, that is under way.
    #[schemars(extend("format" = "date-time"))]
    pub current_period_start: String,
    /// RFC 3339: access ends here unless another period is paid.
    #[schemars(extend("format" = "date-time"))]
    pub current_period_end: String,
    /// Whether nothing will be charged automatically for the next period.
    pub cancel_at_period_end: bool,
    /// The reference on that route: a transaction on the chain, or PayPal's subscription.
    pub provider_reference: String,
}

impl Subscription {
    /// The subscription at `now`.
    pub fn new(plan: &Plan, row: &SubscriptionRow, now: Timestamp) -> Subscription {
        Subscription {
            id: row.id.to_string(),
            product_id: plan.product.to_string(),
            status: match row.status_at(now) {
                SubscriptionStatus::Active => Status::Active,
                SubscriptionStatus::PastDue => Status::PastDue,
                SubscriptionStatus::Canceled => Status::Canceled,
                _ => Status::Expired,
            },
            route: row.route.word().to_owned(),
            current_period_start: period_start(row, now).rfc3339(),
            current_period_end: row.period_end.rfc3339(),
            cancel_at_period_end: !row.renews,
            provider_reference: row.reference.to_string(),
        }
    }
}

/// The start of the period at `now`. A renewing transfer moves only the end of the row: the time paid ahead is a further period.
fn period_start(row: &SubscriptionRow, now: Timestamp) -> Timestamp {
    let mut start = row.period_start;
    if row.route == Route::X402 {
        let period = Duration::from_secs(24 * 60 * 60) * DAYS;
        while start + period <= now && start + period < row.period_end {
            start += period;
        }
    }
    start
}

/// The answer to a purchase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
pub struct CommerceSubscription {
    /// Whether the account has the plan.
    pub success: bool,
    /// Whether the account had it before this request; nothing was charged then.
    #[serde(default)]
    pub already_active: bool,
    /// The product.
    pub product: Product,
    /// The subscription.
    pub subscription: Subscription,
    /// State of the payment: `paid`.
    pub payment_state: String,
    /// The next action: `none`.
    pub retry_action: String,
}

impl CommerceSubscription {
    /// The answer for an account with the plan, whether bought now or before.
    pub fn active(product: Product, subscription: Subscription, already_active: bool) -> Self {
        CommerceSubscription {
            success: true,
            already_active,
            product,
            subscription,
            payment_state: PaymentState::Paid.word().into(),
            retry_action: RetryAction::None.word().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_money::{AccountId, SubscriptionId};

    use super::*;

    #[test]
    fn a_plan_that_was_paid_ahead_is_in_the_period_of_the_day() {
        let day = |day: u64| Timestamp::UNIX_EPOCH + Duration::from_secs(86_400 * day);
        let row = |route, end| SubscriptionRow {
            id: SubscriptionId::from_bytes([1; 16]),
            account: AccountId::from_bytes([1; 16]),
            route,
            reference: "x".into(),
            status: SubscriptionStatus::Active,
            period_start: day(5),
            period_end: day(end),
            extra: Duration::ZERO,
            renews: false,
            version: 0,
            created_at: day(5),
            updated_at: day(5),
        };
        //   route, paid until, today, started
        for (route, end, today, start) in [
            (Route::X402, 35, 5, 5),
            (Route::X402, 35, 34, 5),
            (Route::X402, 65, 34, 5),
            (Route::X402, 65, 35, 35),
            (Route::X402, 95, 64, 35),
            (Route::X402, 95, 94, 65),
            (Route::X402, 95, 300, 65),
            (Route::PayPal, 95, 64, 5),
        ] {
            let found = period_start(&row(route, end), day(today));
            assert_eq!(found, day(start), "until {end}, on day {today}");
        }
    }
}
