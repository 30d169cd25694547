//! Health conditions of the gateway's dependencies at run time: the database lock, the commit queue, certificates.
//!
//! `/ready` shows the conditions. The log has a line when a condition begins and a line when the condition ends. Every condition has a
//! metric for alerts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_clock::Clock;
use tollgate_module::Snapshot;
use tollgate_store::{OtherSettings, Outage, Store};

use crate::acme::AcmeStatus;
use crate::admin::Ready;
use crate::config::Certificate;

/// A commit that takes longer causes a warning. A commit normally takes milliseconds, and every response waits for a commit.
const COMMIT_MAX: Duration = Duration::from_secs(2);

/// A node that has read no change of other nodes for this time admits no credential.
const FEED_AGE_MAX: Duration = Duration::from_secs(2);

/// For how long a refusal by the full commit queue is shown.
const REFUSALS_SHOWN: Duration = Duration::from_secs(60);

/// The checks, and the values that the checks compare.
pub(super) struct Conditions {
    store: Arc<dyn Store>,
    clock: Clock,
    certificates: Snapshot<Vec<Certificate>>,
    acme: AcmeStatus,
    refusals: Mutex<Refusals>,
    /// Whether the file watch has found settings files that differ from the settings in force and are not in force yet.
    is_reload_due: AtomicBool,
    /// The conditions already logged.
    logged: Mutex<BTreeSet<String>>,
}

/// The last refusals of the commit queue.
#[derive(Default)]
struct Refusals {
    count: u64,
    /// When this count was first seen, on the monotonic clock.
    seen_at: Option<Duration>,
}

impl Conditions {
    pub(super) fn new(
        certificates: Snapshot<Vec<Certificate>>,
        acme: AcmeStatus,
        store: Arc<dyn Store>,
        clock: Clock,
    ) -> Conditions {
        Conditions {
            certificates,
            acme,
            store,
            clock,
            refusals: Mutex::default(),
            is_reload_due: AtomicBool::new(false),
            logged: Mutex::default(),
        }
    }

    /// Sets whether the settings in force equal the watched files.
    pub(super) fn settings_in_force(&self, are: bool) {
        self.is_reload_due.store(!are, Relaxed);
    }

    /// The conditions that hold now. The text of a condition does not change while the condition holds.
    pub(super) fn check(&self) -> Ready {
        let mut found = Ready::default();
        self.check_store(&mut found);
        let now = self.clock.now();
        let certificates = self.certificates.load();
        let expiries = certificates.iter();
        found
            .warnings
            .extend(expiries.filter_map(|one| one.expiry_warning(now)));
        found.warnings.extend(self.acme.warnings());
        if self.is_reload_due.load(Relaxed) {
            found.warnings.push(
                "the files of the settings differ from those in force, and are not reloaded: the log has the cause".into(),
            );
        }
        found
    }

