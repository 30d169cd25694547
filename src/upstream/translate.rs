//! Translation between operations: text requests are sent as chat requests, and the answers are translated back.
//!
//! One text request may be several chats. The chats run concurrently and are one call to every other part: one head, one stream of
//! interleaved chunks, one end. After the failure of one chat the call has failed, and the other chats are cancelled.
//!
//! Started answers are read while other chats wait for a permit, and each answer releases its permit at its end. This prevents a deadlock
//! between chats that hold permits and chats that wait for a permit.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tollgate_chain::{
    BodyLength, Limits, Opening, SILENCE_MAX, Upstream, UpstreamCall, UpstreamError, over_budget,
};
use tollgate_filter::{Exchange, Forward, ForwardBody, Principal, Request};
use tollgate_memory::{MemoryUse, OverBudget};
use tollgate_openai::answer::is_whole;
use tollgate_openai::event::{self, Event, EventCutter, Tail};
use tollgate_openai::{TextAsChat, TextStream, TurnError};

use super::transport::fault;
use crate::telemetry::Trace;
use crate::trace_context;

/// Makes calls, and translates the answers of calls by another operation.
pub(crate) struct TextViaChat<U> {
    calls: U,
    limits: Limits,
}

/// The answer to a call.
pub(crate) enum TranslatedCall<C> {
    /// In the operation of the client's request.
    Direct(C),
    /// Chats, translated to it.
    Merged(Box<MergedChats<C>>),
}

/// The answers of several chats, merged into one text answer.
pub(crate) struct MergedChats<C> {
    output: Output,
    /// A pending read of each unfinished call.
    reads: FuturesUnordered<Read<C>>,
    chats: Vec<Chat>,
    /// Remaining byte limit.
    bytes_left: usize,
    /// Output from before all calls were answered.
    buffered: BytesMut,
    /// Memory of the buffers, and the output's share.
    memory: MemoryUse,
    output_counted: usize,
    /// The error from this phase.
    failed: Option<UpstreamError>,
    /// The error after a complete chat: replaces a proper end of the whole answer.
    broken: Option<UpstreamError>,
}

/// One of the chats.
#[derive(Clone, Default)]
struct Chat {
    /// Whether the chat is complete; the connection may have yet to be read to the end.
    is_complete: bool,
    /// Counted bytes of the buffer.
    counted: usize,
}

type Read<C> = Pin<Box<dyn Future<Output = ReadResult<C>> + Send>>;

/// The result of one read of a call. A call at its end is already finished.
struct ReadResult<C> {
    chat: usize,
    call: Option<C>,
    /// `None` after a silence.
    read: Option<Result<Option<Bytes>, UpstreamError>>,
}

/// The translation in progress: of whole answers, or of streams.
enum Output {
    Whole {
        translation: Arc<TextAsChat>,
        bodies: Vec<BytesMut>,
    },
    Stream {
        stream: TextStream,
        cutters: Vec<EventCutter>,
    },
}

impl<U: Upstream> TextViaChat<U> {
    /// Translates the answers of `calls`; `limits` bounds their size.
    pub(crate) fn new(calls: U, limits: Limits) -> TextViaChat<U> {
        TextViaChat { calls, limits }
    }

    /// The translation with other calls.
    pub(crate) fn map(&self, calls: impl FnOnce(&U) -> U) -> TextViaChat<U> {
        TextViaChat::new(calls(&self.calls), self.limits.clone())
    }

    async fn call_as_chats(
        &self,
        exchange: &mut Exchange,
    ) -> Result<MergedChats<U::Call>, UpstreamError>
    where
        U::Call: 'static,
    {
        let (Some(translation), Some(forward)) = (
            exchange.get::<Arc<TextAsChat>>().cloned(),
            exchange.get::<Forward>(),
        ) else {
            return Err(fault::invalid(
                "the exchange has no translation for its text request",
            ));
        };
        let chats = forward.body.parts().into_iter();
        let mut chats: Vec<Exchange> = chats
            .map(|body| sub_exchange(exchange, forward, body))
            .collect();
        let memory = exchange.memory.another();
        let merged = self.start_chats(&mut chats, translation, memory).await;
        for chat in chats {
            exchange.record.upstream_calls += chat.record.upstream_calls;
            exchange.record.provider = chat.record.provider;
            // One chat served by another model makes the whole an answer of that model.
            if chat.record.served_by.is_some() {
                exchange.record.served_by = chat.record.served_by;
            }
        }
        merged
    }

