//! An outage of the database: how long a node goes on without it, by CLOCK_BOOTTIME, which counts the time in which the machine is suspended.
//!
//! The lease of a node says when others may recover it: `grace` after its end. The node knows that moment from the time at which it sent the
//! last renewal that succeeded: the database has counted from a later one. Until shortly before it an answer may end with its charge in the
//! spool; after it the node's holds may have been released, and its credit spent elsewhere.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tollgate_clock::Clock;

/// The times of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutageTimes {
    /// The length of a lease.
    pub lease: Duration,
    /// For how long after the last renewal was sent, and after a commit began, new operations are admitted.
    pub admits_for: Duration,
    /// How long a commit takes before charges that wait for it are written to the spool.
    pub spool_after: Duration,
    /// How long after the end of its lease a node may be recovered by others, and how long the database is waited for.
    pub grace: Duration,
    /// How long before that moment the last answer ends whose charge is in the spool.
    pub margin: Duration,
}

impl Default for OutageTimes {
    fn default() -> OutageTimes {
        OutageTimes {
            lease: Duration::from_secs(10),
            admits_for: Duration::from_secs(7),
            spool_after: Duration::from_secs(1),
            grace: Duration::from_secs(60),
            margin: Duration::from_secs(30),
        }
    }
}

impl OutageTimes {
    /// Whether an answer may end at `now` whose charge is in the spool alone: for [`OutageTimes::margin`] from now no other node recovers this
    /// one. `renewed` is when the last renewal that succeeded was sent.
    pub fn may_end_answers(&self, now: Duration, renewed: Duration) -> bool {
        now + self.margin <= renewed + self.lease + self.grace
    }

    /// Whether new operations are refused at `now`. `commit` is when the commit under way began.
    pub fn is_cut_off(&self, now: Duration, renewed: Duration, commit: Option<Duration>) -> bool {
        let is_late = |since: Duration| now > since + self.admits_for;
        is_late(renewed) || commit.is_some_and(is_late)
    }

    fn is_stalled(&self, now: Duration, commit: Option<Duration>) -> bool {
        commit.is_some_and(|commit| now > commit + self.spool_after)
    }
}

/// What is known of the database's answers.
#[derive(Debug)]
pub struct Outage {
    pub(crate) times: OutageTimes,
    pub(crate) clock: Clock,
    /// When the last renewal that succeeded was sent, in microseconds since the boot.
    renewed_us: AtomicU64,
    /// When the commit under way began, likewise; 0 without one.
    commit_began_us: AtomicU64,
    /// The id of the last journal row that is known to be durable.
    last_row: AtomicI64,
    /// Until when this node is the leader of the cluster, likewise; 0 without them.
    leader_until_us: AtomicU64,
    is_cut_off: watch::Sender<bool>,
    refreshing: Mutex<()>,
}

impl Outage {
    pub(crate) fn new(times: OutageTimes, clock: Clock, renewed: Duration) -> Outage {
        Outage {
            times,
            clock,
            renewed_us: AtomicU64::new(micros(renewed)),
            commit_began_us: AtomicU64::new(0),
            last_row: AtomicI64::new(0),
            leader_until_us: AtomicU64::new(0),
            is_cut_off: watch::Sender::new(false),
            refreshing: Mutex::default(),
        }
    }

    /// Returns when this node is cut off from the database: what has been promised to no client yet is refused.
    pub async fn began(&self) {
        // The sender is here, so it is not gone.
        let _ = self.is_cut_off.subscribe().wait_for(|is| *is).await;
    }

    /// Whether new operations are refused.
    pub fn is_cut_off(&self) -> bool {
        *self.is_cut_off.borrow()
    }

    /// A renewal of the lease that was sent at `sent` has succeeded.
    pub(crate) fn renewed(&self, sent: Duration) {
        self.renewed_us.store(micros(sent), Relaxed);
    }

    /// The time by which renewals of the lease are counted.
    pub fn now(&self) -> Duration {
        self.clock.since_boot()
    }

    /// Whether the database has renewed the lease since then: it answers, and it writes.
    pub fn has_renewed_since(&self, then: Duration) -> bool {
        self.renewal() >= then
    }

    pub(crate) fn commit_began(&self) {
        let now = micros(self.clock.since_boot());
        self.commit_began_us.store(now.max(1), Relaxed);
    }

    pub(crate) fn commit_ended(&self) {
        self.commit_began_us.store(0, Relaxed);
    }

    pub(crate) fn row_is_durable(&self, id: i64) {
        self.last_row.store(id, Relaxed);
    }

    pub(crate) fn last_row(&self) -> i64 {
        self.last_row.load(Relaxed)
    }

