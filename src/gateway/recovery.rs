//! Recovery of nodes whose process has ended, by the leader.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_store::postgres::{NodeLease, NodeState};
use tollgate_store::{OpenError, Store};

use crate::admin::RunningSettings;
use crate::database::{self, Opener, RecoveredBy};
use crate::telemetry;

/// Interval at which the leader looks for nodes whose process has ended.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(5);

/// Consecutive looks with an unchanged lease before the leader recovers the lease's node. Between the looks passes the length of a lease. A
/// running node renews its lease five times in this time.
const UNRENEWED_LOOKS: u32 = 3;

/// Recovers nodes whose process has ended, while this node is the leader of the cluster. Every connection uses the settings in force,
/// because a reload may have replaced the password.
pub(super) async fn recover_nodes(
    running: Arc<dyn RunningSettings>,
    store: Arc<dyn Store>,
    clock: Clock,
) {
    let mut seen = SeenLeases::default();
    loop {
        tokio::time::sleep(RECOVERY_INTERVAL).await;
        let unrecovered = &store.gauges().unrecovered_nodes;
        let before = std::mem::take(&mut seen).unless_paused(clock.since_boot());
        if !store.is_leader() {
            unrecovered.store(0, Relaxed);
            continue;
        }
        let (running, by) = (running.clone(), clock.clone());
        let recover = move || recover_ended(&*running, &by, before);
        match tokio::task::spawn_blocking(recover).await {
            Ok(Ok((now, failed))) => {
                seen = now;
                seen.looked_at = clock.since_boot();
                unrecovered.store(failed, Relaxed);
            }
            Ok(Err(error)) => tracing::warn!(
                error = telemetry::chain(&error),
                "reading which nodes have ended failed, retrying"
            ),
            Err(_) => {
                unrecovered.fetch_max(1, Relaxed);
                tracing::error!("recovering nodes panicked, retrying");
            }
        }
    }
}

fn recover_ended(
    running: &dyn RunningSettings,
    clock: &Clock,
    seen: SeenLeases,
) -> Result<(SeenLeases, u64), OpenError> {
    let entropy = Entropy::system();
    let opener = Opener {
        name: "recovery",
        clock,
        entropy: &entropy,
    };
    let nodes = || database::nodes(&running.settings().store, &opener);
    recover_each(seen, nodes, |node| {
        let by = RecoveredBy::Leader;
        database::recover_node(&running.settings().store, &opener, node, by)
    })
}

/// Recovers every ended node, also after a failed recovery of an earlier node. Returns the number of failed recoveries.
fn recover_each(
    mut seen: SeenLeases,
    nodes: impl Fn() -> Result<Vec<NodeState>, OpenError>,
    recover: impl Fn(i64) -> Result<(), OpenError>,
) -> Result<(SeenLeases, u64), OpenError> {
    let mut failed = 0;
    for ended in seen.look(nodes()?) {
        // An earlier recovery may have taken minutes, and the node may have started again meanwhile.
        let now = nodes()?.into_iter().find(|node| node.node == ended.node);
        if !now.is_some_and(|now| is_to_be_recovered(&now) && end(&now) == end(&ended)) {
            continue;
        }
        if let Err(error) = recover(ended.node) {
            failed += 1;
            tracing::warn!(
                node = ended.node,
                name = ended.name,
                error = telemetry::chain(&error),
                "recovering a node failed, retrying; unless its process runs, start it again, or run `tollgate nodes recover` with its name"
            );
        }
    }
    Ok((seen, failed))
}

/// The end of every node's lease, and the number of consecutive looks with an unchanged end.
///
/// The database clock gives the time since the end of a lease. The clock does not prove that the node had this time for a renewal: when the
/// clock is set forward, or the database is back after an outage, the leases of every node have ended long ago. A failed look, a time
/// without leadership, and a pause of this process restart the count.
#[derive(Debug, Default)]
struct SeenLeases {
    of_nodes: HashMap<i64, (Timestamp, u32)>,
    /// When the last look ended, as [`Clock::since_boot`].
    looked_at: Duration,
}

impl SeenLeases {
    /// Empty if this process has not run since the last look: a pause of this process may have paused the other nodes too.
    fn unless_paused(self, now: Duration) -> SeenLeases {
        match now > self.looked_at + 2 * RECOVERY_INTERVAL {
            true => SeenLeases::default(),
            false => self,
        }
    }

    /// Adds a look, and returns the nodes due for recovery by another node.
    fn look(&mut self, nodes: Vec<NodeState>) -> Vec<NodeState> {
        let before = std::mem::take(&mut self.of_nodes);
        let found = nodes
            .iter()
            .filter_map(|node| Some((node.node, end(node)?)));
        self.of_nodes = found
            .map(|(node, end)| {
                let same = before.get(&node).filter(|(seen, _)| *seen == end);
                (node, (end, same.map_or(0, |(_, looks)| *looks) + 1))
            })
            .collect();
        let is_unrenewed = |node: &NodeState| {
            let seen = self.of_nodes.get(&node.node);
            seen.is_none_or(|(_, looks)| *looks >= UNRENEWED_LOOKS)
        };
        let mut ended = nodes;
        ended.retain(|node| is_to_be_recovered(node) && is_unrenewed(node));
        ended
    }
}

/// The end of a node's lease. Every renewal changes the end.
fn end(node: &NodeState) -> Option<Timestamp> {
    node.lease.as_ref().map(|lease| lease.until)
}

