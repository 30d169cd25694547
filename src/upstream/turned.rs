//! Translation between operations: requests sent as chats where the client asked for text, and their answers translated back.
//!
//! One text request may be several chats. They run concurrently and are one call to every other part: one head, one stream of chunks with
//! the events of all interleaved, one end. When one of them fails, the call has failed and the others are cancelled.
//!
//! Answers that have started are read while other chats wait for a permit, and each releases its permit at its own end: this prevents a
//! deadlock between chats that hold permits and chats that wait for one.

use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::HeaderMap;
use tollgate_chain::{BodyLength, Limits, Opening, Upstream, UpstreamCall, UpstreamError};
use tollgate_filter::{Exchange, Forward, ForwardBody, Principal, Request};
use tollgate_openai::event::{EventCutter, Tail};
use tollgate_openai::{TextAsChat, TextStream, TurnError};

use super::fault;

/// Makes calls, and translates the answers of those that use another operation.
pub(crate) struct Turning<U> {
    calls: U,
    limits: Limits,
}

/// The answer to a call.
pub(crate) enum Answer<C> {
    /// In the operation the client asked for.
    AsAsked(C),
    /// Translated to it.
    Turned(Box<Turned<C>>),
}

/// The answers of several chats, merged into one text answer.
pub(crate) struct Turned<C> {
    shape: Shape,
    /// A pending read of each call that has not finished.
    reads: FuturesUnordered<Read<C>>,
    /// Which chats are complete; their connections may have yet to be read to the end.
    over: Vec<bool>,
    /// Remaining byte limit.
    bytes_left: usize,
    /// Output from before all calls were answered.
    early: BytesMut,
    /// The error from that phase.
    failed: Option<UpstreamError>,
}

type Read<C> = Pin<Box<dyn Future<Output = Piece<C>> + Send>>;

/// The result of one read of a call. A call at its end is finished already.
struct Piece<C> {
    chat: usize,
    call: Option<C>,
    read: Result<Option<Bytes>, UpstreamError>,
}

enum Shape {
    Whole {
        turn: Arc<TextAsChat>,
        bodies: Vec<BytesMut>,
    },
    Stream {
        stream: TextStream,
        cutters: Vec<EventCutter>,
    },
}

impl<U: Upstream> Turning<U> {
    /// Translates the answers of `calls`; `limits` bounds their size.
    pub(crate) fn new(calls: U, limits: Limits) -> Turning<U> {
        Turning { calls, limits }
    }

    async fn call_turned(&self, exchange: &mut Exchange) -> Result<Turned<U::Call>, UpstreamError>
    where
        U::Call: 'static,
    {
        let (Some(turn), Some(forward)) = (
            exchange.get::<Arc<TextAsChat>>().cloned(),
            exchange.get::<Forward>(),
        ) else {
            return Err(fault::invalid("nothing says how the answer is turned"));
        };
        let chats = forward.body.parts().into_iter();
        let mut chats: Vec<Exchange> = chats.map(|body| part_of(exchange, forward, body)).collect();
        let turned = self.answered(&mut chats, turn).await;
        for chat in chats {
            exchange.record.upstream_calls += chat.record.upstream_calls;
            exchange.record.provider = chat.record.provider;
            // One chat served by another model makes the whole an answer of that model.
            if chat.record.served_by.is_some() {
                exchange.record.served_by = chat.record.served_by;
            }
        }
        turned
    }

