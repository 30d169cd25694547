//! Failure evidence: which failures caused by requests open a circuit for all accounts, and which accounts are active.
//!
//! A client can make a provider fail at no cost. So failures open a circuit for all accounts only with evidence beyond a single client:
//! distinct accounts with distinct bodies, or a failed probe, or a single active account.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use Ordering::Relaxed;
use tollgate_filter::Principal;
use tollgate_money::AccountId;

use super::circuit::CircuitSettings;

/// The account of a request. Requests without an account count as one account.
pub(in crate::upstream) type Account = Option<AccountId>;

/// The account of an exchange.
pub(in crate::upstream) fn account_of(exchange: &tollgate_filter::Exchange) -> Account {
    exchange
        .get::<Principal>()
        .map(|principal| principal.account)
}

/// A failed call whose failure the request may have caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) account: Account,
    /// A digest of the body.
    pub(super) body: u64,
    pub(super) at: u64,
}

impl Failure {
    pub(super) fn new(account: Account, body: &[u8], at: u64) -> Failure {
        // Collisions constructed by a client only make the circuit harder to open.
        let mut digest = DefaultHasher::new();
        body.hash(&mut digest);
        Failure {
            account,
            body: digest.finish(),
            at,
        }
    }
}

/// The consecutive failures of one candidate: no request of any account succeeded since.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Their number, and when the first occurred.
    consecutive: u32,
    since: u64,
    /// The failures with distinct bodies; fewer of each account than open the circuit.
    distinct: Vec<Failure>,
}

impl Evidence {
    /// Adds a failure. Returns whether the circuit opens for all accounts. With corroboration (`is_corroborated`): after `needed`
    /// consecutive failures. Otherwise: after as many, and at least two, with distinct bodies, from two accounts or more.
    pub(super) fn add(
        &mut self,
        failure: Failure,
        needed: u32,
        is_corroborated: bool,
        settings: &CircuitSettings,
    ) -> bool {
        let window = settings.window_micros();
        if self.consecutive == 0 || failure.at.saturating_sub(self.since) > window {
            self.since = failure.at;
            self.consecutive = 0;
        }
        self.consecutive = self.consecutive.saturating_add(1);
        if is_corroborated && self.consecutive >= needed {
            return true;
        }
        let needed = needed.max(2) as usize;
        self.distinct
            .retain(|one| failure.at.saturating_sub(one.at) <= window);
        let is_known = self.distinct.iter().any(|one| one.body == failure.body);
        let of_account = |one: &&Failure| one.account == failure.account;
        let own = self.distinct.iter().filter(of_account).count();
        // Together with the bound on each account: one account never fills the list.
        if !is_known && own + 1 < needed {
            self.distinct.push(failure);
        }
        let is_mixed = self
            .distinct
            .iter()
            .any(|one| one.account != failure.account);
        is_mixed && self.distinct.len() >= needed
    }

    pub(super) fn clear(&mut self) {
        self.consecutive = 0;
        self.distinct.clear();
    }
}

/// The active accounts of one candidate, as far as needed to decide whether more than one account is active. An account is active from the
/// start of a call until a window has passed after the start, or after the end of the answer.
///
/// Written with every request, so the struct has a separate cache line: the neighbouring fields are mostly read.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Activity {
    /// The account seen last, and when.
    latest: AtomicU64,
    latest_at: AtomicU64,
    /// Last time of any other account; zero for never.
    other_at: AtomicU64,
}

impl Activity {
    /// Records a request.
    pub(super) fn note(&self, account: Account, now: u64) {
        let tag = tag(account);
        if self.latest.load(Relaxed) == tag {
            self.latest_at.store(now, Relaxed);
        } else if self.latest.swap(tag, Relaxed) != 0 {
            // Swapped, not read and written: of two concurrent workers, one reads the other's time.
            let before = self.latest_at.swap(now, Relaxed);
            self.other_at.fetch_max(before, Relaxed);
        } else {
            self.latest_at.store(now, Relaxed);
        }
    }

    /// Whether no other account was active within the window.
    pub(super) fn is_alone(&self, account: Account, now: u64, settings: &CircuitSettings) -> bool {
        let other_at = match self.latest.load(Relaxed) == tag(account) {
            true => self.other_at.load(Relaxed),
            false => self.latest_at.load(Relaxed),
        };
        other_at == 0 || now.saturating_sub(other_at) > settings.window_micros()
    }
}

