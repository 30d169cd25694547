//! Checks by the admin API: the audit of the ledger, and `doctor`.

use http::Method;
use schemars::JsonSchema;
use serde::Serialize;
use tollgate_filter::ApiError;
use tollgate_ledger::audit;

use crate::admin::api::call::Call;
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::changes::{ChangeError, panicked};
use crate::admin::views::AuditReportView;
use crate::database;
use crate::doctor::{self, Finding};

/// Audits the ledger.
pub(in crate::admin) struct Audit;

impl Endpoint for Audit {
    type Answer = AuditReportView;
    const ROUTE: Route = Route::change(
        "runAudit",
        Method::POST,
        "/audit",
        "Verify the ledger: journal, balances and holds. Nothing is changed. It takes a minute for some millions of entries, and one runs at \
         a time: another is refused with 409.",
    );

    async fn answer(api: &ApiState, _: &Call<'_>) -> Result<AuditReportView, ApiError> {
        let Ok(permit) = api.audits.clone().try_acquire_owned() else {
            return Err(ChangeError::conflict("an audit runs").into());
        };
        // A separate connection: an audit may take minutes, and the store's connections are for requests.
        let read = api.open(database::open_read).await?;
        let audit = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            audit::audit(&read)
        });
        let report = audit.await.map_err(panicked)?;
        let report = report.map_err(ChangeError::from)?;
        Ok(AuditReportView::of(&report))
    }
}

/// Runs the checks of `doctor`.
pub(in crate::admin) struct Doctor;

/// What the checks have found.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct Findings {
    data: Vec<Finding>,
}

impl Endpoint for Doctor {
    type Answer = Findings;
    const ROUTE: Route = Route::change(
        "runDoctor",
        Method::POST,
        "/doctor",
        "Check the machine of this gateway, its database, and the parties that the settings in force name. No settings, no books and no money \
         are touched. It takes some seconds, and one runs at a time: another is refused with 409.",
    );

    async fn answer(api: &ApiState, _: &Call<'_>) -> Result<Findings, ApiError> {
        let Ok(permit) = api.doctors.clone().try_acquire_owned() else {
            return Err(ChangeError::conflict("the checks run already").into());
        };
        let (settings, clock) = (api.deps.settings.settings(), api.deps.clock.clone());
        let checks = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            doctor::check(Ok(settings), &clock)
        });
        let found = checks.await.map_err(panicked)?;
        let data = found.map_err(|error| {
            ChangeError::unavailable(format!("no thread can be started: {error}"))
        })?;
        Ok(Findings { data })
    }
}
