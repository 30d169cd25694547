//! The filter `rate-limit`.

use std::sync::Arc;

use tollgate_filter::{
    AddressPrefix, Body, Clock, Contract, Entropy, Exchange, FailureMode, Filter, Outcome, Phase,
    Principal, Step,
};

use crate::Counters;
use crate::config::{ANONYMOUS, FREE, Limits};
use crate::fields::PolicyFields;
use crate::partitions::{Owner, Partition};
use crate::quota::Quota;
use crate::refusal::{spread, too_many};

/// Counts every request against the quota of its class, and refuses those beyond it.
pub struct RateLimit {
    classes: Box<[Counted]>,
    anonymous: usize,
    free: usize,
    /// The class of every request, where the route has one of its own.
    fixed: Option<Fixed>,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
}

struct Counted {
    name: Arc<str>,
    quota: Quota,
    fields: PolicyFields,
}

#[derive(Clone, Copy)]
struct Fixed {
    class: usize,
    lane: u16,
}

/// A route names a class that the settings do not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no rate class `{name}`; add `[limits.classes.{name}]` or name one of: {known}")]
pub struct UnknownClass {
    name: String,
    known: String,
}

impl RateLimit {
    pub(crate) fn new(
        limits: &Limits,
        fixed: Option<&str>,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> Result<RateLimit, UnknownClass> {
        let place = |name: &str| limits.classes.iter().position(|class| *class.name == *name);
        let fixed = match fixed {
            None => None,
            Some(name) => Some(Fixed {
                class: place(name).ok_or_else(|| UnknownClass::new(name, limits))?,
                lane: counters.lane(name),
            }),
        };
        let built_in = |name| place(name).expect("checked limits have the built-in classes");
        Ok(RateLimit {
            anonymous: built_in(ANONYMOUS),
            free: built_in(FREE),
            fixed,
            classes: limits
                .classes
                .iter()
                .map(|class| Counted {
                    name: class.name.clone(),
                    quota: class.quota,
                    fields: PolicyFields::new("requests", &class.quota),
                })
                .collect(),
            counters,
            clock,
            entropy,
        })
    }

    /// Who is counted, and by which class.
    fn who(&self, exchange: &Exchange) -> (Partition, usize) {
        let (owner, own_class) = match exchange.get::<Principal>() {
            Some(principal) => (Owner::Account(principal.account), self.class_of(principal)),
            None => (
                Owner::Address(AddressPrefix::of(exchange.request.client)),
                self.anonymous,
            ),
        };
        match self.fixed {
            None => (Partition { owner, lane: 0 }, own_class),
            Some(Fixed { class, lane }) => (Partition { owner, lane }, class),
        }
    }

    fn class_of(&self, principal: &Principal) -> usize {
        // A handful of short names: comparing them is quicker than hashing one.
        self.classes
            .iter()
            .position(|class| class.name == principal.class)
            .unwrap_or(self.free)
    }
}

impl Filter for RateLimit {
    fn name(&self) -> &'static str {
        "rate-limit"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Unread,
            on_failure: FailureMode::Allow,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let (partition, class) = self.who(exchange);
        let class = &self.classes[class];
        let table = match partition.owner {
            Owner::Account(_) => &self.counters.accounts,
            Owner::Address(_) => &self.counters.addresses,
        };
        let now = self.clock.elapsed().as_nanos() as u64;
        let verdict = table.take(partition, &class.quota, now);
        let verdict = spread(verdict, &self.entropy);
        exchange.record.class = Some(class.name.clone());
        class.fields.write(&verdict, &mut exchange.reply_headers);
        if verdict.admitted {
            Step::now(Outcome::Continue)
        } else {
            Step::now(Outcome::refuse(too_many("requests", &verdict)))
        }
    }
}

impl UnknownClass {
    fn new(name: &str, limits: &Limits) -> UnknownClass {
        let known: Vec<&str> = limits.classes.iter().map(|class| &*class.name).collect();
        UnknownClass {
            name: name.to_owned(),
            known: known.join(", "),
        }
    }
}
