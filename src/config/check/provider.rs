//! `[[provider]]`.

use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tollgate_filter::settings::{At, BaseUrl, Problems};
use tollgate_module::Named;
use tollgate_openai::is_same_but_for_case;

use super::{CheckContext, required, whole};
use crate::config::certificate;
use crate::config::raw::{RawHealth, RawProvider, RawTimeouts, RawUpstream};
use crate::config::settings::{
    Concurrency, Probe, Provider, ProviderHealth, ProviderTimeouts, RetryBudget, Upstream,
};

/// Default concurrent trial requests, unless the provider's concurrency limit is lower.
const TRIAL_REQUESTS: u64 = 4;

/// Maximum number of listed members, and the maximum length of a name.
const MEMBERS_MAX: usize = 64;
const MEMBER_BYTES_MAX: usize = 64;

/// Members always forwarded or read by the gateway. Without such a member the sent request would differ from the request of the hold.
const PRICED: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "system",
    "stream",
    "cache",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "best_of",
    "tools",
    "plugins",
];

/// Members required in every request, and the member sent to no provider.
const NEEDED: &[&str] = &["model", "messages", "prompt", "cache"];

pub(super) fn upstream(raw: &RawUpstream, problems: &mut Problems) -> Upstream {
    let budget = &raw.budget;
    Upstream {
        attempts_max: whole(&raw.attempts_max, "upstream.attempts_max", problems) as u32,
        budget: RetryBudget {
            percent: whole(&budget.percent, "upstream.budget.percent", problems) as u32,
            per_sec: whole(&budget.per_sec, "upstream.budget.per_sec", problems) as u32,
            burst: whole(&budget.burst, "upstream.budget.burst", problems) as u32,
        },
        hedge_after: raw
            .hedge_after_ms
            .check("upstream.hedge_after_ms", problems)
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
        let known = provider((index, one), &providers, context, problems);
        providers.extend(known.map(Arc::new));
    }
    providers
}

fn provider(
    (index, one): (usize, &RawProvider),
    earlier: &[Arc<Provider>],
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Provider> {
    let key = |name: &str| format!("provider.{index}.{name}");
    let name = name(index, one, earlier, problems);
    let base_url = required(
        problems,
        key("base_url"),
        one.base_url.as_ref(),
        "`base_url = \"http://127.0.0.1:11434/v1\"`",
    )
    .and_then(|at| problems.parse(key("base_url"), at));
    if let Some(warning) = base_url.as_ref().and_then(base_path_warning) {
        problems.warn(key("base_url"), warning);
    }
    let api_key = api_key(index, one, context, problems);
    let roots = one.ca_file.as_ref().and_then(|at| {
        certificate::read_certificates(&context.path(at))
            .map_err(|error| problems.note(key("ca_file"), at, error))
            .ok()
    });
    let timeouts = timeouts(index, &one.timeouts, problems);
    let connections_idle_max = whole(
        &one.connections_idle_max,
        key("connections_idle_max"),
        problems,
    ) as usize;
    let weight = whole(&one.weight, key("weight"), problems) as u32;
    let concurrency = concurrency(index, one, problems);
    let retries = whole(&one.retries, key("retries"), problems) as u32;
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
    Some(Provider {
        name: name?.value.as_str().into(),
        base_url: base_url?,
        api_key,
        http2: one.http2.is_on(),
        roots,
        timeouts,
        connections_idle_max,
        weight,
        concurrency,
        retries,
        remove_members,
        refuse_members,
        developer_role: one.developer_role.is_on(),
        health,
        forward_client_address: one.forward_client_address.is_on(),
        forward_request_ids: one.forward_request_ids.is_on(),
    })
}

/// The name of a provider, which no earlier one has.
fn name<'r>(
    index: usize,
    one: &'r RawProvider,
    earlier: &[Arc<Provider>],
    problems: &mut Problems,
) -> Option<&'r At<String>> {
    let key = format!("provider.{index}.name");
    let at = required(
        problems,
        key.clone(),
        one.name.as_ref(),
        "`name = \"local\"`",
    )?;
    check_name(&key, at, problems);
    if earlier.iter().any(|other| *other.name == *at.value) {
        problems.note(
            key,
            at,
            format_args!(
                "is `{}`, which another provider has; use another name",
                at.value
            ),
        );
    }
    Some(at)
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

