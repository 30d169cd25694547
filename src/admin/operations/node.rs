//! Nodes: the gateways of a database.

use std::time::Duration;

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate_filter::ApiError;
use tollgate_store::OpenError;

use super::operation::{Done, Operation, Run};
use crate::admin::api::call::Call;
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::changes::{ChangeError, panicked};
use crate::admin::views::NodeView;
use crate::database::{self, Opener, RecoveredBy};

/// Recovers an ended node of the database: returns the node's holds and credit.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recover {
    /// The node's name or number.
    pub(crate) node: String,
}

impl Operation for Recover {
    type Output = Done;
    const NAME: &'static str = "node_recover";
    const SUBJECT: Option<&'static str> = Some("node");
    /// The recovery posts everything that the node has left.
    const TIMEOUT: Duration = Duration::from_secs(1800);

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let service = run.service;
        // A reload may have replaced the password.
        let running = service.running.as_ref().map(|running| running.settings());
        let settings = running.map_or_else(|| service.database.clone(), |it| it.store.clone());
        let clock = service.clock.clone();
        let entropy = service.entropy.clone();
        let name = self.node;
        let recovery = tokio::task::spawn_blocking(move || {
            let opener = Opener {
                name: "recovery",
                clock: &clock,
                entropy: &entropy,
            };
            let nodes = database::nodes(&settings, &opener)?;
            let Some(found) = nodes.iter().find(|node| node.is_named(&name)) else {
                return Err(ChangeError::not_found(format!("there is no node `{name}`")));
            };
            if found.has_ended_cleanly() {
                return Ok(());
            }
            let by = RecoveredBy::Operator(None);
            match database::recover_node(&settings, &opener, found.node, by) {
                Err(OpenError::InUse { holder, .. }) => Err(ChangeError::conflict(format!(
                    "node `{name}` runs, as {holder}; it is recovered once that has ended"
                ))),
                recovered => Ok(recovered?),
            }
        });
        recovery.await.map_err(panicked)??;
        Ok(Done {})
    }
}

impl Endpoint for Recover {
    type Answer = NodeList;
    const ROUTE: Route = Route::change(
        "recoverNode",
        Method::POST,
        "/nodes/{node}/recover",
        "Return the holds and the credit of a node whose process has ended, by its name or number. Refused with 409 while it runs.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<NodeList, ApiError> {
        let node = call.name().to_owned();
        api.perform(Recover { node }, call).await?;
        List::answer(api, call).await
    }
}

/// Lists the nodes.
pub(in crate::admin) struct List;

/// Gateways that work on one database; none of a file, which has one.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct NodeList {
    data: Vec<NodeView>,
}

impl Endpoint for List {
    type Answer = NodeList;
    const ROUTE: Route = Route::read(
        "listNodes",
        "/nodes",
        "List the gateways that work on the PostgreSQL database, and what ended ones have left.",
    );

    async fn answer(api: &ApiState, _: &Call<'_>) -> Result<NodeList, ApiError> {
        let nodes = api.open(database::nodes).await?;
        let data = NodeView::all(nodes);
        Ok(NodeList { data })
    }
}
