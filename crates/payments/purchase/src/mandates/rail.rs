//! The mandates of an account as one rail of payment: reconciled with the provider before another rail takes a payment.
//!
//! An offer not approved by the buyer cannot be cancelled at the provider. The offer does not block other rails: reconciliation finds a
//! later approval, cancels and refunds. An unreadable offer blocks the rails while its approval page is offered.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::{MandateRow, MandateState, Route};

use super::context::MandateContext;
use super::decide::is_past_due;
use super::error::VerifyError;
use super::mandate::GONE;
use super::schedule::RECURRING_OFFERED;
use crate::plan::{Question, Rail};

/// Maximum age of a counted read of a dropped offer, so that an account with many dropped offers is not read from the start each time.
const DROPPED_FRESH_FOR: Duration = Duration::from_mins(1);

pub(super) struct MandateRail(pub(super) Arc<MandateContext>);

#[async_trait]
impl Rail for MandateRail {
    fn route(&self) -> Route {
        Route::PayPal
    }

    async fn has_open(
        &self,
        account: AccountId,
        question: Question,
    ) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let inner = self.0.clone();
        // The caller itself waits here: a caller that leaves the queue leaves no read of the provider behind.
        let lock = inner.lock(account).await;
        // In a separate task: a caller that stops waiting does not cut a reconciliation off.
        let asked = self.0.runtime.spawn(async move {
            let _lock = lock;
            inner.has_open(account, question).await
        });
        Ok(asked.await??)
    }
}

impl MandateContext {
    /// With the account's lock held.
    async fn has_open(&self, account: AccountId, question: Question) -> Result<bool, VerifyError> {
        for row in self.of(account).await? {
            let now = self.clock.now();
            if !may_be_charged(&row, now) {
                continue;
            }
            let is_offered = now < row.created_at + RECURRING_OFFERED;
            let mut is_pending = false;
            // Read again: reconciling another mandate may have changed this row.
            let row = self.row(row.id).await?;
            let is_agreed = row.state == MandateState::Agreed;
            let recent = match question {
                Question::Offer => self.recent_reads.find(&row, self.clock.elapsed()),
                Question::Payment => None,
            };
            let read = match recent {
                Some(was_pending) => {
                    is_pending = was_pending;
                    Ok(row)
                }
                None => self.reconcile_asked(row, &mut is_pending).await,
            };
            match read {
                Ok(row) if row.state == MandateState::Agreed && !is_past_due(&row) => {
                    return Ok(true);
                }
                // Not found just after creation: as good as unreadable.
                Ok(row) if is_offered && row.note.as_deref() == Some(GONE) => return Ok(true),
                Ok(_) if is_pending => return Ok(true),
                Ok(_) => {}
                Err(VerifyError::Provider(error)) if !is_offered && !is_agreed => {
                    tracing::warn!(%account, cause = %error, "reconciling mandate before another payment failed");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Whether a charge under the mandate would pay for the plan, as far as stored.
fn may_be_charged(row: &MandateRow, now: Timestamp) -> bool {
    match row.state {
        MandateState::Open
        | MandateState::Agreed
        | MandateState::Active
        | MandateState::Resuming => true,
        MandateState::Dropped => row.updated_at + DROPPED_FRESH_FOR <= now,
        // Without a link no approval exists. A charge in another state is refunded or was the last.
        _ => false,
    }
}
