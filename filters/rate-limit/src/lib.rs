#![doc = include_str!("../README.md")]

mod address_limit;
mod concurrency;
pub mod config;
mod fields;
mod in_force;
mod module;
mod partitions;
mod quota;
mod rate_limit;
mod refusal;
mod tokens;

use std::sync::{Arc, Mutex, PoisonError};

use tollgate_clock::{Clock, Entropy};
use tollgate_module::Snapshot;

pub use address_limit::AddressLimit;
pub use config::{Class, Limits, RawLimits};
pub use in_force::{FAILED_CREDENTIALS, MISSING_CREDENTIALS};
pub use module::RateLimitModule;
pub use quota::{Decision, Quota};
pub use rate_limit::{RateLimit, UnknownClass};
pub use tokens::TokenQuota;

use concurrency::ConcurrencyLimit;
use in_force::InForce;
use partitions::Partitions;
use tokens::TokenCounts;

/// The most address prefixes in one table: some 10 MB, reached only under a flood.
const ADDRESSES_MAX: usize = 1 << 17;

/// Builds the filters of this crate, which share their counters.
pub struct RateLimits {
    limits: Limits,
    in_force: Snapshot<InForce>,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
}

impl RateLimits {
    /// A builder of filters with these limits. `clock` and `counters` stay the same when the limits change.
    pub fn new(
        limits: Limits,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> RateLimits {
        RateLimits {
            in_force: InForce::new(&limits).into(),
            limits,
            counters,
            clock,
            entropy,
        }
    }

    /// The filter `address-limit`.
    pub fn address_limit(&self) -> AddressLimit {
        AddressLimit::new(
            self.in_force.clone(),
            self.counters.clone(),
            self.clock.clone(),
            self.entropy.clone(),
        )
    }

    /// The filter `rate-limit`.
    ///
    /// With a `class`, every request of the route is counted by that class, separately from the owner's other requests. Without one it is
    /// the class of the account, or `anonymous`.
    pub fn rate_limit(&self, class: Option<&str>) -> Result<RateLimit, UnknownClass> {
        RateLimit::new(
            &self.limits,
            self.in_force.clone(),
            class,
            self.counters.clone(),
            self.clock.clone(),
            self.entropy.clone(),
        )
    }
}

/// The counters. They live as long as the process, so that a reload of the settings does not reset any quota.
#[derive(Debug)]
pub struct Counters {
    accounts: Partitions,
    addresses: Partitions,
    failed: Partitions,
    missing: Partitions,
    /// Tokens used and reserved; by account, since tokens are served to accounts only.
    tokens: TokenCounts,
    /// Requests in progress.
    concurrency: ConcurrencyLimit,
    /// Classes that routes count separately; a name's index plus one is its lane.
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

    fn lane(&self, class: &str) -> u16 {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
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
