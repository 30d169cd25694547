//! The sections `[mcp.general]` and `[mcp.android]`: as written, with their check.

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::Deserialize;
use tollgate_filter::settings::{At, BaseUrl, Problems, Whole};
use tollgate_filter::{OfferedResources, RelayUpstream, RelayUpstreams, Resource, Resources};
use tollgate_module::{Named, Section, SectionContext, Services};

use crate::signature::SigningSecret;

/// A shorter secret could be found by brute force.
const SECRET_BYTES_MIN: usize = 32;

/// The servers behind the MCP resources.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawMcp {
    /// The general resource.
    pub general: RawMcpResource,
    /// The Android resource.
    pub android: RawMcpResource,
}

/// The server behind one MCP resource.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawMcpResource {
    /// The URL of the server's endpoint. Without it authorized requests get 503 `mcp_unavailable`.
    ///
    /// Type: URL
    /// Range: `http` or `https`, no user, query or fragment
    pub upstream: Option<At<String>>,
    /// The roots its certificate must come from.
    ///
    /// Type: path
    /// Default: the system's roots
    /// Range: PEM
    pub ca_file: Option<At<String>>,
    /// Contains the secret for signing the gateway's header fields (`filters/mcp/README.md`).
    ///
    /// Type: name of a variable
    /// Range: at least 32 characters
    pub signing_secret_env: Option<At<String>>,
    /// Contains that secret.
    ///
    /// Type: path
    /// Range: not beside `signing_secret_env`
    pub signing_secret_file: Option<At<String>>,
    /// The origins whose pages may call the resource; others get 403.
    ///
    /// Type: list of origins
    /// Default: all
    /// Range: scheme, host and port as browsers write them, or `null`
    pub origins: Option<At<Vec<At<String>>>>,
    /// Connect timeout, TLS included.
    pub connect_secs: Whole<10, 1, 300>,
    /// Timeout from the end of a request to the head of its response.
    pub first_byte_secs: Whole<300, 1, 3_600>,
    /// Idle timeout within a response.
    pub idle_secs: Whole<1_800, 1, 86_400>,
    /// Timeout of a whole call. An event stream is then ended cleanly, and its client reconnects with its token.
    pub total_secs: Whole<3_600, 1, 86_400>,
    /// Maximum idle connections of each worker, for 3 s.
    pub connections_idle_max: Whole<32, 0, 65_536>,
}

/// The servers and settings of the MCP resources.
#[derive(Clone, Debug, Default)]
pub struct McpResources {
    /// The general resource.
    pub general: McpResource,
    /// The Android resource.
    pub android: McpResource,
}

/// The server and settings of an MCP resource.
#[derive(Clone, Debug, Default)]
pub struct McpResource {
    /// The server of the resource; `None` while the resource is not offered.
    pub upstream: Option<Arc<RelayUpstream>>,
    /// The secret that signs the gateway's header fields, if the fields are signed.
    pub secret: Option<SigningSecret>,
    /// The origins whose pages may call, as browsers write origins; `None` for every origin.
    pub origins: Option<Vec<String>>,
}

impl Section for RawMcp {
    const NAME: &'static str = "mcp";
    type Settings = McpResources;

    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<McpResources> {
        let general = resource("general", &self.general, context, problems);
        let android = resource("android", &self.android, context, problems);
        Some(McpResources {
            general: general?,
            android: android?,
        })
    }

    fn provide(resources: McpResources, services: &mut Services) {
        let all = [&resources.general, &resources.android];
        let upstreams = all.into_iter().filter_map(|one| one.upstream.clone());
        let mut offered = Resources::API;
        for (one, resource) in [
            (&resources.general, Resource::Mcp),
            (&resources.android, Resource::McpAndroid),
        ] {
            if one.upstream.is_some() {
                offered = offered.with(resource);
            }
        }
        services.provide(OfferedResources(offered));
        services.provide(RelayUpstreams(upstreams.collect()));
        services.provide(resources);
    }
}

fn resource(
    name: &str,
    raw: &RawMcpResource,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<McpResource> {
    let section = context.key(name);
    let key = |key: &str| format!("{section}.{key}");
    let ca_file = format!("{name}.ca_file");
    let roots = context.certificates(&ca_file, raw.ca_file.as_ref(), problems);
    let connect = raw.connect_secs.check(key("connect_secs"), problems);
    let first_byte = raw.first_byte_secs.check(key("first_byte_secs"), problems);
    let idle = raw.idle_secs.check(key("idle_secs"), problems);
    let total = raw.total_secs.check(key("total_secs"), problems);
    let connections = key("connections_idle_max");
    let connections = raw.connections_idle_max.check(connections, problems);
    let secret = read_secret(&section, raw, context, problems);
    let origins = raw.origins.as_ref().map(|list| {
        let all = list.value.iter().enumerate();
        all.filter_map(|(number, at)| origin(key(&format!("origins.{number}")), at, problems))
            .collect()
    });
    let url = raw.upstream.as_ref().and_then(|at| {
        let url: BaseUrl = problems.parse(key("upstream"), at)?;
        Some((url, at.value.parse::<Uri>().ok()?.path().to_owned()))
    });
    let (connect, first_byte, idle, total) = (connect?, first_byte?, idle?, total?);
    let connections = usize::try_from(connections?).unwrap_or(usize::MAX);
    let upstream = url.map(|(url, path)| {
        Arc::new(RelayUpstream {
            name: section.as_str().into(),
            url,
            path,
            roots,
            connect: Duration::from_secs(connect),
            first_byte: Duration::from_secs(first_byte),
            idle: Duration::from_secs(idle),
            total: Duration::from_secs(total),
            connections_idle_max: connections,
        })
    });
    Some(McpResource {
        upstream,
        secret,
        origins,
    })
}

fn read_secret(
    section: &str,
    raw: &RawMcpResource,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<SigningSecret> {
    let sources = [
        ("signing_secret_env", raw.signing_secret_env.as_ref()),
        ("signing_secret_file", raw.signing_secret_file.as_ref()),
    ];
    let named = Named {
        section,
        variable: sources[0],
        file: sources[1],
    };
    // A passphrase: several words remain a valid secret, as before.
    let secret = named.passphrase(context.inputs(), problems)?;
    if secret.expose_secret().len() >= SECRET_BYTES_MIN {
        return Some(SigningSecret::new(secret.expose_secret()));
    }
    for (name, at) in sources {
        if let Some(at) = at {
            let message = format_args!(
                "names `{}`, which contains fewer than {SECRET_BYTES_MIN} characters; use a longer random secret",
                at.value
            );
            problems.note(format!("{section}.{name}"), at, message);
        }
    }
    None
}

/// An origin as browsers write origins: scheme, host and port unless the port is the scheme's default; or `null` for opaque origins.
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
