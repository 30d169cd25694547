//! Making a call: choosing a provider, connecting, sending the request, reading the head of the answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Method, StatusCode, Version, header};
use pingora_core::RetryType;
use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::Connector;
use pingora_core::protocols::Stream;
use pingora_core::protocols::http::v1::client::HttpSession as Http1;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::net::TcpStream;
use tollgate_chain::{Upstream, UpstreamError};
use tollgate_filter::{Clock, Exchange, Forward, ProviderModel, UpstreamFault};

use super::call::{Call, Link};
use super::fault;
use super::pool::Pool;
use super::providers::{Provider, Providers, peer_address};
use crate::socket::{Corked, Tcp};
use crate::telemetry::Telemetry;
use crate::wait::within;

/// Of an error's body no more than this is read.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// A pooled connection that the provider had closed shows it within this time after a request was written to it.
const STALE_SHOWS: Duration = Duration::from_secs(1);

/// For no longer than this.
const ERROR_READ_MAX: Duration = Duration::from_secs(5);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const AGENT: HeaderValue =
    HeaderValue::from_static(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// Makes the calls of one worker.
pub(crate) struct Caller {
    providers: Arc<Providers>,
    clock: Clock,
    telemetry: Telemetry,
    shared: Arc<Shared>,
}

/// The idle connections of one worker.
pub(super) struct Shared {
    pub(super) pool: Pool,
    /// Only made when a provider needs it: it loads the system's roots.
    pub(super) connector: Option<Connector>,
}

/// Why a try failed, and whether a fresh connection may do better.
struct Failed {
    error: UpstreamError,
    /// A pooled connection broke before the first byte of an answer: the provider had closed it, and has not seen the request.
    stale: bool,
}

impl From<UpstreamError> for Failed {
    fn from(error: UpstreamError) -> Failed {
        Failed {
            error,
            stale: false,
        }
    }
}

impl Caller {
    pub(crate) fn new(providers: Arc<Providers>, clock: Clock, telemetry: Telemetry) -> Caller {
        let connector = providers
            .any_needs_connector()
            .then(|| Connector::new(Some(ConnectorOptions::new(1024))));
        let shared = Arc::new(Shared {
            pool: Pool::default(),
            connector,
        });
        Caller {
            providers,
            clock,
            telemetry,
            shared,
        }
    }

    /// Calls one provider, on a fresh connection if a pooled one turns out to be stale.
    async fn call_provider(
        &self,
        exchange: &mut Exchange,
        at: &ProviderModel,
    ) -> Result<Call, UpstreamError> {
        let Some(provider) = self.providers.named(&at.provider) else {
            return Err(fault::unreachable(format!(
                "no provider is named `{}`",
                at.provider
            )));
        };
        exchange.record.provider = Some(provider.settings.name.clone());
        let Some(forward) = exchange.get::<Forward>() else {
            return Err(fault::invalid("nothing to forward"));
        };
        let body = forward.body.render(&exchange.request.body, &at.model);
        let (path, stream) = (forward.path, forward.stream);
        let began = self.clock.elapsed();
        let mut fresh = false;
        let result = loop {
            exchange.record.upstream_calls += 1;
            match self
                .attempt(provider, path, stream, body.clone(), began, fresh)
                .await
            {
                // What breaks later than this is no connection that had been closed before: the provider may be at work on it.
                Err(Failed { stale: true, .. })
                    if !fresh && self.clock.elapsed() - began < STALE_SHOWS =>
                {
                    fresh = true;
                }
                Err(failed) => break Err(failed.error),
                Ok(call) => break Ok(call),
            }
        };
        let fault = result.as_ref().map(|_| ()).map_err(|error| error.fault);
        self.telemetry.upstream_call(&provider.settings.name, fault);
        self.note(provider, &result);
        result
    }

    /// Keeps the provider's health. Only what says something about the provider counts: not the client's own mistakes.
    fn note(&self, provider: &Provider, result: &Result<Call, UpstreamError>) {
        let news = match result {
            Ok(_) => provider.succeeded(),
            Err(error) => match error.fault {
                UpstreamFault::BadRequest | UpstreamFault::RateLimited => false,
                _ => provider.failed(),
            },
        };
        if news {
            let working = result.is_ok();
            tracing::warn!(
                provider = &*provider.settings.name,
                working,
                "provider changed state"
            );
            self.providers.mark_models();
        }
    }

    async fn attempt(
        &self,
        provider: &Arc<Provider>,
        path: &str,
        stream: bool,
        body: Bytes,
        began: Duration,
        fresh: bool,
    ) -> Result<Call, Failed> {
        let timeouts = &provider.settings.timeouts;
        let deadline = began + timeouts.total;
        let peer = match within(timeouts.connect, provider.peer()).await {
            Ok(Ok(peer)) => peer,
            Ok(Err(error)) => return Err(fault::unreachable(error).into()),
            Err(_) => return Err(fault::timeout("the provider's address", timeouts.connect).into()),
        };
        let head = head(provider, path, stream, body.len()).map_err(Failed::from)?;
        let first_byte = if stream {
            timeouts.first_byte
        } else {
            timeouts.first_byte_whole
        }
        .min(timeouts.total);
        let (mut link, reused) = if provider.needs_connector() {
            Box::pin(self.link_pooled(&peer, timeouts.connect, fresh)).await?
        } else {
            self.link_plain(provider, &peer, timeouts.connect, fresh)
                .await?
        };
        let one_stream = link.is_http2();
        let talk = async {
            let sent = send(&mut link, head, body).await;
            sent.map_err(|error| broke(&error, reused))?;
            let answer = read_head(&mut link).await;
            answer.map_err(|error| {
                // A stream that the provider resets says nothing about its connection, and the provider has seen the request.
                broke(
                    &error,
                    if one_stream {
                        unseen(&error, reused)
                    } else {
                        reused
                    },
                )
            })
        };
        let answer = match within(first_byte, talk).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(failed)) => return Err(failed),
            Err(_) => return Err(fault::timeout("the first byte", first_byte).into()),
        };
        if answer.status != StatusCode::OK {
            let body = Box::pin(read_error(&mut link)).await;
            return Err(fault::of_status(answer.status, answer.retry_after, &body).into());
        }
        if answer.is_encoded {
            return Err(fault::invalid("the answer is compressed, which was not asked for").into());
        }
        Ok(Call {
            link,
            provider: provider.clone(),
            shared: self.shared.clone(),
            clock: self.clock.clone(),
            is_stream: answer.is_stream,
            deadline,
        })
    }

    async fn link_plain(
        &self,
        provider: &Provider,
        peer: &HttpPeer,
        limit: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), Failed> {
        let Some(address) = peer_address(peer) else {
            return Err(fault::unreachable("the provider has no internet address").into());
        };
        let key = (provider.index, address);
        if !fresh && let Some(stream) = self.shared.pool.take(key, self.clock.elapsed()) {
            return Ok((Link::Plain(Box::new(Http1::new(stream)), address), true));
        }
        let socket = match Box::pin(within(limit, TcpStream::connect(address))).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return Err(fault::unreachable(error).into()),
            Err(_) => return Err(fault::timeout("a connection", limit).into()),
        };
        // Head and body are joined before they are written; nothing is gained by waiting for more.
        let _ = socket.set_nodelay(true);
        let stream: Stream = Box::new(Corked::held(Tcp::new(socket)));
        Ok((Link::Plain(Box::new(Http1::new(stream)), address), false))
    }

    async fn link_pooled(
        &self,
        peer: &Arc<HttpPeer>,
        limit: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), Failed> {
        let Some(connector) = &self.shared.connector else {
            return Err(fault::unreachable("there is no connector for TLS").into());
        };
        let mut peer = peer.clone();
        if fresh {
            // The connector has no word for it, but it never mixes connections of different groups.
            Arc::make_mut(&mut peer).group_key = self.clock.elapsed().as_nanos() as u64;
        }
        match within(limit, connector.get_http_session(&*peer)).await {
            Ok(Ok((session, reused))) => Ok((Link::Pooled(Box::new(session), peer), reused)),
            Ok(Err(error)) => Err(fault::unreachable(error).into()),
            Err(_) => Err(fault::timeout("a connection", limit).into()),
        }
    }
}

