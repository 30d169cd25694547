//! Values that a filter shares with other filters at the build of the gateway: no filter has to name another filter.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tollgate_money::Micros;

use crate::settings::Words;
use crate::{ApiError, Resources};

/// The name of the service on pages and in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrandName(pub Arc<str>);

/// The price of a stored answer, in millionths of the normal price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitPrice(pub u32);

/// All rate classes.
#[derive(Clone, Debug, Default)]
pub struct RateClasses(pub Arc<[RateClass]>);

/// The limits of a rate class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateClass {
    /// The class's name.
    pub name: Arc<str>,
    /// Requests in a window.
    pub requests: u32,
    /// Length of the window in seconds.
    pub window_secs: u32,
    /// Tokens in a window, if limited.
    pub tokens: Option<u64>,
    /// Concurrent requests, if limited.
    pub concurrent: Option<u32>,
}

impl RateClasses {
    /// The request quota of a class in words, if the settings have the class.
    pub fn quota_text(&self, name: &str) -> Option<String> {
        let class = self.0.iter().find(|class| *class.name == *name);
        class.map(RateClass::quota_text)
    }
}

impl RateClass {
    /// The class's request quota in words: `600 requests a minute`.
    pub fn quota_text(&self) -> String {
        let requests = grouped(self.requests);
        match self.window_secs {
            1 => format!("{requests} requests a second"),
            60 => format!("{requests} requests a minute"),
            3600 => format!("{requests} requests an hour"),
            secs => format!("{requests} requests in {} seconds", grouped(secs)),
        }
    }
}

/// A number with a comma between groups of three digits.
fn grouped(number: u32) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Whether permission to buy has a separate checkbox on the consent page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsentCheckbox(pub bool);

/// The step for an account without credits at a request for access to the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CreditsStep {
    /// A notice on the consent page.
    #[default]
    Notice,
    /// A separate page before the consent page.
    Required,
}

impl Words for CreditsStep {
    const WORDS: &'static [(&'static str, CreditsStep)] = &[
        ("notice", CreditsStep::Notice),
        ("required", CreditsStep::Required),
    ];
}

/// The configured resources. Other resources are answered with 503, and no document names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedResources(pub Resources);

/// The URL of the refund policy, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefundUrl(pub Option<Arc<str>>);

/// Models whose answers are never stored, by id (`cache = false` in their section).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UncachedModels(pub Arc<HashSet<Arc<str>>>);

/// On an exchange whose account cannot pay, found on its head: the refusal, unless the answer is recorded under the `Idempotency-Key`. The
/// body counts for the share of requests without credit.
#[derive(Clone, Debug)]
pub struct Unpaid(pub ApiError);

/// The bytes of memory that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit(pub u64);

/// The longest lifetime of a hold, and therefore of a charged request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldLifetime(pub Duration);

/// Whether requests to a route of the path carry a payment credential in `Authorization`. The account's credential is in another field.
#[derive(Clone, Copy, Debug)]
pub struct PaymentPaths(pub fn(&str) -> bool);

/// The contract of the token in which signed transfers (x402) pay for the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaymentAsset(pub Arc<str>);

/// The credits of an account that a person has just created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignupGrant(pub Micros);
