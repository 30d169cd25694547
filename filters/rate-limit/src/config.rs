//! The section `[limits]`: raw and checked settings.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Number, Problems};
use tollgate_filter::{RateClass, RateClasses};
use tollgate_module::{Section, SectionContext, Services, check_text};

use crate::quota::Quota;
use crate::tokens::TokenQuota;

/// The class of requests without a principal.
pub const ANONYMOUS: &str = "anonymous";

/// The class of accounts whose own class the settings do not name.
pub const FREE: &str = "free";

/// Built-in classes, which exist even without an entry in the settings: name, quota, window in seconds, and burst.
const CLASSES: [(&str, u32, u32, u32); 8] = [
    (ANONYMOUS, 120, 60, 120),
    (FREE, 60, 60, 60),
    ("pro", 600, 60, 600),
    ("mcp", 120, 60, 120),
    ("webhooks", 600, 60, 600),
    // Without a credential, counted by network. Registration is open, and each registration stores a row.
    ("register", 20, 3600, 5),
    ("authorize", 60, 60, 60),
    ("oauth", 120, 60, 120),
];

/// Concurrent requests of the classes of accounts, where the settings give no number. The number bounds an account's open memory and
/// connections, to providers and to MCP servers.
fn default_concurrent(class: &str) -> Option<NonZeroU32> {
    match class {
        FREE => NonZeroU32::new(64),
        "pro" | "mcp" => NonZeroU32::new(256),
        _ => None,
    }
}

/// Default quota and window in seconds of failed credentials, and of requests without a credential.
const REFUSED_CREDENTIALS: (u32, u32) = (120, 60);

const NAME_CHARS_MAX: usize = 32;

/// `[limits]` as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawLimits {
    /// Quotas of the rate classes, by name. A class that stands here takes the place of the built-in one of that name.
    pub classes: BTreeMap<String, RawClass>,
    /// Quota of requests with an unknown, expired or revoked credential for one address prefix.
    pub failed_credentials: Option<RawAllowance>,
    /// Quota of requests that lack the credential they need, for one address prefix.
    pub missing_credentials: Option<RawAllowance>,
}

/// `[limits.classes.NAME]` as written.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawClass {
    /// Requests per window, for each partition.
    ///
    /// Type: requests
    /// Default: 120, 60, 600, 120, 600, 20, 60, 120 for the built-in ones, in this order; else required
    pub quota: Number<1, 1_000_000>,
    /// The length of the window.
    ///
    /// Default: 60 for the built-in ones, 3600 for `register`; else required
    pub window_secs: Number<1, 86_400>,
    /// Burst.
    ///
    /// Type: requests
    /// Default: `quota`; 5 for the built-in `register`
    /// Range: 1 to `quota`
    pub burst: Option<At<u32>>,
    /// Tokens per window, prompts and completions together.
    ///
    /// Default: no limit
    #[serde(default)]
    pub tokens_per_window: Number<1, 1_000_000_000_000>,
    /// Concurrent requests.
    ///
    /// Type: requests
    /// Default: 64 for `free`, 256 for `pro` and `mcp`, else no limit
    #[serde(default)]
    pub concurrent: Number<1, 1_000_000>,
}

/// `[limits.failed_credentials]` and `[limits.missing_credentials]` as written.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RawAllowance {
    /// 401 responses for one client address, beyond which it gets 429: to unknown, expired and revoked credentials (`failed_credentials`; a
    /// valid one is never refused by it), or to requests without a required credential (`missing_credentials`; only such requests are).
    ///
    /// Type: answers
    /// Default: 120
    pub quota: Number<1, 1_000_000>,
    /// The length of that window.
    ///
    /// Default: 60
    pub window_secs: Number<1, 86_400>,
}

/// `[limits]`, checked: the built-in classes exist, every name is a word, and no quota is empty.
#[derive(Clone, Debug)]
pub struct Limits {
    pub(crate) classes: Box<[Class]>,
    pub(crate) failed_credentials: Quota,
    pub(crate) missing_credentials: Quota,
}

/// A rate class.
#[derive(Clone, Debug)]
pub struct Class {
    /// The name of the class.
    pub name: Arc<str>,
    /// The quota of the class, for each partition.
    pub quota: Quota,
    /// The token quota of the class, if any.
    pub tokens: Option<TokenQuota>,
    /// The concurrency limit of the class, if any.
    pub concurrent: Option<NonZeroU32>,
}

/// The checked values of a class.
type Checked = (Quota, Option<TokenQuota>, Option<NonZeroU32>);

impl Limits {
    /// The class of this name.
    pub fn class(&self, name: &str) -> Option<&Class> {
        self.classes.iter().find(|class| *class.name == *name)
    }

