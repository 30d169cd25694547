//! A check of the server on a separate connection: whether the server executes the gateway's commands.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError};
use tollgate_clock::{Clock, Entropy};

use crate::config::SharedSettings;
use crate::connection::Connector;
use crate::script::Script;

/// Time limit of all answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Executes every command of the gateway's scripts on a key, and leaves no data. After a refused command, data of the earlier commands
/// expires.
const EVERY_COMMAND: &str = "
redis.call('TIME')
redis.call('SET', KEYS[1], 1, 'PX', 1000)
redis.call('GET', KEYS[1])
redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'a', 1)
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('HGETALL', KEYS[1])
redis.call('HDEL', KEYS[1], 'a')
redis.call('ZADD', KEYS[1], 1, 'a')
redis.call('PEXPIRE', KEYS[1], 1000)
redis.call('ZCARD', KEYS[1])
redis.call('ZSCORE', KEYS[1], 'a')
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 1)
return {}
";

/// Why the server cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
pub struct ProbeError {
    cause: String,
    remedy: &'static str,
}

impl ProbeError {
    fn unreachable(cause: impl ToString) -> ProbeError {
        ProbeError {
            cause: cause.to_string(),
            remedy: "start the server, or correct `[shared]`",
        }
    }

    fn refused(error: &RedisError) -> ProbeError {
        let cause = format!(
            "{} {}",
            error.code().unwrap_or_default(),
            error.detail().unwrap_or_default()
        );
        let is = |text| cause.contains(text);
        let remedy = if is("NOPERM") || is("The user executing the script") {
            "give the user of `shared.user` the rights in conf/README.md, `[shared]`"
        } else if is("READONLY") || is("read only replica") {
            "this server is a replica, which writes nothing: name the primary in `shared.url`"
        } else if is("OOM") {
            "its `maxmemory` is used up and nothing is evicted: set `maxmemory-policy volatile-lru`, or raise `maxmemory`"
        } else if is("MOVED") {
            "this is a single node of a Redis Cluster, which has some of the keys: name one server, or a proxy in front of the cluster"
        } else {
            "see the server's log: it has to execute scripts and to write keys that begin with `tollgate:`"
        };
        ProbeError { cause, remedy }
    }

    pub fn remedy(&self) -> &'static str {
        self.remedy
    }
}

/// Connects like a gateway, executes every command of the gateway on a separate key, removes the key, and returns the time of one call.
///
/// # Errors
///
/// No connection; a refused login or command; or no answer within two seconds.
pub async fn probe(
    settings: SharedSettings,
    clock: &Clock,
    entropy: &Entropy,
) -> Result<Duration, ProbeError> {
    let connector = Connector::new(settings).map_err(ProbeError::unreachable)?;
    let login = connector.login();
    let connected = connector.connect(login).await;
    let (connection, work) = connected.map_err(ProbeError::unreachable)?;
    let key = format!(
        "tollgate:doctor:{:032x}",
        u128::from_le_bytes(entropy.bytes())
    );
    let calls = tokio::time::timeout(ANSWER_LIMIT, call(connection, &key, clock));
    tokio::select! {
        answer = calls => match answer {
            Ok(answer) => answer.map_err(|error| ProbeError::refused(&error)),
            Err(_) => Err(ProbeError::unreachable("no answer within 2 seconds")),
        },
        () = work => Err(ProbeError::unreachable("the connection ended")),
    }
}

async fn call(
    mut connection: MultiplexedConnection,
    key: &str,
    clock: &Clock,
) -> Result<Duration, RedisError> {
    let script = Script::new(EVERY_COMMAND).0;
    let _: Vec<i64> = script.key(key).invoke_async(&mut connection).await?;
    let mut set = Cmd::new();
    set.arg("SET").arg(key).arg(1).arg("PX").arg(1000);
    set.query_async::<()>(&mut connection).await?;
    let began = clock.elapsed();
    Cmd::new()
        .arg("GET")
        .arg(key)
        .query_async::<()>(&mut connection)
        .await?;
    let time = clock.elapsed() - began;
    let _: Vec<i64> = script.key(key).invoke_async(&mut connection).await?;
    Ok(time)
}
