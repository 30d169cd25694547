//! A check of the server on a connection of its own.

use std::time::Duration;

use redis::Cmd;
use tollgate_clock::Clock;

use crate::config::SharedSettings;
use crate::connection::{ConnectError, Connector};

/// Time limit of the answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Why the server cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PingError(String);

/// Connects as a gateway does, and returns the time of one call (`PING`) on that connection.
///
/// # Errors
///
/// There is no connection, the server refuses the login, or does not answer within two seconds.
pub async fn ping(settings: SharedSettings, clock: &Clock) -> Result<Duration, PingError> {
    let failed = |error: &dyn std::fmt::Display| PingError(error.to_string());
    let connector = Connector::new(settings).map_err(|error| failed(&error))?;
    let login = connector.login();
    let (mut connection, work) = connector
        .connect(login)
        .await
        .map_err(|error: ConnectError| failed(&error))?;
    let call = async {
        let began = clock.elapsed();
        let answer: Result<String, _> = Cmd::new().arg("PING").query_async(&mut connection).await;
        answer.map(|_| clock.elapsed() - began)
    };
    let limited = tokio::time::timeout(ANSWER_LIMIT, call);
    tokio::select! {
        answer = limited => match answer {
            Ok(answer) => answer.map_err(|error| failed(&error)),
            Err(_) => Err(failed(&"no answer within 2 seconds")),
        },
        () = work => Err(failed(&"the connection ended")),
    }
}
