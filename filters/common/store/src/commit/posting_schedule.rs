//! When what is only in the journal is posted.
//!
//! A posting costs at least a row per account, and delays commits in proportion to its rows: as few as justify their rows, and as few at once.

/// Number of accounts with records in the tail from which on it is posted: each costs about three rows, and commits wait meanwhile. With more
/// active accounts than this, a request costs about as many rows again.
const ACCOUNTS_MAX: usize = 16_384;

/// Average number of records per account that justifies its postings row.
const RECORDS_EACH: usize = 64;

/// Below this fraction of the maximum posted at once, records are left to accumulate, for any number of accounts.
const WORTH_POSTING: usize = 16;

/// Justified postings are made after this long at the latest.
const POSTED_AFTER_US: u64 = 10_000_000;

/// Number of accounts from which on they are posted while each has few records: later it costs as much, and commits wait for all of it at once.
const SPREAD_ACCOUNTS: usize = 256;

/// The average number of records of such an account is below this: a hold and its end, or credit that was taken and a charge, of one request or
/// two.
const SPREAD_RECORDS: usize = 4;

/// Such postings are made this many times as long after the last one as that one took: of more accounts, or less often, where they are costly.
const SPREAD_PAUSE: u64 = 20;

pub(super) struct PostingSchedule {
    /// Number of records from which on they are posted, for any number of accounts.
    pub(super) records_max: usize,
    /// Time of the last posting, by the caller's monotonic clock.
    posted_us: u64,
    /// How long it took.
    took_us: u64,
}

impl PostingSchedule {
    pub(super) fn new(records_max: usize) -> PostingSchedule {
        PostingSchedule {
            records_max,
            posted_us: 0,
            took_us: 0,
        }
    }

    /// Whether so many records of so many accounts are to be posted now, which the caller then does.
    pub(super) fn is_due(&mut self, records: usize, accounts: usize, now_us: u64) -> bool {
        let since = now_us.saturating_sub(self.posted_us);
        let worth = (self.records_max / WORTH_POSTING).max(1);
        let enough = accounts.saturating_mul(RECORDS_EACH).min(self.records_max);
        let is_late = since >= POSTED_AFTER_US;
        let is_spread = accounts >= SPREAD_ACCOUNTS
            && records < SPREAD_RECORDS.saturating_mul(accounts)
            && since >= self.took_us.saturating_mul(SPREAD_PAUSE);
        let is_due = records >= if is_late { worth } else { worth.max(enough) }
            || is_spread
            || accounts >= ACCOUNTS_MAX;
        if is_due {
            self.posted_us = now_us;
        }
        is_due
    }

    /// How long the last posting took, with its commit.
    pub(super) fn took(&mut self, us: u64) {
        self.took_us = us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let mut schedule = PostingSchedule::new(MOST);
            let what = format!("{records} of {accounts}");
            let mut is_due = || schedule.is_due(records, accounts, since);
            assert_eq!(is_due(), due, "{what} after {since}");
            assert_eq!(is_due(), due && since == 0, "{what}: the wait starts again");
        }
    }

    #[test]
    fn accounts_with_few_records_each_are_posted_by_hundreds_in_a_share_of_the_time() {
        const MANY: usize = SPREAD_ACCOUNTS;
        //   accounts   records   how long the last posting took   microseconds since it began   due
        for (accounts, records, took, since, due) in [
            (MANY - 1, MANY - 1, 0, 0, false),
            (MANY, MANY, 0, 0, true),
            (MANY, SPREAD_RECORDS * MANY - 1, 0, 0, true),
            (MANY, SPREAD_RECORDS * MANY, 0, 0, false),
            (MANY, MANY, 1000, 1000 * SPREAD_PAUSE - 1, false),
            (MANY, MANY, 1000, 1000 * SPREAD_PAUSE, true),
            (4 * MANY, 4 * MANY, 1000, 1000, false),
        ] {
            let mut schedule = PostingSchedule::new(65_536);
            schedule.took(took);
            let what = format!("{records} of {accounts} {since} after one of {took}");
            assert_eq!(schedule.is_due(records, accounts, since), due, "{what}");
        }
    }

    #[test]
    fn many_accounts_are_posted_whatever_their_records() {
        let mut schedule = PostingSchedule::new(usize::MAX);
        schedule.took(1);
        assert!(!schedule.is_due(ACCOUNTS_MAX - 1, ACCOUNTS_MAX - 1, 0));
        assert!(schedule.is_due(ACCOUNTS_MAX, ACCOUNTS_MAX, 0));
    }
}