    /// Makes the calls, and reads answered calls until every call is answered.
    async fn start_chats(
        &self,
        chats: &mut [Exchange],
        translation: Arc<TextAsChat>,
        memory: MemoryUse,
    ) -> Result<MergedChats<U::Call>, UpstreamError>
    where
        U::Call: 'static,
    {
        let count = chats.len();
        let call = |(chat, sub)| async move { (chat, self.calls.call(sub).await) };
        let mut calls: FuturesUnordered<_> = chats.iter_mut().enumerate().map(call).collect();
        let Some((chat, first)) = calls.next().await else {
            return Err(fault::invalid("the text request has no prompt"));
        };
        let first = first?;
        let mut merged = MergedChats::new(translation, count, first.is_stream(), &self.limits);
        merged.memory = memory;
        merged.reads.push(read(chat, first, None));
        while !calls.is_empty() {
            tokio::select! {
                biased;
                Some((chat, call)) = calls.next() => {
                    let call = call?;
                    if call.is_stream() != merged.is_stream() {
                        return Err(fault::invalid("some answers are streams and others are not"));
                    }
                    merged.reads.push(read(chat, call, None));
                }
                Some(result) = merged.reads.next() => {
                    let mut buffered = std::mem::take(&mut merged.buffered);
                    let processed = merged.process_read(result, &mut buffered);
                    merged.buffered = buffered;
                    if let Err(error) = processed {
                        // The client receives the error after the earlier data, in the order of the reads.
                        merged.failed = Some(error);
                        break;
                    }
                }
            }
        }
        Ok(merged)
    }
}

/// An exchange for one of the calls of `whole`.
fn sub_exchange(whole: &Exchange, forward: &Forward, body: Box<dyn ForwardBody>) -> Exchange {
    let request = &whole.request;
    let mut sub = Exchange::new(Request {
        id: request.id,
        method: request.method.clone(),
        path: request.path.clone(),
        query: None,
        headers: trace_context::fields_of(&request.headers),
        body: request.body.clone(),
        client: request.client,
        tls: request.tls,
        protocol: request.protocol,
    });
    sub.record = whole.record.clone();
    sub.record.upstream_calls = 0;
    // A failure counts for the account.
    if let Some(principal) = whole.get::<Principal>() {
        sub.put(principal.clone());
    }
    // Its attempts are spans of the whole request.
    if let Some(trace) = whole.get::<Arc<Trace>>() {
        sub.put(trace.clone());
    }
    sub.put(Forward {
        model: Arc::clone(&forward.model),
        api: forward.api,
        asked: forward.asked,
        tokens_max: forward.tokens_max,
        quote: forward.quote,
        stream: forward.stream,
        body,
    });
    sub
}

impl<U: Upstream> Upstream for TextViaChat<U>
where
    U::Call: 'static,
{
    type Call = TranslatedCall<U::Call>;

    async fn call(
        &self,
        exchange: &mut Exchange,
    ) -> Result<TranslatedCall<U::Call>, UpstreamError> {
        let needs_translation = exchange
            .get::<Forward>()
            .is_some_and(|forward| forward.api != forward.asked);
        if needs_translation {
            let merged = Box::pin(self.call_as_chats(exchange)).await?;
            return Ok(TranslatedCall::Merged(Box::new(merged)));
        }
        self.calls.call(exchange).await.map(TranslatedCall::Direct)
    }

    fn open<'a>(&'a self, exchange: &'a mut Exchange, body: BodyLength) -> Opening<'a> {
        self.calls.open(exchange, body)
    }
}

impl<C: UpstreamCall + 'static> UpstreamCall for TranslatedCall<C> {
    fn is_stream(&self) -> bool {
        match self {
            TranslatedCall::Direct(call) => call.is_stream(),
            TranslatedCall::Merged(merged) => merged.is_stream(),
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        match self {
            TranslatedCall::Direct(call) => call.read().await,
            TranslatedCall::Merged(merged) => Box::pin(merged.read()).await,
        }
    }

    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        match self {
            TranslatedCall::Direct(call) => call.read_ready(),
            // Data arrived together is already in one chunk.
            TranslatedCall::Merged(_) => None,
        }
    }

    fn failed(&mut self, error: &UpstreamError) {
        match self {
            TranslatedCall::Direct(call) => call.failed(error),
            // Reported to the failed call, at the end of its read.
            TranslatedCall::Merged(_) => {}
        }
    }

    async fn finish(self) {
        match self {
            TranslatedCall::Direct(call) => call.finish().await,
            // Each call was finished at its end.
            TranslatedCall::Merged(_) => {}
        }
    }
}

