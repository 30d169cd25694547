//! Complete responses: errors, and whole bodies.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use smallvec::{SmallVec, smallvec};
use tollgate_clock::Clock;
use tollgate_filter::{
    AnswerProgress, ApiError, Ending, ErrorPage, ErrorShape, Event, EventKind, Exchange, HeldEvent,
    Reply, ReplyBody, Tail, UpstreamFault,
};

use crate::downstream::{Downstream, Gone, Head};
use crate::run::{Run, waited};
use crate::upstream::{UpstreamError, answer_for};

/// The head of a response: the response's fields and the fields set by filters.
pub(crate) fn head(
    exchange: &mut Exchange,
    status: StatusCode,
    own: impl IntoIterator<Item = (Option<HeaderName>, HeaderValue)>,
) -> Head {
    exchange.record.status = status.as_u16();
    let mut headers = exchange.take_reply_headers();
    headers.extend(own);
    Head {
        status,
        headers,
        close: false,
    }
}

/// Sends a refusal or failure in the route's error format, and returns the ending: `ending`, unless the client has disconnected. Nothing must
/// have been sent.
pub(crate) async fn send_error<D: Downstream>(
    run: &mut Run<'_>,
    downstream: &mut D,
    shape: ErrorShape,
    error: &ApiError,
    ending: Ending,
) -> Ending {
    let exchange = &mut run.exchange;
    exchange.record.error = Some(error.code);
    error.write_headers(&mut exchange.reply_headers);
    let page = exchange.get::<ErrorPage>().cloned();
    let page = page.map(|page| page.draw(error, &exchange.request.id.to_string()));
    let body = match page {
        // An error page sets more fields than an error does: its fields override the error's.
        Some(Reply {
            headers,
            body: ReplyBody::Whole(body),
            ..
        }) => {
            for (name, value) in &headers {
                exchange.reply_headers.insert(name, value.clone());
            }
            body
        }
        _ => error.body(shape),
    };
    let mut head = head(exchange, error.status(), HeaderMap::new());
    error.write_limit(&mut head.headers);
    head.close = error.close;
    run.send_refusal(downstream, (head, body), ending).await
}

/// Sends the response of a filter, through the later phases of the filters that have seen the request.
pub(crate) async fn send_reply<D: Downstream>(
    run: &mut Run<'_>,
    downstream: &mut D,
    shape: ErrorShape,
    reply: Reply,
    clock: &Clock,
) -> Ending {
    let Reply {
        status,
        headers,
        body,
    } = reply;
    match body {
        ReplyBody::Whole(body) => {
            if !status.is_success() {
                let head = head(&mut run.exchange, status, headers);
                // A redirection, or a 304, is a response; anything above is a refusal.
                let ending = if status.is_redirection() {
                    Ending::Answered
                } else {
                    Ending::Refused
                };
                return run.send_refusal(downstream, (head, body), ending).await;
            }
            send_whole(
                run,
                downstream,
                shape,
                (status, headers),
                &body,
                Ending::Answered,
            )
            .await
        }
        ReplyBody::Events(events) => {
            Box::pin(crate::stream::replay(run, downstream, shape, events, clock)).await
        }
    }
}

/// Passes a whole body through the response phases and sends it.
pub(crate) async fn send_whole<D: Downstream>(
    run: &mut Run<'_>,
    downstream: &mut D,
    shape: ErrorShape,
    (status, headers): (
        StatusCode,
        impl IntoIterator<Item = (Option<HeaderName>, HeaderValue)>,
    ),
    body: &Bytes,
    ending: Ending,
) -> Ending {
    let mut event = Event::whole(body);
    run.on_event(&mut event);
    let data = event.into_replaced().unwrap_or_else(|| body.clone());
    if let Some(fault) = fault_of(run) {
        return Box::pin(fail(run, downstream, shape, fault)).await;
    }
    let held: SmallVec<[HeldEvent; 2]> = smallvec![HeldEvent {
        kind: EventKind::Whole,
        data
    }];
    let mut tail = Tail::new(held, ending, true);
    if let Err(error) = run.before_tail(&mut tail).await {
        let sent = send_error(run, downstream, shape, &error, Ending::Unsettled);
        return Box::pin(sent).await;
    }
    let body = tail.held.pop().map(|event| event.data).unwrap_or_default();
    run.exchange.record.bytes_sent += body.len() as u64;
    let head = head(&mut run.exchange, status, headers);
    match waited!(run.exchange, downstream.send(head, body)) {
        Ok(()) => ending,
        Err(Gone) => Ending::GoneDuring,
    }
}

/// Responds to a call without anything to send.
pub(crate) async fn fail<D: Downstream>(
    run: &mut Run<'_>,
    downstream: &mut D,
    shape: ErrorShape,
    error: UpstreamError,
) -> Ending {
    log_fault(&run.exchange, &error);
    let ending = Ending::UpstreamFailed(error.fault);
    send_error(run, downstream, shape, &error.answer, ending).await
}

/// The filters' findings about the response, if any.
pub(crate) fn fault_of(run: &Run<'_>) -> Option<UpstreamError> {
    let fault = run.exchange.get::<AnswerProgress>()?.fault.as_ref()?;
    // A provider's error text may contain anything, including our credential at the provider.
    let message = run.redact(fault.message.clone());
    Some(UpstreamError {
        fault: fault.fault,
        answer: Box::new(answer_for(fault.fault, message)),
        detail: run.redact(fault.detail.clone()),
    })
}

pub(crate) fn log_fault(exchange: &Exchange, error: &UpstreamError) {
    // The refusal of the client's own request is not reported to the operator.
    if error.fault == UpstreamFault::BadRequest {
        return;
    }
    tracing::warn!(
        request_id = %exchange.request.id,
        provider = exchange.record.provider.as_deref(),
        model = exchange.record.model.as_deref(),
        fault = error.fault.word(),
        calls = exchange.record.upstream_calls,
        detail = %error.detail,
        "model provider failed"
    );
}