impl Upstream for Caller {
    type Call = Call;

    async fn call(&self, exchange: &mut Exchange) -> Result<Call, UpstreamError> {
        let Some(model) = exchange
            .get::<Forward>()
            .map(|forward| forward.model.clone())
        else {
            return Err(fault::invalid("nothing to forward"));
        };
        // One provider for now: the first. Failing over to the next one belongs here, since nothing has been sent to the client.
        let Some(at) = model.providers.first() else {
            return Err(fault::unreachable("the model has no provider"));
        };
        self.call_provider(exchange, at).await
    }
}

/// The head of a call. Nothing of the client's head is in it: above all not its credential.
fn head(
    provider: &Provider,
    path: &str,
    stream: bool,
    length: usize,
) -> Result<Box<RequestHeader>, UpstreamError> {
    let url = &provider.settings.base_url;
    let target = [url.path.as_str(), path].concat();
    let build = || -> pingora_core::Result<RequestHeader> {
        let mut head = RequestHeader::build_no_case(Method::POST, target.as_bytes(), Some(8))?;
        head.set_version(if provider.settings.http2 {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        });
        head.insert_header(header::HOST, url.authority.as_str())?;
        head.insert_header(header::CONTENT_TYPE, JSON)?;
        head.insert_header(header::CONTENT_LENGTH, HeaderValue::from(length))?;
        head.insert_header(header::ACCEPT, if stream { EVENT_STREAM } else { JSON })?;
        head.insert_header(header::ACCEPT_ENCODING, IDENTITY)?;
        head.insert_header(header::USER_AGENT, AGENT)?;
        if let Some(authorization) = &provider.authorization {
            head.insert_header(header::AUTHORIZATION, authorization.clone())?;
        }
        Ok(head)
    };
    build()
        .map(Box::new)
        .map_err(|error| fault::invalid(format!("cannot build the call: {error}")))
}

