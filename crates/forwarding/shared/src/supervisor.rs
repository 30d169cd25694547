//! Supervision of the connection: connect with backoff, heartbeat, and one log line for each change of reachability.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tollgate_clock::{Backoff, Failures, Jitter};

use crate::client::{Shared, Unavailable};
use crate::connection::Driver;
use crate::script::Script;

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
const HEARTBEAT_LIFE: Duration = Duration::from_secs(5);

/// Answered heartbeats in a row before the backoff restarts at the shortest delay. Connections with an early failure lengthen the delays.
const STABLE_AFTER: u32 = 5;

/// Heartbeats that fail in a row before the server counts as unreachable.
const FAILED_HEARTBEATS_MAX: u32 = 2;

/// Waits between attempts to connect: nodes that lost the server together do not come back together.
const RECONNECT: Backoff = Backoff {
    base: Duration::from_millis(100),
    max: Duration::from_secs(5),
    jitter: Jitter::Shorter(2),
};

const NODES_KEY: &str = "tollgate:nodes";

/// Renews the entry of this run among the live nodes, and removes expired entries. Returns the number of entries, and the start of the
/// server's data, in microseconds: after a loss of data the start is new. The member `data` has the start as its score. Microseconds are
/// greater than any `now`, in milliseconds, so the member does not expire.
static HEARTBEAT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "local time = redis.call('TIME')
         local now = time[1] * 1000 + math.floor(time[2] / 1000)
         redis.call('ZADD', KEYS[1], 'NX', time[1] * 1000000 + time[2], 'data')
         redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
         redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
         return {redis.call('ZCARD', KEYS[1]) - 1, tonumber(redis.call('ZSCORE', KEYS[1], 'data'))}",
    )
});

/// Time of further reads of a connection out of use: a late answer shows the effect of its call.
const LATE_ANSWERS: Duration = Duration::from_secs(30);

/// The last logged state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Logged {
    Nothing,
    Reachable,
    Unreachable,
}

impl Shared {
    /// Keeps a connection to the server, for as long as the gateway runs.
    pub async fn run(self) {
        let _ = self.state.runtime.set(Handle::current());
        let mut failures = Failures::new(RECONNECT);
        let mut logged = Logged::Nothing;
        loop {
            let login = self.state.connector.login();
            let cause = match self.state.connector.connect(login).await {
                Err(error) => error.to_string(),
                Ok((connection, driver)) => {
                    let mut on_reachable = || self.log_reachable(&mut logged);
                    let connection = Arc::new(connection);
                    let served = self.serve(connection, driver, &mut on_reachable, &mut failures);
                    served.await
                }
            };
            self.close();
            self.log_unreachable(&mut logged, &cause);
            tokio::time::sleep(failures.next(&self.state.entropy)).await;
        }
    }

    /// Uses a connection until a failure, and returns the cause.
    async fn serve(
        &self,
        connection: Arc<MultiplexedConnection>,
        mut driver: Driver,
        on_reachable: &mut impl FnMut(),
        failures: &mut Failures,
    ) -> String {
        let first = tokio::select! {
            () = &mut driver => return "the server closed the connection".to_owned(),
            first = self.beat(&connection, false) => first,
        };
        if first.is_err() {
            return self.last_failure();
        }
        self.resume(&connection);
        on_reachable();
        tokio::select! {
            () = &mut driver => return "the server closed the connection".to_owned(),
            () = self.suspended() => {}
            () = self.heartbeats(&connection, failures) => {}
        }
        let cause = self.last_failure();
        tokio::spawn(tokio::time::timeout(LATE_ANSWERS, driver));
        cause
    }

    /// Sends heartbeats until some in a row have failed, whatever other calls do: a server that executes no writes answers reads.
    async fn heartbeats(&self, connection: &Arc<MultiplexedConnection>, failures: &mut Failures) {
        let (mut sent, mut answered, mut failed) = (0, 0, 0);
        while failed < FAILED_HEARTBEATS_MAX {
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
            sent += 1;
            let is_settled = HEARTBEAT_INTERVAL * sent >= HEARTBEAT_LIFE;
            (answered, failed) = match self.beat(connection, is_settled).await {
                Ok(()) => (answered + 1, 0),
                Err(_) => (0, failed + 1),
            };
            if answered >= STABLE_AFTER {
                failures.reset();
            }
        }
    }

    /// Waits until calls have suspended the connection. A signal may be about the one before.
    async fn suspended(&self) {
        while self.is_reachable() {
            self.state.suspended.notified().await;
        }
    }

    /// Before the count is settled, the count is not lowered: the other nodes may have lost the server too, and the server its data.
    async fn beat(
        &self,
        connection: &Arc<MultiplexedConnection>,
        is_settled: bool,
    ) -> Result<(), Unavailable> {
        let life = [HEARTBEAT_LIFE.as_millis() as i64];
        let answer = self.invoke_on(connection, &HEARTBEAT, NODES_KEY, &life);
        let [nodes, dataset_created_at] = answer.await?[..] else {
            return Err(Unavailable::NotExecuted);
        };
        self.record_heartbeat();
        self.record_dataset(dataset_created_at);
        let counted = u32::try_from(nodes).ok();
        let least = if is_settled { 1 } else { self.nodes() };
        self.set_nodes(counted.unwrap_or(1).max(least));
        Ok(())
    }

    fn log_reachable(&self, logged: &mut Logged) {
        if *logged != Logged::Reachable {
            *logged = Logged::Reachable;
            let (host, nodes) = (&self.state.settings.host, self.nodes());
            tracing::info!(
                host,
                nodes,
                "connected to the shared server, limits are shared"
            );
        }
    }

    fn log_unreachable(&self, logged: &mut Logged, cause: &str) {
        if *logged != Logged::Unreachable {
            *logged = Logged::Unreachable;
            let (host, nodes) = (&self.state.settings.host, self.nodes());
            tracing::warn!(
                host,
                nodes,
                cause,
                "shared server unreachable, each node uses its share of the limits"
            );
        }
    }
}
