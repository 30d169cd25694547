//! The relay: requests streamed in both directions concurrently, piece by piece, without buffering.
//!
//! At most one piece of a request is in flight: the next is read from the client after the previous was sent. A piece of the response is
//! written to the client before the next is read. So a slow side applies backpressure to the other, and no data accumulates here.

use std::future::{pending, poll_fn};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use smallvec::SmallVec;
use tokio::time::{Instant, MissedTickBehavior};
use tollgate_clock::Clock;
use tollgate_filter::{
    ApiError, CredentialCheck, Ending, ErrorCode, Exchange, Relay, Tail, UpstreamFault, end_to_end,
};

use crate::answer::{head, send_error};
use crate::boundary::Boundary;
use crate::chain::Route;
use crate::downstream::{BodyError, BodyLength, Downstream, Gone};
use crate::drive::Limits;
use crate::relay_stream::{RelayEvent, RelayStream, RelayedHead};
use crate::run::Run;
use crate::stream::KEEP_ALIVE;
use crate::upstream::{Upstream, UpstreamError};

/// Progress of the request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upload {
    /// A piece is being sent; the last piece if `last`.
    Sending { last: bool },
    /// Waiting for the next piece.
    Reading,
    /// Every piece was sent.
    Done,
}

/// An event from the client's side.
enum FromClient {
    Piece(Result<Option<Bytes>, BodyError>),
    Disconnected,
}

/// Forwards a request and returns its response.
pub(crate) async fn relay<D: Downstream, U: Upstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    upstream: &U,
    clock: &Clock,
    limits: &Limits,
) -> Ending {
    let length = downstream.body_length();
    if let BodyLength::Bytes(bytes) = length
        && bytes > route.body_bytes_max as u64
    {
        // The client announces the excess itself: the upstream does not need the request.
        return refuse_body(route, run, downstream, &too_large(route)).await;
    }
    run.exchange.record.upstream_started = Some(run.exchange.elapsed(clock));
    let opened = {
        let open = upstream.open(&mut run.exchange, length);
        match length {
            BodyLength::Nothing => tokio::select! {
                biased;
                opened = open => opened,
                () = downstream.gone() => return Ending::GoneBefore,
            },
            // Whether the client is still connected cannot be detected while its body is unread; connecting takes a bounded time.
            _ => open.await,
        }
    };
    let stream = match opened {
        Ok(stream) => stream,
        Err(error) => return fail(route, run, downstream, error).await,
    };
    let relayed = RelayedExchange {
        route,
        run,
        downstream,
        stream,
        clock,
        started: false,
        comments: None,
        left: route.body_bytes_max,
        out: BytesMut::new(),
    };
    relayed.run(length, limits).await
}

/// A relayed exchange in progress.
struct RelayedExchange<'r, 'c, D> {
    route: &'r Route,
    run: &'r mut Run<'c>,
    downstream: &'r mut D,
    stream: Box<dyn RelayStream>,
    clock: &'r Clock,
    /// Whether the head of the response has been sent.
    started: bool,
    /// The position in the event stream, if the response permits comments.
    comments: Option<Boundary>,
    /// Remaining bytes allowed in the request's body.
    left: usize,
    out: BytesMut,
}

