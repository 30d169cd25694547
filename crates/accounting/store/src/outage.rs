//! An outage of the database: how long a node goes on without the database. Times are of CLOCK_BOOTTIME, which includes the time in which
//! the machine is suspended.
//!
//! The lease of a node says when other nodes may recover the node: `grace` after the end of the lease. The node knows this moment from
//! the send time of the last successful renewal: the database has counted from a later time. Until `margin` before this moment, an answer
//! may end with its charge in the spool. After this moment, another node may have released the node's holds, and the credit may be spent
//! elsewhere.

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
    /// For how long new operations are admitted after the last renewal was sent, and after the commit under way began.
    pub admits_for: Duration,
    /// Duration of a commit after which the waiting charges are written to the spool.
    pub spool_after: Duration,
    /// How long after the end of its lease other nodes may recover a node. The node waits for the database for this time.
    pub grace: Duration,
    /// How long before the recovery moment the last answer with a charge in the spool ends.
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
    /// Whether an answer with its charge in the spool alone may end at `now`: for [`OutageTimes::margin`] from now no other node recovers
    /// this node. `renewed` is the send time of the last successful renewal.
    pub fn may_end_answers(&self, now: Duration, renewed: Duration) -> bool {
        now + self.margin <= renewed + self.lease + self.grace
    }

    /// Whether new operations are refused at `now`. `commit` is the begin time of the commit under way.
    pub fn is_cut_off(&self, now: Duration, renewed: Duration, commit: Option<Duration>) -> bool {
        let is_late = |since: Duration| now > since + self.admits_for;
        is_late(renewed) || commit.is_some_and(is_late)
    }

    fn is_stalled(&self, now: Duration, commit: Option<Duration>) -> bool {
        commit.is_some_and(|commit| now > commit + self.spool_after)
    }
}

/// The database's last answers, as known to this node.
#[derive(Debug)]
pub struct Outage {
    pub(crate) times: OutageTimes,
    pub(crate) clock: Clock,
    /// When the last successful renewal was sent, in microseconds since the boot.
    renewed_us: AtomicU64,
    /// When the commit under way began, in microseconds since the boot; 0 without a commit.
    commit_began_us: AtomicU64,
    /// The id of the last journal row that is known to be durable.
    last_row: AtomicI64,
    /// Until when this node is the leader of the cluster, in microseconds since the boot; 0 if another node leads.
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

    /// Returns when this node is cut off from the database: requests without a promise to a client are then refused.
    pub async fn began(&self) {
        // `self` has the sender, so the channel is open.
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

    /// The time on the clock that counts renewals of the lease.
    pub fn now(&self) -> Duration {
        self.clock.since_boot()
    }

    /// Whether the database has renewed the lease since `then`: the database answers and writes.
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

    /// Whether this node is the leader of the cluster. Reads the clock: a process that was paused past the end of the leader's lease is
    /// no longer the leader when the process resumes.
    pub(crate) fn is_leader(&self) -> bool {
        micros(self.clock.since_boot()) < self.leader_until_us.load(Relaxed)
    }

    /// Sets the time until which this node is the leader; zero when another node is the leader.
    pub(crate) fn set_leader(&self, until: Duration) {
        self.leader_until_us.store(micros(until), Relaxed);
    }

    /// Reads the clock. If the node's cut-off state has changed, calls `changed` with the new state, and then wakes the waiters of
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

    /// Whether the commit under way takes too long for the waiting answers.
    pub(crate) fn is_stalled(&self) -> bool {
        self.times
            .is_stalled(self.clock.since_boot(), self.commit())
    }

    /// Whether the lease is unrenewed for so long that new operations are refused. Reads the clock.
    pub(crate) fn is_unrenewed(&self) -> bool {
        let now = self.clock.since_boot();
        self.times.is_cut_off(now, self.renewal(), None)
    }

    /// Whether an answer with its charge in the spool may end now.
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
        // Renewed at 100: other nodes may recover the node at 100 + 10 + 900.
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
        // No call has read the lease meanwhile.
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
