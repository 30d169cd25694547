//! The servers behind the MCP resources: the doctor sends an `initialize` to each server, like a client of the gateway.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use reqwest::Url;
use serde_json::{Value, json};
use tollgate_clock::Clock;
use tollgate_filter::RelayUpstream;
use tollgate_mcp::{McpResource, McpResources, probe_fields};

use super::checks::{Checks, milliseconds};
use super::finding::Finding;
use super::probe::{LIMIT, client};
use crate::config::Settings;
use crate::telemetry;

/// The most bytes of an answer.
const BODY_BYTES_MAX: usize = 1 << 20;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// An answer to `initialize`.
struct Answered {
    status: u16,
    /// The address of a redirect, resolved against the server's address, without its query.
    location: Option<Url>,
    /// Whether the answer follows the protocol: a stream of events, or a JSON-RPC result.
    is_result: bool,
}

pub(super) fn start(checks: &mut Checks, settings: &Arc<Settings>) {
    let resources: McpResources = settings.sections.find().unwrap_or_default();
    for resource in [resources.general, resources.android] {
        let Some(server) = resource.upstream.clone() else {
            continue;
        };
        let (service, clock) = (settings.service.name.clone(), checks.clock.clone());
        checks.start(finding_name(&server.name), async move {
            check(&service, &resource, &server, &clock).await
        });
    }
}

fn finding_name(server: &str) -> String {
    format!("MCP server {server}")
}

async fn check(
    service: &str,
    resource: &McpResource,
    server: &RelayUpstream,
    clock: &Clock,
) -> Finding {
    let began = clock.elapsed();
    let asked = tokio::time::timeout(LIMIT, initialize(service, resource, server, clock)).await;
    let asked =
        asked.unwrap_or_else(|_| Err(format!("no answer within {} seconds", LIMIT.as_secs())));
    match asked {
        Err(error) => Finding::failed(finding_name(&server.name), error).remedy(format!(
            "see whether `{}.upstream` is right, its server runs and is reachable from this machine, and its certificate is of a known \
             authority (`ca_file`)",
            server.name
        )),
        Ok(answered) => describe(&server.name, &answered, clock.elapsed() - began),
    }
}

async fn initialize(
    service: &str,
    resource: &McpResource,
    server: &RelayUpstream,
    clock: &Clock,
) -> Result<Answered, String> {
    let scheme = if server.url.tls { "https" } else { "http" };
    let address = format!("{scheme}://{}{}", server.url.authority, server.path);
    let address: Url = address.parse().map_err(|error| format!("{error}"))?;
    let client = client(server.roots.as_deref(), server.url.tls)?;
    let client = client.connect_timeout(server.connect).http1_only().build();
    let client = client.map_err(|error| telemetry::chain(&error))?;
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "tollgate doctor", "version": env!("CARGO_PKG_VERSION")},
    }});
    let accept = HeaderValue::from_static("application/json, text/event-stream");
    let sent = client
        .post(address.clone())
        .headers(probe_fields(service, resource, &Method::POST, clock))
        .header(header::ACCEPT, accept)
        .header(header::CONTENT_TYPE, "application/json")
        .body(message.to_string())
        .send()
        .await;
    let mut answer = sent.map_err(|error| telemetry::chain(&error.without_url()))?;
    let session = answer.headers().get(SESSION_ID).cloned();
    let answered = Answered {
        status: answer.status().as_u16(),
        location: location(&address, answer.headers()),
        is_result: is_result(&mut answer).await,
    };
    drop(answer);
    if let Some(session) = session {
        // A client ends a session that the client no longer needs. A server may not support the end of a session.
        let _ = client
            .delete(address)
            .headers(probe_fields(service, resource, &Method::DELETE, clock))
            .header(SESSION_ID, session)
            .send()
            .await;
    }
    Ok(answered)
}

fn location(address: &Url, headers: &HeaderMap) -> Option<Url> {
    let location = headers.get(header::LOCATION)?.to_str().ok()?;
    let mut location = address.join(location).ok()?;
    location.set_query(None);
    location.set_fragment(None);
    Some(location)
}

async fn is_result(answer: &mut reqwest::Response) -> bool {
    let kind = answer.headers().get(header::CONTENT_TYPE);
    let kind = kind.map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default();
    let kind = kind.trim_ascii();
    if kind.eq_ignore_ascii_case(b"text/event-stream") {
        return true;
    }
    let mut body = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await {
        body.extend_from_slice(&piece);
        if body.len() > BODY_BYTES_MAX {
            return false;
        }
    }
    let message: Value = serde_json::from_slice(&body).unwrap_or_default();
    message["result"]["protocolVersion"].is_string()
}

fn describe(server: &str, answered: &Answered, took: Duration) -> Finding {
    let name = finding_name(server);
    let measured = format!(
        "{} to initialize in {}",
        answered.status,
        milliseconds(took)
    );
    let setting = format!("`{server}.upstream`");
    match (answered.status, &answered.location) {
        (200, _) if answered.is_result => Finding::ok(name, measured),
        (200..=299, _) => Finding::failed(name, format!("{measured}, without a result")).remedy(
            format!("see that {setting} is the address of a server that speaks MCP's Streamable HTTP"),
        ),
        (300..=399, Some(location)) => {
            Finding::failed(name, format!("{measured}, a redirect to {location}")).remedy(format!(
                "clients get 502: set {setting} to `{location}`"
            ))
        }
        (401 | 407, _) => Finding::failed(name, measured).remedy(
            "clients get 502: the server has to trust the gateway's own header fields (`filters/mcp/README.md`), not a credential",
        ),
        (403, _) => Finding::warning(name, measured).remedy(
            "it is reachable, but refuses the owner of this request, an id that no account has; see its log, if clients are refused too",
        ),
        (404 | 405, _) => Finding::failed(name, measured).remedy(format!(
            "there is no MCP server at this path: set {setting} to its endpoint, such as `http://127.0.0.1:9001/mcp`"
        )),
        (500.., _) => Finding::failed(name, measured)
            .remedy("the server has a fault: see its log"),
        _ => Finding::failed(name, measured).remedy(format!(
            "see the server's log, and that {setting} is its endpoint for MCP's Streamable HTTP"
        )),
    }
}
