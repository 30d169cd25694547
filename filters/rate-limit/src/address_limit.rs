//! The filter `address-limit`: quotas for 401 responses, per address prefix.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, Phase};

use crate::counters::Counters;
use crate::fields::PolicyState;
use crate::partitions::{Owner, Partition};
use crate::prepared::PreparedLimits;
use crate::refusal::{spread, too_many};
use crate::shared_limits::SharedLimits;

/// Limits how many requests of an address are answered 401.
///
/// The filter decides after the refusal of a credential, not before: a request with a valid credential is never limited.
pub struct AddressLimit {
    limits: Arc<PreparedLimits>,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
    shared: Option<Arc<SharedLimits>>,
}

impl AddressLimit {
    pub(crate) fn new(
        limits: Arc<PreparedLimits>,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> AddressLimit {
        AddressLimit {
            limits,
            counters,
            clock,
            entropy,
            shared: None,
        }
    }

    pub(crate) fn sharing(self, shared: Option<Arc<SharedLimits>>) -> AddressLimit {
        AddressLimit { shared, ..self }
    }
}

impl Filter for AddressLimit {
    fn name(&self) -> &'static str {
        "address-limit"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Refusal.into(),
            body: Body::Unread,
            on_failure: FailureMode::Allow,
        }
    }

    fn on_refusal(&self, exchange: &mut Exchange, error: &mut ApiError) {
        // A credential of another resource is valid, and not counted.
        let (bucket, table) = match error.code {
            ErrorCode::InvalidCredential => (&self.limits.failed, &self.counters.failed),
            ErrorCode::MissingCredential => (&self.limits.missing, &self.counters.missing),
            _ => return,
        };
        let Some(prefix) = exchange.request.client.limited_prefix() else {
            return;
        };
        let partition = Partition {
            owner: Owner::Address(prefix),
            lane: 0,
        };
        let now = exchange.elapsed(&self.clock).as_nanos() as u64;
        let decision = match &self.shared {
            None => table.take(partition, &bucket.quota, now),
            // A refusal cannot wait for an answer of the shared server.
            Some(shared) => table.take(partition, &shared.share(&bucket.quota), now),
        };
        if decision.admitted {
            return;
        }
        let decision = spread(decision, &self.entropy);
        exchange.record.class = Some(bucket.class.clone());
        let (remaining, reset_secs) = (decision.remaining.into(), decision.reset_secs);
        exchange.defer_headers(PolicyState::of(&bucket.fields, remaining, reset_secs));
        *error = too_many(bucket.what, &decision);
    }
}
