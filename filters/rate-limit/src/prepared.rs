//! Limits in the filters' form: classes and buckets with their prepared header fields.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::config::{Class, Limits};
use crate::fields::{Policy, PolicyFields};
use crate::quota::Quota;
use crate::tokens::TokenQuota;

/// The limit on invalid credentials, as named in headers, log and metrics.
pub const FAILED_CREDENTIALS: &str = "failed-credentials";

/// The limit on requests without a credential, as named in headers, log and metrics.
pub const MISSING_CREDENTIALS: &str = "missing-credentials";

/// The limits of a filter's settings. A reload builds the filters of every route again. The counts are elsewhere, and continue.
pub(crate) struct PreparedLimits {
    pub(crate) classes: Box<[Counted]>,
    pub(crate) failed: Bucket,
    pub(crate) missing: Bucket,
}

impl PreparedLimits {
    pub(crate) fn new(limits: &Limits) -> PreparedLimits {
        PreparedLimits {
            classes: limits.classes.iter().map(Counted::new).collect(),
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
        }
    }

    pub(crate) fn any_tokens(&self) -> bool {
        self.classes.iter().any(|class| class.tokens.is_some())
    }

    pub(crate) fn any_concurrent(&self) -> bool {
        self.classes.iter().any(|class| class.concurrent.is_some())
    }
}

/// The quotas of a class.
pub(crate) struct Counted {
    pub(crate) name: Arc<str>,
    pub(crate) quota: Quota,
    pub(crate) fields: Arc<PolicyFields>,
    pub(crate) tokens: Option<Box<(TokenQuota, Arc<PolicyFields>)>>,
    pub(crate) concurrent: Option<Box<(NonZeroU32, Arc<PolicyFields>)>>,
}

impl Counted {
    fn new(class: &Class) -> Counted {
        let mut policies = vec![Policy::requests("requests", &class.quota)];
        policies.extend(class.tokens.as_ref().map(Policy::tokens));
        policies.extend(class.concurrent.map(Policy::concurrent));
        let mut fields = PolicyFields::of(&policies).into_iter();
        let mut next = || Arc::new(fields.next().expect("each policy has its fields"));
        Counted {
            name: class.name.clone(),
            quota: class.quota,
            fields: next(),
            tokens: class.tokens.map(|quota| Box::new((quota, next()))),
            concurrent: class.concurrent.map(|max| Box::new((max, next()))),
        }
    }
}

/// The quota of a kind of refusal.
pub(crate) struct Bucket {
    pub(crate) quota: Quota,
    pub(crate) fields: Arc<PolicyFields>,
    /// The name of the limit in log and metrics.
    pub(crate) class: Arc<str>,
    /// The counted events, for the error message.
    pub(crate) what: &'static str,
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