    /// Makes the calls, and reads those that are answered until all are.
    async fn answered(
        &self,
        chats: &mut [Exchange],
        turn: Arc<TextAsChat>,
    ) -> Result<Turned<U::Call>, UpstreamError>
    where
        U::Call: 'static,
    {
        let count = chats.len();
        let call = |(chat, part)| async move { (chat, self.calls.call(part).await) };
        let mut calls: FuturesUnordered<_> = chats.iter_mut().enumerate().map(call).collect();
        let Some((chat, first)) = calls.next().await else {
            return Err(fault::invalid("there is nothing to ask"));
        };
        let first = first?;
        let mut turned = Turned::new(turn, count, first.is_stream(), &self.limits);
        turned.reads.push(read(chat, first));
        while !calls.is_empty() {
            tokio::select! {
                biased;
                Some((chat, call)) = calls.next() => {
                    let call = call?;
                    if call.is_stream() != turned.is_stream() {
                        return Err(fault::invalid("some answers are streams and others are not"));
                    }
                    turned.reads.push(read(chat, call));
                }
                Some(piece) = turned.reads.next() => {
                    let mut early = std::mem::take(&mut turned.early);
                    let taken = turned.take_piece(piece, &mut early);
                    turned.early = early;
                    if let Err(error) = taken {
                        // The client receives the error after the data before it, as if it had been read later.
                        turned.failed = Some(error);
                        break;
                    }
                }
            }
        }
        Ok(turned)
    }
}

/// An exchange for one of the calls of `whole`.
fn part_of(whole: &Exchange, forward: &Forward, body: Box<dyn ForwardBody>) -> Exchange {
    let request = &whole.request;
    let mut part = Exchange::new(Request {
        id: request.id,
        method: request.method.clone(),
        path: request.path.clone(),
        query: None,
        headers: HeaderMap::new(),
        body: request.body.clone(),
        client: request.client,
        tls: request.tls,
        protocol: request.protocol,
    });
    part.record = whole.record.clone();
    part.record.upstream_calls = 0;
    // A failure counts for the account.
    if let Some(principal) = whole.get::<Principal>() {
        part.put(principal.clone());
    }
    part.put(Forward {
        model: Arc::clone(&forward.model),
        api: forward.api,
        asked: forward.asked,
        tokens_max: forward.tokens_max,
        stream: forward.stream,
        body,
    });
    part
}

impl<U: Upstream> Upstream for Turning<U>
where
    U::Call: 'static,
{
    type Call = Answer<U::Call>;

    async fn call(&self, exchange: &mut Exchange) -> Result<Answer<U::Call>, UpstreamError> {
        let turned = exchange
            .get::<Forward>()
            .is_some_and(|forward| forward.api != forward.asked);
        if turned {
            let turned = Box::pin(self.call_turned(exchange)).await?;
            return Ok(Answer::Turned(Box::new(turned)));
        }
        self.calls.call(exchange).await.map(Answer::AsAsked)
    }

    fn open<'a>(&'a self, exchange: &'a mut Exchange, body: BodyLength) -> Opening<'a> {
        self.calls.open(exchange, body)
    }
}

impl<C: UpstreamCall + 'static> UpstreamCall for Answer<C> {
    fn is_stream(&self) -> bool {
        match self {
            Answer::AsAsked(call) => call.is_stream(),
            Answer::Turned(turned) => turned.is_stream(),
        }
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        match self {
            Answer::AsAsked(call) => call.read().await,
            Answer::Turned(turned) => Box::pin(turned.read()).await,
        }
    }

    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        match self {
            Answer::AsAsked(call) => call.read_ready(),
            // Data that has arrived together is in one chunk already.
            Answer::Turned(_) => None,
        }
    }

    async fn finish(self) {
        match self {
            Answer::AsAsked(call) => call.finish().await,
            // Each call was finished at its own end.
            Answer::Turned(_) => {}
        }
    }
}

