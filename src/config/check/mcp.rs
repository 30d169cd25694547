//! `[mcp.general]` and `[mcp.android]`.

use std::sync::Arc;

use http::Uri;
use secrecy::SecretString;
use tollgate_filter::settings::{At, BaseUrl, Problems};
use tollgate_module::is_variable;

use super::{CheckContext, number, seconds};
use crate::config::certificate;
use crate::config::mcp::{Mcp, McpResource, RawMcp, RawMcpResource, RelayUpstream};

const HOUR: u64 = 3600;

/// A shorter secret could be found by brute force.
const SECRET_BYTES_MIN: usize = 32;

pub(super) fn mcp(raw: &RawMcp, context: &CheckContext<'_>, problems: &mut Problems) -> Mcp {
    Mcp {
        general: resource("mcp.general", &raw.general, context, problems),
        android: resource("mcp.android", &raw.android, context, problems),
    }
}

fn resource(
    name: &str,
    raw: &RawMcpResource,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> McpResource {
    let key = |key: &str| format!("{name}.{key}");
    let roots = raw.ca_file.as_ref().and_then(|at| {
        certificate::read_certificates(&context.path(at))
            .map_err(|error| problems.note(key("ca_file"), at, error))
            .ok()
    });
    let mut secs = |name: &str, at: &Option<At<u64>>, default, max| {
        seconds(problems, key(name), at.as_ref(), default, 1..=max)
    };
    let connect = secs("connect_secs", &raw.connect_secs, 10, 300);
    let first_byte = secs("first_byte_secs", &raw.first_byte_secs, 300, HOUR);
    let idle = secs("idle_secs", &raw.idle_secs, 1800, 24 * HOUR);
    let total = secs("total_secs", &raw.total_secs, HOUR, 24 * HOUR);
    let connections_idle_max = number(
        problems,
        key("connections_idle_max"),
        raw.connections_idle_max.as_ref(),
        32,
        0..=65_536,
    ) as usize;
    let signing_secret = raw
        .signing_secret_env
        .as_ref()
        .and_then(|at| secret(key("signing_secret_env"), at, context, problems));
    let origins = raw.origins.as_ref().map(|list| {
        let all = list.value.iter().enumerate();
        all.filter_map(|(number, at)| {
            let key = format!("{}.{number}", key("origins"));
            origin(key, at, problems)
        })
        .collect()
    });
    let upstream = raw.upstream.as_ref().and_then(|at| {
        let url: BaseUrl = problems.parse(key("upstream"), at)?;
        let path = at.value.parse::<Uri>().ok()?.path().to_owned();
        Some(Arc::new(RelayUpstream {
            name: name.into(),
            url,
            path,
            roots,
            connect,
            first_byte,
            idle,
            total,
            connections_idle_max,
        }))
    });
    McpResource {
        upstream,
        signing_secret,
        origins,
    }
}

fn secret(
    key: String,
    at: &At<String>,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<SecretString> {
    // The text is not repeated: it is likely the secret itself.
    if !is_variable(at) {
        let message = "is not the name of a variable; name the variable that contains the secret; do not write the secret itself";
        problems.note(key, at, message);
        return None;
    }
    let Some(value) = context.environment.get(at) else {
        let message = format_args!(
            "names the variable `{}`, which is not set; set it",
            at.value
        );
        problems.note(key, at, message);
        return None;
    };
    let value = value.trim();
    if value.len() < SECRET_BYTES_MIN {
        let message = format_args!(
            "names `{}`, which contains fewer than {SECRET_BYTES_MIN} characters; use a longer random secret",
            at.value
        );
        problems.note(key, at, message);
        return None;
    }
    Some(SecretString::from(value.to_owned()))
}

/// An origin as browsers write it: scheme, host and, unless it is the scheme's default, port; or `null`, that of opaque origins.
fn origin(key: String, at: &At<String>, problems: &mut Problems) -> Option<String> {
    if at.value == "null" {
        return Some(at.value.clone());
    }
    let url: BaseUrl = problems.parse(key.as_str(), at)?;
    let written = url.to_string();
    if !url.path.is_empty() || written != at.value {
        let message = format_args!(
            "is `{}`, which no browser sends; write scheme, host and port in lower case, such as `https://app.example.com`",
            at.value
        );
        problems.note(key, at, message);
        return None;
    }
    Some(written)
}
