//! Settings of the server's sessions that the writer uses: how it plans statements, and when it gives a silent connection up.

use super::Connection;
use crate::engine::EngineError;

/// For how long a transaction may be idle, for the server: others wait for what it has locked, the next attempt at it among them.
pub(super) const IDLE_MAX: &str = "5s";

/// Has the server find the rows that the writer names by their keys. By the statistics of a table that has just grown, or of one with many dead
/// rows, it would read the whole table, or all rows of the node, for a few of them. It takes a plan that is ruled out here for a costly one,
/// which it would compile first.
pub(super) const BY_KEYS: &str = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_seqscan = off; SET jit = off";

/// Sets what holds for the writer's transactions.
pub(super) fn set_up(connection: &Connection) -> Result<(), EngineError> {
    let by_keys = connection.run_all(BY_KEYS);
    if let Err(error) = by_keys {
        // Servers with a planner of their own do not know it.
        tracing::debug!(error = %error.source, "the database has other settings for joins");
    }
    // Not known before PostgreSQL 14. A gateway without requests commits nothing.
    let stays = connection.run_all("SET idle_session_timeout = 0");
    if let Err(error) = stays {
        tracing::debug!(error = %error.source, "the database has no limit for idle sessions");
    }
    set_idle_limit(connection)
}

/// Has the server notice within ten seconds that the other end of a TCP connection is gone. It counts the time of an idle transaction between two
/// messages that ask for an answer: with a part of one, whose rest was lost with the network, it would wait for hours.
const FIND_LOST: &str = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 5; SET tcp_user_timeout = 10000";

/// Has the server end a transaction of a process that is paused, or of a connection that was lost without its noticing.
pub(in crate::postgres) fn set_idle_limit(connection: &Connection) -> Result<(), EngineError> {
    let finds = connection.run_all(FIND_LOST);
    if let Err(error) = finds {
        tracing::debug!(error = %error.source, "the database has other settings for lost connections");
    }
    connection.run_all(&format!(
        "SET idle_in_transaction_session_timeout = '{IDLE_MAX}'"
    ))
}
