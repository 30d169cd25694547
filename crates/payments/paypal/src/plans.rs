//! Catalog products and billing plans (`openapi/catalogs_products_v1.json`, `openapi/billing_subscriptions_v1.json`).

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use tollgate_money::Usd;

use crate::client::{Call, Client};
use crate::error::{Error, ErrorKind};
use crate::wire::{Money, is_id, path_segment};

/// Listed plans of a product. One plan is expected; failed setups leave more.
const PLANS_PAGE_SIZE: usize = 20;

/// A plan to create: a monthly price without an end date.
#[derive(Clone, Copy, Debug)]
pub struct NewPlan<'a> {
    /// Our product id, 6 to 50 characters.
    pub product: &'a str,
    /// The name shown to buyers; truncated to 127 characters.
    pub name: &'a str,
    /// The monthly price.
    pub price: Usd,
    /// Idempotency key, valid for 72 hours.
    pub key: &'a str,
}

/// A plan as read from PayPal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// PayPal's id.
    pub id: String,
    /// `ACTIVE`: new subscriptions are possible.
    pub is_active: bool,
    /// The monthly price without an end date. `None` for other billing: another interval, a trial, a setup fee, an exclusive tax, tiers, or
    /// another currency.
    pub monthly: Option<Usd>,
}

#[derive(Deserialize)]
struct Answer {
    id: String,
    status: Option<String>,
    #[serde(default)]
    billing_cycles: Vec<Cycle>,
    payment_preferences: Option<Preferences>,
    taxes: Option<Taxes>,
}

#[derive(Deserialize)]
struct Cycle {
    tenure_type: String,
    frequency: Frequency,
    /// One if missing (`billing_cycle.total_cycles`).
    total_cycles: Option<u32>,
    pricing_scheme: Option<Pricing>,
}

#[derive(Deserialize)]
struct Frequency {
    interval_unit: String,
    interval_count: Option<u32>,
}

#[derive(Deserialize)]
struct Pricing {
    fixed_price: Option<Money>,
    pricing_model: Option<String>,
}

#[derive(Deserialize)]
struct Preferences {
    setup_fee: Option<Money>,
}

#[derive(Deserialize)]
struct Taxes {
    percentage: Option<String>,
    inclusive: Option<bool>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    plans: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    status: Option<String>,
}

impl Client {
    /// Creates a product with our id; an existing product stays unchanged.
    pub async fn ensure_product(&self, id: &str, name: &str, key: &str) -> Result<(), Error> {
        const WHAT: &str = "create product";
        let read = format!("/v1/catalogs/products/{}", path_segment(id, WHAT)?);
        let there = self
            .execute(Call {
                method: Method::GET,
                path: &read,
                what: "read product",
                key: None,
                body: None,
            })
            .await;
        match there {
            Err(error) if error.kind == ErrorKind::Gone => {}
            there => return there,
        }
        let name: String = name.chars().take(127).collect();
        let body = json!({"id": id, "name": name, "type": "SERVICE", "category": "SOFTWARE"});
        let made = self
            .execute(Call {
                method: Method::POST,
                path: "/v1/catalogs/products",
                what: WHAT,
                key: Some(key),
                body: Some(body.to_string().into_bytes()),
            })
            .await;
        match made {
            Err(error) if error.kind == ErrorKind::AlreadyDone => Ok(()),
            made => made,
        }
    }

    /// The ids of a product's active plans, at most 20.
    pub async fn active_plans(&self, product: &str) -> Result<Vec<String>, Error> {
        const WHAT: &str = "list plans";
        let path = format!(
            "/v1/billing/plans?product_id={}&page_size={PLANS_PAGE_SIZE}&page=1&total_required=false",
            path_segment(product, WHAT)?
        );
        let list: List = self
            .call(Call {
                method: Method::GET,
                path: &path,
                what: WHAT,
                key: None,
                body: None,
            })
            .await?;
        let active = list
            .plans
            .into_iter()
            .filter(|plan| plan.status.as_deref() == Some("ACTIVE"));
        Ok(active.map(|plan| plan.id).take(PLANS_PAGE_SIZE).collect())
    }

    /// Creates a plan; idempotent by the key of `plan`. Read the plan to check the terms.
    pub async fn create_plan(&self, plan: &NewPlan<'_>) -> Result<String, Error> {
        const WHAT: &str = "create plan";
        let name: String = plan.name.chars().take(127).collect();
        let body = json!({
            "product_id": plan.product,
            "name": name,
            "status": "ACTIVE",
            "billing_cycles": [{
                "frequency": {"interval_unit": "MONTH", "interval_count": 1},
                "tenure_type": "REGULAR",
                "sequence": 1,
                // Without an end date; the default is one cycle.
                "total_cycles": 0,
                "pricing_scheme": {"fixed_price": Money::from(plan.price)},
            }],
            "payment_preferences": {
                // An unpaid month grants no access, so the charge is not collected later.
                "auto_bill_outstanding": false,
                "setup_fee_failure_action": "CANCEL",
                "payment_failure_threshold": 1,
            },
        });
        let made: Answer = self
            .call(Call {
                method: Method::POST,
                path: "/v1/billing/plans",
                what: WHAT,
                key: Some(plan.key),
                body: Some(body.to_string().into_bytes()),
            })
            .await?;
        match is_id(&made.id) {
            true => Ok(made.id),
            false => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                WHAT,
                "the plan id is malformed",
            )),
        }
    }

    /// Reads a plan.
    pub async fn plan(&self, id: &str) -> Result<Plan, Error> {
        const WHAT: &str = "read plan";
        let path = format!("/v1/billing/plans/{}", path_segment(id, WHAT)?);
        let answer: Answer = self
            .call(Call {
                method: Method::GET,
                path: &path,
                what: WHAT,
                key: None,
                body: None,
            })
            .await?;
        Ok(answer.read())
    }
}

