//! The filter `address-limit`: quotas for 401 responses, per address prefix.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, Phase};

use crate::Counters;
use crate::config::Limits;
use crate::fields::{Policy, PolicyFields, PolicyState};
use crate::partitions::{Owner, Partition, Partitions};
use crate::quota::Quota;
use crate::refusal::{spread, too_many};

/// The limit on invalid credentials, as named in headers, log and metrics.
pub const FAILED_CREDENTIALS: &str = "failed-credentials";

/// The limit on requests without a credential, as named in headers, log and metrics.
pub const MISSING_CREDENTIALS: &str = "missing-credentials";

/// Limits how many requests of an address are answered 401.
///
/// It decides after a credential has been refused, not before: a request with a valid credential is never limited.
pub struct AddressLimit {
    failed: Bucket,
    missing: Bucket,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
}

/// The quota of one kind of refusal.
struct Bucket {
    quota: Quota,
    fields: Arc<PolicyFields>,
    /// The name of the limit in log and metrics.
    class: Arc<str>,
    /// The counted events, for the error message.
    what: &'static str,
}

impl Bucket {
    fn new(quota: Quota, class: &'static str, what: &'static str) -> Bucket {
        Bucket {
            quota,
            fields: Arc::new(PolicyFields::alone(Policy::requests(class, &quota))),
            class: Arc::from(class),
            what,
        }
    }
}

impl AddressLimit {
    pub(crate) fn new(
        limits: &Limits,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> AddressLimit {
        AddressLimit {
            failed: Bucket::new(
                limits.failed_credentials,
                FAILED_CREDENTIALS,
                "failed credentials",
            ),
            missing: Bucket::new(
                limits.missing_credentials,
                MISSING_CREDENTIALS,
                "requests without a credential",
            ),
            counters,
            clock,
            entropy,
        }
    }

    /// The bucket for a refusal, and the table that counts it. A credential of another resource is valid, and not counted.
    fn bucket(&self, code: ErrorCode) -> Option<(&Bucket, &Partitions)> {
        match code {
            ErrorCode::InvalidCredential => Some((&self.failed, &self.counters.failed)),
            ErrorCode::MissingCredential => Some((&self.missing, &self.counters.missing)),
            _ => None,
        }
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
        let Some((bucket, table)) = self.bucket(error.code) else {
            return;
        };
        let Some(prefix) = exchange.request.client.limited_prefix() else {
            return;
        };
        let partition = Partition {
            owner: Owner::Address(prefix),
            lane: 0,
        };
        let now = exchange.elapsed(&self.clock).as_nanos() as u64;
        let decision = table.take(partition, &bucket.quota, now);
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
