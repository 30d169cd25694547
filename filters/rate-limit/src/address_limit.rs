//! The filter `address-limit`.

use std::sync::Arc;

use tollgate_filter::{
    AddressPrefix, Body, Clock, Contract, Ending, Entropy, ErrorCode, Exchange, FailureMode,
    Filter, Outcome, Phase, Step,
};

use crate::Counters;
use crate::fields::{Policy, PolicyFields, PolicyState};
use crate::partitions::{Owner, Partition};
use crate::quota::Quota;
use crate::refusal::{spread, too_many};

/// What headers, log and metrics call the limit on failed credentials.
pub const FAILED_CREDENTIALS: &str = "failed-credentials";

/// Refuses addresses that have sent too many bad credentials, before another one is looked at. Good ones cost nothing.
pub struct AddressLimit {
    quota: Quota,
    fields: Arc<PolicyFields>,
    /// What the log calls the limit that refused.
    class: Arc<str>,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
}

impl AddressLimit {
    pub(crate) fn new(
        quota: Quota,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> AddressLimit {
        AddressLimit {
            quota,
            fields: Arc::new(PolicyFields::alone(Policy::requests(
                FAILED_CREDENTIALS,
                &quota,
            ))),
            class: Arc::from(FAILED_CREDENTIALS),
            counters,
            clock,
            entropy,
        }
    }

    fn now(&self, exchange: &mut Exchange) -> u64 {
        exchange.elapsed(&self.clock).as_nanos() as u64
    }
}

impl Filter for AddressLimit {
    fn name(&self) -> &'static str {
        "address-limit"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Allow,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let failures = &self.counters.failures;
        if failures.is_empty() {
            return Step::now(Outcome::Continue);
        }
        let now = self.now(exchange);
        let verdict = failures.peek(partition(exchange), &self.quota, now);
        if verdict.admitted {
            return Step::now(Outcome::Continue);
        }
        let verdict = spread(verdict, &self.entropy);
        exchange.record.class = Some(self.class.clone());
        let (remaining, reset_secs) = (verdict.remaining.into(), verdict.reset_secs);
        exchange.write_late(PolicyState::of(&self.fields, remaining, reset_secs));
        Step::now(Outcome::refuse(too_many("failed credentials", &verdict)))
    }

    fn on_end(&self, exchange: &mut Exchange, _: Ending) {
        if exchange.record.error.is_some_and(is_failed_credential) {
            // Requests that were let in together may fail together; those beyond the quota are not held against it twice.
            let now = self.now(exchange);
            self.counters
                .failures
                .take(partition(exchange), &self.quota, now);
        }
    }
}

fn partition(exchange: &Exchange) -> Partition {
    Partition {
        owner: Owner::Address(AddressPrefix::of(exchange.request.client)),
        lane: 0,
    }
}

/// The codes of a 401.
fn is_failed_credential(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::MissingCredential | ErrorCode::InvalidCredential | ErrorCode::WrongResource
    )
}