    fn check_store(&self, found: &mut Ready) {
        let gauges = self.store.gauges();
        let elapsed = self.clock.elapsed();
        let began = gauges.commit_began_us.load(Relaxed);
        if gauges.is_locked.load(Relaxed) {
            found.reasons.push(
                "the database is locked by another program, and nothing can be committed: close the program that has it open".into(),
            );
        } else if began > 0 && elapsed.saturating_sub(Duration::from_micros(began)) > COMMIT_MAX {
            found.warnings.push(
                "a commit takes longer than two seconds: the disk is slow, another program has locked the database, or its server does not answer".into(),
            );
        }
        if let Some(damage) = gauges.damage.get() {
            found.warnings.push(format!(
                "the database is damaged, {damage}: run `tollgate audit`, and restore a backup or repair it"
            ));
        }
        let feed_read = Duration::from_micros(gauges.feed_read_us.load(Relaxed));
        if self.store.has_allotments() && elapsed.saturating_sub(feed_read) > FEED_AGE_MAX {
            found.reasons.push(
                "the changes of other nodes cannot be read from the database, and requests with credentials get 503".into(),
            );
        }
        if self.store.outage().is_some_and(Outage::is_cut_off) {
            found.reasons.push(
                "the database does not answer: new requests get 503, and answers under way wait for it, or end with their charges in `store.spool`".into(),
            );
        }
        if gauges.spool_units.load(Relaxed) > 0 {
            found.warnings.push(
                "charges are in the spool and not yet in the database: keep its folder".into(),
            );
        }
        if gauges.is_spool_failing.load(Relaxed) {
            found.warnings.push(
                "the spool cannot be written: answers wait for the database; free space on its disk, or raise `store.spool_bytes_max`".into(),
            );
        }
        let (newer, older): (Vec<_>, Vec<_>) = self
            .store
            .other_settings()
            .into_iter()
            .partition(|other| other.are_newer);
        if !newer.is_empty() {
            found.warnings.push(format!(
                "the settings differ from the newer ones of {}, and what a request costs or may do depends on its node: run `tollgate reload` at this one",
                names(&newer)
            ));
        }
        if !older.is_empty() {
            found.warnings.push(format!(
                "the settings differ from the older ones of {}, and what a request costs or may do depends on its node: run `tollgate reload` there",
                names(&older)
            ));
        }
        if gauges.is_disk_low.load(Relaxed) {
            found.reasons.push(
                "the disk of the database is nearly full (`store.free_bytes_min`), and new requests get 503: free space on it".into(),
            );
        }
        if gauges.queue_depth.load(Relaxed) >= gauges.queue_admits.load(Relaxed) {
            found.reasons.push(
                "the commit queue is full: new requests get 503 until the database has caught up"
                    .into(),
            );
        } else if self.has_refused(gauges.overloads.load(Relaxed), elapsed) {
            found.warnings.push(
                "the commit queue was full within the last minute, and requests got 503: the database is too slow for them".into(),
            );
        }
    }

    /// Whether the commit queue has refused a unit within the last minute.
    fn has_refused(&self, count: u64, elapsed: Duration) -> bool {
        let mut refusals = self.refusals.lock();
        if refusals.count != count {
            *refusals = Refusals {
                count,
                seen_at: Some(elapsed),
            };
        }
        let seen_at = refusals.seen_at;
        seen_at.is_some_and(|seen_at| elapsed.saturating_sub(seen_at) < REFUSALS_SHOWN)
    }

    /// Logs a line for each condition that has begun or ended since the last call. The caller calls periodically.
    pub(super) fn log_changes(&self) {
        let Ready { reasons, warnings } = self.check();
        let found: BTreeSet<String> = reasons.into_iter().chain(warnings).collect();
        let mut logged = self.logged.lock();
        for cause in found.difference(&logged) {
            tracing::warn!(cause, "health condition began");
        }
        for cause in logged.difference(&found) {
            tracing::info!(cause, "health condition ended");
        }
        *logged = found;
    }
}

