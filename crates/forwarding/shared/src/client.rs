//! The gateway's handle of the server: a deadline for each call, and a circuit that opens after three consecutive calls without an answer.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tollgate_clock::Entropy;
use tollgate_counters::{Counters, labels};

use crate::config::SharedSettings;
use crate::connection::Connector;
use crate::script::Script;

/// Consecutive calls without an answer after which the server counts as unreachable. Each such call began after the failure of the previous
/// one.
const FAILURES_MAX: u32 = 3;

/// Heartbeats in a row, one a second, without an error of any call, after which errors are logged again.
const ERRORS_END_AFTER: u32 = 60;

/// A read's share of a call's limit, in percent: the caller asks a provider afterwards, which takes longer than a decision.
const READ_LIMIT_PERCENT: u32 = 75;

/// The limit of a write behind the path of requests.
const SET_LIMIT: Duration = Duration::from_secs(1);

labels! {
    /// The result of a call.
    pub(crate) enum CallResult {
        /// Answered in time.
        Ok = "ok",
        /// It was not.
        Slow = "timeout",
        /// Failed, or answered by an error.
        Failed = "failed",
    }
}

/// Why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The server cannot be asked now, or answered by an error.
    #[error("the shared server did not execute the call")]
    NotExecuted,
    /// No answer in time, or an ended connection. The server may have executed the call.
    #[error("the shared server did not answer")]
    NoAnswer,
}

/// The shared server. Cheap to clone; clones share one connection, maintained by [`Shared::run`].
#[derive(Clone)]
pub struct Shared {
    pub(crate) state: Arc<State>,
}

pub(crate) struct State {
    /// The connection; `None` while the server is unreachable.
    connection: ArcSwapOption<MultiplexedConnection>,
    /// Number of connections so far.
    connections: AtomicU64,
    pub(crate) connector: Connector,
    pub(crate) settings: SharedSettings,
    pub(crate) entropy: Entropy,
    /// The random id of this run.
    run: String,
    /// Live nodes as last counted, at least one.
    nodes: AtomicU32,
    /// When the server's present data was created, in microseconds; zero before the first heartbeat.
    dataset_created_at: AtomicI64,
    losses: AtomicU64,
    failures: AtomicU32,
    /// Answered heartbeats since the last error reply; set to the threshold on each connection, so that the connection's first error is
    /// logged.
    heartbeats_without_error: AtomicU32,
    /// Signalled when calls find the server unreachable.
    pub(crate) suspended: Notify,
    /// Why the last call failed.
    cause: Mutex<String>,
    /// The runtime of [`Shared::run`].
    pub(crate) runtime: OnceLock<Handle>,
    pub(crate) results: Counters<CallResult>,
}

impl Shared {
    /// A handle of the server with these settings. No byte is sent before [`Shared::run`].
    ///
    /// # Errors
    ///
    /// The host cannot be the name of a TLS server.
    pub fn new(
        settings: SharedSettings,
        entropy: Entropy,
    ) -> Result<Shared, rustls_pki_types::InvalidDnsNameError> {
        let id = u128::from_le_bytes(entropy.bytes());
        Ok(Shared {
            state: Arc::new(State {
                connection: ArcSwapOption::empty(),
                connections: AtomicU64::new(0),
                connector: Connector::new(settings.clone())?,
                settings,
                entropy,
                run: format!("{id:032x}"),
                nodes: AtomicU32::new(1),
                dataset_created_at: AtomicI64::new(0),
                losses: AtomicU64::new(0),
                failures: AtomicU32::new(0),
                heartbeats_without_error: AtomicU32::new(0),
                suspended: Notify::new(),
                cause: Mutex::default(),
                runtime: OnceLock::new(),
                results: Counters::default(),
            }),
        })
    }

    /// Whether calls are sent now.
    pub fn is_reachable(&self) -> bool {
        self.state.connection.load().is_some()
    }

    /// The number of connections so far. Values stored over an earlier connection may be lost: the server may have been restarted, or
    /// replaced.
    pub fn connections(&self) -> u64 {
        self.state.connections.load(Relaxed)
    }

    /// Number of data losses of the server, each found by the first heartbeat afterwards. A new connection sends the heartbeat before its
    /// first call.
    pub fn data_losses(&self) -> u64 {
        self.state.losses.load(Relaxed)
    }