impl<D: Downstream> RelayedExchange<'_, '_, D> {
    async fn run(mut self, length: BodyLength, limits: &Limits) -> Ending {
        let mut upload = Upload::Sending {
            last: length == BodyLength::Nothing,
        };
        // The head of a response without a body, sent once the absence is certain.
        let mut bare = None;
        let mut silence = std::pin::pin!(tokio::time::sleep(limits.keep_alive));
        // Ends a listening stream whose credential is no longer valid.
        let mut checks = tokio::time::interval(limits.keep_alive);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let RelayedExchange {
                stream,
                downstream,
                comments,
                ..
            } = &mut self;
            let comment_due = comments.as_ref().is_some_and(Boundary::is_between);
            tokio::select! {
                biased;
                event = poll_fn(|cx| stream.poll_event(cx)) => {
                    silence.as_mut().reset(Instant::now() + limits.keep_alive);
                    match event {
                        Ok(RelayEvent::Writable) => upload = match upload {
                            Upload::Sending { last: true } => Upload::Done,
                            _ => Upload::Reading,
                        },
                        Ok(RelayEvent::SentAgain) => self.run.exchange.record.upstream_calls += 1,
                        Ok(RelayEvent::Head(head)) => {
                            self.run.exchange.record.upstream_first_byte = Some(self.run.exchange.refresh_now(self.clock));
                            let upstream = self.run.exchange.get::<Relay>().map(|relay| &*relay.upstream);
                            if let Some(detail) = misplaced(upstream.unwrap_or_default(), &head) {
                                let error = UpstreamError::of_relay(UpstreamFault::Error, detail);
                                return self.fail(error).await;
                            }
                            if !head.has_body {
                                bare = Some(head);
                            } else if let Err(ending) = self.start(head).await {
                                return ending;
                            }
                        }
                        Ok(RelayEvent::Piece(piece)) => {
                            if self.write(&piece).await.is_err() {
                                return Ending::GoneDuring;
                            }
                        }
                        Ok(RelayEvent::End) => return self.end(bare).await,
                        Err(error) => return self.fail(error).await,
                    }
                }
                from = from_client(&mut **downstream, upload) => match from {
                    FromClient::Piece(Ok(Some(piece))) => {
                        let Some(left) = self.left.checked_sub(piece.len()) else {
                            let error = too_large(self.route);
                            return self.cut_body(&error).await;
                        };
                        self.left = left;
                        self.stream.send(Some(piece));
                        upload = Upload::Sending { last: false };
                    }
                    FromClient::Piece(Ok(None)) => {
                        self.stream.send(None);
                        upload = Upload::Sending { last: true };
                    }
                    FromClient::Piece(Err(error)) => return self.cut_body(&error).await,
                    // The client no longer waits: the stream is dropped, and with it the work at the upstream.
                    FromClient::Disconnected => return self.gone(),
                },
                _ = checks.tick() => {
                    if self.is_revoked() {
                        return self.end(None).await;
                    }
                }
                () = silence.as_mut(), if comment_due => {
                    silence.as_mut().reset(Instant::now() + limits.keep_alive);
                    self.out.extend_from_slice(KEEP_ALIVE);
                    if self.downstream.write(&mut self.out).await.is_err() {
                        return Ending::GoneDuring;
                    }
                }
            }
        }
    }

    /// Whether a listening stream belongs to a credential no longer valid. The listening stream is closed in order; the response stream of
    /// a request ends by itself.
    fn is_revoked(&self) -> bool {
        let exchange = &self.run.exchange;
        let listens = self.comments.is_some() && exchange.request.method == Method::GET;
        listens
            && exchange
                .get::<CredentialCheck>()
                .is_some_and(|credential| !credential.is_valid())
    }

    fn gone(&self) -> Ending {
        match self.started {
            true => Ending::GoneDuring,
            false => Ending::GoneBefore,
        }
    }

    /// Sends the head of a response with a body, at once: the body may take a long time.
    async fn start(&mut self, relayed: RelayedHead) -> Result<(), Ending> {
        if let Err(error) = self.run.before_first_byte().await {
            return Err(self.unsettled(&error).await);
        }
        let status = relayed.status;
        let mut own = own_fields(&self.run.exchange, relayed.headers);
        // With a declared length the session holds back the start of a body until it is complete.
        own.remove(header::CONTENT_LENGTH);
        if is_event_stream(&own) {
            self.run.exchange.record.stream = true;
            let is_coded = own.contains_key(header::CONTENT_ENCODING);
            self.comments = (!is_coded).then(Boundary::default);
        }
        self.started = true;
        self.run.exchange.record.first_byte = Some(self.run.exchange.refresh_now(self.clock));
        let head = head(&mut self.run.exchange, status, own);
        let started = self.downstream.start(head, &mut self.out).await;
        started.map_err(|Gone| Ending::GoneDuring)
    }

    /// A filter refused before the response was started.
    async fn unsettled(&mut self, error: &ApiError) -> Ending {
        let shape = self.route.errors;
        send_error(self.run, self.downstream, shape, error, Ending::Unsettled).await
    }

    async fn write(&mut self, piece: &Bytes) -> Result<(), Gone> {
        self.run.exchange.record.bytes_sent += piece.len() as u64;
        if let Some(boundary) = &mut self.comments {
            boundary.pass(piece);
        }
        self.out.extend_from_slice(piece);
        self.downstream.write(&mut self.out).await
    }

    /// The response is complete.
    async fn end(mut self, bare: Option<RelayedHead>) -> Ending {
        self.run.exchange.record.upstream_ended = Some(self.run.exchange.refresh_now(self.clock));
        let mut tail = Tail::new(SmallVec::new(), Ending::Complete, true);
        if let Err(error) = self.run.before_tail(&mut tail).await {
            return match self.started {
                true => Ending::Unsettled,
                false => self.unsettled(&error).await,
            };
        }
        let sent = match bare {
            Some(relayed) => {
                let mut own = own_fields(&self.run.exchange, relayed.headers);
                own.remove(header::CONTENT_LENGTH);
                let head = head(&mut self.run.exchange, relayed.status, own);
                self.downstream.send(head, Bytes::new()).await
            }
            None => self.downstream.finish(&mut self.out).await,
        };
        match sent {
            Ok(()) => Ending::Complete,
            Err(Gone) => self.gone(),
        }
    }

    /// The client's body is at fault. The upstream sees an aborted body and never an end.
    async fn cut_body(self, error: &BodyError) -> Ending {
        let RelayedExchange {
            route,
            run,
            downstream,
            stream,
            started,
            ..
        } = self;
        drop(stream);
        if started {
            // A started response cannot be withdrawn, and is aborted too.
            return Ending::GoneDuring;
        }
        refuse_body(route, run, downstream, error).await
    }

    /// The upstream failed. A started response is aborted, so that no client takes the response for complete.
    async fn fail(self, error: UpstreamError) -> Ending {
        let RelayedExchange {
            route,
            run,
            downstream,
            stream,
            started,
            ..
        } = self;
        drop(stream);
        if started {
            log_fault(&run.exchange, &error);
            return Ending::UpstreamCut(error.fault);
        }
        fail(route, run, downstream, error).await
    }
}