impl<C: UpstreamCall + 'static> MergedChats<C> {
    /// The answer to `chats` chats, before any read.
    fn new(
        translation: Arc<TextAsChat>,
        chats: usize,
        is_stream: bool,
        limits: &Limits,
    ) -> MergedChats<C> {
        let output = if is_stream {
            let cutter = |_| EventCutter::new(limits.event_bytes_max);
            Output::Stream {
                stream: TextStream::new(translation),
                cutters: (0..chats).map(cutter).collect(),
            }
        } else {
            let bodies = vec![BytesMut::new(); chats];
            Output::Whole {
                translation,
                bodies,
            }
        };
        MergedChats {
            output,
            reads: FuturesUnordered::new(),
            chats: vec![Chat::default(); chats],
            bytes_left: limits.answer_bytes_max,
            buffered: BytesMut::new(),
            memory: MemoryUse::default(),
            output_counted: 0,
            failed: None,
            broken: None,
        }
    }

    fn is_stream(&self) -> bool {
        matches!(self.output, Output::Stream { .. })
    }

    /// The next chunk of the text answer. May be dropped and called again: the reads of the calls continue.
    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let mut out = std::mem::take(&mut self.buffered);
        loop {
            if !out.is_empty() {
                return Ok(Some(out.freeze()));
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            let Some(result) = self.reads.next().await else {
                return Ok(None);
            };
            // The data before an error is read before the error.
            self.failed = self.process_read(result, &mut out).err();
        }
    }

    /// Handles the result of reading one call, and starts the next read unless the call ended.
    fn process_read(
        &mut self,
        result: ReadResult<C>,
        out: &mut BytesMut,
    ) -> Result<(), UpstreamError> {
        let ReadResult {
            chat,
            call,
            read: piece,
        } = result;
        let piece = match piece {
            Some(piece) => piece,
            None if self.is_there(chat) => {
                Err(fault::timeout("the end of a complete answer", SILENCE_MAX))
            }
            // No other wait for the same bytes.
            None => {
                self.reads.extend(call.map(|call| read(chat, call, None)));
                return Ok(());
            }
        };
        let piece = match piece {
            Ok(piece) => piece,
            // The connection is of no further use.
            Err(_) if self.chats[chat].is_complete => return Ok(()),
            Err(error) if self.is_there(chat) => {
                self.broken = Some(error);
                self.chats[chat].is_complete = true;
                return self.end_if_complete(out);
            }
            Err(error) => {
                if let Some(mut call) = call {
                    call.failed(&error);
                }
                return Err(error);
            }
        };
        // Data after the end of a chat is read only to reuse the connection.
        if !self.chats[chat].is_complete {
            self.chats[chat].is_complete = match &piece {
                Some(piece) => self.process_chunk(chat, piece, out)?,
                None => self.process_end(chat, out)?,
            };
            self.end_if_complete(out)?;
            self.count(chat, out.len())
                .map_err(|OverBudget| over_budget())?;
        }
        if let Some(call) = call {
            self.reads.push(read(chat, call, self.silence(chat)));
        }
        Ok(())
    }

    /// The silence that ends a chat with an answer that may be complete, as for an answer that is not translated. The driver cannot notice the
    /// silence: the driver has none of the answer before the last chat is complete. The driver does notice the silence of a stream.
    fn silence(&self, chat: usize) -> Option<Duration> {
        let Output::Whole { bodies, .. } = &self.output else {
            return None;
        };
        let body = bodies.get(chat)?;
        body.trim_ascii_end().ends_with(b"}").then_some(SILENCE_MAX)
    }

    /// Whether the answer to a chat is complete, though not closed by its provider.
    fn is_there(&self, chat: usize) -> bool {
        match &self.output {
            Output::Whole { bodies, .. } => bodies.get(chat).is_some_and(|body| is_whole(body)),
            Output::Stream { stream, .. } => stream.is_complete(chat),
        }
    }

    /// Counts the memory of a chat's buffer and of the output.
    fn count(&mut self, chat: usize, output: usize) -> Result<(), OverBudget> {
        let now = match &self.output {
            Output::Whole { bodies, .. } => bodies.get(chat).map_or(0, BytesMut::len),
            Output::Stream { cutters, .. } => cutters[chat].buffered(),
        };
        let counted = &mut self.chats[chat].counted;
        let (before, after) = (*counted + self.output_counted, now + output);
        (*counted, self.output_counted) = (now, output);
        if after > before {
            return self.memory.grow(after - before);
        }
        self.memory.shrink(before - after);
        Ok(())
    }

    /// Handles a chunk of the answer to one chat, and returns whether the chat ended.
    fn process_chunk(
        &mut self,
        chat: usize,
        piece: &[u8],
        out: &mut BytesMut,
    ) -> Result<bool, UpstreamError> {
        self.bytes_left = self
            .bytes_left
            .checked_sub(piece.len())
            .ok_or_else(|| fault::invalid("the answers together are too large"))?;
        let (stream, cutter) = match &mut self.output {
            Output::Whole { bodies, .. } => {
                bodies[chat].extend_from_slice(piece);
                return Ok(false);
            }
            Output::Stream { stream, cutters } => (stream, &mut cutters[chat]),
        };
        let mut events = cutter.push(piece);
        let mut is_end = false;
        while let Some(event) = events
            .next()
            .map_err(|error| fault::invalid(error.to_string()))?
        {
            // The cutter requires the consumption of every event, including events after the end.
            if !is_end {
                is_end = process_event(stream, chat, event, out)?;
            }
        }
        Ok(is_end)
    }

    /// Handles the end of the answer to one chat.
    fn process_end(&mut self, chat: usize, out: &mut BytesMut) -> Result<bool, UpstreamError> {
        let (stream, cutter) = match &mut self.output {
            Output::Whole { .. } => return Ok(true),
            Output::Stream { stream, cutters } => (stream, &mut cutters[chat]),
        };
        match cutter.finish() {
            Tail::Event(event) => {
                if process_event(stream, chat, event, out)? {
                    return Ok(true);
                }
            }
            Tail::Nothing | Tail::Torn => {}
        }
        if stream.is_over(chat) {
            Ok(true)
        } else {
            Err(fault::cut(
                "the stream ended without a finish reason and without [DONE]",
            ))
        }
    }

    /// The answer, or the end of the stream, once every chat is complete; followed by an error if a chat was not closed.
    fn end_if_complete(&mut self, out: &mut BytesMut) -> Result<(), UpstreamError> {
        if !self.chats.iter().all(|chat| chat.is_complete) {
            return Ok(());
        }
        match &mut self.output {
            Output::Whole {
                translation,
                bodies,
            } => {
                let bodies: Vec<Bytes> = bodies.drain(..).map(|body| body.freeze()).collect();
                out.extend_from_slice(&translation.whole(&bodies).map_err(unreadable)?);
            }
            Output::Stream { stream, .. } if self.broken.is_none() => stream.end(out),
            // Without `[DONE]`; the usage was written on completion.
            Output::Stream { .. } => {}
        }
        self.broken.take().map_or(Ok(()), Err)
    }
}

