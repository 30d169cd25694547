//! The driver: takes one exchange through the phases of its chain, from the head to the end.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tollgate_clock::Clock;
use tollgate_filter::{
    AfterLeaving, AnswerProgress, ApiError, Body, Ending, ErrorCode, ErrorShape, Exchange, Forward,
    Outcome, Principal, Relay, Step, Unpaid, UpstreamFault,
};
use tollgate_memory::{COPIES, FREE_BYTES, MemoryBudget, MemoryUse, OverBudget, Owner};
use tollgate_openai::answer;
use tollgate_openai::provider_error::ProviderError;

use crate::answer::{fail, send_error, send_reply, send_whole};
use crate::chain::Route;
use crate::closing::silence_left;
use crate::downstream::{BodyError, BodyLength, Downstream, Gone, Head};
use crate::relay::relay;
use crate::run::{Run, continues};
use crate::stream;
use crate::upstream::{Upstream, UpstreamCall, UpstreamError, answer_for, over_budget};

/// Maximum bytes of a body searched for an error.
pub(crate) const ERROR_BYTES_MAX: usize = 64 * 1024;

/// Limits of a response in progress.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The memory for bodies and buffers, shared by all exchanges.
    pub memory: MemoryBudget,
    /// Maximum size of a whole upstream response in bytes.
    pub answer_bytes_max: usize,
    /// Maximum size of one stream event in bytes.
    pub event_bytes_max: usize,
    /// How long an upstream is still read, for its usage, after the client has disconnected in the middle of a stream (drain).
    pub drain: Duration,
    /// Whether the answer is drained at all, for models without a separate setting.
    pub after_leaving: AfterLeaving,
    /// Keep-alive interval: after this much silence in a stream a comment is sent, so that intermediaries keep the connection.
    pub keep_alive: Duration,
}

/// Takes an exchange through its chain and responds to the client. Every failure is an [`Ending`].
pub async fn drive<D: Downstream, U: Upstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    upstream: &U,
    clock: &Clock,
    limits: &Limits,
) -> Ending {
    let ending = exchange(route, run, downstream, upstream, clock, limits).await;
    run.set_ending(ending);
    ending
}

async fn exchange<D: Downstream, U: Upstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    upstream: &U,
    clock: &Clock,
    limits: &Limits,
) -> Ending {
    run.exchange.memory = MemoryUse::within(&limits.memory);
    let outcome = match request(route, run, downstream).await {
        Ok(Outcome::Continue) => {
            // For the filters of this phase, and for the subsequent call.
            run.exchange.refresh_now(clock);
            run.on_forward().await
        }
        Ok(outcome) => outcome,
        Err(Gone) => return Ending::GoneBefore,
    };
    match outcome {
        Outcome::Continue => {}
        Outcome::Reply(reply) => {
            // Boxed, like all rare branches: the future is as large as its largest branch.
            return Box::pin(send_reply(run, downstream, route.errors, *reply, clock)).await;
        }
        Outcome::Refuse(mut error) => {
            run.on_refusal(&mut error);
            let sent = send_error(run, downstream, route.errors, &error, Ending::Refused);
            return Box::pin(sent).await;
        }
    }
    let Some(forward) = run.exchange.get::<Forward>() else {
        if run.exchange.get::<Relay>().is_some() {
            run.forwarded();
            return Box::pin(relay(route, run, downstream, upstream, clock, limits)).await;
        }
        tracing::error!(
            route = &*route.name,
            "route has no response: no filter answered or forwarded the request"
        );
        let error = ApiError::new(
            ErrorCode::InternalError,
            "No filter of this route answered the request. Write to the operator of this service.",
        );
        let sent = send_error(run, downstream, route.errors, &error, Ending::Refused);
        return Box::pin(sent).await;
    };
    let wants_stream = forward.stream;
    run.forwarded();

    run.exchange.record.upstream_started = Some(run.exchange.elapsed(clock));
    let call = tokio::select! {
        biased;
        call = upstream.call(&mut run.exchange) => call,
        // The client no longer waits for the response: the call is dropped, and with it the work at the provider.
        () = downstream.gone() => return Ending::GoneBefore,
    };
    run.exchange.record.upstream_first_byte = Some(run.exchange.refresh_now(clock));
    let call = match call {
        Ok(call) => call,
        Err(error) => return Box::pin(fail(run, downstream, route.errors, error)).await,
    };
    if call.is_stream() != wants_stream {
        let error = tokio::select! {
            biased;
            error = Box::pin(wrong_kind(run, call)) => error,
            () = downstream.gone() => return Ending::GoneBefore,
        };
        return Box::pin(fail(run, downstream, route.errors, error)).await;
    }
    if wants_stream {
        stream::relay(route, run, downstream, call, clock, limits).await
    } else {
        whole(route, run, downstream, call, clock, limits).await
    }
}

