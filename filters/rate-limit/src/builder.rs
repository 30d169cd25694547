//! The builder of the filters, which share their limits and counters.

use std::future::Future;
use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_shared::Shared;

use crate::address_limit::AddressLimit;
use crate::config::Limits;
use crate::counters::Counters;
use crate::prepared::PreparedLimits;
use crate::rate_limit::{RateLimit, UnknownClass};
use crate::shared_limits::SharedLimits;

/// Builds the filters of this crate. The filters share their counters.
#[derive(Clone)]
pub struct RateLimits {
    limits: Arc<PreparedLimits>,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
    shared: Option<Arc<SharedLimits>>,
}

impl RateLimits {
    /// A builder of filters with these limits. `clock` and `counters` stay when the limits change.
    pub fn new(
        limits: &Limits,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> RateLimits {
        RateLimits {
            limits: Arc::new(PreparedLimits::new(limits)),
            counters,
            clock,
            entropy,
            shared: None,
        }
    }

    /// This builder with counts that every node shares.
    #[must_use]
    pub fn sharing(self, shared: Option<Shared>) -> RateLimits {
        RateLimits {
            shared: shared.map(|shared| Arc::new(SharedLimits::new(shared, self.clock.clone()))),
            ..self
        }
    }

    /// This builder with other limits. The filters continue the counts.
    #[must_use]
    pub fn with_limits(&self, limits: &Limits) -> RateLimits {
        RateLimits {
            limits: Arc::new(PreparedLimits::new(limits)),
            ..self.clone()
        }
    }

    /// A task for the time of serving; `None` without a shared server. The task renews concurrency permits at the shared server, and sends
    /// counts that could not be counted there.
    pub fn renewal(&self) -> Option<impl Future<Output = ()> + use<>> {
        Some(self.shared.clone()?.run())
    }

    /// The filter `address-limit`.
    pub fn address_limit(&self) -> AddressLimit {
        AddressLimit::new(
            self.limits.clone(),
            self.counters.clone(),
            self.clock.clone(),
            self.entropy.clone(),
        )
        .sharing(self.shared.clone())
    }

    /// The filter `rate-limit`.
    ///
    /// With a `class`, every request of the route is counted by the class, separately from the owner's other requests. Without a `class`,
    /// the class is the class of the account, or `anonymous`.
    pub fn rate_limit(&self, class: Option<&str>) -> Result<RateLimit, UnknownClass> {
        RateLimit::new(
            self.limits.clone(),
            class,
            self.counters.clone(),
            self.clock.clone(),
            self.entropy.clone(),
        )
        .map(|filter| filter.sharing(self.shared.clone()))
    }
}