impl<C: UpstreamCall + 'static> Turned<C> {
    /// The answer to `chats` chats, before any of them is read.
    fn new(turn: Arc<TextAsChat>, chats: usize, is_stream: bool, limits: &Limits) -> Turned<C> {
        let shape = if is_stream {
            let cutter = |_| EventCutter::new(limits.event_bytes_max);
            Shape::Stream {
                stream: TextStream::new(turn),
                cutters: (0..chats).map(cutter).collect(),
            }
        } else {
            let bodies = vec![BytesMut::new(); chats];
            Shape::Whole { turn, bodies }
        };
        Turned {
            shape,
            reads: FuturesUnordered::new(),
            over: vec![false; chats],
            bytes_left: limits.answer_bytes_max,
            early: BytesMut::new(),
            failed: None,
        }
    }

    fn is_stream(&self) -> bool {
        matches!(self.shape, Shape::Stream { .. })
    }

    /// The next chunk of the text answer. May be dropped and called again: the reads of the calls continue.
    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let mut out = std::mem::take(&mut self.early);
        loop {
            if !out.is_empty() {
                return Ok(Some(out.freeze()));
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            let Some(piece) = self.reads.next().await else {
                return Ok(None);
            };
            self.take_piece(piece, &mut out)?;
        }
    }

    /// Handles the result of reading one call, and starts the next read unless that was its end.
    fn take_piece(&mut self, piece: Piece<C>, out: &mut BytesMut) -> Result<(), UpstreamError> {
        let Piece {
            chat,
            call,
            read: piece,
        } = piece;
        let piece = piece?;
        // Data after the end of a chat is read only to reuse the connection.
        if !self.over[chat] {
            self.over[chat] = match &piece {
                Some(piece) => self.take(chat, piece, out)?,
                None => self.take_end(chat, out)?,
            };
            if self.over.iter().all(|over| *over) {
                self.end(out)?;
            }
        }
        if let Some(call) = call {
            self.reads.push(read(chat, call));
        }
        Ok(())
    }

    /// Handles a chunk of the answer to one chat, and returns whether that was its end.
    fn take(
        &mut self,
        chat: usize,
        piece: &[u8],
        out: &mut BytesMut,
    ) -> Result<bool, UpstreamError> {
        self.bytes_left = self
            .bytes_left
            .checked_sub(piece.len())
            .ok_or_else(|| fault::invalid("the answers together are too large"))?;
        let (stream, cutter) = match &mut self.shape {
            Shape::Whole { bodies, .. } => {
                bodies[chat].extend_from_slice(piece);
                return Ok(false);
            }
            Shape::Stream { stream, cutters } => (stream, &mut cutters[chat]),
        };
        let mut events = cutter.push(piece);
        let mut is_over = false;
        while let Some(event) = events
            .next()
            .map_err(|error| fault::invalid(error.to_string()))?
        {
            // The events have to be consumed to the last, whatever they contain.
            if is_over || event.is_done() {
                is_over = true;
                continue;
            }
            stream.turn(chat, event.data, out).map_err(unreadable)?;
            if event.named_error {
                return Err(fault::reported_by_name());
            }
        }
        Ok(is_over)
    }

    /// Handles the end of the answer to one chat.
    fn take_end(&mut self, chat: usize, out: &mut BytesMut) -> Result<bool, UpstreamError> {
        let (stream, cutter) = match &mut self.shape {
            Shape::Whole { .. } => return Ok(true),
            Shape::Stream { stream, cutters } => (stream, &mut cutters[chat]),
        };
        match cutter.finish() {
            Tail::Event(event) if event.is_done() => return Ok(true),
            Tail::Event(event) => stream.turn(chat, event.data, out).map_err(unreadable)?,
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

    /// All chats are complete: the answer, or the end of the stream.
    fn end(&mut self, out: &mut BytesMut) -> Result<(), UpstreamError> {
        match &mut self.shape {
            Shape::Whole { turn, bodies } => {
                let bodies: Vec<Bytes> = bodies.drain(..).map(|body| body.freeze()).collect();
                out.extend_from_slice(&turn.whole(&bodies).map_err(unreadable)?);
            }
            Shape::Stream { stream, .. } => stream.end(out),
        }
        Ok(())
    }
}

fn read<C: UpstreamCall + 'static>(chat: usize, mut call: C) -> Read<C> {
    Box::pin(async move {
        let read = call.read().await;
        let call = match &read {
            Ok(None) => {
                call.finish().await;
                None
            }
            Ok(Some(_)) | Err(_) => Some(call),
        };
        Piece { chat, call, read }
    })
}

fn unreadable(error: TurnError) -> UpstreamError {
    fault::invalid(error.to_string())
}