    /// Every class, by name.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The quota of failed credentials.
    pub fn failed_credentials(&self) -> Quota {
        self.failed_credentials
    }

    /// The quota of requests without a credential.
    pub fn missing_credentials(&self) -> Quota {
        self.missing_credentials
    }
}

impl Default for Limits {
    fn default() -> Limits {
        check_text::<RawLimits>("", &Services::default())
            .expect("the built-in limits pass their own check")
    }
}

impl Section for RawLimits {
    const NAME: &'static str = "limits";
    type Settings = Limits;

    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<Limits> {
        let mut quotas: BTreeMap<&str, Option<Checked>> = CLASSES
            .into_iter()
            .map(|(name, limit, window_secs, burst)| {
                let concurrent = default_concurrent(name);
                (
                    name,
                    Some((built_in(limit, window_secs, burst), None, concurrent)),
                )
            })
            .collect();
        for (name, raw) in &self.classes {
            let key = context.key(&format!("classes.{name}"));
            let quota = raw.check(&key, default_concurrent(name), problems);
            if is_name(name) {
                quotas.insert(name, quota);
            } else {
                let at = raw.quota.written().map_or(At::without_span(0), At::clone);
                problems.note(
                    key,
                    &at,
                    format_args!(
                        "`{name}` is no name of a class; use at most {NAME_CHARS_MAX} lower-case letters, digits, `-` and `_`, and begin \
                         with a letter"
                    ),
                );
                quotas.insert(name, None);
            }
        }
        let mut refused = |name: &str, raw: &Option<RawAllowance>| match raw {
            None => {
                let (quota, window_secs) = REFUSED_CREDENTIALS;
                Some(built_in(quota, window_secs, quota))
            }
            Some(raw) => raw.check(&context.key(name), problems),
        };
        let failed_credentials = refused("failed_credentials", &self.failed_credentials);
        let missing_credentials = refused("missing_credentials", &self.missing_credentials);
        let classes: Option<Box<[Class]>> = quotas
            .into_iter()
            .map(|(name, checked)| {
                let (quota, tokens, concurrent) = checked?;
                Some(Class {
                    name: Arc::from(name),
                    quota,
                    tokens,
                    concurrent,
                })
            })
            .collect();
        Some(Limits {
            classes: classes?,
            failed_credentials: failed_credentials?,
            missing_credentials: missing_credentials?,
        })
    }

    fn provide(limits: Limits, services: &mut Services) {
        let classes = limits.classes.iter().map(|class| RateClass {
            name: class.name.clone(),
            requests: class.quota.limit().get(),
            window_secs: class.quota.window_secs().get(),
            tokens: class.tokens.map(|tokens| tokens.limit().get()),
            concurrent: class.concurrent.map(NonZeroU32::get),
        });
        services.provide(RateClasses(classes.collect()));
        services.provide(limits);
    }
}

impl RawClass {
    fn check(
        &self,
        key: &str,
        default_concurrent: Option<NonZeroU32>,
        problems: &mut Problems,
    ) -> Option<Checked> {
        let (limit, window_secs) = window((&self.quota, &self.window_secs), key, problems);
        let tokens = self
            .tokens_per_window
            .check(format!("{key}.tokens_per_window"), problems);
        let concurrent = self.concurrent.check(format!("{key}.concurrent"), problems);
        let burst = match &self.burst {
            None => limit,
            Some(burst) => problems
                .within(format!("{key}.burst"), burst, 1..=limit?.get())
                .and_then(NonZeroU32::new),
        };
        let window_secs = window_secs?;
        let tokens = tokens.and_then(NonZeroU64::new);
        let tokens = tokens.map(|tokens| TokenQuota::new(tokens, window_secs));
        let concurrent = concurrent.and_then(non_zero).or(default_concurrent);
        Some((Quota::new(limit?, window_secs, burst?), tokens, concurrent))
    }
}

impl RawAllowance {
    fn check(&self, key: &str, problems: &mut Problems) -> Option<Quota> {
        let (limit, window_secs) = window((&self.quota, &self.window_secs), key, problems);
        Some(Quota::new(limit?, window_secs?, limit?))
    }
}

/// The number of a window, and its length.
fn window(
    (quota, window_secs): (&Number<1, 1_000_000>, &Number<1, 86_400>),
    key: &str,
    problems: &mut Problems,
) -> (Option<NonZeroU32>, Option<NonZeroU32>) {
    let quota = quota.check(format!("{key}.quota"), problems);
    let window_secs = window_secs.check(format!("{key}.window_secs"), problems);
    (quota.and_then(non_zero), window_secs.and_then(non_zero))
}

