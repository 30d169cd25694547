//! The model providers, as seen by the running gateway.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate_filter::ApiError;

use super::operation::{Operation, Recorded, Run};
use crate::admin::api::call::Call;
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::changes::ChangeError;
use crate::admin::service::not_running;
use crate::config::AdminRole;

/// Shows the health of the model providers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Show {}

/// The health of the model providers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Health {
    /// A list, as at `/providers` of the admin address.
    pub(crate) providers: serde_json::Value,
}

impl Operation for Show {
    type Output = Health;
    const NAME: &'static str = "providers_show";
    const RESULT: &'static str = "providers";
    const RECORDED: Recorded = Recorded::Never;

    async fn run(self, run: &Run<'_>) -> Result<Health, ChangeError> {
        let providers = run.service.providers.as_ref();
        let providers = providers.ok_or_else(not_running)?();
        Ok(Health { providers })
    }
}

/// The model providers, as `GET /providers` of the admin address shows them.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct Providers {
    #[schemars(with = "Vec<serde_json::Map<String, serde_json::Value>>")]
    data: serde_json::Value,
}

impl Endpoint for Show {
    type Answer = Providers;
    const ROUTE: Route = Route::read(
        "listProviders",
        "/providers",
        "Show the health of the model providers.",
    )
    .role(AdminRole::Monitor);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<Providers, ApiError> {
        let Health { providers: data } = api.perform(Show {}, call).await?;
        Ok(Providers { data })
    }
}
