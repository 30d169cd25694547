//! Periodic maintenance, independent of requests.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_clock::Clock;
use tollgate_identity::{CredentialUse, Credentials, RefusedRequests};
use tollgate_ledger::Ledger;
use tollgate_module::{BackgroundTask, LeaderJob, Sweep};
use tollgate_store::retention::overdue;
use tollgate_store::{Admission, OAuthPart, Part, Store, UnitOfWork, commit, reading};

use crate::config;
use crate::proxy::Proxy;

/// Interval of the removal of expired holds and unused counters, and of the release of freed memory.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Interval at which refused requests are written. An owner sees a refused request after a second.
const RECORD_REFUSED_INTERVAL: Duration = Duration::from_secs(1);

/// Refused requests in one commit. More requests would delay the completions in the commit.
const REFUSED_PER_COMMIT: usize = 256;

/// Interval at which the last use of credentials is recorded.
const RECORD_USES_INTERVAL: Duration = Duration::from_secs(60);

/// For how long a credential stays in memory without being used.
const KEPT_IDLE: Duration = Duration::from_secs(600);

/// Interval at which the free space is read. Writes within the interval take less than the default minimum of free space.
const DISK_INTERVAL: Duration = Duration::from_secs(1);

/// Credential uses in one unit of work. A larger unit would delay the following writes.
const USES_PER_COMMIT: usize = 256;

/// Credential uses in one unit of work at the end of the process. The process waits for every unit.
const LAST_USES_PER_COMMIT: usize = 4096;

/// With fewer concurrent exchanges there is no memory worth releasing.
const RELEASE_THRESHOLD: usize = 100;

/// Interval at which credit of accounts without requests is returned to their shared balances.
const RETURN_INTERVAL: Duration = Duration::from_secs(30);

/// Interval at which a node checks whether the node leads the cluster.
const LEADER_INTERVAL: Duration = Duration::from_millis(200);

/// Pause before a task that has panicked is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Interval at which accounts unused since the last interval are removed from memory. The interval is longer than a request waits before
/// its hold.
const EVICT_INTERVAL: Duration = Duration::from_secs(600);

/// Interval at which the size of the database, the credit of every account and the begin of the journal are read.
const STORE_INTERVAL: Duration = Duration::from_secs(60);

/// Interval at which changes that every node has read are removed from the feed, 4,096 at once. The rate is 800 changes a second, more than
/// nodes write.
const PRUNE_INTERVAL: Duration = Duration::from_secs(5);

/// Reads the size of the database, the credit of all accounts and for how long months have waited for their removal.
pub(super) async fn look_after_store(
    store: Arc<dyn Store>,
    retention: Option<config::Retention>,
    clock: Clock,
) {
    loop {
        match reading(&store, |store| store.size()).await {
            Ok(size) => {
                let gauges = store.gauges();
                gauges.database_bytes.store(size.bytes, Relaxed);
                gauges.database_free_bytes.store(size.free_bytes, Relaxed);
            }
            Err(error) => tracing::debug!(%error, "reading the size of the database failed"),
        }
        if let Some(retention) = &retention {
            let (now, months) = (clock.now(), retention.keep_months);
            match reading(&store, move |store| overdue(store, now, months)).await {
                Ok(overdue) => {
                    let secs = overdue.unwrap_or_default().as_secs();
                    let gauge = &store.gauges().retention_overdue_secs;
                    gauge.store(secs + 1, Relaxed);
                }
                Err(error) => tracing::debug!(%error, "reading the begin of the journal failed"),
            }
        }
        read_owed(&store).await;
        tokio::time::sleep(STORE_INTERVAL).await;
    }
}

/// Removes changes that every node has read from the feed, on one node of a cluster.
pub(super) async fn prune_feed(store: Arc<dyn Store>) {
    loop {
        if store.is_leader() {
            let unit = UnitOfWork::of(Part::PruneChanges, Admission::BestEffort);
            if let Err(error) = commit(&*store, unit).await {
                tracing::debug!(%error, "removing read changes from the feed failed");
            }
        }
        tokio::time::sleep(PRUNE_INTERVAL).await;
    }
}

/// Reads the credit of every account, on one node of a cluster.
async fn read_owed(store: &Arc<dyn Store>) {
    let gauges = store.gauges();
    if !store.is_leader() {
        gauges.is_owed_known.store(false, Relaxed);
        return;
    }
    match reading(store, |store| store.owed()).await {
        Ok(owed) => {
            gauges.owed.store(owed.get(), Relaxed);
            gauges.is_owed_known.store(true, Relaxed);
        }
        Err(error) => tracing::debug!(%error, "reading the credit of all accounts failed"),
    }
}