    /// Whether this node is the leader of the cluster. Reads the clock: a process that was paused past the end of their lease no longer
    /// has them when it resumes.
    pub(crate) fn is_leader(&self) -> bool {
        micros(self.clock.since_boot()) < self.leader_until_us.load(Relaxed)
    }

    /// Until when this node is the leader; zero when another one has them.
    pub(crate) fn set_leader(&self, until: Duration) {
        self.leader_until_us.store(micros(until), Relaxed);
    }

    /// Reads the clock. If the node is cut off now and was not, or the reverse, calls `changed` with that, and then wakes what waits in
    /// [`Outage::began`].
    pub(crate) fn refresh(&self, changed: impl FnOnce(bool)) {
        let _refreshing = self.refreshing.lock();
        let now = self.clock.since_boot();
        let is = self.times.is_cut_off(now, self.renewal(), self.commit());
        if is != self.is_cut_off() {
            changed(is);
            self.is_cut_off.send_replace(is);
        }
    }

    /// Whether the commit under way takes too long for the answers that wait for it.
    pub(crate) fn is_stalled(&self) -> bool {
        self.times
            .is_stalled(self.clock.since_boot(), self.commit())
    }

    /// Whether the lease was not renewed for so long that new operations are refused. Looks at the clock.
    pub(crate) fn is_unrenewed(&self) -> bool {
        let now = self.clock.since_boot();
        self.times.is_cut_off(now, self.renewal(), None)
    }

    /// Whether an answer may end now whose charge is in the spool.
    pub(crate) fn may_end_answers(&self) -> bool {
        self.times
            .may_end_answers(self.clock.since_boot(), self.renewal())
    }

    fn renewal(&self) -> Duration {
        Duration::from_micros(self.renewed_us.load(Relaxed))
    }

    fn commit(&self) -> Option<Duration> {
        let began = self.commit_began_us.load(Relaxed);
        (began > 0).then(|| Duration::from_micros(began))
    }
}

fn micros(time: Duration) -> u64 {
    time.as_micros() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn answers_end_until_the_margin_before_others_may_recover_the_node() {
        let times = OutageTimes {
            grace: secs(900),
            ..OutageTimes::default()
        };
        // Renewed at 100: others may recover it at 100 + 10 + 900.
        for (now, may) in [(100, true), (980, true), (981, false), (2_000, false)] {
            assert_eq!(times.may_end_answers(secs(now), secs(100)), may, "at {now}");
        }
    }

    #[test]
    fn operations_are_admitted_for_seven_seconds_after_a_renewal_and_a_commit_began() {
        let times = OutageTimes::default();
        //   now, renewed, commit, cut off
        for (now, renewed, commit, is_cut_off) in [
            (107, 100, None, false),
            (108, 100, None, true),
            (107, 106, Some(100), false),
            (108, 106, Some(100), true),
            (108, 106, Some(107), false),
        ] {
            let is = times.is_cut_off(secs(now), secs(renewed), commit.map(secs));
            assert_eq!(is, is_cut_off, "{now} {renewed} {commit:?}");
        }
    }

    #[test]
    fn a_node_that_was_paused_past_the_lease_as_the_leader_is_not_the_leader() {
        let (clock, hand) = Clock::manual(tollgate_clock::Timestamp::from_secs(1));
        let outage = Outage::new(OutageTimes::default(), clock.clone(), clock.since_boot());
        assert!(!outage.is_leader(), "before it has taken them");
        outage.set_leader(clock.since_boot() + secs(7));
        hand.advance(secs(6));
        assert!(outage.is_leader());
        // Nothing has looked at the lease meanwhile.
        hand.advance(secs(1));
        assert!(!outage.is_leader());
        outage.set_leader(clock.since_boot() + secs(7));
        assert!(outage.is_leader(), "it has renewed their lease");
        outage.set_leader(Duration::ZERO);
        assert!(!outage.is_leader(), "another node has taken them");
    }

    #[test]
    fn a_suspended_machine_is_cut_off_when_it_continues() {
        let (clock, hand) = Clock::manual(tollgate_clock::Timestamp::from_secs(1));
        let outage = Outage::new(OutageTimes::default(), clock.clone(), clock.since_boot());
        let look = || {
            let mut changed = None;
            outage.refresh(|is_cut_off| {
                assert_ne!(
                    is_cut_off,
                    outage.is_cut_off(),
                    "it is announced after that"
                );
                changed = Some(is_cut_off);
            });
            (changed, outage.is_cut_off(), outage.may_end_answers())
        };
        assert_eq!(look(), (None, false, true));
        hand.advance(secs(3_600));
        assert_eq!(look(), (Some(true), true, false));
        outage.renewed(clock.since_boot());
        assert_eq!(look(), (Some(false), false, true));
    }
}
