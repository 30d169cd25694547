//! Circuit breakers of a candidate (a model at one provider): one for all accounts, and one for each account with failed requests.
//!
//! Without failures a request costs a load for each check, no lock and no allocation: circuits of accounts exist only from a failure until
//! their expiry.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;
use parking_lot::{Mutex, MutexGuard};

use super::circuit::{Circuit, CircuitSettings, State};
use super::evidence::{Account, Activity, Evidence, Failure};

/// Maximum number of accounts with a separate circuit at one candidate. Beyond the maximum, the circuit with the earliest expiry is
/// evicted.
const ACCOUNTS_MAX: usize = 256;

/// The health of one candidate.
#[derive(Debug, Default)]
pub(super) struct CandidateHealth {
    /// For all accounts.
    all: Circuit,
    activity: Activity,
    /// Expiry of the last entry behind the lock; zero without entries.
    expires_at: AtomicU64,
    failed: Mutex<FailureState>,
}

/// State kept after failures.
#[derive(Debug, Default)]
struct FailureState {
    accounts: HashMap<Account, AccountCircuit>,
    evidence: Evidence,
}

#[derive(Debug, Default)]
struct AccountCircuit {
    circuit: Arc<Circuit>,
    /// Expiry: from then on the failures are too old, and a half-open circuit is dropped.
    expires_at: u64,
}

/// The half-open circuits with this call as a trial request.
#[derive(Debug, Default)]
pub(super) struct Trials {
    all: bool,
    account: Option<Arc<Circuit>>,
}

impl Trials {
    pub(super) fn is_any(&self) -> bool {
        self.all || self.account.is_some()
    }
}

/// Closed circuits opened by a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    None,
    /// The circuit of the account.
    Account,
    /// The circuit for all accounts.
    All,
}

impl CandidateHealth {
    /// Records that an account is active here.
    pub(super) fn note_activity(&self, account: Account, now: u64) {
        self.activity.note(account, now);
    }

    /// The state for all accounts.
    pub(super) fn state(&self, now: u64) -> State {
        self.all.state(now)
    }

    /// Whether the circuits admit a request of this account.
    pub(super) fn admits(&self, account: Account, now: u64, settings: &CircuitSettings) -> bool {
        self.all.admits(now, settings)
            && self
                .circuit_of(account, now)
                .is_none_or(|circuit| circuit.admits(now, settings))
    }

    /// Starts a call if the circuits admit it.
    pub(super) fn start_call(
        &self,
        account: Account,
        now: u64,
        settings: &CircuitSettings,
    ) -> Option<Trials> {
        let mut trials = Trials {
            all: self.all.start_call(settings)?,
            account: None,
        };
        if let Some(circuit) = self.circuit_of(account, now) {
            match circuit.start_call(settings) {
                Some(false) => {}
                Some(true) => trials.account = Some(circuit),
                None => {
                    self.end_trials(&mut trials);
                    return None;
                }
            }
        }
        Some(trials)
    }

    /// Ends the trial requests of a call.
    pub(super) fn end_trials(&self, trials: &mut Trials) {
        if std::mem::take(&mut trials.all) {
            self.all.end_trial();
        }
        if let Some(circuit) = trials.account.take() {
            circuit.end_trial();
        }
    }

    /// Records a successful request: the account's circuit closes, and the circuit for all accounts. `true` if the latter was not closed.
    pub(super) fn record_success(&self, account: Account, now: u64) -> bool {
        if self.expires_at.load(Relaxed) >= now {
            let mut failed = self.lock();
            failed.accounts.remove(&account);
            failed.evidence.clear();
            if failed.accounts.is_empty() {
                self.expires_at.store(0, Relaxed);
            }
        }
        self.all.record_success()
    }

