//! Requests that are passed on as they come: both ways at once, piece by piece, nothing collected.
//!
//! At most one piece of a request is under way: the next is read from the client when the one before has left. A piece of the answer is
//! written to the client before the next is asked for, so whoever is slow slows the other side down and nothing piles up here.

use std::future::{pending, poll_fn};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use smallvec::SmallVec;
use tokio::time::{Instant, MissedTickBehavior};
use tollgate_filter::{
    ApiError, Clock, Ending, ErrorCode, Exchange, Relay, StillGood, Tail, UpstreamFault, end_to_end,
};

use crate::answer::{head, send_error};
use crate::boundary::Boundary;
use crate::chain::Route;
use crate::downstream::{BodyError, BodyLength, Downstream, Gone};
use crate::drive::Limits;
use crate::passage::{Heard, Passage, RelayedHead};
use crate::run::Run;
use crate::stream::KEEP_ALIVE;
use crate::upstream::{Upstream, UpstreamError};

/// How far the request has gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Upload {
    /// A piece is on its way; the last one if `last`.
    Leaving { last: bool },
    /// The next piece is waited for.
    Reading,
    /// All of it has left.
    Done,
}

/// What came from the client's side.
enum FromClient {
    Piece(Result<Option<Bytes>, BodyError>),
    Left,
}

/// Passes a request on and its answer back.
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
        // It says so itself: the upstream need not hear of it.
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
            // Nobody can tell whether the client is still there while its body is not read; to connect takes a bounded time.
            _ => open.await,
        }
    };
    let passage = match opened {
        Ok(passage) => passage,
        Err(error) => return fail(route, run, downstream, error).await,
    };
    let way = Way {
        route,
        run,
        downstream,
        passage,
        clock,
        started: false,
        comments: None,
        left: route.body_bytes_max,
        out: BytesMut::new(),
    };
    way.carry(length, limits).await
}

/// A relayed exchange under way.
struct Way<'r, 'c, D> {
    route: &'r Route,
    run: &'r mut Run<'c>,
    downstream: &'r mut D,
    passage: Box<dyn Passage>,
    clock: &'r Clock,
    /// Whether the head of the answer has been sent.
    started: bool,
    /// Where in a stream of events the answer is, if it is one into which a comment may be put.
    comments: Option<Boundary>,
    /// Bytes that the request's body may still have.
    left: usize,
    out: BytesMut,
}

