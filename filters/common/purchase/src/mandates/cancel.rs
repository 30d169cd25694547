//! Cancellation of a mandate, requested by its owner or an operator. The request is stored here; reconciliation repeats the provider's
//! cancel call until the provider confirms it.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_store::{MandatePart, MandateRow, MandateState, Route};

use super::current::{current_mandate, part};
use super::decide::is_stopped;
use super::schedule;
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
    let Some(mut row) = current_mandate(rows).and_then(|row| cancelled(row, now)) else {
        return Ok(None);
    };
    row.version += 1;
    row.updated_at = now;
    tracing::info!(mandate = %row.id, account = %row.account, state = ?row.state, "mandate cancellation requested");
    let reference = row.provider_ref.clone().unwrap_or_default();
    let own = (Route::PayPal, &*reference);
    let changed = part(MandatePart::Change(row.clone()));
    plans
        .set_renewal(row.account, own, Renewal::Ends, vec![changed])
        .await?;
    Ok(Some(row))
}

/// Whether the provider charges for a mandate, or may at any time.
pub fn may_charge(row: &MandateRow) -> bool {
    use MandateState::{Active, Agreed, CancelPending, Duplicate, Open};
    matches!(
        row.state,
        Open | Agreed | Active | CancelPending | Duplicate
    ) || is_stopped(row)
}

/// The mandate after its cancellation was requested at `now`; `None` where there is nothing to cancel.
fn cancelled(mut row: MandateRow, now: Timestamp) -> Option<MandateRow> {
    use MandateState::{Active, Agreed, CancelPending, Created, Dropped, Duplicate, Open, Over};
    row.state = match row.state {
        Active | CancelPending => CancelPending,
        // The provider has suspended it and may resume it.
        _ if is_stopped(&row) => CancelPending,
        // Nothing is paid: charges after this are refunded.
        Agreed => Duplicate,
        Open => Dropped,
        Created => Over,
        _ => return None,
    };
    if matches!(row.state, CancelPending | Duplicate) {
        row.cancel_requested_at.get_or_insert(now);
    }
    row.note = Some(Arc::from("left"));
    row.attempts = 0;
    row.next_attempt_at = match row.state {
        CancelPending | Duplicate => Some(now),
        _ => schedule::next(&row, now),
    };
    Some(row)
}