/// Handles an event of the answer to one chat, and returns whether the chat ended.
fn process_event(
    stream: &mut TextStream,
    chat: usize,
    event: Event<'_>,
    out: &mut BytesMut,
) -> Result<bool, UpstreamError> {
    if event.is_done() {
        return match stream.has_ended(chat) {
            true => Ok(true),
            false => Err(fault::cut(
                "a stream ended with [DONE] before each choice had a finish reason",
            )),
        };
    }
    if event.named_error || event.data.trim_ascii_start().starts_with(b"[") {
        // The error may have any form: the reader of the text stream handles this event like a direct call's.
        if event.named_error {
            out.extend_from_slice(b"event: error\n");
        }
        event::write(event.data, out);
    } else if event.data != b"null" {
        stream.turn(chat, event.data, out).map_err(unreadable)?;
    }
    Ok(false)
}

/// Reads a call, for no longer than `silence`.
fn read<C: UpstreamCall + 'static>(chat: usize, mut call: C, silence: Option<Duration>) -> Read<C> {
    Box::pin(async move {
        let read = match silence {
            None => Some(call.read().await),
            Some(silence) => tokio::time::timeout(silence, call.read()).await.ok(),
        };
        let call = match &read {
            Some(Ok(None)) => {
                call.finish().await;
                None
            }
            None | Some(Ok(Some(_)) | Err(_)) => Some(call),
        };
        ReadResult { chat, call, read }
    })
}

fn unreadable(error: TurnError) -> UpstreamError {
    fault::invalid(error.to_string())
}
