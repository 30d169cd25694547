//! Event streams: relayed on arrival, with the tail held back until settled.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_clock::Clock;
use tollgate_filter::{
    AfterLeaving, AnswerProgress, AnswerUsage, ApiError, CredentialCheck, Disposition, Ending,
    ErrorShape, Event, EventKind, Forward, HeldEvent, Tail, UpstreamFault,
};
use tollgate_memory::OverBudget;
use tollgate_openai::event::{self, EventCutter};
use tollgate_openai::provider_error::ProviderError;

use crate::answer::{fail, fault_of, head, log_fault, send_error};
use crate::chain::Route;
use crate::closing::Closing;
use crate::downstream::{Downstream, Gone};
use crate::drive::{ERROR_BYTES_MAX, Limits};
use crate::run::{Run, waited};
use crate::upstream::{UpstreamCall, UpstreamError, over_budget};

/// A write is made when this many bytes have been joined, even if more have arrived.
const JOINED_BYTES: usize = 16 * 1024;

/// A larger output buffer is not kept for the next write.
const KEPT_BYTES: usize = 4 * JOINED_BYTES;

/// How long to wait for the end of a body after its last event.
const END_WAIT: Duration = Duration::from_millis(200);

/// A comment line alone: with a blank line afterwards, some clients produce an empty event.
pub(crate) const KEEP_ALIVE: &[u8] = b": keep-alive\n";

/// The client's side of a stream.
struct Relay<'r, 'c, D> {
    run: &'r mut Run<'c>,
    downstream: &'r mut D,
    clock: &'r Clock,
    /// Bytes ready to be sent.
    out: BytesMut,
    /// Counted bytes of the buffers.
    counted: usize,
    /// Bytes received from the provider.
    taken: usize,
    bytes_max: usize,
    /// Events held back.
    held: SmallVec<[HeldEvent; 2]>,
    /// Whether the head has been sent.
    started: bool,
    /// Whether any event was ready to be sent.
    has_output: bool,
    /// Whether the client has disconnected.
    gone: bool,
    /// Whether `[DONE]` was received.
    done: bool,
    /// The wait for the end of an answer whose choices have all finished.
    closing: Closing,
    /// The start of a JSON body in place of events: an error, under a type set before.
    json: BytesMut,
}

/// How far the body of a call was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyEnd {
    /// Not to the end.
    Open,
    /// To its end.
    Clean,
    /// To an error after a complete answer.
    Broken,
}