/// The request phases.
async fn request<D: Downstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
) -> Result<Outcome, Gone> {
    let mut body_read = false;
    while let Some(next) = run.peek() {
        if !body_read && next.body != Body::Unread {
            let wanted = next.body;
            match run.on_head().await {
                Outcome::Continue => {}
                outcome => return Ok(outcome),
            }
            match read_body(&mut run.exchange, downstream, wanted, route.body_bytes_max).await {
                Ok(()) => body_read = true,
                Err(Some(error)) => return Ok(Outcome::refuse(error)),
                Err(None) => return Err(Gone),
            }
        }
        let Some(link) = run.advance() else { break };
        if !link.has_request_phase {
            continue;
        }
        let (result, waited) = match link.filter.on_request(&mut run.exchange) {
            Step::Now(result) => (result, false),
            // The client may disconnect meanwhile. An unread body hides the disconnect: the client's bytes are the body.
            Step::Later(waits) if body_read => {
                let decided = Box::pin(async {
                    tokio::select! {
                        biased;
                        result = waits => Some(result),
                        () = downstream.gone() => None,
                    }
                });
                match decided.await {
                    Some(result) => (result, true),
                    None => return Err(Gone),
                }
            }
            Step::Later(waits) => (waits.await, true),
        };
        if waited {
            run.exchange.invalidate_now();
        }
        if continues(&result) {
            continue;
        }
        match run.apply_failure_mode(link, result) {
            Outcome::Continue => {}
            outcome => return Ok(outcome),
        }
    }
    Ok(Outcome::Continue)
}

/// Reads the body required by a filter; `Err(None)` when the client disconnected.
async fn read_body<D: Downstream>(
    exchange: &mut Exchange,
    downstream: &mut D,
    wanted: Body,
    route_bytes_max: usize,
) -> Result<(), Option<ApiError>> {
    let bytes_max = match wanted {
        Body::Unread => return Ok(()),
        Body::Json { bytes_max } => {
            // Some tools send a form's content type without a body.
            if let Err(error) = check_media_type(&exchange.request.headers)
                && downstream.body_length() != BodyLength::Nothing
            {
                return Err(Some(error));
            }
            bytes_max
        }
        Body::Bytes { bytes_max } => bytes_max,
    };
    let unpaid = exchange.get::<Unpaid>().is_some();
    exchange
        .memory
        .set_owner(match exchange.get::<Principal>() {
            _ if unpaid => Owner::Uncredited,
            Some(principal) => Owner::Account(*principal.account.as_bytes()),
            None => Owner::Unknown,
        });
    let head = exchange.request.head_bytes();
    if head > FREE_BYTES && exchange.memory.grow(head).is_err() {
        return Err(BodyError::NoMemory.answer());
    }
    let bytes_max = bytes_max
        .min(route_bytes_max)
        .min(exchange.memory.body_bytes_max());
    let read = downstream.read_body(bytes_max, &mut exchange.memory).await;
    exchange.invalidate_now();
    match read {
        Ok(body) => {
            exchange.request.body = body;
            Ok(())
        }
        Err(BodyError::NoMemory | BodyError::TooLarge { .. }) if unpaid => {
            // Credit would lift the limit.
            Err(exchange.take::<Unpaid>().map(|unpaid| unpaid.0.closing()))
        }
        Err(error) => Err(BodyError::answer(&error)),
    }
}

/// JSON, uncompressed. A missing `Content-Type` is taken for JSON, since some tools omit it (RFC 9110 section 8.3).
fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(value) = headers.get(header::CONTENT_TYPE) {
        let essence = value
            .as_bytes()
            .split(|&byte| byte == b';')
            .next()
            .unwrap_or_default();
        if !essence
            .trim_ascii()
            .eq_ignore_ascii_case(b"application/json")
        {
            return Err(ApiError::new(
                ErrorCode::UnsupportedMediaType,
                "The body must be JSON. Send `Content-Type: application/json`.",
            )
            .header(header::ACCEPT, HeaderValue::from_static("application/json"))
            .closing());
        }
    }
    let identity = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|value| !identity(value))
    {
        return Err(ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "The body must not be compressed. Send it without `Content-Encoding`.",
        )
        .header(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("identity"),
        )
        .closing());
    }
    Ok(())
}

/// Sends a response decided before any filter saw the request. No request is forwarded.
pub async fn refuse<D: Downstream>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    clock: &Clock,
    outcome: Outcome,
) -> Ending {
    let ending = match outcome {
        Outcome::Continue => Ending::Aborted,
        Outcome::Reply(reply) => send_reply(run, downstream, route.errors, *reply, clock).await,
        Outcome::Refuse(error) => {
            send_error(run, downstream, route.errors, &error, Ending::Refused).await
        }
    };
    run.set_ending(ending);
    ending
}