/// The names of nodes, as in ``nodes `a`, `b` ``.
fn names(nodes: &[OtherSettings]) -> String {
    let names: Vec<_> = nodes.iter().map(|one| format!("`{}`", one.node)).collect();
    let nodes = if names.len() == 1 { "node" } else { "nodes" };
    format!("{nodes} {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tollgate_clock::{ManualClock, Timestamp};
    use tollgate_store::{Admission, RootSecret, SubmitError, UnitOfWork, sqlite};

    use super::*;
    use crate::config::Environment;

    const START: Timestamp = Timestamp::from_secs(1_700_000_000);

    /// Conditions over a real store with a small queue.
    struct Fixture {
        conditions: Conditions,
        hand: ManualClock,
        _folder: tempfile::TempDir,
    }

    impl Fixture {
        fn new(certificates: Vec<Certificate>) -> Fixture {
            let folder = tempfile::tempdir().expect("a folder");
            let mut options = sqlite::Options::new(START, RootSecret([7; 32]));
            options.queue_max = 8;
            let store = sqlite::open(&folder.path().join("t.db"), options).expect("a store");
            let (clock, hand) = Clock::manual(START);
            let conditions = Conditions {
                store,
                clock,
                certificates: Snapshot::from(certificates),
                acme: AcmeStatus::default(),
                refusals: Mutex::default(),
                is_reload_due: AtomicBool::new(false),
                logged: Mutex::default(),
            };
            Fixture {
                conditions,
                hand,
                _folder: folder,
            }
        }
    }

    #[test]
    fn a_full_commit_queue_is_shown_while_it_is_full_and_for_a_minute_after() {
        let fixture = Fixture::new(Vec::new());
        let (conditions, store) = (&fixture.conditions, &fixture.conditions.store);
        assert_eq!(conditions.check(), Ready::default());
        // The callback of a unit blocks the writer's thread.
        let (resume, blocked) = mpsc::channel::<()>();
        let (arrived, arrival) = mpsc::channel();
        let unit = || UnitOfWork::of_all([], Admission::Normal);
        let wait = Box::new(move |_| {
            arrived.send(()).expect("the test waits");
            // An error is the drop of the sender.
            let _ = blocked.recv();
        });
        store.submit(unit(), wait).expect("the queue is empty");
        arrival.recv().expect("the writer is blocked");
        for _ in 0..6 {
            store
                .submit(unit(), Box::new(|_| {}))
                .expect("there is room");
        }
        let full = conditions.check();
        assert!(
            full.reasons[0].contains("the commit queue is full"),
            "{full:?}"
        );
        let refused = store.submit(unit(), Box::new(|_| {}));
        assert!(matches!(refused, Err(SubmitError::Overloaded { .. })));
        let (done, end) = mpsc::channel();
        let last = Box::new(move |_| done.send(()).expect("the test waits"));
        let always = UnitOfWork::of_all([], Admission::Always);
        store.submit(always, last).expect("it is never refused");
        drop(resume);
        end.recv().expect("the queue is written");
        let after = conditions.check();
        assert!(after.reasons.is_empty(), "{after:?}");
        assert!(
            after.warnings[0].contains("was full within the last minute"),
            "{after:?}"
        );
        fixture.hand.advance(REFUSALS_SHOWN);
        assert_eq!(conditions.check(), Ready::default());
    }

    #[test]
    fn a_certificate_is_a_warning_from_two_weeks_before_its_end() {
        let settings = "[[listener]]\naddress = \"127.0.0.1:0\"\ntls = [{ certificate = \"a.pem\", key = \"key.pem\" }]";
        let folder = tempfile::tempdir().expect("a folder");
        // Two weeks and a day after the start.
        let made = tollgate_testing::Certificate::until(&["localhost"], (2023, 11, 29));
        for (name, text) in [("a.pem", made.cert_pem), ("key.pem", made.key_pem)] {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        let file = folder.path().join("t.toml");
        let modules = crate::registry::declarations(&crate::registry::modules());
        let settings = crate::config::load_text(&file, settings, &Environment::default(), &modules);
        let settings = settings.expect("good settings");
        let fixture = Fixture::new(settings.certificates().cloned().collect());
        for (days, text) in [
            (0, None),
            (1, Some("expires at 2023-11-29")),
            (13, Some("expires at 2023-11-29")),
            (1, Some("has expired at 2023-11-29")),
        ] {
            fixture.hand.advance(Duration::from_secs(days * 24 * 3600));
            let Ready { reasons, warnings } = fixture.conditions.check();
            assert!(reasons.is_empty(), "{reasons:?}");
            match text {
                None => assert!(warnings.is_empty(), "{warnings:?}"),
                Some(text) => assert!(warnings[0].contains(text), "{warnings:?}"),
            }
        }
    }
}