/// Relays the events of a call.
pub(crate) async fn relay<D: Downstream, C: UpstreamCall>(
    route: &Route,
    run: &mut Run<'_>,
    downstream: &mut D,
    mut call: C,
    clock: &Clock,
    limits: &Limits,
) -> Ending {
    let mut cutter = EventCutter::new(limits.event_bytes_max);
    let mut relay = Relay::new(run, downstream, clock, limits.answer_bytes_max);
    // One timer for the life of the stream. While the client is connected, the timer detects silence; each expiry is a check, in place of a
    // reset at every event. Once the client has disconnected, the timer bounds the drain.
    let mut timer = std::pin::pin!(tokio::time::sleep(limits.keep_alive));
    let mut last_write = clock.elapsed();
    let mut drained_at: Option<Instant> = None;
    let mut body = BodyEnd::Open;
    let fault = loop {
        let was_gone = relay.gone;
        tokio::select! {
            biased;
            piece = call.read() => {
                if relay.is_suspended() {
                    if !relay.started {
                        return Ending::GoneBefore;
                    }
                    relay.client_disconnected();
                    if relay.closes_upstream(limits.after_leaving) {
                        break None;
                    }
                }
                match relay.take_ready(&mut cutter, piece, &mut call) {
                    Ok(end) => body = end,
                    Err(error) => break Some(error),
                }
                if body != BodyEnd::Open || relay.done {
                    // The remainder is written together with the tail.
                    break None;
                }
                last_write = clock.elapsed();
                if relay.note_closing() {
                    let wait = relay.wait(last_write, drained_at, limits);
                    timer.as_mut().reset(Instant::now() + wait);
                }
                if let Err(error) = relay.flush().await {
                    return Box::pin(relay.refuse(route.errors, &error)).await;
                }
            }
            () = relay.downstream.gone(), if !relay.gone => {
                if !relay.started {
                    return Ending::GoneBefore;
                }
                relay.client_disconnected();
            }
            () = timer.as_mut() => {
                if relay.is_suspended() {
                    if !relay.started {
                        return Ending::GoneBefore;
                    }
                    relay.client_disconnected();
                }
                let silence = clock.elapsed().saturating_sub(last_write);
                if !relay.gone && silence >= limits.keep_alive && !relay.closing.is_over(clock) {
                    last_write = clock.elapsed();
                    relay.out.extend_from_slice(KEEP_ALIVE);
                    if let Err(error) = relay.flush().await {
                        return Box::pin(relay.refuse(route.errors, &error)).await;
                    }
                }
                let wait = relay.wait(last_write, drained_at, limits);
                timer.as_mut().reset(Instant::now() + wait);
            }
        }
        if relay.gone && !relay.has_output {
            // Only a comment was written so far.
            return Ending::GoneBefore;
        }
        if relay.gone && !was_gone {
            if relay.closes_upstream(limits.after_leaving) {
                break None;
            }
            drained_at = Some(Instant::now() + limits.drain);
            let wait = relay.wait(last_write, drained_at, limits);
            timer.as_mut().reset(Instant::now() + wait);
        } else if drained_at.is_some_and(|at| at <= Instant::now()) || relay.closing.is_over(clock)
        {
            // Two cases: the drain time is over, and usage counts the relayed part; or the answer is complete, and no more data comes.
            break None;
        }
    };
    relay.run.exchange.record.upstream_ended = Some(relay.run.exchange.refresh_now(clock));
    let ended = body == BodyEnd::Clean;
    let fault = fault.or_else(|| relay.unfinished(ended));
    if !ended && !relay.done {
        // No more data is needed from the provider, which need not work until the settlement is durable.
        drop(call);
        if let Some(progress) = relay.run.exchange.get_mut::<AnswerProgress>() {
            progress.unclosed = true;
        }
        return relay.end(route.errors, fault).await;
    }
    let whole = fault.is_none() && relay.done;
    let ending = relay.end(route.errors, fault).await;
    // The client has its tail, so there is time to check whether the provider's connection can be reused.
    if ended || (whole && ends_within_grace(&mut call).await) {
        call.finish().await;
    }
    ending
}