    /// Records a failed call whose failure the request may have caused. `is_corroborated`: a failed probe shows an unhealthy provider as
    /// well.
    pub(super) fn record_failure(
        &self,
        failure: Failure,
        trials: &Trials,
        is_corroborated: bool,
        settings: &CircuitSettings,
    ) -> Opened {
        let now = failure.at;
        let is_corroborated =
            is_corroborated || self.activity.is_alone(failure.account, now, settings);
        let mut failed = self.lock();
        let is_trial = trials.account.is_some();
        let own = self.change(&mut failed, failure.account, now, settings, |circuit| {
            circuit.record_failure(now, is_trial, settings)
        });
        let needed = match self.all.state(now) {
            State::Closed => settings.failures,
            State::HalfOpen if trials.all => 1,
            // As for any circuit: a call started before the opening, or bypassing the circuit, adds no information.
            State::HalfOpen | State::Open(_) => 0,
        };
        let opens = needed > 0
            && failed
                .evidence
                .add(failure, needed, is_corroborated, settings);
        if opens {
            failed.evidence.clear();
        }
        drop(failed);
        if opens && self.all.open(now, settings) {
            Opened::All
        } else if own {
            Opened::Account
        } else {
            Opened::None
        }
    }

    /// Records `Retry-After` with a failure for a request of this account. Returns whether the wait applies to all accounts; otherwise the
    /// account's circuit opens for the wait.
    pub(super) fn record_retry_after(
        &self,
        account: Account,
        now: u64,
        wait: Duration,
        is_corroborated: bool,
        settings: &CircuitSettings,
    ) -> bool {
        if is_corroborated || self.activity.is_alone(account, now, settings) {
            return true;
        }
        let until = now.saturating_add(wait.as_micros() as u64);
        self.change(&mut self.lock(), account, now, settings, |circuit| {
            circuit.keep_open(until);
        });
        false
    }

    /// Changes the valid circuit of an account, created if missing.
    fn change<T>(
        &self,
        failed: &mut FailureState,
        account: Account,
        now: u64,
        settings: &CircuitSettings,
        change: impl FnOnce(&Circuit) -> T,
    ) -> T {
        failed.evict_for(account, now);
        let own = failed.accounts.entry(account).or_default();
        if own.expires_at < now {
            own.circuit = Arc::default();
        }
        let changed = change(&own.circuit);
        let until = match own.circuit.state(now) {
            State::Open(until) => until,
            State::Closed | State::HalfOpen => now,
        };
        own.expires_at = until.saturating_add(settings.window_micros());
        self.expires_at.fetch_max(own.expires_at, Relaxed);
        changed
    }

    /// The number of accounts whose circuit is open.
    pub(super) fn accounts_open(&self, now: u64) -> usize {
        if self.expires_at.load(Relaxed) < now {
            return 0;
        }
        let failed = self.lock();
        let open = |one: &&AccountCircuit| matches!(one.circuit.state(now), State::Open(_));
        failed.accounts.values().filter(open).count()
    }

    /// Ends the cooldown of the circuit for all accounts early.
    pub(super) fn end_cooldown(&self, now: u64) {
        self.all.end_cooldown(now);
    }

    /// The valid circuit of an account, if any.
    fn circuit_of(&self, account: Account, now: u64) -> Option<Arc<Circuit>> {
        if self.expires_at.load(Relaxed) < now {
            return None;
        }
        self.find_circuit(account, now)
    }

    #[cold]
    fn find_circuit(&self, account: Account, now: u64) -> Option<Arc<Circuit>> {
        let failed = self.lock();
        let own = failed.accounts.get(&account)?;
        (own.expires_at >= now).then(|| own.circuit.clone())
    }

    fn lock(&self) -> MutexGuard<'_, FailureState> {
        // The state is never left half written.
        self.failed.lock()
    }
}