/// Whether another node recovers this node automatically. For a node that left only its lease, the changes that the node has not read are
/// kept.
fn is_to_be_recovered(node: &NodeState) -> bool {
    let is_over = node.lease.as_ref().is_none_or(NodeLease::may_be_recovered);
    let is_left = !node.has_nothing_left || node.lease.is_some();
    is_over && is_left && node.is_one_of_many
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    const NOW: i64 = 1_800_000_000;

    /// A node with remaining state, whose lease ended `secs` seconds ago.
    fn node_ended(number: i64, secs: i64) -> NodeState {
        NodeState {
            node: number,
            name: format!("node {number}"),
            epoch: 1,
            started_at: Timestamp::from_secs(NOW),
            is_one_of_many: true,
            lease: Some(NodeLease {
                holder: String::from("process 1"),
                until: Timestamp::from_secs(NOW - secs),
                now: Timestamp::from_secs(NOW),
                grace: Duration::ZERO,
            }),
            settings: None,
            has_nothing_left: false,
        }
    }

    /// The end of the lease, and the time of the database; `None` for a failed look.
    type Look = Option<(i64, i64)>;

    #[test]
    fn a_node_is_recovered_when_its_lease_was_not_renewed_for_the_length_of_one() {
        let failed = None;
        //   the looks, and those after which it is recovered
        let cases: [(&str, &[Look], &[usize]); 6] = [
            (
                "a crash: a minute after the end of its lease, as by the database alone",
                &[50, 55, 60, 65, 70, 75].map(|now| Some((10, now))),
                &[4, 5],
            ),
            (
                "the clock is set forward by an hour",
                &[Some((10, 5)), Some((3_600, 3_610)), Some((3_620, 3_615))],
                &[],
            ),
            (
                "and its next renewals take a while",
                &[Some((10, 5)), Some((10, 3_610)), Some((3_625, 3_615))],
                &[],
            ),
            (
                "the database was away, and the node has ended meanwhile",
                &[
                    Some((10, 5)),
                    failed,
                    failed,
                    Some((10, 100)),
                    Some((10, 105)),
                    Some((10, 110)),
                ],
                &[5],
            ),
            (
                "a look failed between",
                &[Some((10, 90)), Some((10, 95)), failed, Some((10, 105))],
                &[],
            ),
            (
                "each lease ends before its renewal",
                &[
                    Some((10, 100)),
                    Some((15, 105)),
                    Some((20, 110)),
                    Some((25, 115)),
                ],
                &[],
            ),
        ];
        for (case, looks, expected) in cases {
            let mut seen = SeenLeases::default();
            let mut recovered = Vec::new();
            for (at, look) in looks.iter().enumerate() {
                let nodes = || match look {
                    Some((until, now)) => {
                        let mut node = node_ended(16, 0);
                        let lease = node.lease.as_mut().expect("it has one");
                        lease.until = Timestamp::from_secs(*until);
                        lease.now = Timestamp::from_secs(*now);
                        Ok(vec![node])
                    }
                    None => Err(OpenError::Unrecovered {
                        database: String::from("a database"),
                        nodes: Vec::new(),
                    }),
                };
                let is_tried = Cell::new(false);
                let recover = |_| {
                    is_tried.set(true);
                    Ok(())
                };
                let looked = recover_each(std::mem::take(&mut seen), nodes, recover);
                seen = looked.map_or_else(|_| SeenLeases::default(), |(seen, _)| seen);
                recovered.extend(is_tried.get().then_some(at));
            }
            assert_eq!(recovered, expected, "{case}");
        }
    }

    #[test]
    fn a_lease_that_was_seen_before_a_pause_of_this_process_counts_for_nothing() {
        let looked_at = Duration::from_secs(100);
        //   seconds since the last look, whether the node is recovered at the next
        for (secs, is_recovered) in [(5, true), (10, true), (11, false), (3_600, false)] {
            let mut seen = SeenLeases::default();
            for _ in 1..UNRENEWED_LOOKS {
                seen.look(vec![node_ended(16, 3_600)]);
            }
            seen.looked_at = looked_at;
            let mut seen = seen.unless_paused(looked_at + Duration::from_secs(secs));
            let ended = seen.look(vec![node_ended(16, 3_600)]);
            assert_eq!(ended.len(), usize::from(is_recovered), "after {secs} s");
        }
    }

    /// A node without a possible recovery kept every later node from recovery. A node that had come back during a recovery was judged by
    /// the earlier lease: cut off a second time, the node would have been recovered within the grace period.
    #[test]
    fn a_node_that_cannot_be_recovered_and_one_that_came_back_keep_no_other_from_it() {
        let tried = RefCell::new(Vec::new());
        let nodes = || {
            let came_back = match tried.borrow().is_empty() {
                true => 3_600,
                false => 90,
            };
            Ok(vec![
                node_ended(16, 3_600),
                node_ended(17, came_back),
                node_ended(18, 3_600),
                node_ended(19, 1),
                NodeState {
                    has_nothing_left: true,
                    ..node_ended(20, 3_600)
                },
                NodeState {
                    has_nothing_left: true,
                    lease: None,
                    ..node_ended(21, 3_600)
                },
            ])
        };
        let mut seen = SeenLeases::default();
        for _ in 1..UNRENEWED_LOOKS {
            let ended = seen.look(nodes().expect("they can be read"));
            assert_eq!(ended, [], "each may have had no time to renew its lease");
        }
        let recovered = recover_each(seen, nodes, |node| {
            tried.borrow_mut().push(node);
            match node {
                16 => Err(OpenError::Unrecovered {
                    database: String::from("a database"),
                    nodes: vec![16],
                }),
                _ => Ok(()),
            }
        });
        let (_, failed) = recovered.expect("they can be read");
        assert_eq!(failed, 1);
        assert_eq!(tried.into_inner(), [16, 18, 20]);
    }
}
