//! Nodes: the gateways of a database.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_store::RecordedSettings;
use tollgate_store::postgres::NodeState;

/// A gateway that works on the database, or has ended.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Node")]
pub(crate) struct NodeView {
    /// Its number.
    pub(crate) node: i64,
    /// `store.node`; null for a gateway that was alone.
    pub(crate) name: Option<String>,
    /// The number of its run.
    pub(crate) epoch: i64,
    /// RFC 3339.
    pub(crate) started_at: String,
    /// `running`; `ended`, with nothing left; or `unrecovered`, with holds, credit or records that its recovery returns.
    pub(crate) state: &'static str,
    /// The process that has its lease.
    pub(crate) process: Option<String>,
    /// A digest of the settings that all nodes must have in common, equal for equal settings, while it runs; null if it has not recorded it.
    pub(crate) settings: Option<String>,
    /// Since when it has had them, by the clock of the database, RFC 3339.
    pub(crate) settings_since: Option<String>,
    /// Whether another running node has other settings, for a shorter time.
    pub(crate) has_older_settings: bool,
    /// Seconds until its lease ends, negative for one that has ended.
    pub(crate) lease_seconds: Option<f64>,
}

impl NodeView {
    /// The views of the nodes of a database.
    pub(crate) fn all(nodes: Vec<NodeState>) -> Vec<NodeView> {
        let in_force: Vec<_> = nodes
            .iter()
            .filter_map(settings_in_force)
            .cloned()
            .collect();
        nodes
            .into_iter()
            .map(|node| NodeView::of(node, &in_force))
            .collect()
    }

    fn of(node: NodeState, in_force: &[RecordedSettings]) -> NodeView {
        let running = node.lease.as_ref().filter(|lease| !lease.is_over());
        let settings = settings_in_force(&node);
        NodeView {
            settings: settings.map(|settings| settings.digest.clone()),
            settings_since: settings.map(|settings| settings.since.rfc3339()),
            has_older_settings: settings.is_some_and(|own| {
                let mut others = in_force.iter();
                others.any(|other| other.differ_from(own) && other.since > own.since)
            }),
            node: node.node,
            state: match (running, node.has_nothing_left) {
                (Some(_), _) => "running",
                (None, true) => "ended",
                (None, false) => "unrecovered",
            },
            name: node.is_one_of_many.then_some(node.name),
            epoch: node.epoch,
            started_at: node.started_at.rfc3339(),
            process: running.map(|lease| lease.holder.clone()),
            lease_seconds: node.lease.as_ref().map(|lease| {
                let micros = lease.until.as_micros() - lease.now.as_micros();
                micros as f64 / 1_000_000.0
            }),
        }
    }
}

/// The settings of a running node.
fn settings_in_force(node: &NodeState) -> Option<&RecordedSettings> {
    let is_running = node.lease.as_ref().is_some_and(|lease| !lease.is_over());
    node.settings.as_ref().filter(|_| is_running)
}
