//! Subscriptions v1: create, read, activate, suspend, cancel, and list charges (`openapi/billing_subscriptions_v1.json`).

use std::time::Duration;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use tollgate_clock::Timestamp;
use tollgate_purchase::mandates::{
    Charge, ChargeStatus, CreatedSubscription, NewSubscription, ProviderSubscription, Status,
};

use crate::client::{Call, Client};
use crate::error::{Error, ErrorKind};
use crate::wire::{Link, Money, approval_url, is_id, path_segment};

/// Shortest time span of a list of charges.
const SPAN_MIN: Duration = Duration::from_secs(3_600);

/// Maximum number of lists read for all charges.
const LISTS_MAX: u32 = 64;

#[derive(Deserialize)]
struct Answer {
    id: String,
    status: String,
    plan_id: Option<String>,
    custom_id: Option<String>,
    quantity: Option<String>,
    #[serde(default)]
    plan_overridden: bool,
    #[serde(default)]
    billing_info: Billing,
    #[serde(default)]
    links: Vec<Link>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Billing {
    outstanding_balance: Option<Money>,
    next_billing_time: Option<String>,
    last_payment: Option<Payment>,
    last_failed_payment: Option<Payment>,
}

#[derive(Deserialize)]
struct Payment {
    amount: Option<Money>,
    time: String,
    reason_code: Option<String>,
}

#[derive(Deserialize)]
struct Transactions {
    #[serde(default)]
    transactions: Vec<TransactionAnswer>,
    #[serde(default)]
    total_pages: u32,
}

#[derive(Deserialize)]
struct TransactionAnswer {
    id: String,
    status: String,
    amount_with_breakdown: Option<Breakdown>,
    time: String,
}

#[derive(Deserialize)]
struct Breakdown {
    gross_amount: Option<Money>,
}

impl Client {
    /// Creates a subscription. Idempotent by its key, for 72 hours.
    pub async fn create_subscription(
        &self,
        new: &NewSubscription<'_>,
    ) -> Result<CreatedSubscription, Error> {
        const WHAT: &str = "create subscription";
        // No quantity, price or start: the plan's own, from the approval on.
        let body = json!({
            "plan_id": new.plan_id,
            "custom_id": new.mandate.to_string(),
            "application_context": {
                "brand_name": self.shared.settings.brand,
                "shipping_preference": "NO_SHIPPING",
                "user_action": "SUBSCRIBE_NOW",
                "return_url": new.return_url,
                "cancel_url": new.cancel_url,
            },
        });
        let made: Result<Answer, Error> = self
            .call(Call {
                method: Method::POST,
                path: "/v1/billing/subscriptions",
                what: WHAT,
                key: Some(new.key),
                body: Some(body.to_string().into_bytes()),
            })
            .await;
        let answer = made.map_err(|mut error| {
            // The missing object is the plan, which is in our settings.
            if error.kind == ErrorKind::Gone {
                error.kind = ErrorKind::Misconfigured;
            }
            error
        })?;
        let unclear = |detail: &str| Error::new(ErrorKind::OutcomeUnknown, WHAT, detail);
        if !is_id(&answer.id) {
            return Err(unclear("the subscription id is malformed"));
        }
        let approve_url = approval_url(&answer.links, self.environment())
            .ok_or_else(|| unclear("the answer has no approval link of PayPal's"))?;
        Ok(CreatedSubscription {
            subscription: answer.id,
            approve_url,
        })
    }

    /// Reads a subscription.
    pub async fn subscription(&self, id: &str) -> Result<ProviderSubscription, Error> {
        const WHAT: &str = "read subscription";
        let path = format!("/v1/billing/subscriptions/{}", path_segment(id, WHAT)?);
        let answer: Answer = self
            .call(Call {
                method: Method::GET,
                path: &path,
                what: WHAT,
                key: None,
                body: None,
            })
            .await?;
        answer
            .read(id)
            .map_err(|detail| Error::new(ErrorKind::OutcomeUnknown, WHAT, detail))
    }

