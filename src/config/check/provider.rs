//! `[[provider]]`.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tollgate_filter::settings::{At, Problems};
use tollgate_module::Named;
use tollgate_openai::is_same_but_for_case;

use super::{CheckContext, number, required, seconds};
use crate::config::certificate;
use crate::config::raw::{RawHealth, RawProvider, RawTimeouts, RawUpstream};
use crate::config::settings::{
    Concurrency, Probe, Provider, ProviderHealth, ProviderTimeouts, RetryBudget, Upstream,
};

const HOUR: u64 = 3600;

/// Default concurrent trial requests, unless the provider's concurrency limit is lower.
const TRIAL_REQUESTS: u64 = 4;

/// Maximum number of listed members, and the maximum length of a name.
const MEMBERS_MAX: usize = 64;
const MEMBER_BYTES_MAX: usize = 64;

/// Members that are always forwarded or read by the gateway itself: without them the request would differ from the one that the hold is
/// for.
const PRICED: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "system",
    "stream",
    "stream_options",
    "cache",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "best_of",
    "tools",
    "plugins",
];

/// Members without which there is no request, and the one that is sent to no provider.
const NEEDED: &[&str] = &["model", "messages", "prompt", "cache"];

/// The highest weight of a provider.
pub(super) const WEIGHT_MAX: u64 = 1000;

/// `[upstream]`.
pub(super) fn upstream(raw: &RawUpstream, problems: &mut Problems) -> Upstream {
    let budget = &raw.budget;
    let mut count = |name: &str, at: &Option<At<u64>>, default, range| {
        let key = format!("upstream.{name}");
        number(problems, key, at.as_ref(), default, range) as u32
    };
    Upstream {
        attempts_max: count("attempts_max", &raw.attempts_max, 3, 1..=10),
        budget: RetryBudget {
            percent: count("budget.percent", &budget.percent, 20, 0..=100),
            per_sec: count("budget.per_sec", &budget.per_sec, 2, 0..=1000),
            burst: count("budget.burst", &budget.burst, 50, 1..=10_000),
        },
        hedge_after: raw
            .hedge_after_ms
            .as_ref()
            .and_then(|at| problems.within("upstream.hedge_after_ms", at, 1..=600_000))
            .map(Duration::from_millis),
    }
}

