//! The end of what is charged, as its owner or an operator wants it. It is stored here; the desk has the provider do it, until it is done.

use std::sync::Arc;

use tollgate_store::{MandatePart, MandateRow, MandateState, Route};

use super::decide::is_stopped;
use super::processor::{current_mandate, part};
use super::schedule;
use crate::plan::{PlanError, Plans, Renewal};

/// Ends what is charged, or offered, among the mandates of one account at `now` (Unix microseconds); `None` where there is nothing to end.
///
/// # Errors
///
/// Nothing was written: the store did not, or somebody else has changed it meanwhile.
pub async fn request_cancellation(
    plans: &Plans,
    rows: Vec<MandateRow>,
    now: i64,
) -> Result<Option<MandateRow>, PlanError> {
    let Some(mut row) = current_mandate(rows).and_then(|row| cancelled(row, now)) else {
        return Ok(None);
    };
    row.version += 1;
    row.updated_at = now;
    tracing::info!(mandate = %row.id, account = %row.account, state = ?row.state, "what is charged for a plan is ended");
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

/// A mandate as it is once it was left at `now`; `None` where there is nothing to leave.
fn cancelled(mut row: MandateRow, now: i64) -> Option<MandateRow> {
    use MandateState::{Active, Agreed, CancelPending, Created, Dropped, Duplicate, Open, Over};
    row.state = match row.state {
        Active | CancelPending => CancelPending,
        // The provider has stopped it, and may start it again.
        _ if is_stopped(&row) => CancelPending,
        // Nothing is paid: what comes in after this goes back.
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