impl Answer {
    fn read(self) -> Plan {
        Plan {
            is_active: self.status.as_deref() == Some("ACTIVE"),
            monthly: self.monthly(),
            id: self.id,
        }
    }

    fn monthly(&self) -> Option<Usd> {
        let [cycle] = &self.billing_cycles[..] else {
            return None;
        };
        let is_monthly = cycle.tenure_type == "REGULAR"
            && cycle.frequency.interval_unit == "MONTH"
            && cycle.frequency.interval_count.unwrap_or(1) == 1
            && cycle.total_cycles == Some(0);
        let fee = self
            .payment_preferences
            .as_ref()
            .and_then(|preferences| preferences.setup_fee.as_ref());
        let has_fee = fee.is_some_and(|fee| fee.usd() != Some(Usd::ZERO));
        let has_tax = self.taxes.as_ref().is_some_and(Taxes::is_on_top);
        let pricing = cycle.pricing_scheme.as_ref()?;
        if !is_monthly || has_fee || has_tax || pricing.pricing_model.is_some() {
            return None;
        }
        pricing.fixed_price.as_ref()?.usd()
    }
}

impl Taxes {
    fn is_on_top(&self) -> bool {
        let is_none = |text: &String| text.chars().all(|c| matches!(c, '0' | '.'));
        self.inclusive == Some(false) && !self.percentage.as_ref().is_some_and(is_none)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn read(change: impl FnOnce(&mut Value)) -> Plan {
        let mut plan = json!({
            "id": "P-5ML4271244454362WXNWU5NQ", "product_id": "svc-pro-monthly", "name": "Pro", "status": "ACTIVE",
            "billing_cycles": [{
                "frequency": {"interval_unit": "MONTH", "interval_count": 1}, "tenure_type": "REGULAR", "sequence": 1, "total_cycles": 0,
                "pricing_scheme": {"version": 1, "fixed_price": {"currency_code": "USD", "value": "199.0"}},
            }],
            "payment_preferences": {"auto_bill_outstanding": true, "setup_fee": {"currency_code": "USD", "value": "0.0"}},
            "taxes": {"percentage": "0.0", "inclusive": false},
            "quantity_supported": false,
        });
        change(&mut plan);
        let answer: Answer = serde_json::from_value(plan).expect("a plan");
        answer.read()
    }

    #[test]
    fn a_plan_has_a_monthly_price() {
        let plan = read(|_| {});
        assert!(plan.is_active);
        assert_eq!(plan.monthly, Some(Usd::from_cents(19_900)));
        assert!(!read(|plan| plan["status"] = json!("INACTIVE")).is_active);
    }

    #[test]
    fn a_plan_with_any_other_billing_has_no_monthly_price() {
        let cycle = |plan: &mut Value| plan["billing_cycles"][0].clone();
        for (what, plan) in [
            (
                "a year",
                read(|plan| {
                    plan["billing_cycles"][0]["frequency"]["interval_unit"] = json!("YEAR")
                }),
            ),
            (
                "two months",
                read(|plan| plan["billing_cycles"][0]["frequency"]["interval_count"] = json!(2)),
            ),
            (
                "an end",
                read(|plan| plan["billing_cycles"][0]["total_cycles"] = json!(12)),
            ),
            (
                "a single month",
                read(|plan| {
                    plan["billing_cycles"][0]
                        .as_object_mut()
                        .expect("an object")
                        .remove("total_cycles");
                }),
            ),
            (
                "a trial",
                read(|plan| {
                    let mut trial = cycle(plan);
                    trial["tenure_type"] = json!("TRIAL");
                    plan["billing_cycles"]
                        .as_array_mut()
                        .expect("a list")
                        .push(trial);
                }),
            ),
            (
                "a fee",
                read(|plan| plan["payment_preferences"]["setup_fee"]["value"] = json!("10.00")),
            ),
            (
                "a tax",
                read(|plan| plan["taxes"]["percentage"] = json!("10")),
            ),
            (
                "tiers",
                read(|plan| {
                    plan["billing_cycles"][0]["pricing_scheme"]["pricing_model"] = json!("TIERED")
                }),
            ),
            (
                "another currency",
                read(|plan| {
                    plan["billing_cycles"][0]["pricing_scheme"]["fixed_price"]["currency_code"] =
                        json!("EUR");
                }),
            ),
        ] {
            assert_eq!(plan.monthly, None, "{what}");
        }
    }
}