/// The client's next piece, or its disconnection.
async fn from_client<D: Downstream>(downstream: &mut D, upload: Upload) -> FromClient {
    match upload {
        Upload::Sending { .. } => pending().await,
        Upload::Reading => FromClient::Piece(downstream.read_piece().await),
        Upload::Done => {
            downstream.gone().await;
            FromClient::Disconnected
        }
    }
}

/// Response fields that an upstream must not set on the gateway's behalf: access (CORS) and how to obtain it, rate limits, storage in a
/// browser with this origin's pages, the location of this origin, payments. Also fields with addresses of the upstream, which clients
/// cannot reach and must not send their tokens to.
const GATEWAY_FIELDS: [HeaderName; 18] = [
    header::ALT_SVC,
    header::CONTENT_LOCATION,
    header::CONTENT_SECURITY_POLICY,
    header::DATE,
    header::LINK,
    header::LOCATION,
    header::REFRESH,
    header::SERVER,
    header::SET_COOKIE,
    header::STRICT_TRANSPORT_SECURITY,
    // The hosts between the gateway and the upstream.
    header::VIA,
    header::WWW_AUTHENTICATE,
    header::X_FRAME_OPTIONS,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("payment-receipt"),
    HeaderName::from_static("public-key-pins"),
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("x-request-id"),
];
const OUR_BEGINNINGS: [&str; 3] = ["access-control-", "ratelimit", "x-ratelimit-"];

/// The forwarded fields of the response.
fn own_fields(exchange: &Exchange, headers: HeaderMap) -> HeaderMap {
    let mut own = end_to_end(&headers);
    for name in GATEWAY_FIELDS {
        own.remove(name);
    }
    let ours = |name: &&HeaderName| {
        let name = name.as_str();
        OUR_BEGINNINGS.iter().any(|start| name.starts_with(start))
    };
    let taken: Vec<HeaderName> = own.keys().filter(ours).cloned().collect();
    for name in taken {
        own.remove(name);
    }
    if let Some(relay) = exchange.get::<Relay>() {
        if let Ok(via) = HeaderValue::try_from(format!("1.1 {}", relay.pseudonym)) {
            own.insert(header::VIA, via);
        }
        if let Some(head) = &relay.head {
            head.edit(&mut own);
        }
    }
    if !own.contains_key(header::CACHE_CONTROL) {
        own.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if is_event_stream(&own) {
        own.insert(
            HeaderName::from_static("x-accel-buffering"),
            HeaderValue::from_static("no"),
        );
    }
    own
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        let essence = kind.as_bytes().split(|&byte| byte == b';').next();
        let essence = essence.unwrap_or_default().trim_ascii();
        essence.eq_ignore_ascii_case(b"text/event-stream")
    })
}

