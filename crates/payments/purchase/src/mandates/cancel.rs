//! Cancellation and resumption of a mandate. The request is stored here; reconciliation repeats the provider's call until the provider
//! confirms.
//!
//! | Caller | Cancellation | Effect at the provider |
//! |---|---|---|
//! | operator | for good | cancelled, final |
//! | owner | at the end of the paid period | suspended at once: no charge, and resumable; cancelled at the period's end |

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::{MandateRow, MandateState, Part, Route};

use super::context::MandateContext;
use super::current::current_mandate;
use super::decide::is_stopped;
use super::error::{ChangeError, VerifyError};
use super::mandate::Mandate;
use crate::conflict::repeated;
use crate::plan::{PlanError, Plans, Renewal};

/// Requests cancellation for good of the current mandate of one account at `now`; `None` without a mandate to cancel. `attached` is written
/// with the request.
///
/// # Errors
///
/// Nothing was written: the store failed, or the row was changed concurrently.
pub async fn request_cancellation(
    plans: &Plans,
    rows: Vec<MandateRow>,
    now: Timestamp,
    attached: Vec<Part>,
) -> Result<Option<MandateRow>, PlanError> {
    let change = |row: Mandate| row.cancelled(now);
    request(plans, rows, Renewal::Ends, change, attached).await
}

/// Stores a request about the current mandate, together with the renewal of the paid subscription.
async fn request(
    plans: &Plans,
    rows: Vec<MandateRow>,
    renewal: Renewal,
    change: impl FnOnce(Mandate) -> Option<Mandate>,
    attached: Vec<Part>,
) -> Result<Option<MandateRow>, PlanError> {
    let current = current_mandate(rows).map(Mandate::stored);
    let Some(row) = current.and_then(change) else {
        return Ok(None);
    };
    tracing::info!(mandate = %row.id, account = %row.account, state = ?row.state, "mandate change requested");
    let reference = row.provider_ref.clone().unwrap_or_default();
    let own = (Route::PayPal, &*reference);
    let parts = std::iter::once(row.part()).chain(attached).collect();
    plans.set_renewal(row.account, own, renewal, parts).await?;
    Ok(Some(row.into_row()))
}

impl MandateContext {
    pub(super) async fn cancel(&self, account: AccountId) -> Result<MandateRow, ChangeError> {
        let _lock = self.lock(account).await;
        let stored = repeated(|| self.store_cancellation(account)).await;
        self.carry_out(stored).await
    }

    async fn store_cancellation(
        &self,
        account: AccountId,
    ) -> Result<Option<MandateRow>, VerifyError> {
        let rows = self.of(account).await?;
        let now = self.clock.now();
        let change = |row: Mandate| row.cancelled_at_end(now);
        let stored = request(&self.plans, rows, Renewal::Ends, change, Vec::new()).await;
        stored.map_err(VerifyError::Plan)
    }

    pub(super) async fn resume(&self, account: AccountId) -> Result<MandateRow, ChangeError> {
        let _lock = self.lock(account).await;
        let stored = repeated(|| self.store_resumption(account)).await;
        self.carry_out(stored).await
    }

    async fn store_resumption(
        &self,
        account: AccountId,
    ) -> Result<Option<MandateRow>, VerifyError> {
        let state = self.plans.state(account).await;
        let state = state.map_err(VerifyError::Plan)?;
        let requested = |row: &MandateRow| row.state == MandateState::Resuming;
        if state.mandate.as_ref().is_some_and(requested) {
            return Ok(state.mandate);
        }
        // Where the plan is paid otherwise, a charge would pay for it twice.
        let resumable = state.resumable_until().and(state.mandate);
        let rows = resumable.into_iter().collect();
        let change = |row: Mandate| row.resume_requested(state.now);
        let stored = request(&self.plans, rows, Renewal::Runs, change, Vec::new()).await;
        stored.map_err(VerifyError::Plan)
    }

    /// Calls the provider about a stored request now; the worker repeats a failed call. After a concurrent change by another node the
    /// request is not stored again: the change may have been a later request of the owner.
    async fn carry_out(
        &self,
        stored: Result<Option<MandateRow>, VerifyError>,
    ) -> Result<MandateRow, ChangeError> {
        use MandateState::{CancelAtEnd, CancelPending, Duplicate, Resuming};
        let row = stored.map_err(ChangeError::NotStored)?;
        let row = row.ok_or(ChangeError::Nothing)?;
        match row.state {
            CancelAtEnd | CancelPending | Duplicate | Resuming => {
                let carried_out = self.reconcile_locked(row, None).await;
                carried_out.map_err(ChangeError::UnderWay)
            }
            _ => Ok(row),
        }
    }
}

/// Whether the provider charges for a mandate, or may at any time.
pub fn may_charge(row: &MandateRow) -> bool {
    use MandateState::{Active, Agreed, CancelAtEnd, CancelPending, Duplicate, Open, Resuming};
    matches!(
        row.state,
        Open | Agreed | Active | CancelAtEnd | CancelPending | Duplicate | Resuming
    ) || is_stopped(row)
}
