//! The counters of every filter: partitions by account and by address, tokens and concurrent requests.

use parking_lot::Mutex;

use crate::concurrency::ConcurrencyLimit;
use crate::partitions::Partitions;
use crate::tokens::TokenCounts;

/// The most address prefixes in a table: some 10 MB, reached only under a flood.
const ADDRESSES_MAX: usize = 1 << 17;

/// The counters. The counters live as long as the process, so that a reload of the settings does not reset any quota.
#[derive(Debug)]
pub struct Counters {
    pub(crate) accounts: Partitions,
    pub(crate) addresses: Partitions,
    pub(crate) failed: Partitions,
    pub(crate) missing: Partitions,
    /// Tokens used and reserved, by account, because only accounts get tokens.
    pub(crate) tokens: TokenCounts,
    /// Requests in progress.
    pub(crate) concurrency: ConcurrencyLimit,
    /// Classes that routes count separately; the lane of a class is the name's index plus 1.
    lanes: Mutex<Vec<Box<str>>>,
}

impl Default for Counters {
    fn default() -> Counters {
        Counters {
            // Bounded by the number of existing accounts.
            accounts: Partitions::new(usize::MAX),
            addresses: Partitions::new(ADDRESSES_MAX),
            failed: Partitions::new(ADDRESSES_MAX),
            missing: Partitions::new(ADDRESSES_MAX),
            tokens: TokenCounts::default(),
            concurrency: ConcurrencyLimit::default(),
            lanes: Mutex::default(),
        }
    }
}

impl Counters {
    /// The number of tracked accounts and addresses, for a gauge.
    pub fn population(&self) -> usize {
        self.accounts.population()
            + self.addresses.population()
            + self.failed.population()
            + self.missing.population()
            + self.tokens.population()
    }

    pub(crate) fn lane(&self, class: &str) -> u16 {
        let mut lanes = self.lanes.lock();
        let at = lanes
            .iter()
            .position(|lane| **lane == *class)
            .unwrap_or_else(|| {
                lanes.push(class.into());
                lanes.len() - 1
            });
        u16::try_from(at + 1).expect("settings name fewer classes than 16 bits count")
    }
}