impl FailureState {
    /// Removes expired circuits, and if necessary evicts the circuit with the earliest expiry to make space for an account.
    fn evict_for(&mut self, account: Account, now: u64) {
        if self.accounts.len() < ACCOUNTS_MAX || self.accounts.contains_key(&account) {
            return;
        }
        self.accounts.retain(|_, one| one.expires_at >= now);
        if self.accounts.len() >= ACCOUNTS_MAX {
            let shortest = self.accounts.iter().min_by_key(|(_, one)| one.expires_at);
            if let Some(account) = shortest.map(|(account, _)| *account) {
                self.accounts.remove(&account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tollgate_money::AccountId;

    use super::*;

    const SETTINGS: CircuitSettings = CircuitSettings {
        failures: 3,
        window: Duration::from_secs(30),
        cooldown: Duration::from_secs(10),
        trial_requests: 2,
    };
    const SECOND: u64 = 1_000_000;

    fn account(number: u16) -> Account {
        let [high, low] = number.to_be_bytes();
        let mut bytes = [7; 16];
        (bytes[0], bytes[15]) = (high, low);
        Some(AccountId::from_bytes(bytes))
    }

    fn failure(who: u16, body: u64, now: u64) -> Failure {
        Failure {
            account: account(who),
            body,
            at: now,
        }
    }

    /// A failure of a normally admitted call.
    fn fail(health: &CandidateHealth, who: u16, body: u64, now: u64) -> Opened {
        health.note_activity(account(who), now);
        health.record_failure(
            failure(who, body, now),
            &Trials::default(),
            false,
            &SETTINGS,
        )
    }

    #[test]
    fn failures_of_one_account_open_its_own_circuit_alone_while_another_is_active() {
        let health = CandidateHealth::default();
        let now = SECOND;
        health.note_activity(account(2), now);
        let opened: Vec<Opened> = (0..3).map(|body| fail(&health, 1, body, now)).collect();
        assert_eq!(opened, [Opened::None, Opened::None, Opened::Account]);
        assert!(!health.admits(account(1), now, &SETTINGS));
        assert!(health.admits(account(2), now, &SETTINGS));
        assert!(health.admits(None, now, &SETTINGS));
        assert_eq!(health.accounts_open(now), 1);
        // Half-open after the cooldown, and dropped after the window.
        let later = now + 10 * SECOND;
        let mut trials = health
            .start_call(account(1), later, &SETTINGS)
            .expect("a trial");
        assert!(trials.is_any());
        health.end_trials(&mut trials);
        let trials = health.start_call(account(1), later + 31 * SECOND, &SETTINGS);
        assert!(!trials.expect("closed").is_any());
    }

    #[test]
    fn the_only_active_account_opens_the_circuit_for_all() {
        let health = CandidateHealth::default();
        let opened: Vec<Opened> = (0..3).map(|_| fail(&health, 1, 1, SECOND)).collect();
        assert_eq!(opened, [Opened::None, Opened::None, Opened::All]);
        assert!(!health.admits(account(2), SECOND, &SETTINGS));
    }

    #[test]
    fn a_success_closes_the_circuits_of_its_account_and_of_all() {
        let health = CandidateHealth::default();
        health.note_activity(account(9), SECOND);
        for (who, body) in [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)] {
            fail(&health, who, body, SECOND);
        }
        assert_eq!(health.state(SECOND), State::Open(11 * SECOND));
        assert!(health.record_success(account(1), SECOND));
        assert_eq!(health.state(SECOND), State::Closed);
        assert!(health.admits(account(1), SECOND, &SETTINGS));
        assert!(!health.admits(account(2), SECOND, &SETTINGS), "its own");
        assert!(!health.record_success(account(2), SECOND));
        assert!(health.admits(account(2), SECOND, &SETTINGS));
        assert_eq!(health.expires_at.load(Relaxed), 0, "as if never failed");
    }

    #[test]
    fn a_trial_request_opens_the_circuit_again_only_for_the_only_active_account() {
        for alone in [true, false] {
            let health = CandidateHealth::default();
            for body in 0..3 {
                fail(&health, 1, body, SECOND);
            }
            let now = 11 * SECOND;
            if !alone {
                health.note_activity(account(2), now);
            }
            health.note_activity(account(1), now);
            let mut trials = health
                .start_call(account(1), now, &SETTINGS)
                .expect("a trial");
            health.record_failure(failure(1, 9, now), &trials, false, &SETTINGS);
            health.end_trials(&mut trials);
            let expected = match alone {
                true => State::Open(now + 10 * SECOND),
                false => State::HalfOpen,
            };
            assert_eq!(health.state(now), expected);
            if !alone {
                health.note_activity(account(2), now);
                let mut trials = health
                    .start_call(account(2), now, &SETTINGS)
                    .expect("a trial");
                health.record_failure(failure(2, 10, now), &trials, false, &SETTINGS);
                health.end_trials(&mut trials);
                assert_eq!(health.state(now), State::Open(now + 10 * SECOND));
            }
        }
    }

    #[test]
    fn retry_after_applies_to_all_accounts_only_where_one_is_active() {
        let wait = Duration::from_secs(60);
        let health = CandidateHealth::default();
        health.note_activity(account(1), SECOND);
        assert!(health.record_retry_after(account(1), SECOND, wait, false, &SETTINGS));
        assert!(
            health.admits(account(1), SECOND, &SETTINGS),
            "for the caller"
        );
        health.note_activity(account(2), SECOND);
        assert!(health.record_retry_after(account(1), SECOND, wait, true, &SETTINGS));
        assert!(!health.record_retry_after(account(1), SECOND, wait, false, &SETTINGS));
        assert!(!health.admits(account(1), 60 * SECOND, &SETTINGS));
        assert!(health.admits(account(1), 61 * SECOND, &SETTINGS));
        assert!(health.admits(account(2), SECOND, &SETTINGS));
    }

    #[test]
    fn circuits_of_accounts_are_bounded_and_the_first_to_expire_is_evicted() {
        let health = CandidateHealth::default();
        let max = ACCOUNTS_MAX as u16;
        for who in 0..2 * max {
            let now = SECOND + u64::from(who);
            for _ in 0..3 {
                fail(&health, who, 1, now);
            }
        }
        let now = SECOND + u64::from(2 * max);
        assert_eq!(health.lock().accounts.len(), ACCOUNTS_MAX);
        assert_eq!(health.accounts_open(now), ACCOUNTS_MAX);
        assert!(health.circuit_of(account(max - 1), now).is_none());
        assert!(health.circuit_of(account(max), now).is_some());
    }

    proptest! {
        /// In every sequence: the circuit of an account is opened only by the account's own failures. With several active accounts, a
        /// single account does not open the circuit for every account. Trial requests are bounded. After the end of every call, a success
        /// of every account closes every circuit.
        #[test]
        fn no_account_opens_the_circuit_of_another(
            steps in prop::collection::vec((0u8..4, 0u16..4, 0u64..4, 0u64..12), 1..200),
        ) {
            let health = CandidateHealth::default();
            let mut now = SECOND;
            let mut row: BTreeMap<u16, u32> = BTreeMap::new();
            let mut since_success: Vec<u16> = Vec::new();
            let mut under_way: Vec<(u16, Trials)> = Vec::new();
            for (step, who, body, past) in steps {
                now += past * SECOND;
                // Keeps the accounts of the test from being the only active account.
                for one in 4..6 {
                    health.note_activity(account(one), now);
                }
                match step {
                    0 => if let Some(trials) = health.start_call(account(who), now, &SETTINGS) {
                        under_way.push((who, trials));
                    },
                    1 => {
                        health.record_success(account(who), now);
                        row.remove(&who);
                        since_success.clear();
                        prop_assert_eq!(health.state(now), State::Closed);
                        prop_assert!(health.admits(account(who), now, &SETTINGS));
                    }
                    2 => {
                        health.record_failure(failure(who, body, now), &Trials::default(), false, &SETTINGS);
                        *row.entry(who).or_default() += 1;
                        since_success.push(who);
                    }
                    _ => if let Some((who, mut trials)) = under_way.pop() {
                        health.record_failure(failure(who, body, now), &trials, false, &SETTINGS);
                        health.end_trials(&mut trials);
                        *row.entry(who).or_default() += 1;
                        since_success.push(who);
                    },
                }
                for one in 0..4 {
                    if row.get(&one).is_none_or(|failures| *failures < 3) {
                        let own = health.circuit_of(account(one), now);
                        let is_closed = own.is_none_or(|own| own.state(now) == State::Closed);
                        prop_assert!(is_closed, "{} without failures of its own", one);
                    }
                }
                since_success.sort_unstable();
                since_success.dedup();
                if since_success.len() < 2 {
                    prop_assert_eq!(health.state(now), State::Closed, "by {:?}", since_success);
                }
                let trials = under_way.iter().filter(|(_, trials)| trials.all).count();
                prop_assert!(trials <= 2);
            }
            for (_, mut trials) in under_way {
                health.end_trials(&mut trials);
            }
            for one in 0..4 {
                health.record_success(account(one), now);
                prop_assert!(health.admits(account(one), now, &SETTINGS));
            }
            prop_assert_eq!(health.accounts_open(now), 0);
        }
    }
}
