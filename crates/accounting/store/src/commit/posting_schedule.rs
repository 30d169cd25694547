//! When the unposted records of the journal are posted.
//!
//! A posting costs at least a row per account, and delays commits in proportion to its rows. So postings are as few as justify their
//! rows, and each is as small as possible.

use std::collections::HashSet;
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher};

/// Number of accounts in the tail from which on a posting is due. Each account costs about three rows, and commits wait meanwhile. With
/// more active accounts, a request costs about as many rows again.
const ACCOUNTS_MAX: usize = 16_384;

/// Average number of records per account that justifies the account's postings row.
const RECORDS_EACH: usize = 64;

/// Below this fraction of the maximum posted at once, records are left to accumulate, for any number of accounts.
const WORTH_POSTING: usize = 16;

/// Justified postings are made after this long at the latest.
const POSTED_AFTER_US: u64 = 10_000_000;

/// Number of accounts from which on a posting may be due without a wait for more records per account. Requires that most of the accounts
/// would get no further record within a wait. A later posting would cost as much, and commits would wait for all accounts at once.
const SPARSE_ACCOUNTS: usize = 64;

/// The share of recently posted accounts, in percent, from which on a wait is worthwhile. At this share, chance gives each account two
/// records within [`POSTED_AFTER_US`].
const RECURRING_PERCENT: usize = 80;

/// Number of accounts from which on a posting is made without a wait, though a wait would gather more records per account. Commits wait
/// for all accounts of a posting: 20 to 30 ms at this number. Ten seconds gather 10,000 accounts, and commits then waited 0.25 s.
const RECURRING_MAX: usize = 1_024;

/// The average number of records per account from which on a wait is always worthwhile: a request has one or two records.
const SPARSE_RECORDS: usize = 4;

/// The pause before a posting without a wait, as a multiple of the last posting's duration. Costly postings have more accounts, or are
/// less frequent.
const SPARSE_PAUSE: u64 = 20;

type Accounts = HashSet<AccountId, BuildHasherDefault<IdHasher>>;

pub(super) struct PostingSchedule {
    /// Number of records from which on a posting is due, for any number of accounts.
    pub(super) records_max: usize,
    /// The accounts of the records.
    accounts: Accounts,
    /// Number of accounts that are among [`recent`](Self::recent).
    recurring: usize,
    /// Accounts posted within the last [`POSTED_AFTER_US`], and accounts posted in the period before.
    recent: [Accounts; 2],
    /// When the first of both periods began.
    recent_began_us: u64,
    /// Time of the last posting, by the caller's monotonic clock.
    posted_us: u64,
    /// Duration of the last posting.
    took_us: u64,
}

impl PostingSchedule {
    pub(super) fn new(records_max: usize) -> PostingSchedule {
        PostingSchedule {
            records_max,
            accounts: Accounts::default(),
            recurring: 0,
            recent: Default::default(),
            recent_began_us: 0,
            posted_us: 0,
            took_us: 0,
        }
    }

    /// Counts the account of a record.
    pub(super) fn see(&mut self, account: AccountId) {
        if self.accounts.insert(account) {
            let is_recent = self.recent.iter().any(|some| some.contains(&account));
            self.recurring += usize::from(is_recent);
        }
    }

    /// Whether this number of records is to be posted though no commit waits for the posting.
    pub(super) fn is_full(&self, records: usize) -> bool {
        records >= self.records_max || self.accounts.len() >= ACCOUNTS_MAX
    }

    /// Whether this number of records is to be posted now. If `true`, the caller posts.
    pub(super) fn is_due(&mut self, records: usize, now_us: u64) -> bool {
        if now_us.saturating_sub(self.recent_began_us) >= POSTED_AFTER_US {
            self.recent.swap(0, 1);
            self.recent[0].clear();
            self.recent_began_us = now_us;
        }
        let accounts = self.accounts.len();
        let since = now_us.saturating_sub(self.posted_us);
        let worth = (self.records_max / WORTH_POSTING).max(1);
        let enough = accounts.saturating_mul(RECORDS_EACH).min(self.records_max);
        let is_late = since >= POSTED_AFTER_US;
        let is_sparse = accounts >= SPARSE_ACCOUNTS
            && records < SPARSE_RECORDS * accounts
            && self.recurring * 100 < RECURRING_PERCENT * accounts;
        let is_small_share = since >= self.took_us.saturating_mul(SPARSE_PAUSE);
        let is_unwaited = is_small_share && (is_sparse || accounts >= RECURRING_MAX);
        let is_due = records >= if is_late { worth } else { worth.max(enough) }
            || is_unwaited
            || self.is_full(records);
        if is_due {
            self.posted_us = now_us;
        }
        is_due
    }

    /// The records are posted.
    pub(super) fn posted(&mut self) {
        self.recent[0].extend(self.accounts.drain());
        self.recurring = 0;
    }