/// Why the head of an upstream's answer is useless to the client: the head addresses the gateway.
///
/// A client was authenticated before its request was forwarded, and the upstream never sees the client's credential. An upstream that
/// nevertheless demands a credential has a problem with the gateway. A client with the challenge would discard a valid token, get another,
/// and receive the challenge again. A redirect names an address of the upstream, unreachable for the client.
///
/// The text is for the log; `upstream` is the section of the upstream's settings.
fn misplaced(upstream: &str, head: &RelayedHead) -> Option<String> {
    let status = head.status;
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            let fields = "it has to trust the gateway's own header fields, not a credential";
            Some(format!("answered {status}; {fields}"))
        }
        // The client's copy of an earlier answer is valid: no redirect.
        StatusCode::NOT_MODIFIED => None,
        _ if status.is_redirection() => {
            let to = head.headers.get(header::LOCATION).map(without_query);
            let to = to.map(|to| format!(" to `{to}`")).unwrap_or_default();
            Some(format!(
                "answered {status}{to}; set `{upstream}.upstream` to the address at which it does not redirect"
            ))
        }
        _ => None,
    }
}

/// The part of an address for the log: a query may contain secrets.
fn without_query(address: &HeaderValue) -> String {
    let address = address.as_bytes();
    let query = address.iter().position(|byte| matches!(byte, b'?' | b'#'));
    address[..query.unwrap_or(address.len())]
        .escape_ascii()
        .to_string()
}

fn too_large(route: &Route) -> BodyError {
    BodyError::TooLarge {
        bytes_max: route.body_bytes_max,
    }
}

async fn refuse_body<D: Downstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    error: &BodyError,
) -> Ending {
    let Some(error) = error.answer() else {
        return Ending::GoneBefore;
    };
    send_error(run, downstream, route.errors, &error, Ending::Refused).await
}

async fn fail<D: Downstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    error: UpstreamError,
) -> Ending {
    log_fault(&run.exchange, &error);
    // The rest of the request's body is not read.
    let answer = error.answer.closing();
    let ending = Ending::UpstreamFailed(error.fault);
    send_error(run, downstream, route.errors, &answer, ending).await
}

fn log_fault(exchange: &Exchange, error: &UpstreamError) {
    tracing::warn!(
        request_id = %exchange.request.id,
        upstream = exchange.get::<Relay>().map(|relay| &*relay.upstream),
        fault = error.fault.word(),
        detail = %error.detail,
        "relaying request failed: upstream fault"
    );
}

impl UpstreamError {
    /// A failure of an upstream that a request was relayed to. `detail` is for the log.
    pub fn of_relay(fault: UpstreamFault, detail: impl Into<String>) -> UpstreamError {
        let (code, message) = match fault {
            UpstreamFault::Unreachable => (
                ErrorCode::UpstreamUnreachable,
                "The server behind this address cannot be reached. Try again.",
            ),
            UpstreamFault::Timeout => (
                ErrorCode::UpstreamTimeout,
                "The server behind this address took too long. Try again.",
            ),
            UpstreamFault::Invalid => (
                ErrorCode::UpstreamInvalid,
                "The answer of the server behind this address could not be understood. Try again.",
            ),
            _ => (
                ErrorCode::UpstreamError,
                "The server behind this address failed. Try again.",
            ),
        };
        UpstreamError {
            fault,
            answer: Box::new(ApiError::new(code, message)),
            detail: detail.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_speaks_to_the_gateway_is_kept_and_a_redirect_names_the_setting() {
        let setting = "set `mcp.general.upstream` to the address at which it does not redirect";
        for (status, location, found) in [
            (200, Some("/mcp/"), None),
            (201, Some("/mcp/"), None),
            (304, None, None),
            (403, None, None),
            (404, Some("/mcp/"), None),
            (301, Some("http://10.0.0.5:9001/mcp/"), Some(format!("answered 301 Moved Permanently to `http://10.0.0.5:9001/mcp/`; {setting}"))),
            (307, Some("/mcp/?token=secret"), Some(format!("answered 307 Temporary Redirect to `/mcp/`; {setting}"))),
            (308, Some("/mcp/#secret"), Some(format!("answered 308 Permanent Redirect to `/mcp/`; {setting}"))),
            (300, None, Some(format!("answered 300 Multiple Choices; {setting}"))),
            (401, Some("/"), Some("answered 401 Unauthorized; it has to trust the gateway's own header fields, not a credential".to_owned())),
        ] {
            let mut headers = HeaderMap::new();
            if let Some(location) = location {
                headers.insert(header::LOCATION, HeaderValue::from_static(location));
            }
            let status = StatusCode::from_u16(status).expect("a status");
            let head = RelayedHead { status, headers, has_body: false };
            assert_eq!(misplaced("mcp.general", &head), found, "{status}");
        }
    }
}
