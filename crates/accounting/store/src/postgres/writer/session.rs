//! Settings of the writer's server sessions: the planning of statements, and the limit for a silent connection.

use super::Connection;
use crate::engine::EngineError;

/// The server's limit for an idle transaction: other transactions wait for its locks, among them the writer's next attempt.
pub(super) const IDLE_MAX: &str = "5s";

/// Makes the server find rows by the keys in the writer's statements. Some statistics mislead the planner: of a table that has just
/// grown, or of a table with many dead rows. The server would read the whole table, or all rows of the node, for a few rows. The server
/// rates a disabled plan as costly and would compile the plan first, hence `jit = off`.
pub(super) const BY_KEYS: &str = "SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_material = off; SET enable_seqscan = off; SET jit = off";

/// Sets the session parameters of the writer's transactions.
pub(super) fn set_up(connection: &Connection) -> Result<(), EngineError> {
    let by_keys = connection.run_all(BY_KEYS);
    if let Err(error) = by_keys {
        // Servers with another planner do not know the settings.
        tracing::debug!(error = %error.source, "the database has other settings for joins");
    }
    // Not known before PostgreSQL 14. A gateway without requests commits no transaction.
    let stays = connection.run_all("SET idle_session_timeout = 0");
    if let Err(error) = stays {
        tracing::debug!(error = %error.source, "the database has no limit for idle sessions");
    }
    set_idle_limit(connection)
}

/// Makes the server notice within ten seconds that the other end of a TCP connection is gone. The server's limit for an idle transaction
/// counts only between two messages that ask for an answer. After a part of a message, whose rest was lost with the network, the server
/// would wait for hours.
const FIND_LOST: &str = "SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 1; SET tcp_keepalives_count = 5; SET tcp_user_timeout = 10000";

/// Makes the server end a transaction of a paused process, or of a connection whose loss the server did not notice.
pub(in crate::postgres) fn set_idle_limit(connection: &Connection) -> Result<(), EngineError> {
    let finds = connection.run_all(FIND_LOST);
    if let Err(error) = finds {
        tracing::debug!(error = %error.source, "the database has other settings for lost connections");
    }
    connection.run_all(&format!(
        "SET idle_in_transaction_session_timeout = '{IDLE_MAX}'"
    ))
}