impl<D: Downstream> Way<'_, '_, D> {
    async fn carry(mut self, length: BodyLength, limits: &Limits) -> Ending {
        let mut upload = Upload::Leaving {
            last: length == BodyLength::Nothing,
        };
        // The head of an answer without a body, which leaves when it is certain that nothing follows.
        let mut bare = None;
        let mut silence = std::pin::pin!(tokio::time::sleep(limits.keep_alive));
        // Whoever may not listen any more should not go on doing so.
        let mut looks = tokio::time::interval(limits.keep_alive);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let Way {
                passage,
                downstream,
                comments,
                ..
            } = &mut self;
            let comment_due = comments.as_ref().is_some_and(Boundary::is_between);
            tokio::select! {
                biased;
                heard = poll_fn(|cx| passage.poll_hear(cx)) => {
                    silence.as_mut().reset(Instant::now() + limits.keep_alive);
                    match heard {
                        Ok(Heard::Room) => upload = match upload {
                            Upload::Leaving { last: true } => Upload::Done,
                            _ => Upload::Reading,
                        },
                        Ok(Heard::Head(head)) => {
                            self.run.exchange.record.upstream_first_byte = Some(self.run.exchange.look(self.clock));
                            if is_about_us(head.status) {
                                return self.fail(asks_for_a_credential(head.status)).await;
                            }
                            if !head.has_body {
                                bare = Some(head);
                            } else if let Err(ending) = self.start(head).await {
                                return ending;
                            }
                        }
                        Ok(Heard::Piece(piece)) => {
                            if self.write(&piece).await.is_err() {
                                return Ending::GoneDuring;
                            }
                        }
                        Ok(Heard::End) => return self.end(bare).await,
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
                        self.passage.send(Some(piece));
                        upload = Upload::Leaving { last: false };
                    }
                    FromClient::Piece(Ok(None)) => {
                        self.passage.send(None);
                        upload = Upload::Leaving { last: true };
                    }
                    FromClient::Piece(Err(error)) => return self.cut_body(&error).await,
                    // Nobody waits any more: the passage is dropped, and with it the work behind it.
                    FromClient::Left => return self.gone(),
                },
                _ = looks.tick() => {
                    if self.is_over() {
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

    /// Whether a stream that only listens is listened to by somebody who may not any more. It ends in order; what answers a request ends
    /// by itself.
    fn is_over(&self) -> bool {
        let exchange = &self.run.exchange;
        let listens = self.comments.is_some() && exchange.request.method == Method::GET;
        listens
            && exchange
                .get::<StillGood>()
                .is_some_and(|good| !good.holds())
    }

    fn gone(&self) -> Ending {
        match self.started {
            true => Ending::GoneDuring,
            false => Ending::GoneBefore,
        }
    }

    /// Sends the head of an answer that has a body, at once: what follows may be a long time coming.
    async fn start(&mut self, relayed: RelayedHead) -> Result<(), Ending> {
        if let Err(error) = self.run.before_first_byte().await {
            let exchange = &mut self.run.exchange;
            let sent = send_error(exchange, self.downstream, self.route.errors, &error).await;
            return Err(match sent {
                Ok(()) => Ending::Unsettled,
                Err(Gone) => Ending::GoneBefore,
            });
        }
        let status = relayed.status;
        let mut own = own_fields(&self.run.exchange, relayed.headers);
        // Of a body whose length is told the session keeps the beginning back until it has all of it.
        own.remove(header::CONTENT_LENGTH);
        if is_event_stream(&own) {
            self.run.exchange.record.stream = true;
            let is_coded = own.contains_key(header::CONTENT_ENCODING);
            self.comments = (!is_coded).then(Boundary::default);
        }
        self.started = true;
        self.run.exchange.record.first_byte = Some(self.run.exchange.look(self.clock));
        let head = head(&mut self.run.exchange, status, own);
        let started = self.downstream.start(head, &mut self.out).await;
        started.map_err(|Gone| Ending::GoneDuring)
    }

    async fn write(&mut self, piece: &Bytes) -> Result<(), Gone> {
        self.run.exchange.record.bytes_sent += piece.len() as u64;
        if let Some(boundary) = &mut self.comments {
            boundary.pass(piece);
        }
        self.out.extend_from_slice(piece);
        self.downstream.write(&mut self.out).await
    }

    /// The answer is over.
    async fn end(mut self, bare: Option<RelayedHead>) -> Ending {
        self.run.exchange.record.upstream_ended = Some(self.run.exchange.look(self.clock));
        let mut tail = Tail::new(SmallVec::new(), Ending::Complete, true);
        if let Err(error) = self.run.before_tail(&mut tail).await {
            if !self.started {
                let exchange = &mut self.run.exchange;
                // Whether it is still there to hear of it changes nothing.
                let _ = send_error(exchange, self.downstream, self.route.errors, &error).await;
            }
            return Ending::Unsettled;
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

    /// The client's body is at fault. The upstream sees it break off and never its end.
    async fn cut_body(self, error: &BodyError) -> Ending {
        let Way {
            route,
            run,
            downstream,
            passage,
            started,
            ..
        } = self;
        drop(passage);
        if started {
            // An answer has begun and cannot be taken back; it breaks off too.
            return Ending::GoneDuring;
        }
        refuse_body(route, run, downstream, error).await
    }

    /// The upstream failed. What has begun breaks off, so that nobody takes it for whole.
    async fn fail(self, error: UpstreamError) -> Ending {
        let Way {
            route,
            run,
            downstream,
            passage,
            started,
            ..
        } = self;
        drop(passage);
        if started {
            log_fault(&run.exchange, &error);
            return Ending::UpstreamCut(error.fault);
        }
        fail(route, run, downstream, error).await
    }
}

/// The client's next piece, or its leaving.
async fn from_client<D: Downstream>(downstream: &mut D, upload: Upload) -> FromClient {
    match upload {
        Upload::Leaving { .. } => pending().await,
        Upload::Reading => FromClient::Piece(downstream.read_piece().await),
        Upload::Done => {
            downstream.gone().await;
            FromClient::Left
        }
    }
}

/// What an upstream must not say for the gateway: who may read the answer, what is left of quotas, who may store what in a browser that
/// shows this origin's own pages, where this origin is to be found, what was paid; and what belongs to one connection.
const OURS: [HeaderName; 12] = [
    header::ALT_SVC,
    header::CONTENT_SECURITY_POLICY,
    header::DATE,
    header::SERVER,
    header::SET_COOKIE,
    header::STRICT_TRANSPORT_SECURITY,
    header::X_FRAME_OPTIONS,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("payment-receipt"),
    HeaderName::from_static("public-key-pins"),
    HeaderName::from_static("set-cookie2"),
    HeaderName::from_static("x-request-id"),
];
const OUR_BEGINNINGS: [&str; 3] = ["access-control-", "ratelimit", "x-ratelimit-"];

/// The fields of the answer as they are passed on.
fn own_fields(exchange: &Exchange, headers: HeaderMap) -> HeaderMap {
    let mut own = end_to_end(&headers);
    for name in OURS {
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
    let asked: Vec<HeaderValue> = own
        .get_all(header::WWW_AUTHENTICATE)
        .iter()
        .cloned()
        .collect();
    if asked.iter().any(asks_for_payment) {
        own.remove(header::WWW_AUTHENTICATE);
        for value in asked.into_iter().filter(|value| !asks_for_payment(value)) {
            own.append(header::WWW_AUTHENTICATE, value);
        }
    }
    if let Some(relay) = exchange.get::<Relay>()
        && let Ok(via) = HeaderValue::try_from(format!("1.1 {}", relay.pseudonym))
    {
        own.append(header::VIA, via);
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

/// Whether challenges have one of the `Payment` scheme among them: a client that answered it would pay somebody the gateway knows nothing
/// of, and show the gateway the proof. Several stand in one value behind commas, and a comma may stand within quotes.
fn asks_for_payment(value: &HeaderValue) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    let pieces = value.as_bytes().split(|&byte| {
        match (quoted, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => quoted = !quoted,
            _ => {}
        }
        !quoted && byte == b','
    });
    pieces.into_iter().any(|piece| {
        let mut words = piece.trim_ascii().split(|&byte| byte == b' ');
        let scheme = words.next().unwrap_or_default();
        scheme.eq_ignore_ascii_case(b"Payment")
    })
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| {
        let essence = kind.as_bytes().split(|&byte| byte == b';').next();
        let essence = essence.unwrap_or_default().trim_ascii();
        essence.eq_ignore_ascii_case(b"text/event-stream")
    })
}

/// A client was let in before its request was passed on, and the upstream never sees its credential. When it asks for one all the same,
/// that is between it and the gateway: a client that was told would throw a good token away, get another, and be told again.
fn is_about_us(status: StatusCode) -> bool {
    status == StatusCode::UNAUTHORIZED || status == StatusCode::PROXY_AUTHENTICATION_REQUIRED
}

fn asks_for_a_credential(status: StatusCode) -> UpstreamError {
    UpstreamError::of_relay(
        UpstreamFault::Error,
        format!(
            "answered {status}; it has to trust the gateway's own header fields, not a credential"
        ),
    )
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
    match send_error(&mut run.exchange, downstream, route.errors, &error).await {
        Ok(()) => Ending::Refused,
        Err(Gone) => Ending::GoneBefore,
    }
}

async fn fail<D: Downstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    error: UpstreamError,
) -> Ending {
    log_fault(&run.exchange, &error);
    // What is left of the request's body is not worth reading.
    let answer = error.answer.closing();
    match send_error(&mut run.exchange, downstream, route.errors, &answer).await {
        Ok(()) => Ending::UpstreamFailed(error.fault),
        Err(Gone) => Ending::GoneBefore,
    }
}

fn log_fault(exchange: &Exchange, error: &UpstreamError) {
    tracing::warn!(
        request_id = %exchange.request.id,
        upstream = exchange.get::<Relay>().map(|relay| &*relay.upstream),
        fault = error.fault.word(),
        detail = %error.detail,
        "an upstream that requests are relayed to failed"
    );
}

impl UpstreamError {
    /// A fault of an upstream that a request was relayed to. `detail` is for the log.
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
    fn a_payment_challenge_is_found_wherever_it_stands() {
        for (value, found) in [
            ("Payment id=\"a\"", true),
            ("payment", true),
            ("Bearer error=\"a, b\", PAYMENT id=\"c\"", true),
            ("Bearer, Payment", true),
            ("Bearer error=\"invalid_token\"", false),
            ("Bearer error_description=\"x, Payment y\"", false),
            ("Bearer a=\"\\\", Payment \"", false),
            ("Payments id=\"a\"", false),
            ("Bearer payment=\"a\"", false),
            ("", false),
        ] {
            let field = HeaderValue::from_static(value);
            assert_eq!(asks_for_payment(&field), found, "{value}");
        }
    }
}
