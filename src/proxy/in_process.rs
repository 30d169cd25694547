//! In-process API calls: requests of the gateway's pages to the gateway's API, through the API's chain, without a socket.
//!
//! Such a request passes every step of a client's request: authentication, count in the class, hold and settlement, access log. Only the
//! HTTP bytes are left out. The calls run on the gateway's runtime and not on the page's worker, so one connection pool to the providers
//! serves all calls.

use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use secrecy::ExposeSecret;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollgate_chain::run::Run;
use tollgate_chain::{BodyError, Downstream, Gone, Head, drive};
use tollgate_clock::{Clock, Reading};
use tollgate_filter::{Exchange, Protocol, Request};
use tollgate_memory::MemoryUse;
use tollgate_money::OperationId;
use tollgate_portal::{InProcessApi, InProcessFuture, InProcessRequest, InProcessResponse};

use super::generation::{CurrentGeneration, ThreadGeneration};
use super::routes::Found;
use super::state::{OpenExchange, Proxy};
use super::worker::{RouteObserver, catch_panic};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The pages' client of the API. The pages are created before the proxy, so the client is connected later.
#[derive(Default)]
pub(crate) struct InProcessClient {
    connected: OnceLock<Connected>,
}

struct Connected {
    /// A weak reference: the proxy owns the pages, and the pages own this client.
    proxy: Weak<Proxy>,
    runtime: Handle,
}

impl InProcessClient {
    /// Connects the client to the proxy. `runtime` serves the requests.
    pub(crate) fn connect(&self, proxy: &Arc<Proxy>, runtime: Handle) {
        let connected = Connected {
            proxy: Arc::downgrade(proxy),
            runtime,
        };
        let first = self.connected.set(connected).is_ok();
        debug_assert!(first, "a gateway starts once");
    }
}

impl InProcessApi for InProcessClient {
    fn call(&self, call: InProcessRequest) -> InProcessFuture<'_> {
        Box::pin(async move {
            let connected = self.connected.get()?;
            let proxy = connected.proxy.upgrade()?;
            let own = || CurrentGeneration::new(&proxy);
            let current = proxy.in_process.get_or_init(own).get(&proxy);
            let (sender, response) = oneshot::channel();
            connected.runtime.spawn(async move {
                serve(&proxy, &current, call, sender).await;
            });
            response.await.ok()
        })
    }
}

async fn serve(
    proxy: &Proxy,
    current: &ThreadGeneration,
    call: InProcessRequest,
    sender: oneshot::Sender<InProcessResponse>,
) {
    let open = OpenExchange::enter(&proxy.state);
    let now = proxy.clock.reading();
    let Some((request, body)) = request(proxy, call, now) else {
        return;
    };
    let Found::Route(entry) = current
        .generation
        .routes
        .find(&request.method, &request.path)
    else {
        return;
    };
    let mut downstream = InProcessDownstream {
        body,
        sender: Some(sender),
        clock: proxy.clock.clone(),
        began: now.elapsed,
    };
    let observer = RouteObserver {
        proxy,
        providers: &current.generation.providers,
        route: entry.index,
        open: Some(&open),
    };
    let mut exchange = Exchange::beginning(request, now);
    proxy.telemetry.begin_trace(&mut exchange);
    let mut run = Run::new(exchange, &entry.route.chain, &observer);
    let (clock, limits) = (&proxy.clock, &proxy.answer_limits);
    let exchange = drive(
        &entry.route,
        &mut run,
        &mut downstream,
        &current.calls,
        clock,
        limits,
    );
    if catch_panic(pin!(exchange)).await.is_err() {
        tracing::error!("in-process request aborted: panic, see the line before");
    }
}

/// The request in a client's form, and its body. `None` for a credential or a key invalid as a field value.
fn request(proxy: &Proxy, call: InProcessRequest, now: Reading) -> Option<(Request, Bytes)> {
    let mut headers = HeaderMap::with_capacity(3);
    let mut bearer =
        HeaderValue::try_from(format!("Bearer {}", call.bearer.expose_secret())).ok()?;
    bearer.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, bearer);
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    headers.insert(IDEMPOTENCY_KEY, call.idempotency_key.try_into().ok()?);
    let request = Request {
        id: OperationId::generate(now.now, &proxy.entropy),
        method: Method::POST,
        path: call.path.into(),
        query: None,
        headers,
        body: Bytes::new(),
        client: call.client,
        tls: false,
        protocol: Protocol::Http11,
    };
    Some((request, call.body))
}

/// The downstream of an in-process call: the page that waits for the response.
struct InProcessDownstream {
    body: Bytes,
    sender: Option<oneshot::Sender<InProcessResponse>>,
    clock: Clock,
    /// Clock reading at the request.
    began: Duration,
}

impl Downstream for InProcessDownstream {
    async fn read_body(&mut self, bytes_max: usize, _: &mut MemoryUse) -> Result<Bytes, BodyError> {
        if self.body.len() > bytes_max {
            return Err(BodyError::TooLarge { bytes_max });
        }
        Ok(std::mem::take(&mut self.body))
    }

    async fn send(&mut self, head: Head, body: Bytes) -> Result<(), Gone> {
        let answer = InProcessResponse {
            status: head.status,
            body,
            took: self.clock.elapsed().saturating_sub(self.began),
        };
        let sender = self.sender.take().ok_or(Gone)?;
        sender.send(answer).map_err(|_| Gone)
    }

    /// Streams are not supported: no page requests a stream.
    async fn start(&mut self, _: Head, _: &mut BytesMut) -> Result<(), Gone> {
        Err(Gone)
    }

    async fn write(&mut self, _: &mut BytesMut) -> Result<(), Gone> {
        Err(Gone)
    }

    async fn finish(&mut self, _: &mut BytesMut) -> Result<(), Gone> {
        Err(Gone)
    }

    async fn gone(&mut self) {
        match &mut self.sender {
            Some(sender) => sender.closed().await,
            None => std::future::pending().await,
        }
    }
}