    /// The charges of a subscription between two times.
    pub async fn transactions(
        &self,
        id: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Charge>, Error> {
        const WHAT: &str = "list charges";
        let mut charges: Vec<Charge> = Vec::new();
        let mut spans = vec![(from, to)];
        let mut lists = 0;
        while let Some((from, to)) = spans.pop() {
            let path = format!(
                "/v1/billing/subscriptions/{}/transactions?start_time={}&end_time={}",
                path_segment(id, WHAT)?,
                from.rfc3339(),
                to.rfc3339()
            );
            let list: Transactions = self
                .call(Call {
                    method: Method::GET,
                    path: &path,
                    what: WHAT,
                    key: None,
                    body: None,
                })
                .await?;
            lists += 1;
            // The call has no page parameter, so a long list is split by time.
            if list.total_pages > 1 && to.duration_since(from) > SPAN_MIN && lists < LISTS_MAX {
                let middle = from + to.duration_since(from) / 2;
                spans.extend([(from, middle), (middle, to)]);
                continue;
            }
            let listed = list
                .read()
                .map_err(|detail| Error::new(ErrorKind::OutcomeUnknown, WHAT, detail))?;
            for charge in listed {
                // A charge at the split point is in both halves.
                if charges.iter().all(|known| known.id != charge.id) {
                    charges.push(charge);
                }
            }
        }
        Ok(charges)
    }

    /// Suspends an active subscription: no charge until activation.
    pub async fn suspend_subscription(&self, id: &str, reason: &str) -> Result<(), Error> {
        self.change("suspend subscription", id, "suspend", reason)
            .await
    }

    /// Activates an approved subscription (`APPROVED`), or a subscription suspended by a party, not for failed payments.
    pub async fn activate_subscription(&self, id: &str, reason: &str) -> Result<(), Error> {
        self.change("activate subscription", id, "activate", reason)
            .await
    }

    /// Cancels an active or suspended subscription. A subscription without the buyer's consent cannot be cancelled.
    pub async fn cancel_subscription(&self, id: &str, reason: &str) -> Result<(), Error> {
        self.change("cancel subscription", id, "cancel", reason)
            .await
    }

    async fn change(
        &self,
        what: &'static str,
        id: &str,
        verb: &str,
        reason: &str,
    ) -> Result<(), Error> {
        let path = format!(
            "/v1/billing/subscriptions/{}/{verb}",
            path_segment(id, what)?
        );
        let reason: String = reason.chars().take(128).collect();
        self.execute(Call {
            method: Method::POST,
            path: &path,
            what,
            key: None,
            body: Some(json!({ "reason": reason }).to_string().into_bytes()),
        })
        .await
    }
}

impl Answer {
    fn read(self, id: &str) -> Result<ProviderSubscription, &'static str> {
        if self.id != id {
            return Err("the answer is about another subscription");
        }
        let status = match &*self.status {
            "APPROVAL_PENDING" => Status::Waiting,
            "APPROVED" => Status::Approved,
            "ACTIVE" => Status::Active,
            "SUSPENDED" => Status::Suspended,
            "CANCELLED" => Status::Cancelled,
            "EXPIRED" => Status::Expired,
            _ => return Err("the subscription has an unknown status"),
        };
        let at = |text: &str| {
            Timestamp::from_rfc3339(text).ok_or("the subscription has a malformed time")
        };
        let billing = self.billing_info;
        let next_charge = billing.next_billing_time.as_deref().map(at).transpose()?;
        let last_payment = match billing.last_payment {
            Some(paid) => Some((paid.amount.as_ref().and_then(Money::usd), at(&paid.time)?)),
            None => None,
        };
        let (failed_at, failed_why) = match billing.last_failed_payment {
            Some(failed) => (Some(at(&failed.time)?), failed.reason_code),
            None => (None, None),
        };
        Ok(ProviderSubscription {
            status,
            plan_id: self.plan_id.ok_or("the subscription names no plan")?,
            mandate: self.custom_id,
            is_changed: self.plan_overridden
                || self.quantity.is_some_and(|quantity| quantity != "1"),
            next_charge,
            last_payment,
            outstanding: billing.outstanding_balance.as_ref().and_then(Money::usd),
            failed_at,
            failed_why,
        })
    }
}

impl Transactions {
    fn read(self) -> Result<Vec<Charge>, &'static str> {
        // A truncated list would hide charges.
        if self.total_pages > 1 {
            return Err("the list of charges has several pages");
        }
        let charges = self.transactions.into_iter().map(|one| {
            let status = match &*one.status {
                "COMPLETED" | "PARTIALLY_REFUNDED" => ChargeStatus::Completed,
                "PENDING" => ChargeStatus::Pending,
                "DECLINED" | "FAILED" => ChargeStatus::Declined,
                "REFUNDED" | "REVERSED" => ChargeStatus::Returned,
                _ => return Err("a charge has an unknown status"),
            };
            let gross = one.amount_with_breakdown.and_then(|all| all.gross_amount);
            Ok(Charge {
                status,
                amount: gross.as_ref().and_then(Money::usd),
                at: Timestamp::from_rfc3339(&one.time).ok_or("a charge has a malformed time")?,
                id: one.id,
            })
        });
        charges.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tollgate_money::Usd;