/// Runs a task that does not end. Starts the task again after a panic: the process would go on without the task.
pub(super) async fn restarting(name: &'static str, task: impl Fn() -> BackgroundTask) {
    let mut running = JoinSet::new();
    loop {
        running.spawn(task());
        if let Some(Err(_)) = running.join_next().await {
            tracing::error!(name, "background task panicked, starting it again");
        }
        tokio::time::sleep(RESTART_PAUSE).await;
    }
}

/// Runs the leader jobs while this node is the leader. A job that panics is started again, because no other node does the job.
pub(super) async fn run_leader_jobs(store: Arc<dyn Store>, leader_jobs: Vec<LeaderJob>) {
    let mut running = JoinSet::new();
    let mut started = HashMap::new();
    loop {
        match (store.is_leader(), started.is_empty()) {
            (true, true) => {
                for (at, job) in leader_jobs.iter().enumerate() {
                    started.insert(running.spawn(job()).id(), at);
                }
            }
            (false, false) => {
                running.shutdown().await;
                started.clear();
            }
            _ => {}
        }
        tokio::time::sleep(LEADER_INTERVAL).await;
        while let Some(ended) = running.try_join_next_with_id() {
            let Err(panicked) = ended else { continue };
            if let Some(at) = started.remove(&panicked.id()) {
                tracing::error!("leader job panicked, starting it again");
                let job = leader_jobs[at]();
                let again = running.spawn(async {
                    tokio::time::sleep(RESTART_PAUSE).await;
                    job.await;
                });
                started.insert(again.id(), at);
            }
        }
    }
}

/// Returns the credit of accounts without requests to their shared balances, a part of the accounts at a time: requests wait for the
/// commits of the returned credit.
pub(super) async fn return_idle_credit(ledger: Ledger, clock: Clock) {
    for part in (0..Ledger::PARTS).cycle() {
        tokio::time::sleep(RETURN_INTERVAL / Ledger::PARTS as u32).await;
        ledger.return_idle(part, clock.now());
    }
}

/// Runs the periodic tasks of a serving gateway.
pub(super) async fn run_maintenance(
    proxy: Arc<Proxy>,
    ledger: Ledger,
    clock: Clock,
    sweeps: Arc<[Sweep]>,
) {
    let mut peak = 0;
    let mut evicted = clock.elapsed();
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        if clock.elapsed() >= evicted + EVICT_INTERVAL {
            evicted = clock.elapsed();
            ledger.evict_idle();
        }
        let expired = ledger.sweep(clock.reading());
        if expired > 0 {
            tracing::warn!(holds = expired, "released expired holds");
        }
        sweeps.iter().for_each(|sweep| sweep());
        let open = proxy.open_exchanges();
        peak = peak.max(proxy.take_peak_concurrency());
        if peak >= RELEASE_THRESHOLD && open < peak / 2 {
            peak = open;
            proxy.release_memory();
        }
    }
}

/// Watches the free space of the database's file system: below `bytes_min` the store accepts no new work, before the disk is full and the
/// store has to stop.
pub(super) async fn watch_disk(store: Arc<dyn Store>, folder: PathBuf, bytes_min: u64) {
    loop {
        let free = rustix::fs::statvfs(&folder).map(|found| found.f_bavail * found.f_frsize);
        // A file system without a figure of free space is not full.
        let is_low = free.is_ok_and(|free| free < bytes_min);
        store.gauges().is_disk_low.store(is_low, Relaxed);
        tokio::time::sleep(DISK_INTERVAL).await;
    }
}

/// Records used credentials, a part at a time. No request waits for the records, and a lost record has no effect.
pub(super) async fn record_credential_uses(
    credentials: Arc<Credentials>,
    store: Arc<dyn Store>,
    clock: Clock,
) {
    loop {
        record_uses(&credentials, &*store, RECORD_USES_INTERVAL).await;
        credentials.evict_idle(clock.now() - KEPT_IDLE);
    }
}

/// Records the credentials used since the last call, in parts spread over `time`.
pub(super) async fn record_uses(credentials: &Credentials, store: &dyn Store, time: Duration) {
    let uses = credentials.unstored_uses();
    let parts = uses.chunks(match time.is_zero() {
        true => LAST_USES_PER_COMMIT,
        false => USES_PER_COMMIT,
    });
    let pause = time / u32::try_from(parts.len() + 1).unwrap_or(u32::MAX);
    for uses in parts {
        tokio::time::sleep(pause).await;
        let rows = uses.iter().map(CredentialUse::row).collect();
        let part = Part::OAuth(Box::new(OAuthPart::NoteUses(rows)));
        match commit(store, UnitOfWork::of(part, Admission::BestEffort)).await {
            Ok(_) => uses.iter().for_each(CredentialUse::mark_stored),
            Err(error) => tracing::debug!(%error, "recording credential uses failed"),
        }
    }
    tokio::time::sleep(pause).await;
}