async fn send(link: &mut Link, head: Box<RequestHeader>, body: Bytes) -> pingora_core::Result<()> {
    match link {
        Link::Plain(session, _) => {
            // The stream is corked, so that head and body leave in one packet; the end of the body lets both go.
            session.write_request_header(head).await?;
            session.write_body(&body).await?;
            if let Some(stream) = session.stream().as_any().downcast_ref::<Corked<Tcp>>() {
                stream.handle().set(false);
            }
            session.finish_body().await?;
            if let Some(stream) = session.stream().as_any().downcast_ref::<Corked<Tcp>>() {
                stream.handle().set(true);
            }
            Ok(())
        }
        Link::Pooled(session, _) => {
            session.write_request_header(head).await?;
            session.write_request_body(body, true).await?;
            session.finish_request_body().await
        }
    }
}

/// What matters of the head of an answer.
struct Answer {
    status: StatusCode,
    is_stream: bool,
    is_encoded: bool,
    retry_after: Option<Duration>,
}

impl Answer {
    fn of(head: &ResponseHeader) -> Answer {
        let is_stream = head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
            let essence = kind
                .as_bytes()
                .split(|&byte| byte == b';')
                .next()
                .unwrap_or_default();
            essence
                .trim_ascii()
                .eq_ignore_ascii_case(b"text/event-stream")
        });
        let encoding = head.headers.get(header::CONTENT_ENCODING);
        let wait = head.headers.get(header::RETRY_AFTER);
        Answer {
            status: head.status,
            is_stream,
            is_encoded: encoding.is_some_and(|value| value != IDENTITY),
            retry_after: wait
                .and_then(|value| value.to_str().ok()?.trim().parse().ok())
                .map(Duration::from_secs),
        }
    }
}

/// The final head of the answer; informational ones are passed over (RFC 9110 section 15.2).
async fn read_head(link: &mut Link) -> pingora_core::Result<Answer> {
    loop {
        let head = match link {
            Link::Plain(session, _) => {
                session.read_response().await?;
                session.resp_header()
            }
            Link::Pooled(session, _) => {
                session.read_response_header().await?;
                session.response_header()
            }
        };
        match head {
            Some(head) if head.status.is_informational() => {}
            Some(head) => return Ok(Answer::of(head)),
            None => {
                let kind = pingora_core::ErrorType::ConnectionClosed;
                return Err(pingora_core::Error::new(kind));
            }
        }
    }
}

/// Whether an error on an HTTP/2 connection means that the provider has not worked on the request: it refused the stream, said that it
/// was leaving, or was gone already (RFC 9113 section 8.7).
fn unseen(error: &pingora_core::Error, reused: bool) -> bool {
    match error.retry {
        RetryType::Decided(unseen) => unseen,
        RetryType::ReusedOnly => reused,
    }
}

fn broke(error: &pingora_core::Error, stale: bool) -> Failed {
    use pingora_core::ErrorType::InvalidHTTPHeader;
    if *error.etype() == InvalidHTTPHeader {
        return fault::invalid(format!("the answer is not HTTP: {error}")).into();
    }
    Failed {
        error: fault::cut(error),
        stale,
    }
}

/// As much of an error's body as is worth reading.
async fn read_error(link: &mut Link) -> Vec<u8> {
    let mut body = BytesMut::new();
    let read = async {
        while body.len() < ERROR_BYTES_MAX {
            match link.read_body().await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) | Err(_) => break,
            }
        }
    };
    // What came in time is better than nothing.
    let _ = within(ERROR_READ_MAX, read).await;
    body.truncate(ERROR_BYTES_MAX);
    body.to_vec()
}
