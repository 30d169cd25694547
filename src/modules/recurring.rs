//! Adapter of PayPal subscriptions to mandates (`Recurring`).

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_paypal as paypal;
use tollgate_purchase::mandates::{
    Charge, ChargeStatus, CreatedSubscription, NewSubscription, ProviderPlan, ProviderSubscription,
    Recurring, RecurringError, Status,
};

use super::paypal::failure_kind;

/// PayPal's subscriptions to one plan as mandates.
pub(crate) struct PayPalRecurring {
    client: paypal::Client,
    plan_id: Option<String>,
}

impl PayPalRecurring {
    pub(crate) fn new(client: paypal::Client, plan_id: Option<&str>) -> PayPalRecurring {
        PayPalRecurring {
            client,
            plan_id: plan_id.map(str::to_owned),
        }
    }
}

#[async_trait]
impl Recurring for PayPalRecurring {
    async fn plan(&self) -> Result<ProviderPlan, RecurringError> {
        let plan_id = self.plan_id.as_deref().unwrap_or_default();
        let plan = self.client.plan(plan_id).await.map_err(error)?;
        Ok(ProviderPlan {
            id: plan.id,
            is_active: plan.is_active,
            monthly: plan.monthly,
        })
    }

    async fn create(
        &self,
        new: &NewSubscription<'_>,
    ) -> Result<CreatedSubscription, RecurringError> {
        let custom_id = new.mandate.to_string();
        let subscription = paypal::NewSubscription {
            key: new.key,
            custom_id: &custom_id,
            plan_id: new.plan_id,
            return_url: new.return_url,
            cancel_url: new.cancel_url,
        };
        let made = self
            .client
            .create_subscription(&subscription)
            .await
            .map_err(error)?;
        Ok(CreatedSubscription {
            subscription: made.id,
            approve_url: made.approve_url,
        })
    }

    async fn read(&self, subscription: &str) -> Result<ProviderSubscription, RecurringError> {
        let seen = self
            .client
            .subscription(subscription)
            .await
            .map_err(error)?;
        let (failed_at, failed_why) = seen
            .last_failed
            .map_or((None, None), |(at, why)| (Some(at), why));
        Ok(ProviderSubscription {
            status: match seen.status {
                paypal::SubscriptionStatus::ApprovalPending => Status::Waiting,
                paypal::SubscriptionStatus::Approved => Status::Approved,
                paypal::SubscriptionStatus::Active => Status::Active,
                paypal::SubscriptionStatus::Suspended => Status::Suspended,
                paypal::SubscriptionStatus::Cancelled => Status::Cancelled,
                paypal::SubscriptionStatus::Expired => Status::Expired,
            },
            plan_id: seen.plan_id,
            mandate: seen.custom_id,
            is_changed: seen.is_changed,
            next_charge: seen.next_billing,
            last_payment: seen.last_payment,
            outstanding: seen.outstanding,
            failed_at,
            failed_why,
        })
    }

    async fn charges(
        &self,
        subscription: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Charge>, RecurringError> {
        let charges = self.client.transactions(subscription, from, to);
        let charges = charges.await.map_err(error)?.into_iter();
        let charges = charges.map(|one| Charge {
            id: one.id,
            status: match one.status {
                paypal::TransactionStatus::Completed => ChargeStatus::Completed,
                paypal::TransactionStatus::Pending => ChargeStatus::Pending,
                paypal::TransactionStatus::Declined => ChargeStatus::Declined,
                paypal::TransactionStatus::Refunded => ChargeStatus::Returned,
            },
            amount: one.amount,
            at: one.time,
        });
        Ok(charges.collect())
    }

    async fn activate(&self, subscription: &str, reason: &str) -> Result<(), RecurringError> {
        let done = self.client.activate_subscription(subscription, reason);
        done.await.map_err(error)
    }

    async fn cancel(&self, subscription: &str, reason: &str) -> Result<(), RecurringError> {
        let done = self.client.cancel_subscription(subscription, reason);
        done.await.map_err(error)
    }

    async fn refund(&self, charge: &str, key: &str, reason: &str) -> Result<(), RecurringError> {
        let done = self.client.refund(charge, key, reason);
        done.await.map_err(error)
    }
}

fn error(error: paypal::Error) -> RecurringError {
    RecurringError {
        kind: failure_kind(error.kind),
        message: error.to_string(),
    }
}