fn non_zero(number: u64) -> Option<NonZeroU32> {
    u32::try_from(number).ok().and_then(NonZeroU32::new)
}

fn built_in(limit: u32, window_secs: u32, burst: u32) -> Quota {
    let some = |number| NonZeroU32::new(number).expect("no built-in number is zero");
    Quota::new(some(limit), some(window_secs), some(burst))
}

/// Class names appear in logs and metrics, so that a name has to be a plain word.
fn is_name(name: &str) -> bool {
    name.len() <= NAME_CHARS_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> (Option<Limits>, Vec<String>) {
        match check_text::<RawLimits>(text, &Services::default()) {
            Ok(limits) => (Some(limits), Vec::new()),
            Err(found) => (None, found.iter().map(ToString::to_string).collect()),
        }
    }

    fn quota(limits: &Limits, class: &str) -> (u32, u32) {
        let quota = limits.class(class).expect("the class is there").quota;
        (quota.limit().get(), quota.window_secs().get())
    }

    #[test]
    fn classes_in_the_settings_stand_beside_the_built_in_ones_or_in_their_place() {
        let (limits, found) = check(
            "[classes.free]\nquota = 5\nwindow_secs = 10\n[classes.webhooks]\nquota = 30\nwindow_secs = 1\nburst = 3\n",
        );
        assert_eq!(found, [""; 0]);
        let limits = limits.expect("nothing is wrong");
        assert_eq!(quota(&limits, "free"), (5, 10));
        assert_eq!(quota(&limits, "pro"), (600, 60));
        assert_eq!(quota(&limits, "webhooks"), (30, 1));
        assert_eq!(quota(&Limits::default(), "anonymous"), (120, 60));
        assert_eq!(quota(&Limits::default(), "mcp"), (120, 60));
    }

    #[test]
    fn tokens_and_requests_at_once_are_limited_where_the_settings_say_so() {
        let (limits, found) = check(
            "[classes.free]\nquota = 5\nwindow_secs = 10\ntokens_per_window = 1000\nconcurrent = 2\n",
        );
        assert_eq!(found, [""; 0]);
        let limits = limits.expect("nothing is wrong");
        let class = limits.class("free").expect("the class is there");
        let tokens = class.tokens.expect("a quota of tokens");
        assert_eq!(
            (tokens.limit().get(), tokens.window_secs().get()),
            (1000, 10)
        );
        assert_eq!(class.concurrent.map(NonZeroU32::get), Some(2));
        let class = limits.class("pro").expect("the class is there");
        assert_eq!(class.tokens, None);
        let concurrent = |name| limits.class(name).and_then(|class| class.concurrent);
        assert_eq!(concurrent("pro").map(NonZeroU32::get), Some(256));
        assert_eq!(concurrent("mcp").map(NonZeroU32::get), Some(256));
        assert_eq!(concurrent("anonymous"), None);
        let (limits, _) = check("[classes.free]\nquota = 5\nwindow_secs = 10\n");
        let limits = limits.expect("nothing is wrong");
        let class = limits.class("free").expect("the class is there");
        assert_eq!(class.concurrent.map(NonZeroU32::get), Some(64));
        let (_, found) = check(
            "[classes.free]\nquota = 5\nwindow_secs = 10\ntokens_per_window = 0\nconcurrent = 0\n",
        );
        assert_eq!(
            found,
            [
                "limits.classes.free.tokens_per_window: is 0; use 1 to 1000000000000",
                "limits.classes.free.concurrent: is 0; use 1 to 1000000",
            ]
        );
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let (limits, found) = check(
            "failed_credentials = { quota = 0, window_secs = 60 }\n\
             missing_credentials = { quota = 5, window_secs = 0 }\n\
             [classes.free]\nquota = 5\nwindow_secs = 90000\nburst = 6\n\
             [classes.Gold]\nquota = 1\nwindow_secs = 1\n",
        );
        assert!(limits.is_none());
        assert_eq!(
            found,
            [
                "limits.classes.Gold: `Gold` is no name of a class; use at most 32 lower-case letters, digits, `-` and `_`, and begin with a letter",
                "limits.classes.free.window_secs: is 90000; use 1 to 86400",
                "limits.classes.free.burst: is 6; use 1 to 5",
                "limits.failed_credentials.quota: is 0; use 1 to 1000000",
                "limits.missing_credentials.window_secs: is 0; use 1 to 86400",
            ]
        );
    }

    #[test]
    fn keys_that_would_do_nothing_are_refused() {
        let text = "[classes.free]\nquota = 5\nwindow_secs = 60\nconcurrency = 3\n";
        assert!(toml::from_str::<RawLimits>(text).is_err());
    }
}
