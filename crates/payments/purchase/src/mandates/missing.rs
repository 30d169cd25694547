//! Reconciliation of a mandate whose subscription is not there: never made, not readable, or unknown to the provider.

use tollgate_store::MandateState;

use super::context::MandateContext;
use super::counters::MandateEvent;
use super::error::{VerifyError, log_provider_error};
use super::mandate::{GONE, Mandate};
use super::recurring::RecurringError;
use super::schedule::RECURRING_OFFERED;
use crate::topups::FailureKind;

impl MandateContext {
    /// A mandate without a known subscription: the buyer never got an approval link, so no payment is possible.
    pub(super) async fn without_subscription(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        let now = self.clock.now();
        let age = now.duration_since(row.created_at);
        if row.state == MandateState::Created && age >= RECURRING_OFFERED {
            return self.save(row.over("no subscription", now)).await;
        }
        self.save(row.unchanged(None, now)).await
    }

    /// A failed read decides nothing. Exception: a subscription without consent that no longer exists is over.
    pub(super) async fn unreadable(
        &self,
        row: Mandate,
        error: RecurringError,
    ) -> Result<Mandate, VerifyError> {
        use MandateState::{Agreed, Created, Dropped, Ended, Open, Over};
        if error.kind == FailureKind::Gone {
            match row.state {
                Created | Open | Dropped => return self.subscription_gone(row).await,
                Agreed => return self.agreed_subscription_gone(row).await,
                // The provider does not keep subscriptions for ever; this mandate is finished.
                Ended | Over => {
                    return self.save(row.waits(self.clock.now())).await;
                }
                _ => {
                    return self
                        .mark_stuck(
                            row,
                            "the subscription no longer exists at the payment provider",
                        )
                        .await;
                }
            }
        }
        if error.kind == FailureKind::OutcomeUnknown {
            self.counters.inc(MandateEvent::Unclear);
        }
        log_provider_error(row.id, &error, "read subscription");
        self.retry_later(row).await?;
        Err(VerifyError::Provider(error))
    }

    /// Never agreed to and unknown to the provider: over after a second read hours later, since wrong settings look the same.
    async fn subscription_gone(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        let now = self.clock.now();
        if row.note.as_deref() != Some(GONE) {
            return self.save(row.gone(now)).await;
        }
        // A read between the two decides nothing.
        if row.next_attempt_at.is_some_and(|at| now < at) {
            return self.save(row).await;
        }
        self.save(row.over(GONE, now)).await
    }

    /// Agreed to, not paid, and unknown to the provider. The mandate blocks the other rails, so a second read a day later ends the mandate.
    /// A charge listed afterwards is found by notification, or by the reconciliations of an ended mandate.
    async fn agreed_subscription_gone(&self, row: Mandate) -> Result<Mandate, VerifyError> {
        let now = self.clock.now();
        if row.note.as_deref() != Some(GONE) {
            // Also for a read on request: the worker's next read is the read that ends the mandate.
            self.counters.inc(MandateEvent::Stuck);
            tracing::error!(mandate = %row.id, account = %row.account, subscription = ?row.provider_ref,
                "agreed subscription is unknown to the payment provider: it ends if that is so tomorrow, check the settings and the merchant account");
            return self.save(row.vanished(now)).await;
        }
        if row.next_attempt_at.is_some_and(|at| now < at) {
            return self.save(row).await;
        }
        self.counters.inc(MandateEvent::Vanished);
        tracing::warn!(mandate = %row.id, account = %row.account, subscription = ?row.provider_ref,
            "agreed mandate ended without a payment: its subscription is unknown to the payment provider since a day");
        self.save(row.over(GONE, now)).await
    }
}