/// A hash of an account; never zero. Of two accounts with equal hashes, which is very unlikely, one would be overlooked.
fn tag(account: Account) -> u64 {
    let Some(account) = account else { return 1 };
    let [high, low] = [0, 8].map(|at| {
        let mut half = [0; 8];
        half.copy_from_slice(&account.as_bytes()[at..at + 8]);
        u64::from_le_bytes(half)
    });
    // The halves of an id must not cancel out.
    (high.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ low).max(2)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;

    fn settings(failures: u32) -> CircuitSettings {
        CircuitSettings {
            failures,
            window: Duration::from_secs(30),
            cooldown: Duration::from_secs(10),
            trial_requests: 4,
        }
    }

    fn account(number: u8) -> Account {
        (number > 0).then(|| AccountId::from_bytes([number; 16]))
    }

    #[test]
    fn failures_of_two_accounts_with_distinct_bodies_count_for_all_accounts() {
        //     account, body, second                                  needed, opens
        check(&[(1, 1, 1), (1, 2, 2), (1, 3, 3), (1, 4, 4)], 3, false);
        check(&[(1, 1, 1), (2, 2, 2), (3, 3, 3)], 3, true);
        check(&[(1, 1, 1), (1, 2, 2), (2, 3, 3)], 3, true);
        check(&[(1, 1, 1), (1, 2, 2), (1, 3, 3), (2, 1, 4)], 3, false);
        check(&[(1, 1, 1), (2, 1, 2), (3, 1, 3)], 3, false);
        check(&[(1, 1, 1), (2, 2, 2), (3, 3, 40)], 3, false);
        check(&[(1, 1, 1)], 1, false);
        check(&[(1, 1, 1), (2, 2, 2)], 1, true);
        // Requests without an account count as a single account.
        check(&[(0, 1, 1), (0, 2, 2), (0, 3, 3)], 3, false);
        check(&[(0, 1, 1), (0, 2, 2), (1, 3, 3)], 3, true);

        fn check(failures: &[(u8, u8, u64)], needed: u32, opens: bool) {
            let mut evidence = Evidence::default();
            let settings = settings(needed);
            let opened = failures.iter().map(|&(who, body, second)| {
                let failure = Failure::new(account(who), &[body], second * SECOND);
                evidence.add(failure, needed, false, &settings)
            });
            let opened: Vec<bool> = opened.collect();
            assert_eq!(opened.last(), Some(&opens), "{failures:?}");
        }
    }

    #[test]
    fn corroborated_failures_need_not_be_distinct() {
        let mut evidence = Evidence::default();
        let settings = settings(3);
        let failure = Failure::new(account(1), b"same", SECOND);
        assert!(!evidence.add(failure, 3, true, &settings));
        assert!(!evidence.add(failure, 3, true, &settings));
        assert!(evidence.add(failure, 3, true, &settings));
        evidence.clear();
        assert!(
            !evidence.add(failure, 3, true, &settings),
            "the count starts again"
        );
    }

    #[test]
    fn an_account_is_alone_when_no_other_was_active_within_the_window() {
        let activity = Activity::default();
        let settings = settings(3);
        let alone = |number, second| activity.is_alone(account(number), second * SECOND, &settings);
        activity.note(account(1), SECOND);
        assert!(alone(1, 1));
        assert!(!alone(2, 1), "the first is active");
        activity.note(account(2), 2 * SECOND);
        activity.note(account(1), 3 * SECOND);
        assert!(!alone(1, 3));
        assert!(!alone(1, 32));
        assert!(alone(1, 33), "the other was active 31 seconds ago");
        activity.note(None, 34 * SECOND);
        assert!(!alone(1, 34));
    }

    proptest! {
        /// The result matches a model with a list of every request, with two accounts or with many accounts.
        #[test]
        fn activity_agrees_with_a_list_of_all_requests(requests in prop::collection::vec((0u8..4, 0u64..20), 1..100), other in 0u8..4) {
            let activity = Activity::default();
            let settings = settings(3);
            let (mut now, mut seen) = (SECOND, Vec::new());
            for (who, past) in requests {
                now += past * SECOND;
                activity.note(account(who), now);
                seen.push((who, now));
                // The account has just been recorded: a call fails after it has started.
                for one in [who, other] {
                    if !seen.iter().any(|(who, _)| *who == one) {
                        continue;
                    }
                    let others = seen.iter().any(|(who, at)| *who != one && now - at <= 30 * SECOND);
                    let alone = activity.is_alone(account(one), now, &settings);
                    prop_assert_eq!(alone, !others, "{} of {:?} at {}", one, seen, now);
                }
            }
        }

        /// No sequence of failures of one account opens the circuit for every account, not even with distinct bodies. Failures with a
        /// single body do not open the circuit either. The state is bounded.
        #[test]
        fn one_account_or_one_body_does_not_open_the_circuit_for_all(
            failures in prop::collection::vec((0u8..4, 0u8..4, 0u64..20), 1..100),
            needed in 1u32..6,
        ) {
            let mut evidence = Evidence::default();
            let settings = settings(needed);
            let (mut now, mut row) = (SECOND, Vec::new());
            for (who, body, past) in failures {
                now += past * SECOND;
                row.push((who, body, now));
                let opens = evidence.add(Failure::new(account(who), &[body], now), needed, false, &settings);
                let recent: Vec<_> = row.iter().filter(|(_, _, at)| now - at <= 30 * SECOND).collect();
                let accounts: BTreeSet<u8> = recent.iter().map(|one| one.0).collect();
                let bodies: BTreeSet<u8> = recent.iter().map(|one| one.1).collect();
                if opens {
                    prop_assert!(accounts.len() >= 2);
                    prop_assert!(bodies.len() >= needed.max(2) as usize);
                    evidence.clear();
                    row.clear();
                }
                prop_assert!(evidence.distinct.len() <= needed.max(2) as usize);
            }
        }
    }
}