    /// The last counted number of live nodes, this node included.
    pub fn nodes(&self) -> u32 {
        self.state.nodes.load(Relaxed)
    }

    /// The longest wait of a call.
    pub fn call_limit(&self) -> Duration {
        self.state.settings.call_limit
    }

    /// Runs a task without a waiting request, on the runtime of [`Shared::run`]; dropped before the start of the runtime.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = self.state.runtime.get() {
            runtime.spawn(task);
        }
    }

    /// Executes a script on a key with these arguments. Waits at most for the limit of a call.
    ///
    /// # Errors
    ///
    /// The server is unreachable, slow, or answered with an error. The script may have been executed.
    pub async fn invoke(
        &self,
        script: &Script,
        key: &str,
        arguments: &[i64],
    ) -> Result<Vec<i64>, Unavailable> {
        let connection = self.connection()?;
        self.invoke_on(&connection, script, key, arguments).await
    }

    /// [`Shared::invoke`] for a call whose effect has to be undone once the caller no longer waits: the result of `read` for a late answer
    /// is dropped.
    ///
    /// # Errors
    ///
    /// As [`Shared::invoke`].
    pub async fn invoke_guarded<T: Send + 'static>(
        &self,
        script: &Script,
        key: &str,
        arguments: &[i64],
        read: impl FnOnce(Vec<i64>) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let connection = self.connection()?;
        let call = self.call_on(&connection, script, key, arguments);
        let (sender, answer) = oneshot::channel();
        self.spawn(async move {
            // Without a time limit: an unused connection has an end.
            let _ = sender.send(call.await.map(read));
        });
        let answer = async {
            let ended = |_| Err(io::Error::other("the runtime has ended").into());
            answer.await.unwrap_or_else(ended)
        };
        self.within_limit(&connection, self.call_limit(), answer)
            .await
    }

    /// The value of a key. Waits at most for three quarters of the limit of a call: 15 ms.
    ///
    /// # Errors
    ///
    /// As [`Shared::invoke`].
    pub async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Unavailable> {
        let connection = self.connection()?;
        let mut sender = MultiplexedConnection::clone(&connection);
        let limit = self.call_limit() * READ_LIMIT_PERCENT / 100;
        let mut command = redis::cmd("GET");
        let call = command.arg(key).query_async(&mut sender);
        self.within_limit(&connection, limit, call).await
    }

    /// Stores a value, with an expiry if `life` is given. For tasks behind the path of requests: the call may take a second, and a failure
    /// does not count against the server.
    ///
    /// # Errors
    ///
    /// As [`Shared::invoke`]. The value may have been stored.
    pub async fn set(
        &self,
        key: &str,
        value: &[u8],
        life: Option<Duration>,
    ) -> Result<(), Unavailable> {
        let mut sender = MultiplexedConnection::clone(&*self.connection()?);
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value);
        if let Some(life) = life {
            let millis = u64::try_from(life.as_millis()).unwrap_or(u64::MAX).max(1);
            command.arg("PX").arg(millis);
        }
        let stored = tokio::time::timeout(SET_LIMIT, command.query_async::<()>(&mut sender));
        let (result, stored) = match stored.await {
            Ok(Ok(())) => (CallResult::Ok, Ok(())),
            Ok(Err(error)) => (CallResult::Failed, Err(self.failed(&error))),
            Err(_) => (CallResult::Slow, Err(Unavailable::NoAnswer)),
        };
        self.state.results.inc(result);
        stored
    }

    fn connection(&self) -> Result<Arc<MultiplexedConnection>, Unavailable> {
        let connection = self.state.connection.load_full();
        connection.ok_or(Unavailable::NotExecuted)
    }

    pub(crate) async fn invoke_on(
        &self,
        connection: &Arc<MultiplexedConnection>,
        script: &Script,
        key: &str,
        arguments: &[i64],
    ) -> Result<Vec<i64>, Unavailable> {
        let call = self.call_on(connection, script, key, arguments);
        self.within_limit(connection, self.call_limit(), call).await
    }

    fn call_on(
        &self,
        connection: &MultiplexedConnection,
        script: &Script,
        key: &str,
        arguments: &[i64],
    ) -> impl Future<Output = redis::RedisResult<Vec<i64>>> + Send + use<> {
        let (mut sender, script) = (connection.clone(), script.clone());
        let (key, arguments, this) = (key.to_owned(), arguments.to_owned(), self.clone());
        async move {
            let mut invocation = script.0.key(key);
            for argument in arguments {
                invocation.arg(argument);
            }
            invocation.arg(&this.state.run);
            invocation.invoke_async(&mut sender).await
        }
    }

    async fn within_limit<T>(
        &self,
        connection: &Arc<MultiplexedConnection>,
        limit: Duration,
        call: impl Future<Output = redis::RedisResult<T>>,
    ) -> Result<T, Unavailable> {
        let state = &*self.state;
        let failures = state.failures.load(Relaxed);
        let (result, cause, unavailable) = match tokio::time::timeout(limit, call).await {
            Ok(Ok(value)) => {
                state.results.inc(CallResult::Ok);
                state.failures.store(0, Relaxed);
                return Ok(value);
            }
            Ok(Err(error)) => (CallResult::Failed, error.to_string(), self.failed(&error)),
            Err(_) => {
                let cause = format!("no answer within {} ms", limit.as_millis());
                (CallResult::Slow, cause, Unavailable::NoAnswer)
            }
        };
        state.results.inc(result);
        *state.cause.lock() = cause;
        // Calls under way together are one failure: one short stall fails every call. An error is an answer, and heartbeats decide whether
        // the server works.
        let counted = failures + 1;
        let is_counted = unavailable == Unavailable::NoAnswer
            && state
                .failures
                .compare_exchange(failures, counted, Relaxed, Relaxed)
                .is_ok();
        if is_counted && counted >= FAILURES_MAX {
            self.suspend(connection);
        }
        Err(unavailable)
    }

    /// The meaning of an error for a sent call. An error reply is logged: heartbeats decide whether the server is reachable, and a
    /// reachable server may refuse all other calls.
    fn failed(&self, error: &redis::RedisError) -> Unavailable {
        let Some(code) = error.code() else {
            return Unavailable::NoAnswer;
        };
        let beats = &self.state.heartbeats_without_error;
        if self.is_reachable() && beats.swap(0, Relaxed) >= ERRORS_END_AFTER {
            let host = &self.state.settings.host;
            let cause = format!("{code} {}", error.detail().unwrap_or_default());
            tracing::warn!(
                host,
                cause,
                "shared server answered a call with an error, each node uses its share of the limits for such calls: \
                 check that the user may access `tollgate:*`, that the address is not a single node of a Redis Cluster, and the server's memory"
            );
        }
        Unavailable::NotExecuted
    }

    /// A heartbeat was answered.
    pub(crate) fn record_heartbeat(&self) {
        let beats = &self.state.heartbeats_without_error;
        if beats.load(Relaxed) < ERRORS_END_AFTER {
            beats.fetch_add(1, Relaxed);
        }
    }

    /// Stops the use of a connection at once; [`Shared::run`] then makes another.
    fn suspend(&self, connection: &Arc<MultiplexedConnection>) {
        let state = &*self.state;
        let is_current = |current: &Option<Arc<_>>| {
            current
                .as_ref()
                .is_some_and(|one| Arc::ptr_eq(one, connection))
        };
        // Of many calls with a common failure, the first suspends the connection.
        if is_current(&state.connection.load()) {
            state.connection.store(None);
            state.suspended.notify_one();
        }
    }

    pub(crate) fn resume(&self, connection: &Arc<MultiplexedConnection>) {
        self.state.failures.store(0, Relaxed);
        let beats = &self.state.heartbeats_without_error;
        beats.store(ERRORS_END_AFTER, Relaxed);
        self.state.connections.fetch_add(1, Relaxed);
        self.state.connection.store(Some(connection.clone()));
    }

    pub(crate) fn close(&self) {
        self.state.connection.store(None);
    }

    pub(crate) fn record_dataset(&self, began: i64) {
        let earlier = self.state.dataset_created_at.swap(began, Relaxed);
        let is_lost = earlier != 0 && earlier != began;
        self.state.losses.fetch_add(u64::from(is_lost), Relaxed);
    }

    pub(crate) fn set_nodes(&self, nodes: u32) {
        self.state.nodes.store(nodes, Relaxed);
    }

    /// Why the last call failed.
    pub(crate) fn last_failure(&self) -> String {
        self.state.cause.lock().clone()
    }
}