    /// Records the duration of the last posting, including its commit.
    pub(super) fn took(&mut self, us: u64) {
        self.took_us = us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(number: usize) -> AccountId {
        AccountId::from_bytes((number as u128).to_be_bytes())
    }

    fn with(records_max: usize, accounts: std::ops::Range<usize>) -> PostingSchedule {
        let mut schedule = PostingSchedule::new(records_max);
        accounts.for_each(|number| schedule.see(account(number)));
        schedule
    }

    #[test]
    fn records_are_posted_by_number_per_account_and_by_age() {
        const MOST: usize = 4 * RECORDS_EACH;
        const WORTH: usize = MOST / WORTH_POSTING;
        //   records   accounts   microseconds since the last posting   due
        for (records, accounts, since, due) in [
            (0, 0, u64::MAX / 2, false),
            (WORTH - 1, 1, POSTED_AFTER_US, false),
            (WORTH, 1, POSTED_AFTER_US - 1, false),
            (WORTH, 1, POSTED_AFTER_US, true),
            (RECORDS_EACH - 1, 1, 0, false),
            (RECORDS_EACH, 1, 0, true),
            (3 * RECORDS_EACH - 1, 3, 0, false),
            (3 * RECORDS_EACH, 3, 0, true),
            (MOST - 1, 9, 0, false),
            (MOST, 9, 0, true),
        ] {
            let mut schedule = with(MOST, 0..accounts);
            let what = format!("{records} of {accounts}");
            let mut is_due = || schedule.is_due(records, since);
            assert_eq!(is_due(), due, "{what} after {since}");
            assert_eq!(is_due(), due && since == 0, "{what}: the wait starts again");
        }
    }

    #[test]
    fn accounts_with_few_records_each_are_posted_by_hundreds_in_a_share_of_the_time() {
        const MANY: usize = SPARSE_ACCOUNTS;
        //   accounts   records   how long the last posting took   microseconds since it began   due
        for (accounts, records, took, since, due) in [
            (MANY - 1, MANY - 1, 0, 0, false),
            (MANY, MANY, 0, 0, true),
            (MANY, SPARSE_RECORDS * MANY - 1, 0, 0, true),
            (MANY, SPARSE_RECORDS * MANY, 0, 0, false),
            (MANY, MANY, 1000, 1000 * SPARSE_PAUSE - 1, false),
            (MANY, MANY, 1000, 1000 * SPARSE_PAUSE, true),
            (4 * MANY, 4 * MANY, 1000, 1000, false),
        ] {
            let mut schedule = with(65_536, 0..accounts);
            schedule.took(took);
            let what = format!("{records} of {accounts} {since} after one of {took}");
            assert_eq!(schedule.is_due(records, since), due, "{what}");
        }
    }

    #[test]
    fn accounts_that_are_used_again_soon_are_left_to_gather_records() {
        const MANY: usize = 2 * SPARSE_ACCOUNTS;
        const RECURRING: usize = MANY * RECURRING_PERCENT / 100;
        //   first of as many accounts, microseconds since the others were posted, due
        for (first, since, due) in [
            (0, 1, false),
            (MANY, 1, true),
            (MANY - RECURRING - 1, 1, false),
            (MANY - RECURRING + 1, 1, true),
            (0, POSTED_AFTER_US, false),
        ] {
            let mut schedule = with(65_536, 0..MANY);
            assert!(schedule.is_due(MANY, 0));
            schedule.posted();
            assert!(!schedule.is_due(0, since));
            (first..first + MANY).for_each(|number| schedule.see(account(number)));
            assert_eq!(schedule.is_due(MANY, since), due, "{first} after {since}");
        }
        let mut schedule = with(65_536, 0..MANY);
        assert!(schedule.is_due(MANY, 0));
        schedule.posted();
        for wait in 1..=2 {
            assert!(!schedule.is_due(0, wait * POSTED_AFTER_US));
        }
        (0..MANY).for_each(|number| schedule.see(account(number)));
        assert!(schedule.is_due(MANY, 2 * POSTED_AFTER_US), "long ago");
    }

    #[test]
    fn accounts_that_are_used_again_soon_are_posted_before_they_are_too_many_at_once() {
        const MOST: usize = RECURRING_MAX;
        //   accounts   records   how long the last posting took   microseconds since it began   due
        for (accounts, records, took, since, due) in [
            (MOST - 1, MOST - 1, 0, 1, false),
            (MOST, MOST, 0, 1, true),
            (MOST, SPARSE_RECORDS * MOST, 0, 1, true),
            (MOST, MOST, 1000, 1000 * SPARSE_PAUSE - 1, false),
            (MOST, MOST, 1000, 1000 * SPARSE_PAUSE, true),
        ] {
            let mut schedule = with(65_536, 0..accounts);
            assert!(schedule.is_due(accounts, 0));
            schedule.posted();
            schedule.took(took);
            (0..accounts).for_each(|number| schedule.see(account(number)));
            let what = format!("{records} of {accounts} {since} after one of {took}");
            assert!(!schedule.is_full(records), "{what}: a rebuild gathers more");
            assert_eq!(schedule.is_due(records, since), due, "{what}");
        }
    }

    #[test]
    fn many_accounts_are_posted_whatever_their_records() {
        let mut schedule = with(usize::MAX, 1..ACCOUNTS_MAX);
        schedule.took(1);
        assert!(!schedule.is_full(ACCOUNTS_MAX) && !schedule.is_due(ACCOUNTS_MAX, 0));
        schedule.see(account(0));
        assert!(schedule.is_full(ACCOUNTS_MAX));
        assert!(schedule.is_due(ACCOUNTS_MAX, 0));
    }
}