/// Writes refused requests for the owners of their accounts. No request waits for the write, and a row lost in a crash has no effect.
pub(super) async fn record_refused_requests(
    refused: Arc<RefusedRequests>,
    store: Arc<dyn Store>,
    clock: Clock,
) {
    loop {
        tokio::time::sleep(RECORD_REFUSED_INTERVAL).await;
        record_refusals(&refused, &*store, &clock).await;
    }
}

/// Writes the requests that were refused since the last time.
pub(super) async fn record_refusals(refused: &RefusedRequests, store: &dyn Store, clock: &Clock) {
    for rows in refused.take(clock.now()).chunks(REFUSED_PER_COMMIT) {
        let part = Part::RecordRefusals(rows.to_vec());
        if let Err(error) = commit(store, UnitOfWork::of(part, Admission::BestEffort)).await {
            tracing::debug!(%error, "recording refused requests failed");
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use tollgate_clock::Timestamp;
    use tollgate_identity::Digest;
    use tollgate_money::{AccountId, CredentialId, Micros};
    use tollgate_store::sqlite;
    use tollgate_store::{CacheScope, CredentialKind, NewAccount, NewCredential, RootSecret};

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    /// A store with `count` used keys.
    async fn used(path: &std::path::Path, count: u32) -> (Arc<dyn Store>, Arc<Credentials>) {
        let options = sqlite::Options::new(NOW, RootSecret([7; 32]));
        let store = sqlite::open(path, options).expect("a store");
        let account = AccountId::from_bytes([1; 16]);
        let mut parts = vec![Part::CreateAccount(Box::new(NewAccount {
            id: account,
            class: Arc::from("free"),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::ZERO,
            created_at: NOW,
        }))];
        let digest = |number: u32| Digest::of(&number.to_be_bytes());
        parts.extend((0..count).map(|number| {
            Part::InsertCredential(Box::new(NewCredential {
                id: CredentialId::from_bytes(u128::from(number).to_be_bytes()),
                hash: *digest(number).as_bytes(),
                kind: CredentialKind::ApiKey,
                account,
                client_id: None,
                grant_id: None,
                resource: 1,
                scopes: 1,
                label: None,
                hint: None,
                models: None,
                spending_cap: None,
                created_at: NOW,
                expires_at: None,
            }))
        }));
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        commit(&*store, unit).await.expect("they are durable");
        let credentials = Credentials::open(&store);
        for number in 0..count {
            let found = credentials.look_up(digest(number), NOW);
            found.await.expect("a read").expect("a key").used(NOW);
        }
        (store, credentials)
    }

    #[tokio::test]
    async fn uses_of_credentials_are_recorded_in_parts_over_the_time_and_again_until_they_are_stored()
     {
        let folder = tempfile::tempdir().expect("a folder");
        let (clock, time) = (Clock::system(), Duration::from_millis(40));
        //   keys, and their parts
        for (keys, parts) in [(0, 0), (1, 1), (600, 3)] {
            let path = folder.path().join(format!("{keys}.db"));
            let (store, credentials) = used(&path, keys).await;
            let commits = || store.gauges().commit_us.count();
            let before = commits();
            let began = clock.elapsed();
            record_uses(&credentials, &*store, time).await;
            assert!(clock.elapsed() >= began + time, "{keys} keys");
            assert_eq!(commits() - before, parts, "{keys} keys");
            assert_eq!(credentials.unstored_uses().len(), 0);
        }
        let (store, credentials) = used(&folder.path().join("stopped.db"), 300).await;
        store.close();
        let began = clock.elapsed();
        record_uses(&credentials, &*store, time).await;
        assert!(clock.elapsed() >= began + time, "not again at once");
        assert_eq!(credentials.unstored_uses().len(), 300);
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_job_that_panics_is_started_again_and_the_others_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = sqlite::Options::new(NOW, RootSecret([7; 32]));
        let store = sqlite::open(&folder.path().join("t.db"), options).expect("a store");
        let (starts, mut started) = tokio::sync::mpsc::unbounded_channel();
        let job = |name: &'static str, panics: u32| -> LeaderJob {
            let (starts, begun) = (starts.clone(), AtomicU32::new(0));
            Box::new(move || {
                starts.send(name).expect("it is received");
                let is_last = begun.fetch_add(1, Relaxed) == panics;
                Box::pin(async move {
                    assert!(is_last, "a row that was not expected");
                    std::future::pending().await
                })
            })
        };
        let leader_jobs = vec![job("mail", 0), job("payments", 2)];
        let running = tokio::spawn(run_leader_jobs(store.clone(), leader_jobs));
        for expected in ["mail", "payments", "payments", "payments"] {
            assert_eq!(started.recv().await, Some(expected));
        }
        let again = tokio::time::timeout(4 * RESTART_PAUSE, started.recv()).await;
        again.expect_err("each of them runs");
        running.abort();
        store.close();
    }
}