/// Sends an error for a finished exchange, such as after a panic.
pub async fn send_bare<D: Downstream>(
    downstream: &mut D,
    shape: ErrorShape,
    error: &ApiError,
) -> Result<(), Gone> {
    let mut headers = HeaderMap::new();
    error.write_headers(&mut headers);
    let head = Head {
        status: error.status(),
        headers,
        close: error.close,
    };
    downstream.send(head, error.body(shape)).await
}

/// The error for a stream where a JSON body was requested, or for a body where a stream was: an error of the provider's own, in many cases.
async fn wrong_kind<C: UpstreamCall>(run: &Run<'_>, mut call: C) -> UpstreamError {
    let wanted = match call.is_stream() {
        true => "a JSON body",
        false => "an event stream",
    };
    let mut body = BytesMut::new();
    while !call.is_stream() && body.len() < ERROR_BYTES_MAX {
        match call.read().await {
            Ok(Some(piece)) => body.extend_from_slice(&piece),
            Ok(None) => break,
            Err(error) => {
                call.failed(&error);
                break;
            }
        }
    }
    let error = match body.trim_ascii_start().starts_with(b"{") {
        true => ProviderError::read(&body),
        false => ProviderError::default(),
    };
    match error.message {
        Some(message) => {
            let detail = format!("the provider answered a stream request with an error: {message}");
            UpstreamError::new(
                UpstreamFault::Error,
                run.redact(message),
                run.redact(detail),
            )
        }
        None => {
            let detail = format!("the provider did not answer with {wanted}; check its address");
            UpstreamError::new(UpstreamFault::Invalid, "", detail)
        }
    }
}

/// Collects a whole response and sends the settled response.
async fn whole<D: Downstream, C: UpstreamCall>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    mut call: C,
    clock: &Clock,
    limits: &Limits,
) -> Ending {
    let mut first = Bytes::new();
    let mut more = BytesMut::new();
    let mut last_read = Duration::ZERO;
    let closed = loop {
        let body = if more.is_empty() { &first } else { &more[..] };
        let piece = tokio::select! {
            biased;
            piece = call.read() => piece,
            () = downstream.gone() => return Ending::GoneBefore,
            () = silence(body, last_read, clock) => match answer::is_whole(body) {
                true => break false,
                false => {
                    last_read = clock.elapsed();
                    continue;
                }
            },
        };
        let taken = match &piece {
            Ok(Some(piece)) => piece.len(),
            _ => 0,
        };
        match piece {
            Ok(None) => break true,
            Ok(Some(piece)) if first.is_empty() => first = piece,
            Ok(Some(piece)) => {
                if more.is_empty() {
                    more.extend_from_slice(&first);
                }
                more.extend_from_slice(&piece);
            }
            // JSON itself shows its end.
            Err(_) if answer::is_whole(body) => break false,
            Err(error) => {
                call.failed(&error);
                return Box::pin(fail(run, downstream, route.errors, error)).await;
            }
        }
        last_read = clock.elapsed();
        if let Err(OverBudget) = run.exchange.memory.grow(COPIES * taken) {
            return Box::pin(fail(run, downstream, route.errors, over_budget())).await;
        }
        if first.len().max(more.len()) > limits.answer_bytes_max {
            let error = UpstreamError {
                fault: UpstreamFault::Invalid,
                answer: Box::new(answer_for(UpstreamFault::Invalid, "")),
                detail: format!(
                    "the answer is larger than {} bytes",
                    limits.answer_bytes_max
                ),
            };
            return Box::pin(fail(run, downstream, route.errors, error)).await;
        }
    };
    if closed {
        call.finish().await;
    } else {
        drop(call);
        if let Some(progress) = run.exchange.get_mut::<AnswerProgress>() {
            progress.unclosed = true;
        }
    }
    run.exchange.record.upstream_ended = Some(run.exchange.refresh_now(clock));
    let body = if more.is_empty() {
        first
    } else {
        more.freeze()
    };
    let json = HeaderValue::from_static("application/json");
    let head = (StatusCode::OK, [(Some(header::CONTENT_TYPE), json)]);
    send_whole(run, downstream, route.errors, head, &body, Ending::Complete).await
}

/// Resolves after the silence in which a possibly whole body counts as closed; never while the body cannot be whole.
async fn silence(body: &[u8], last_read: Duration, clock: &Clock) {
    if !body.trim_ascii_end().ends_with(b"}") {
        return std::future::pending().await;
    }
    loop {
        let left = silence_left(last_read, clock);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left).await;
    }
}