pub(super) fn providers(
    raw: &[RawProvider],
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Vec<Arc<Provider>> {
    let mut providers: Vec<Arc<Provider>> = Vec::new();
    for (index, one) in raw.iter().enumerate() {
        let key = |name: &str| format!("provider.{index}.{name}");
        let name = required(
            problems,
            key("name"),
            one.name.as_ref(),
            "`name = \"local\"`",
        );
        if let Some(at) = name {
            check_name(&key("name"), at, problems);
            if providers.iter().any(|other| *other.name == *at.value) {
                problems.note(
                    key("name"),
                    at,
                    format_args!(
                        "is `{}`, which another provider has; use another name",
                        at.value
                    ),
                );
            }
        }
        let base_url = required(
            problems,
            key("base_url"),
            one.base_url.as_ref(),
            "`base_url = \"http://127.0.0.1:11434/v1\"`",
        )
        .and_then(|at| problems.parse(key("base_url"), at));
        let api_key = api_key(index, one, context, problems);
        let roots = one.ca_file.as_ref().and_then(|at| {
            certificate::read_certificates(&context.path(at))
                .map_err(|error| problems.note(key("ca_file"), at, error))
                .ok()
        });
        let timeouts = timeouts(index, &one.timeouts, problems);
        let connections_idle_max = number(
            problems,
            key("connections_idle_max"),
            one.connections_idle_max.as_ref(),
            512,
            1..=65_536,
        ) as usize;
        let weight = number(
            problems,
            key("weight"),
            one.weight.as_ref(),
            1,
            0..=WEIGHT_MAX,
        ) as u32;
        let concurrency = concurrency(index, one, problems);
        let retries = number(problems, key("retries"), one.retries.as_ref(), 0, 0..=5) as u32;
        let calls_max = concurrency.map(|concurrency| concurrency.calls_max as u64);
        let remove_members = members(
            &key("remove_members"),
            one.remove_members.as_ref(),
            (
                PRICED,
                "which the price of a request depends on; name it in `refuse_members`, or leave it out",
            ),
            problems,
        );
        let refuse_members = members(
            &key("refuse_members"),
            one.refuse_members.as_ref(),
            (NEEDED, "which every request needs; leave it out"),
            problems,
        );
        let health = health(index, &one.health, calls_max, problems);
        let (Some(name), Some(base_url)) = (name, base_url) else {
            continue;
        };
        providers.push(Arc::new(Provider {
            name: name.value.as_str().into(),
            base_url,
            api_key,
            http2: one.http2.as_ref().is_some_and(|at| at.value),
            roots,
            timeouts,
            connections_idle_max,
            weight,
            concurrency,
            retries,
            remove_members,
            refuse_members,
            developer_role: one.developer_role.as_ref().is_some_and(|at| at.value),
            health,
            forward_client_address: one
                .forward_client_address
                .as_ref()
                .is_some_and(|at| at.value),
        }));
    }
    providers
}

/// A name becomes a metric label, so it is short and plain.
fn check_name(key: &str, at: &At<String>, problems: &mut Problems) {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if at.value.is_empty() || at.value.len() > 32 || !at.value.bytes().all(plain) {
        problems.note(
            key,
            at,
            format_args!(
                "is `{}`; use 1 to 32 letters, digits, `-`, `_` or `.`",
                at.value
            ),
        );
    }
}

fn api_key(
    index: usize,
    raw: &RawProvider,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<SecretString> {
    let named = Named {
        section: &format!("provider.{index}"),
        variable: ("api_key_env", raw.api_key_env.as_ref()),
        file: ("api_key_file", raw.api_key_file.as_ref()),
    };
    named.secret(context, problems)
}

fn timeouts(index: usize, raw: &RawTimeouts, problems: &mut Problems) -> ProviderTimeouts {
    let mut secs = |name: &str, at: &Option<At<u64>>, default, max| {
        let key = format!("provider.{index}.timeouts.{name}");
        seconds(problems, key, at.as_ref(), default, 1..=max)
    };
    ProviderTimeouts {
        connect: secs("connect_secs", &raw.connect_secs, 10, 300),
        first_byte: secs("first_byte_secs", &raw.first_byte_secs, 120, HOUR),
        first_byte_whole: secs(
            "first_byte_whole_secs",
            &raw.first_byte_whole_secs,
            600,
            HOUR,
        ),
        between_bytes: secs("between_bytes_secs", &raw.between_bytes_secs, 60, HOUR),
        total: secs("total_secs", &raw.total_secs, 900, 6 * HOUR),
    }
}

fn concurrency(index: usize, raw: &RawProvider, problems: &mut Problems) -> Option<Concurrency> {
    let key = |name: &str| format!("provider.{index}.{name}");
    let queue_max = number(
        problems,
        key("queue_max"),
        raw.queue_max.as_ref(),
        100,
        0..=100_000,
    );
    let wait = seconds(
        problems,
        key("queue_wait_secs"),
        raw.queue_wait_secs.as_ref(),
        10,
        1..=HOUR,
    );
    let Some(at) = &raw.concurrency_max else {
        for (name, at) in [
            ("queue_max", &raw.queue_max),
            ("queue_wait_secs", &raw.queue_wait_secs),
        ] {
            if let Some(at) = at {
                problems.note(
                    key(name),
                    at,
                    "has no effect without `concurrency_max`; write the maximum number of concurrent calls",
                );
            }
        }
        return None;
    };
    let calls_max = problems.within(key("concurrency_max"), at, 1..=100_000)?;
    Some(Concurrency {
        calls_max: calls_max as usize,
        queue_max: queue_max as usize,
        wait,
    })
}

/// A list of members. `kept` are those that it may not contain, and `why` is the reason.
fn members(
    key: &str,
    list: Option<&At<Vec<At<String>>>>,
    (kept, why): (&[&str], &str),
    problems: &mut Problems,
) -> Arc<[Box<str>]> {
    let Some(list) = list else {
        return Arc::default();
    };
    let mut names: Vec<Box<str>> = Vec::new();
    for (place, at) in list.value.iter().enumerate() {
        let key = format!("{key}.{place}");
        let member = at.value.as_str();
        let same = |one: &str| is_same_but_for_case(one, member);
        let bytes = 1..=MEMBER_BYTES_MAX;
        if !bytes.contains(&member.len()) || !member.bytes().all(|byte| byte.is_ascii_graphic()) {
            problems.note(
                key,
                at,
                format_args!(
                    "is `{member}`; write the name of a top-level member, 1 to {MEMBER_BYTES_MAX} visible ASCII characters"
                ),
            );
        } else if kept.iter().any(|one| same(one)) {
            problems.note(key, at, format_args!("is `{member}`, {why}"));
        } else if names.iter().any(|one| same(one)) {
            problems.note(key, at, format_args!("is `{member}` again; name it once"));
        } else {
            names.push(member.into());
        }
    }
    if list.value.len() > MEMBERS_MAX {
        problems.note(
            key,
            list,
            format_args!(
                "has {} elements; use {MEMBERS_MAX} or fewer",
                list.value.len()
            ),
        );
    }
    names.into()
}

fn health(
    index: usize,
    raw: &RawHealth,
    calls_max: Option<u64>,
    problems: &mut Problems,
) -> ProviderHealth {
    let key = |name: &str| format!("provider.{index}.health.{name}");
    let every = seconds(
        problems,
        key("probe_secs"),
        raw.probe_secs.as_ref(),
        10,
        1..=HOUR,
    );
    let path = raw.probe_path.as_ref().filter(|at| {
        let visible = at.value.bytes().all(|byte| byte.is_ascii_graphic());
        let good = at.value.starts_with('/') && visible && !at.value.contains('#');
        if !good {
            problems.note(
                key("probe_path"),
                at,
                format_args!(
                    "is `{}`; write a path below the provider's address, such as `/models`",
                    at.value
                ),
            );
        }
        good
    });
    if let (None, Some(at)) = (&raw.probe_path, &raw.probe_secs) {
        problems.note(
            key("probe_secs"),
            at,
            "has no effect without `probe_path`; write the path to probe, such as `/models`",
        );
    }
    ProviderHealth {
        failures: number(
            problems,
            key("failures"),
            raw.failures.as_ref(),
            3,
            1..=1000,
        ) as u32,
        window: seconds(
            problems,
            key("window_secs"),
            raw.window_secs.as_ref(),
            30,
            1..=HOUR,
        ),
        cooldown: seconds(
            problems,
            key("cooldown_secs"),
            raw.cooldown_secs.as_ref(),
            10,
            1..=HOUR,
        ),
        trial_requests: number(
            problems,
            key("trial_requests"),
            raw.trial_requests.as_ref(),
            calls_max.map_or(TRIAL_REQUESTS, |calls| calls.min(TRIAL_REQUESTS)),
            1..=1000,
        ) as u32,
        retry_after_max: seconds(
            problems,
            key("retry_after_secs_max"),
            raw.retry_after_secs_max.as_ref(),
            60,
            1..=HOUR,
        ),
        probe: path.map(|at| Probe {
            path: at.value.clone(),
            every,
        }),
    }
}
