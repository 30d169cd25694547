//! The mandates of an account as one rail of payment: reconciled with the provider before another rail takes a payment.
//!
//! An offer that its buyer has not approved cannot be cancelled at the provider. It does not block other rails: an approval after the
//! read is found by reconciliation, cancelled and refunded. One that cannot be read blocks them for as long as its approval page is offered.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::{MandateRow, MandateState, Route};

use super::context::Inner;
use super::decide::is_past_due;
use super::error::VerifyError;
use super::mandate::GONE;
use super::schedule::RECURRING_OFFERED;
use crate::plan::{Question, Rail};

/// Age up to which a read of a dropped offer counts, so that an account with many of them is not read from the start each time.
const DROPPED_FRESH_FOR: Duration = Duration::from_mins(1);

pub(super) struct MandateRail(pub(super) Arc<Inner>);

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
        // Waited for by the caller itself: one that stops waiting leaves the queue, and leaves no read of the provider behind.
        let lock = inner.lock(account).await;
        // In a task of its own: a caller that stops waiting does not cut a reconciliation off.
        let asked = self.0.runtime.spawn(async move {
            let _lock = lock;
            inner.has_open(account, question).await
        });
        Ok(asked.await??)
    }
}

impl Inner {
    /// With the account's lock held.
    async fn has_open(&self, account: AccountId, question: Question) -> Result<bool, VerifyError> {
        for row in self.of(account).await? {
            let now = self.clock.now();
            if !may_be_charged(&row, now) {
                continue;
            }
            let is_offered = now < row.created_at + RECURRING_OFFERED;
            let mut is_pending = false;
            // Read again: reconciling another one may have changed it.
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
                // Not found just after it was made: as good as unreadable.
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
        // Without a link nothing was approved; a charge of any other state is refunded or was the last.
        _ => false,
    }
}
