//! Health probes: active health checks of a provider. A probe detects a failed provider before a client's request, and a recovered provider
//! is used again without a client's request as a trial.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use http::{Method, Version, header};
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_http::RequestHeader;

use super::provider::Provider;
use super::providers::Providers;
use crate::config::Probe;
use crate::upstream::transport::USER_AGENT;

/// Time limit of a probe, which is also bounded by the connect timeout.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// Probes a provider periodically, until dropped.
pub(super) async fn run(providers: Arc<Providers>, provider: Arc<Provider>, probe: Probe) {
    // A separate pool: probes take no connections from the workers.
    let connector = Connector::new(None);
    loop {
        let limit = PROBE_MAX.max(provider.settings.timeouts.connect);
        let answered =
            tokio::time::timeout(limit, probe_once(&connector, &provider, &probe.path)).await;
        let result = answered.unwrap_or_else(|_| Err(format!("no answer within {limit:?}")));
        record(&providers, &provider, result);
        tokio::time::sleep(probe.every).await;
    }
}

fn record(providers: &Providers, provider: &Provider, result: Result<(), String>) {
    let now = providers.clock.elapsed().as_micros() as u64;
    let name = &*provider.settings.name;
    match result {
        Ok(()) => {
            provider.probe_failed.store(false, Relaxed);
            // A list of models is free, and so no evidence about the money.
            if !provider.is_unpaid.load(Relaxed) && provider.record_success() {
                tracing::warn!(provider = name, "closed circuit: the probe succeeded");
                // The candidate's calls may have failed for this reason.
                for candidate in &providers.all {
                    if candidate.provider.endpoint.index == provider.endpoint.index {
                        candidate.health.end_cooldown(now);
                    }
                }
                providers.update_catalog();
            }
        }
        Err(detail) => {
            provider.probe_failed.store(true, Relaxed);
            // Like a failed trial request: an open circuit stays open.
            if provider
                .circuit
                .record_failure(now, true, &provider.circuit_settings)
            {
                tracing::error!(provider = name, %detail, "opened circuit: the probe failed");
                providers.update_catalog();
            }
        }
    }
}

async fn probe_once(connector: &Connector, provider: &Provider, path: &str) -> Result<(), String> {
    let endpoint = &provider.endpoint;
    let target = endpoint.target().await.map_err(|error| error.to_string())?;
    let text = |error: Box<pingora_core::Error>| error.to_string();
    let open = |_, peer: Arc<HttpPeer>| async move {
        let opened = connector.get_http_session(&*peer).await;
        opened
            .map(|(session, _)| (session, peer))
            .map_err(|error| error.to_string())
    };
    let (mut session, peer) = endpoint.open(&target, open).await?;
    let head = head(provider, path).map_err(text)?;
    session
        .write_request_header(Box::new(head))
        .await
        .map_err(text)?;
    session.finish_request_body().await.map_err(text)?;
    session.read_response_header().await.map_err(text)?;
    let status = session.response_header().map(|head| head.status);
    match status {
        Some(status) if status.is_success() => {
            while session.read_response_body().await.map_err(text)?.is_some() {}
            connector.release_http_session(session, &*peer, None).await;
            Ok(())
        }
        Some(status) => Err(format!("answered {status}")),
        None => Err("no answer".to_owned()),
    }
}

fn head(provider: &Provider, path: &str) -> pingora_core::Result<RequestHeader> {
    let url = &provider.settings.base_url;
    let target = [url.path.as_str(), path].concat();
    let mut head = RequestHeader::build_no_case(Method::GET, target.as_bytes(), Some(4))?;
    if provider.settings.http2 {
        head.set_version(Version::HTTP_2);
    }
    head.insert_header(header::HOST, url.authority.as_str())?;
    head.insert_header(header::ACCEPT, "application/json")?;
    head.insert_header(header::USER_AGENT, USER_AGENT)?;
    if let Some(authorization) = &provider.endpoint.authorization {
        head.insert_header(header::AUTHORIZATION, authorization.clone())?;
    }
    Ok(head)
}