/// Whether only the end of the body follows `[DONE]`, as required.
async fn ends_within_grace<C: UpstreamCall>(call: &mut C) -> bool {
    let end = tokio::time::timeout(END_WAIT, async {
        loop {
            match call.read().await {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    });
    end.await.unwrap_or(false)
}

/// Sends stored events as a stream.
pub(crate) async fn replay<D: Downstream>(
    run: &mut Run<'_>,
    downstream: &mut D,
    shape: ErrorShape,
    events: Vec<Bytes>,
    clock: &Clock,
) -> Ending {
    let mut relay = Relay::new(run, downstream, clock, usize::MAX);
    if let Some((last, others)) = events.split_last() {
        for data in others {
            relay.pass(EventKind::Data, data);
        }
        let mut event = Event::new(EventKind::Data, last);
        // Metadata may be added to the event.
        event.set_disposition(Disposition::Hold);
        relay.run_filters(event, last);
    }
    relay.pass(EventKind::Done, event::DONE);
    match relay.end(shape, None).await {
        Ending::Complete => Ending::Answered,
        ending => ending,
    }
}

impl<'r, 'c, D: Downstream> Relay<'r, 'c, D> {
    fn new(
        run: &'r mut Run<'c>,
        downstream: &'r mut D,
        clock: &'r Clock,
        bytes_max: usize,
    ) -> Self {
        Relay {
            run,
            downstream,
            clock,
            out: BytesMut::new(),
            counted: 0,
            taken: 0,
            bytes_max,
            held: SmallVec::new(),
            started: false,
            has_output: false,
            gone: false,
            done: false,
            closing: Closing::default(),
            json: BytesMut::new(),
        }
    }

    /// Adds a piece and every further piece that has arrived.
    fn take_ready<C: UpstreamCall>(
        &mut self,
        cutter: &mut EventCutter,
        first: Result<Option<Bytes>, UpstreamError>,
        call: &mut C,
    ) -> Result<BodyEnd, UpstreamError> {
        let mut next = Some(first);
        while let Some(piece) = next {
            match piece {
                Ok(Some(piece)) => self.take(cutter, &piece)?,
                Ok(None) => {
                    self.take_rest(cutter)?;
                    return Ok(BodyEnd::Clean);
                }
                Err(error) => {
                    self.note_closing();
                    if self.closing.is_complete() {
                        return Ok(BodyEnd::Broken);
                    }
                    call.failed(&error);
                    return Err(error);
                }
            }
            self.count(cutter)?;
            if self.done || self.out.len() >= JOINED_BYTES {
                break;
            }
            next = call.read_ready();
        }
        Ok(BodyEnd::Open)
    }

    /// How long to wait for the provider before the next check of the time: until a keep-alive comment is due, the drain is over, or an
    /// answer whose choices have finished has been silent for long enough.
    fn wait(&self, last_write: Duration, drained_at: Option<Instant>, limits: &Limits) -> Duration {
        let wait = match drained_at {
            Some(at) => at.saturating_duration_since(Instant::now()),
            None => {
                let silence = self.clock.elapsed().saturating_sub(last_write);
                limits.keep_alive.saturating_sub(silence)
            }
        };
        let closing = self.closing.left(self.clock);
        closing.map_or(wait, |left| left.min(wait))
    }

    /// Notes an answer with all choices finished. Returns whether the wait for the end begins now.
    fn note_closing(&mut self) -> bool {
        let exchange = &self.run.exchange;
        let progress = exchange.get::<AnswerProgress>();
        let Some(progress) = progress.filter(|progress| progress.finished) else {
            return false;
        };
        let answer = exchange.get::<AnswerUsage>();
        answer.is_some_and(|answer| self.closing.note(progress, answer, self.clock))
    }

    /// Counts the memory of the stream: an incomplete event, the bytes ready to be sent, the text of the answer.
    fn count(&mut self, cutter: &EventCutter) -> Result<(), UpstreamError> {
        let exchange = &mut self.run.exchange;
        let text = exchange.get::<AnswerUsage>();
        let text = text.map_or(0, |usage| usage.text.len());
        let held = cutter.buffered() + self.out.len() + self.json.len() + text;
        if held > self.counted {
            let grown = exchange.memory.grow(held - self.counted);
            grown.map_err(|OverBudget| over_budget())?;
        } else {
            exchange.memory.shrink(self.counted - held);
        }
        self.counted = held;
        Ok(())
    }

    /// Splits a piece into events and forwards each.
    fn take(&mut self, cutter: &mut EventCutter, piece: &[u8]) -> Result<(), UpstreamError> {
        let is_json = match self.taken {
            0 => piece.starts_with(b"{") || piece.starts_with(b"["),
            _ => !self.json.is_empty() && self.json.len() < ERROR_BYTES_MAX,
        };
        if is_json {
            self.json.extend_from_slice(piece);
        }
        self.taken += piece.len();
        if self.taken > self.bytes_max {
            return Err(invalid(format!(
                "the answer is larger than {} bytes",
                self.bytes_max
            )));
        }
        let mut events = cutter.push(piece);
        loop {
            match events.next() {
                Ok(Some(event)) => self.take_event(event)?,
                Ok(None) => return Ok(()),
                Err(error) => return Err(invalid(error.to_string())),
            }
        }
    }

    /// Forwards the remainder of a provider that ends without a last blank line.
    fn take_rest(&mut self, cutter: &mut EventCutter) -> Result<(), UpstreamError> {
        match cutter.finish() {
            event::Tail::Event(event) => self.take_event(event),
            // A truncated event shows as a response without an end.
            event::Tail::Nothing | event::Tail::Torn => Ok(()),
        }
    }

    fn take_event(&mut self, event: event::Event<'_>) -> Result<(), UpstreamError> {
        if self.done {
            // Data after `[DONE]` is not part of the response.
            return Ok(());
        }
        if event.is_done() {
            self.done = true;
            self.pass(EventKind::Done, event::DONE);
            return Ok(());
        }
        if event.named_error {
            return Err(self.named_error(event.data));
        }
        self.pass(EventKind::Data, event.data);
        fault_of(self.run).map_or(Ok(()), Err)
    }

    /// Passes an event to the filters and sends, holds or drops it.
    fn pass(&mut self, kind: EventKind, data: &[u8]) {
        self.run_filters(Event::new(kind, data), data);
    }

    /// [`pass`](Self::pass) for an event built from `data`.
    fn run_filters(&mut self, mut event: Event<'_>, data: &[u8]) {
        let kind = event.kind();
        self.run.on_event(&mut event);
        match event.disposition() {
            Disposition::Drop => {}
            Disposition::Send => {
                self.release();
                self.has_output = true;
                event::write(event.data(), &mut self.out);
            }
            Disposition::Hold => {
                // `[DONE]` joins the held events; a newer event replaces the previous one.
                if kind != EventKind::Done {
                    self.release();
                }
                let data = event
                    .into_replaced()
                    .unwrap_or_else(|| Bytes::copy_from_slice(data));
                self.held.push(HeldEvent { kind, data });
            }
        }
    }

    /// Whether the account was suspended while the client is connected. The stream then ends like the stream of a disconnected client.
    fn is_suspended(&self) -> bool {
        if self.gone {
            return false;
        }
        let check = self.run.exchange.get::<CredentialCheck>();
        check.is_some_and(|check| !check.is_valid())
    }

    /// The client has disconnected: the rest is read for the usage alone.
    fn client_disconnected(&mut self) {
        self.gone = true;
        if let Some(progress) = self.run.exchange.get_mut::<AnswerProgress>() {
            progress.client_gone = true;
        }
    }

    /// Whether the provider's connection is closed now that the client has disconnected.
    fn closes_upstream(&self, otherwise: AfterLeaving) -> bool {
        let forward = self.run.exchange.get::<Forward>();
        let own = forward.and_then(|forward| forward.model.after_leaving);
        own.unwrap_or(otherwise) == AfterLeaving::Stop
    }

    fn release(&mut self) {
        self.has_output |= !self.held.is_empty();
        for event in self.held.drain(..) {
            event::write(&event.data, &mut self.out);
        }
    }

    /// Writes the ready bytes, with the head in front if not sent yet. An error means that no byte has been sent.
    async fn flush(&mut self) -> Result<(), Box<ApiError>> {
        if self.out.is_empty() {
            return Ok(());
        }
        if self.gone {
            self.out.clear();
            return Ok(());
        }
        self.run.exchange.record.bytes_sent += self.out.len() as u64;
        let written = if self.started {
            self.downstream.write(&mut self.out).await
        } else {
            self.run.before_first_byte().await?;
            self.started = true;
            self.run.exchange.record.first_byte = Some(self.run.exchange.refresh_now(self.clock));
            let head = stream_head(self.run);
            // A failed write may have delivered a part, so from here on the client counts as having received a part.
            self.downstream.start(head, &mut self.out).await
        };
        if self.out.capacity() > KEPT_BYTES {
            // The buffer of one large event would stay for the life of the stream.
            self.out = BytesMut::new();
        }
        // A slow client may have delayed the write.
        self.run.exchange.invalidate_now();
        if written.is_err() {
            self.client_disconnected();
            self.out.clear();
        }
        Ok(())
    }

    /// The missing part of a finished stream, if any. `ended`: the body is at its end, perhaps without `[DONE]`.
    fn unfinished(&self, ended: bool) -> Option<UpstreamError> {
        if !ended && !self.done {
            // The client disconnected, or the answer is complete: the provider was not read to the end.
            return None;
        }
        let is_complete = match self.run.exchange.get::<AnswerProgress>() {
            Some(progress) => progress.finished || self.done && progress.ended,
            None => self.done,
        };
        let detail = match self.done {
            _ if is_complete => return None,
            _ if !self.json.is_empty() => return Some(self.json_error()),
            true => "the stream ended with [DONE] before each choice had a finish reason",
            false => "the stream ended without a finish reason and without [DONE]",
        };
        Some(UpstreamError::new(UpstreamFault::Cut, "", detail))
    }

    /// The error of a JSON body in place of events.
    #[cold]
    fn json_error(&self) -> UpstreamError {
        let message = ProviderError::read(&self.json).message.unwrap_or_default();
        let detail = format!("the provider sent JSON under the type of an event stream: {message}");
        UpstreamError::new(
            UpstreamFault::Error,
            self.run.redact(message),
            self.run.redact(detail),
        )
    }

    /// The error of an event with the name `error`, in any form of data.
    #[cold]
    fn named_error(&self, data: &[u8]) -> UpstreamError {
        // A provider's error text may contain anything, including our credential at the provider.
        let message = ProviderError::read(data).message.unwrap_or_default();
        let detail = "the provider sent an event named `error`";
        UpstreamError::new(UpstreamFault::Error, self.run.redact(message), detail)
    }

    /// Settles and sends the tail.
    async fn end(mut self, shape: ErrorShape, fault: Option<UpstreamError>) -> Ending {
        // Events just before the end need not wait for the disk. Without any sent bytes, the wait for the hold would precede the wait for
        // the settlement, which implies the hold.
        if self.started && self.flush().await.is_err() {
            debug_assert!(false, "a stream that has begun is past its last refusal");
        }
        let untouched = !self.started && self.out.is_empty();
        let ending = match fault {
            // No byte of the response has reached the client, so a status can still be sent.
            Some(error) if untouched => {
                return Box::pin(fail(self.run, self.downstream, shape, error)).await;
            }
            Some(ref error) => {
                log_fault(&self.run.exchange, error);
                Ending::UpstreamCut(error.fault)
            }
            None if self.gone => Ending::GoneDuring,
            None => Ending::Complete,
        };
        let mut tail = Tail::new(std::mem::take(&mut self.held), ending, !self.gone);
        let settled = self.run.before_tail(&mut tail).await;
        if self.gone {
            return if settled.is_err() {
                Ending::Unsettled
            } else {
                Ending::GoneDuring
            };
        }
        let (ending, failure) = match (settled, fault) {
            (Ok(()), None) => (ending, None),
            (Ok(()), Some(error)) => (ending, Some(error.answer)),
            (Err(error), _) => (Ending::Unsettled, Some(error)),
        };
        if let Some(error) = failure {
            self.run.exchange.record.error = Some(error.code);
            if !self.started && ending == Ending::Unsettled {
                return Box::pin(self.refuse(shape, &error)).await;
            }
            // After an error there is no `[DONE]`: a failed stream must not look complete.
            if ending != Ending::Unsettled {
                for event in tail
                    .held
                    .iter()
                    .filter(|event| event.kind == EventKind::Data)
                {
                    event::write(&event.data, &mut self.out);
                }
            }
            event::write(&error.body(shape), &mut self.out);
        } else {
            for event in &tail.held {
                event::write(&event.data, &mut self.out);
            }
        }
        self.finish(ending).await
    }

    /// Responds with an error where a stream was about to start.
    async fn refuse(self, shape: ErrorShape, error: &ApiError) -> Ending {
        send_error(self.run, self.downstream, shape, error, Ending::Unsettled).await
    }

    async fn finish(mut self, ending: Ending) -> Ending {
        self.run.exchange.record.bytes_sent += self.out.len() as u64;
        if !self.started {
            // A short response may end before any byte was sent. The durable charge implies a durable hold.
            self.run.exchange.record.first_byte = Some(self.run.exchange.refresh_now(self.clock));
            let head = stream_head(self.run);
            let start = self.downstream.start(head, &mut self.out);
            if waited!(self.run.exchange, start).is_err() {
                return Ending::GoneDuring;
            }
        }
        match waited!(self.run.exchange, self.downstream.finish(&mut self.out)) {
            Ok(()) => ending,
            Err(Gone) => Ending::GoneDuring,
        }
    }
}

fn stream_head(run: &mut Run<'_>) -> crate::downstream::Head {
    let mut own = HeaderMap::with_capacity(3);
    own.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    own.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    head(&mut run.exchange, StatusCode::OK, own)
}

fn invalid(detail: String) -> UpstreamError {
    UpstreamError::new(UpstreamFault::Invalid, "", detail)
}
