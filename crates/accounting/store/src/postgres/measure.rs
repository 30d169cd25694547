//! Times of a server: a round trip, and a durable commit without a change of data.

use std::time::Duration;

use tollgate_clock::Clock;

use super::failure::open_error;
use super::open::target;
use super::options::Options;
use super::schema::check_server;
use crate::engine::EngineError;
use crate::error::OpenError;
use tollgate_postgres::Connection;

/// Number of measured round trips, and of measured commits.
const MEASURED: usize = 16;

/// Time limit of one measurement.
const WAIT: Duration = Duration::from_secs(5);

/// A transaction that writes to the log alone: a message of logical decoding, for which tollgate has no subscriber. The commit is as
/// durable as any commit (`synchronous_commit`).
const COMMIT: &str = "BEGIN; SELECT pg_logical_emit_message(true, 'tollgate', 'measure'); COMMIT";

/// The measured times, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The time of an empty statement.
    pub round_trips: Vec<Duration>,
    /// The time of a transaction in one message, commit included.
    pub commits: Vec<Duration>,
}

/// Measures the server on a separate connection, beside a gateway or without a gateway. Blocks.
///
/// # Errors
///
/// The server cannot be reached, refuses the login, does not keep confirmed commits, or a statement fails.
pub fn measure(options: &Options, clock: &Clock) -> Result<Measured, OpenError> {
    let name = options.url.to_string();
    let failed = |error: EngineError| open_error(&name, "measure", error);
    let connection = Connection::open(&target(options)?).map_err(failed)?;
    connection.limit(WAIT).map_err(failed)?;
    check_server(&connection, &name)?;
    let times = |statement: &str| -> Result<Vec<Duration>, EngineError> {
        let mut times = Vec::with_capacity(MEASURED);
        for _ in 0..MEASURED {
            let began = clock.elapsed();
            connection.run_all(statement)?;
            times.push(clock.elapsed() - began);
        }
        Ok(times)
    };
    Ok(Measured {
        round_trips: times("SELECT 1").map_err(failed)?,
        commits: times(COMMIT).map_err(failed)?,
    })
}
