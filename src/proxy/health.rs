//! `/live` and `/ready` on a listener for clients, for the load balancer in front: the status, without the reasons, which are for operators
//! (`admin`).

use std::future::Future;
use std::pin::Pin;

use http::{HeaderValue, Method, StatusCode, header};
use tollgate_filter::Reply;

use super::state::Proxy;

/// Whether every worker answers.
pub(crate) type LivenessCheck =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// The checks behind both addresses.
pub(crate) struct HealthChecks {
    pub(crate) is_live: LivenessCheck,
    /// Whether the gateway takes requests.
    pub(crate) is_ready: Box<dyn Fn() -> bool + Send + Sync>,
}

/// An address of a load balancer's probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    Live,
    Ready,
}

impl Probe {
    /// The probe of a request, if any.
    pub(super) fn of(method: &Method, path: &str) -> Option<Probe> {
        match path {
            "/live" if *method == Method::GET || *method == Method::HEAD => Some(Probe::Live),
            "/ready" if *method == Method::GET || *method == Method::HEAD => Some(Probe::Ready),
            _ => None,
        }
    }

    /// The probe's answer: 200, or 503 with the opposite word.
    pub(super) async fn reply(self, proxy: &Proxy) -> Reply {
        // Present within milliseconds of the first connection, which a successor may accept while its predecessor is ready.
        let checks = proxy.health.wait().await;
        let is_good = (checks.is_live)().await
            && match self {
                Probe::Live => true,
                // Between two processes requests wait, and none is refused. The store, the subject of readiness, is closed. The wait may
                // end during this answer; later probes are relayed.
                Probe::Ready => proxy.is_gated() || (checks.is_ready)(),
            };
        let (status, body) = match (self, is_good) {
            (Probe::Live, true) => (StatusCode::OK, "live\n"),
            (Probe::Ready, true) => (StatusCode::OK, "ready\n"),
            (Probe::Live, false) => (StatusCode::SERVICE_UNAVAILABLE, "not live\n"),
            (Probe::Ready, false) => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
        };
        let mut reply = Reply::of(status, "text/plain", body.into());
        let no_store = HeaderValue::from_static("no-store");
        reply.headers.insert(header::CACHE_CONTROL, no_store);
        reply
    }
}
