//! `[mcp.general]` and `[mcp.android]`: the servers behind the MCP resources.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use tollgate_filter::settings::{At, BaseUrl};

/// The servers behind the MCP resources.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMcp {
    /// The general resource.
    pub(crate) general: RawMcpResource,
    /// The Android resource.
    pub(crate) android: RawMcpResource,
}

/// The server behind one MCP resource.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMcpResource {
    /// The URL of its endpoint.
    pub(crate) upstream: Option<At<String>>,
    /// A PEM file with the roots to trust instead of the system's.
    pub(crate) ca_file: Option<At<String>>,
    /// The environment variable that contains the secret for signing the gateway's header fields.
    pub(crate) signing_secret_env: Option<At<String>>,
    /// The origins whose pages may call the resource; all by default.
    pub(crate) origins: Option<At<Vec<At<String>>>>,
    /// Connect timeout in seconds, TLS included.
    pub(crate) connect_secs: Option<At<u64>>,
    /// Timeout in seconds from the end of a request to the head of its response.
    pub(crate) first_byte_secs: Option<At<u64>>,
    /// Idle timeout in seconds within a response.
    pub(crate) idle_secs: Option<At<u64>>,
    /// Timeout in seconds of a whole call; an event stream is then ended cleanly.
    pub(crate) total_secs: Option<At<u64>>,
    /// Maximum idle connections of each worker.
    pub(crate) connections_idle_max: Option<At<u64>>,
}

/// `[mcp]`: the servers behind the two MCP resources.
#[derive(Clone, Debug, Default)]
pub struct Mcp {
    /// The server behind `/mcp`.
    pub general: McpResource,
    /// The server behind `/mcp/android`.
    pub android: McpResource,
}

impl Mcp {
    /// All configured upstreams.
    pub fn upstreams(&self) -> impl Iterator<Item = &Arc<RelayUpstream>> {
        let all = [&self.general, &self.android];
        all.into_iter().filter_map(|one| one.upstream.as_ref())
    }
}

/// The server and settings of one MCP resource.
#[derive(Clone, Debug, Default)]
pub struct McpResource {
    /// Its server; `None`: the resource is currently not offered.
    pub upstream: Option<Arc<RelayUpstream>>,
    /// The key that signs the gateway's own header fields.
    pub signing_secret: Option<SecretString>,
    /// The origins whose pages may call it, as browsers write them; `None` for all.
    pub origins: Option<Vec<String>>,
}

/// A server that requests are relayed to.
#[derive(Clone)]
pub struct RelayUpstream {
    /// Its name in logs and metrics: that of its section.
    pub name: Arc<str>,
    /// Its address.
    pub url: BaseUrl,
    /// The path of its endpoint, as written.
    pub path: String,
    /// Roots to trust instead of the system's.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    /// Connect timeout, TLS included.
    pub connect: Duration,
    /// Timeout from the end of a request to the head of its answer.
    pub first_byte: Duration,
    /// Idle timeout within an answer.
    pub idle: Duration,
    /// Timeout of the whole call.
    pub total: Duration,
    /// Connections kept open between calls, by each worker.
    pub connections_idle_max: usize,
}

impl fmt::Debug for RelayUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The roots are long, and their number is enough here.
        f.debug_struct("RelayUpstream")
            .field("name", &self.name)
            .field("url", &self.url)
            .field("path", &self.path)
            .field("roots", &self.roots.as_ref().map(Vec::len))
            .field("connect", &self.connect)
            .field("first_byte", &self.first_byte)
            .field("idle", &self.idle)
            .field("total", &self.total)
            .field("connections_idle_max", &self.connections_idle_max)
            .finish()
    }
}
