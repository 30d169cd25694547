//! Refused requests of each account, collected in memory until the write: some of each hour one by one, the rest as counts.

use dashmap::DashMap;
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::RefusalRow;

/// Requests of an account that get a row of their own within an hour.
const LISTED_MAX: usize = 100;

/// Counts of an account within an hour that name the credential; beyond the limit, one count for each status and code.
const BY_CREDENTIAL_MAX: usize = 32;

const HOUR_US: i64 = 3_600_000_000;

/// Refused requests not written yet.
///
/// An account with any number of refused requests has at most a hundred rows an hour, and beyond these one row for each credential, status
/// and code; the store keeps the newest rows.
#[derive(Debug, Default)]
pub struct RefusedRequests {
    accounts: DashMap<AccountId, Hour>,
}

#[derive(Debug, Default)]
struct Hour {
    /// The hour, as a number since 1970.
    number: i64,
    listed: usize,
    /// Rows of their own, not yet written.
    new: Vec<RefusalRow>,
    /// Counts of this hour, with the requests since the last write.
    counts: Vec<RefusalRow>,
}

impl RefusedRequests {
    /// Adds one request.
    pub fn add(&self, row: RefusalRow) {
        let mut hour = self.accounts.entry(row.account).or_default();
        hour.begin(row.at);
        if hour.listed < LISTED_MAX {
            hour.listed += 1;
            hour.new.push(row);
        } else {
            hour.count(row);
        }
    }

    /// Takes the rows to write at `now`.
    pub fn take(&self, now: Timestamp) -> Vec<RefusalRow> {
        let mut taken = Vec::new();
        self.accounts.retain(|_, hour| {
            hour.take(&mut taken);
            hour.number >= number(now)
        });
        taken
    }
}

impl Hour {
    fn begin(&mut self, at: Timestamp) {
        let number = number(at);
        if number > self.number {
            let mut rest = Vec::new();
            self.take(&mut rest);
            *self = Hour {
                number,
                new: rest,
                ..Hour::default()
            };
        }
    }

    fn count(&mut self, row: RefusalRow) {
        let row = RefusalRow {
            model: None,
            credential: row.credential.filter(|id| {
                let is_known = |known: &RefusalRow| known.credential == Some(*id);
                self.counts.len() < BY_CREDENTIAL_MAX || self.counts.iter().any(is_known)
            }),
            ..row
        };
        let same = |known: &&mut RefusalRow| {
            (known.credential, known.status, &known.code) == (row.credential, row.status, &row.code)
        };
        match self.counts.iter_mut().find(same) {
            Some(known) => {
                known.requests = known.requests.saturating_add(row.requests);
                known.at = known.at.max(row.at);
                known.total_us = row.total_us;
            }
            None => self.counts.push(row),
        }
    }

    fn take(&mut self, taken: &mut Vec<RefusalRow>) {
        taken.append(&mut self.new);
        for count in self.counts.iter_mut().filter(|count| count.requests > 0) {
            taken.push(count.clone());
            // The row stays for later requests of the hour.
            count.requests = 0;
        }
    }
}

fn number(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(HOUR_US)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use tollgate_money::{CredentialId, OperationId};

    use super::*;

    fn refused(number: u64, key: u8, status: u16, at: i64) -> RefusalRow {
        RefusalRow {
            id: OperationId::from_bytes(u128::from(number).to_be_bytes()),
            account: AccountId::from_bytes([1; 16]),
            credential: Some(CredentialId::from_bytes([key; 16])),
            model: Some(Arc::from("small")),
            status,
            code: Arc::from("code"),
            total_us: Some(number),
            requests: 1,
            at: Timestamp::from_micros(at),
        }
    }

    #[test]
    fn a_flood_of_refusals_is_a_bounded_number_of_rows_that_count_all_of_them() {
        let requests = RefusedRequests::default();
        let (mut rows, mut sum) = (HashSet::new(), 0);
        for number in 0..100_000u64 {
            // Every key, and a status each: the worst that one account can do.
            let status = 400 + (number % 100) as u16;
            requests.add(refused(
                number,
                (number % 256) as u8,
                status,
                HOUR_US + number as i64,
            ));
            if number % 10_000 == 0 {
                for row in requests.take(Timestamp::from_micros(HOUR_US)) {
                    sum += row.requests;
                    rows.insert(row.id);
                }
            }
        }
        for row in requests.take(Timestamp::from_micros(2 * HOUR_US)) {
            sum += row.requests;
            rows.insert(row.id);
        }
        assert_eq!(sum, 100_000, "each is counted once");
        let most = LISTED_MAX + 100 * (BY_CREDENTIAL_MAX + 1);
        assert!(rows.len() <= most, "{} rows", rows.len());
        assert!(
            requests.accounts.is_empty(),
            "an hour that is over leaves nothing"
        );
    }

    #[test]
    fn an_hour_begins_with_rows_of_their_own_again() {
        let requests = RefusedRequests::default();
        for number in 0..150 {
            requests.add(refused(number, 1, 429, HOUR_US));
        }
        requests.add(refused(200, 1, 429, 2 * HOUR_US));
        let rows = requests.take(Timestamp::from_micros(2 * HOUR_US));
        let counts: Vec<u64> = rows.iter().map(|row| row.requests).collect();
        assert_eq!(counts.iter().sum::<u64>(), 151);
        assert_eq!(rows.len(), LISTED_MAX + 2);
        assert_eq!(rows.last().map(|row| row.requests), Some(1));
    }
}