/// A warning about the path of a base URL, below which `/chat/completions` is called.
fn base_path_warning(url: &BaseUrl) -> Option<String> {
    let called = "the gateway calls `/chat/completions` below it";
    let write = |path: &str| {
        let url = BaseUrl {
            path: path.to_owned(),
            ..url.clone()
        };
        format!("write `base_url = \"{url}\"`")
    };
    let path = &*url.path;
    let endpoints = ["/chat/completions", "/completions", "/models"];
    if let Some(base) = endpoints.iter().find_map(|end| path.strip_suffix(end)) {
        return Some(format!(
            "ends with the path of one endpoint, and {called}; {}",
            write(base)
        ));
    }
    if path.contains("/v1/v1") {
        let once = path.replace("/v1/v1", "/v1");
        return Some(format!("has `/v1` twice; {}", write(&once)));
    }
    path.is_empty().then(|| {
        format!(
            "has no path, and {called}, where most servers have it below `/v1`; unless this one does not, {}",
            write("/v1")
        )
    })
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
    let key = |name: &str| format!("provider.{index}.timeouts.{name}");
    macro_rules! secs {
        ($name:ident) => {
            Duration::from_secs(whole(&raw.$name, key(stringify!($name)), problems))
        };
    }
    ProviderTimeouts {
        connect: secs!(connect_secs),
        first_byte: secs!(first_byte_secs),
        first_byte_whole: secs!(first_byte_whole_secs),
        between_bytes: secs!(between_bytes_secs),
        total: secs!(total_secs),
    }
}

fn concurrency(index: usize, raw: &RawProvider, problems: &mut Problems) -> Option<Concurrency> {
    let key = |name: &str| format!("provider.{index}.{name}");
    let queue_max = whole(&raw.queue_max, key("queue_max"), problems);
    let wait = whole(&raw.queue_wait_secs, key("queue_wait_secs"), problems);
    if raw.concurrency_max.written().is_none() {
        for (name, at) in [
            ("queue_max", raw.queue_max.written()),
            ("queue_wait_secs", raw.queue_wait_secs.written()),
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
    }
    let calls_max = raw
        .concurrency_max
        .check(key("concurrency_max"), problems)?;
    Some(Concurrency {
        calls_max: calls_max as usize,
        queue_max: queue_max as usize,
        wait: Duration::from_secs(wait),
    })
}

/// A list of members. `kept`: members not allowed in the list, for the reason `why`.
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
    let every = whole(&raw.probe_secs, key("probe_secs"), problems);
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
    if let (None, Some(at)) = (&raw.probe_path, raw.probe_secs.written()) {
        problems.note(
            key("probe_secs"),
            at,
            "has no effect without `probe_path`; write the path to probe, such as `/models`",
        );
    }
    ProviderHealth {
        failures: whole(&raw.failures, key("failures"), problems) as u32,
        window: Duration::from_secs(whole(&raw.window_secs, key("window_secs"), problems)),
        cooldown: Duration::from_secs(whole(&raw.cooldown_secs, key("cooldown_secs"), problems)),
        trial_requests: raw
            .trial_requests
            .check(key("trial_requests"), problems)
            .unwrap_or_else(|| calls_max.map_or(TRIAL_REQUESTS, |calls| calls.min(TRIAL_REQUESTS)))
            as u32,
        retry_after_max: Duration::from_secs(whole(
            &raw.retry_after_secs_max,
            key("retry_after_secs_max"),
            problems,
        )),
        probe: path.map(|at| Probe {
            path: at.value.clone(),
            every: Duration::from_secs(every),
        }),
    }
}
