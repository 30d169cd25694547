//! Cancellation of a mandate, requested by its owner or an operator. The request is stored here; reconciliation repeats the provider's
//! cancel call until the provider confirms it.

use tollgate_clock::Timestamp;
use tollgate_store::{MandateRow, MandateState, Route};

use super::current::current_mandate;
use super::decide::is_stopped;
use super::mandate::Mandate;
use crate::plan::{PlanError, Plans, Renewal};

/// Requests cancellation of the current mandate among those of one account at `now`; `None` where there is nothing to cancel.
///
/// # Errors
///
/// Nothing was written: the store failed, or the row was changed concurrently.
pub async fn request_cancellation(
    plans: &Plans,
    rows: Vec<MandateRow>,
    now: Timestamp,
) -> Result<Option<MandateRow>, PlanError> {
    let current = current_mandate(rows).map(Mandate::stored);
    let Some(row) = current.and_then(|row| row.cancelled(now)) else {
        return Ok(None);
    };
    tracing::info!(mandate = %row.id, account = %row.account, state = ?row.state, "mandate cancellation requested");
    let reference = row.provider_ref.clone().unwrap_or_default();
    let own = (Route::PayPal, &*reference);
    plans
        .set_renewal(row.account, own, Renewal::Ends, vec![row.part()])
        .await?;
    Ok(Some(row.into_row()))
}

/// Whether the provider charges for a mandate, or may at any time.
pub fn may_charge(row: &MandateRow) -> bool {
    use MandateState::{Active, Agreed, CancelPending, Duplicate, Open};
    matches!(
        row.state,
        Open | Agreed | Active | CancelPending | Duplicate
    ) || is_stopped(row)
}
