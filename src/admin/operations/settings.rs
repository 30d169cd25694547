//! The settings of the running gateway.

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_filter::ApiError;

use super::operation::{Operation, Recorded, Run};
use crate::admin::api::call::Call;
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::changes::{ChangeError, panicked};
use crate::admin::running::ReloadedSettings;
use crate::config::Difference;

/// Reads the settings file again and puts the settings in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reload {}

impl Operation for Reload {
    type Output = ReloadedSettings;
    const NAME: &'static str = "settings_reload";
    const RESULT: &'static str = "reloaded";

    async fn run(self, run: &Run<'_>) -> Result<ReloadedSettings, ChangeError> {
        let running = run.service.running()?;
        let reload = tokio::task::spawn_blocking(move || running.reload());
        reload.await.map_err(panicked)?
    }

    fn detail(output: &ReloadedSettings) -> Value {
        let keys = output.changes.iter().map(|change| &change.key);
        serde_json::json!({
            "version": output.version,
            "digest": output.digest,
            "changed": keys.collect::<Vec<_>>(),
        })
    }
}

impl Endpoint for Reload {
    type Answer = ReloadedSettings;
    const ROUTE: Route = Route::change(
        "reloadSettings",
        Method::POST,
        "/settings/reload",
        "Read the settings file again and put it in force: all of it, or nothing and an error.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<ReloadedSettings, ApiError> {
        api.perform(Reload {}, call).await
    }
}

/// Compares the settings file with the settings in force.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Diff {}

/// The changes that a reload would make.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Compared {
    /// By their places in the file.
    pub(crate) differences: Vec<Difference>,
}

impl Operation for Diff {
    type Output = Compared;
    const NAME: &'static str = "settings_diff";
    const RESULT: &'static str = "differences";
    const RECORDED: Recorded = Recorded::Never;

    async fn run(self, run: &Run<'_>) -> Result<Compared, ChangeError> {
        let running = run.service.running()?;
        let check = tokio::task::spawn_blocking(move || running.differences());
        let differences = check.await.map_err(panicked)?;
        let differences = differences.map_err(ChangeError::conflict)?;
        Ok(Compared { differences })
    }
}

/// Settings that differ.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct Differences {
    data: Vec<Difference>,
}

impl Endpoint for Diff {
    type Answer = Differences;
    const ROUTE: Route = Route::read(
        "listSettingsDifferences",
        "/settings/differences",
        "Compare the settings file with the settings in force.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<Differences, ApiError> {
        let Compared { differences: data } = api.perform(Diff {}, call).await?;
        Ok(Differences { data })
    }
}