    use super::*;

    const ID: &str = "I-BW452GLLEP1G";

    fn read(change: impl FnOnce(&mut Value)) -> Result<ProviderSubscription, &'static str> {
        let mut body = json!({
            "id": ID, "status": "ACTIVE", "plan_id": "P-5ML4271244454362WXNWU5NQ", "custom_id": "mandate_1", "quantity": "1",
            "plan_overridden": false, "start_time": "2026-11-01T12:00:00Z",
            "billing_info": {
                "outstanding_balance": {"currency_code": "USD", "value": "0.0"},
                "cycle_executions": [{"tenure_type": "REGULAR", "sequence": 1, "cycles_completed": 1, "cycles_remaining": 0}],
                "last_payment": {"amount": {"currency_code": "USD", "value": "199.0"}, "time": "2026-11-01T12:00:05Z"},
                "next_billing_time": "2026-12-01T10:00:00Z",
                "failed_payments_count": 0,
            },
            "links": [],
        });
        change(&mut body);
        let answer: Answer = serde_json::from_value(body).expect("a subscription");
        answer.read(ID)
    }

    #[test]
    fn a_subscription_is_parsed_with_its_payments() {
        let seen = read(|_| {}).expect("a subscription");
        assert_eq!(seen.status, Status::Active);
        assert_eq!(seen.mandate.as_deref(), Some("mandate_1"));
        assert!(!seen.is_changed);
        assert_eq!(seen.outstanding, Some(Usd::ZERO));
        let (amount, at) = seen.last_payment.expect("a payment");
        assert_eq!(amount, Some(Usd::from_cents(19_900)));
        assert_eq!(at.rfc3339(), "2026-11-01T12:00:05Z");
        assert_eq!(
            seen.next_charge.map(Timestamp::rfc3339).as_deref(),
            Some("2026-12-01T10:00:00Z")
        );
        let pending = read(|body| {
            body["status"] = json!("APPROVAL_PENDING");
            body.as_object_mut()
                .expect("an object")
                .remove("billing_info");
        });
        let pending = pending.expect("a subscription");
        assert_eq!((pending.last_payment, pending.next_charge), (None, None));
    }

    #[test]
    fn terms_that_were_changed_are_seen() {
        for changed in [
            read(|body| body["plan_overridden"] = json!(true)),
            read(|body| body["quantity"] = json!("2")),
        ] {
            assert!(changed.expect("a subscription").is_changed);
        }
    }

    #[test]
    fn a_subscription_with_unknown_values_is_rejected() {
        for strange in [
            read(|body| body["status"] = json!("NEW_WORD")),
            read(|body| body["id"] = json!("I-OTHER")),
            read(|body| body["billing_info"]["next_billing_time"] = json!("soon")),
            read(|body| {
                body.as_object_mut().expect("an object").remove("plan_id");
            }),
        ] {
            assert!(strange.is_err(), "{strange:?}");
        }
    }

    #[test]
    fn charges_are_read_whole_or_not_at_all() {
        let list = |status: &str, pages: u32| {
            let body = json!({"transactions": [{"id": "T1", "status": status, "time": "2026-11-01T12:00:05Z", "payer_email": "mara@example.com",
                "amount_with_breakdown": {"gross_amount": {"currency_code": "USD", "value": "199.00"},
                    "fee_amount": {"currency_code": "USD", "value": "7.25"}}}], "total_pages": pages});
            let list: Transactions = serde_json::from_value(body).expect("a list");
            list.read()
        };
        for (word, status) in [
            ("COMPLETED", ChargeStatus::Completed),
            ("PARTIALLY_REFUNDED", ChargeStatus::Completed),
            ("PENDING", ChargeStatus::Pending),
            ("DECLINED", ChargeStatus::Declined),
            ("REFUNDED", ChargeStatus::Returned),
        ] {
            let charges = list(word, 1).expect("a list");
            assert_eq!(charges[0].status, status, "{word}");
            assert_eq!(charges[0].amount, Some(Usd::from_cents(19_900)));
        }
        assert!(list("NEW_WORD", 1).is_err());
        assert!(list("COMPLETED", 2).is_err());
        let empty: Transactions = serde_json::from_str("{}").expect("a list");
        assert_eq!(empty.read(), Ok(Vec::new()));
    }
}
