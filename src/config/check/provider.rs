//! `[[provider]]`.

use std::sync::Arc;

use tollgate_filter::settings::{At, Problems};

use super::{Shop, number, required, seconds};
use crate::config::certificate;
use crate::config::raw::{RawProvider, RawTimeouts};
use crate::config::secret::Secret;
use crate::config::settings::{Provider, ProviderTimeouts};

const HOUR: u64 = 3600;

pub(super) fn providers(
    raw: &[RawProvider],
    shop: &Shop<'_>,
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
        let api_key = api_key(index, one, shop, problems);
        let roots = one.ca_file.as_ref().and_then(|at| {
            certificate::read_certificates(&shop.path(at))
                .map_err(|error| problems.note(key("ca_file"), at, error))
                .ok()
        });
        let timeouts = timeouts(index, &one.timeouts, problems);
        let connections_idle_max = number(
            problems,
            key("connections_idle_max"),
            one.connections_idle_max.as_ref(),
            128,
            1..=65_536,
        ) as usize;
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
        }));
    }
    providers
}

/// A name ends up as a metric label, so it is short and plain.
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
    shop: &Shop<'_>,
    problems: &mut Problems,
) -> Option<Secret> {
    let key = |name: &str| format!("provider.{index}.{name}");
    let (name, at, text) = match (&raw.api_key_env, &raw.api_key_file) {
        (None, None) => return None,
        (Some(_), Some(at)) => {
            problems.note(
                key("api_key_file"),
                at,
                "stands beside `api_key_env`; keep one of them",
            );
            return None;
        }
        (Some(at), None) => {
            // The text is not repeated: it is likely the key itself.
            if !is_variable(at) {
                problems.note(
                    key("api_key_env"),
                    at,
                    "is not the name of a variable; name the variable that holds the key, do not write the key here",
                );
                return None;
            }
            let Some(value) = shop.environment.get(at) else {
                problems.note(
                    key("api_key_env"),
                    at,
                    format_args!(
                        "names the variable `{}`, which is not set; set it",
                        at.value
                    ),
                );
                return None;
            };
            ("api_key_env", at, value.to_owned())
        }
        (None, Some(at)) => match std::fs::read_to_string(shop.path(at)) {
            Ok(text) => ("api_key_file", at, text),
            Err(error) => {
                problems.note(
                    key("api_key_file"),
                    at,
                    format_args!(
                        "names `{}`, which cannot be read ({error}); name a file that the gateway's user may read",
                        shop.path(at).display()
                    ),
                );
                return None;
            }
        },
    };
    let secret = text.trim();
    if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        problems.note(
            key(name),
            at,
            format_args!(
                "names `{}`, which holds no key; a key is one word of visible ASCII",
                at.value
            ),
        );
        return None;
    }
    Some(Secret::new(secret.to_owned()))
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
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
