//! Gateways that work on one database.

use schemars::JsonSchema;
use serde::Serialize;
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
    /// Seconds until its lease ends, negative for one that has ended.
    pub(crate) lease_seconds: Option<f64>,
}

impl NodeView {
    /// A node as operators see it.
    pub(crate) fn of(node: NodeState) -> NodeView {
        let running = node.lease.as_ref().filter(|lease| !lease.is_over());
        NodeView {
            node: node.node,
            state: match (running, node.is_recovered) {
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
