//! PayPal as the payment provider of purchases: orders of credits, and subscriptions to the plan.

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_purchase::mandates::{
    Charge, CreatedSubscription, NewSubscription, ProviderPlan, ProviderSubscription, Recurring,
    RecurringError,
};
use tollgate_purchase::{CreatedOrder, FailureKind, NewOrder, Order, OrderError, Orders};

use crate::{Client, Error, ErrorKind};

#[async_trait]
impl Orders for Client {
    async fn create(&self, order: &NewOrder<'_>) -> Result<CreatedOrder, OrderError> {
        Ok(self.create_order(order).await?)
    }

    async fn read(&self, order: &str) -> Result<Order, OrderError> {
        Ok(self.order(order).await?)
    }

    async fn capture(&self, order: &str, key: &str) -> Result<(), OrderError> {
        Ok(self.capture_order(order, key).await?)
    }
}

/// Subscriptions to one plan.
pub struct PlanSubscriptions {
    client: Client,
    plan_id: String,
}

impl PlanSubscriptions {
    /// Subscriptions to the plan of this id. `None`: existing subscriptions can be read and ended, and new subscriptions are impossible.
    pub fn new(client: Client, plan_id: Option<&str>) -> PlanSubscriptions {
        PlanSubscriptions {
            client,
            plan_id: plan_id.unwrap_or_default().to_owned(),
        }
    }
}

#[async_trait]
impl Recurring for PlanSubscriptions {
    async fn plan(&self) -> Result<ProviderPlan, RecurringError> {
        let plan = self.client.plan(&self.plan_id).await?;
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
        Ok(self.client.create_subscription(new).await?)
    }

    async fn read(&self, subscription: &str) -> Result<ProviderSubscription, RecurringError> {
        Ok(self.client.subscription(subscription).await?)
    }

    async fn charges(
        &self,
        subscription: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<Charge>, RecurringError> {
        Ok(self.client.transactions(subscription, from, to).await?)
    }

    async fn suspend(&self, subscription: &str, reason: &str) -> Result<(), RecurringError> {
        let done = self.client.suspend_subscription(subscription, reason);
        Ok(done.await?)
    }

    async fn activate(&self, subscription: &str, reason: &str) -> Result<(), RecurringError> {
        let done = self.client.activate_subscription(subscription, reason);
        Ok(done.await?)
    }

    async fn cancel(&self, subscription: &str, reason: &str) -> Result<(), RecurringError> {
        let done = self.client.cancel_subscription(subscription, reason);
        Ok(done.await?)
    }

    async fn refund(&self, charge: &str, key: &str, reason: &str) -> Result<(), RecurringError> {
        Ok(self.client.refund(charge, key, reason).await?)
    }
}

impl From<Error> for OrderError {
    fn from(error: Error) -> OrderError {
        OrderError {
            kind: error.kind.into(),
            message: error.to_string(),
        }
    }
}

impl From<Error> for RecurringError {
    fn from(error: Error) -> RecurringError {
        RecurringError {
            kind: error.kind.into(),
            message: error.to_string(),
        }
    }
}

impl From<ErrorKind> for FailureKind {
    fn from(kind: ErrorKind) -> FailureKind {
        match kind {
            ErrorKind::Unavailable => FailureKind::Unavailable,
            ErrorKind::Misconfigured => FailureKind::Misconfigured,
            ErrorKind::Gone => FailureKind::Gone,
            ErrorKind::NotApproved => FailureKind::NotApproved,
            ErrorKind::Declined => FailureKind::Declined,
            ErrorKind::AlreadyDone => FailureKind::AlreadyDone,
            ErrorKind::Refused => FailureKind::Refused,
            // A call with an unknown result may have taken effect.
            _ => FailureKind::OutcomeUnknown,
        }
    }
}
