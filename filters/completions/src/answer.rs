//! Provider answers: parsed for usage and progress, and rewritten where the gateway owns a member.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tollgate_filter::{
    AnswerFault, AnswerIdentity, AnswerProgress, AnswerUsage, CacheStatus, Disposition, Event,
    EventKind, Exchange, Tokens, Unfit, UpstreamFault,
};
use tollgate_openai::{
    Answer, AnswerFacts, AnswerHead, ChunkReader, Family, FinishReason, Patch, Progress,
    ProviderError, Usage,
};

/// The buffer of a larger event is freed with the event.
const KEPT_BYTES: usize = 64 * 1024;

/// The state of an answer on its way to the client. Private to this filter.
pub(crate) struct AnswerState {
    patch: Arc<Patch>,
    /// Present for a stream. Boxed: the state has a kilobyte, and whole answers need not move the kilobyte.
    stream: Option<Box<StreamState>>,
    /// The provider's last reported usage.
    usage: Option<Usage>,
    /// The original whole answer, and its parsed facts.
    whole: Option<(Bytes, AnswerFacts)>,
}

/// The state of a stream.
struct StreamState {
    reader: ChunkReader,
    progress: Progress,
    /// The client requested the usage event.
    include_usage: bool,
    /// The number of requested answers.
    expected: u64,
    /// Every choice has ended: only the tail follows.
    over: bool,
    /// The first event with choices: the model for an event that the gateway adds.
    first: Option<Bytes>,
    /// The last usage event, for a client that requested a usage event. The client gets the event when the charge is known.
    usage_event: Option<Bytes>,
    /// The output buffer of events; reused after its events have been sent.
    out: BytesMut,
}

/// The facts of a piece of an answer.
#[derive(Default)]
struct Facts {
    usage: Option<Usage>,
    /// Every requested choice has its finish reason.
    finished: bool,
    /// Every choice that has begun has a finish reason.
    ended: bool,
    /// Every finish reason says that the model ended by itself.
    stopped: bool,
    unfit: Option<Unfit>,
    fault: Option<AnswerFault>,
}

/// The last pieces of an answer, ready to be sent.
pub(crate) struct Stamped {
    /// Replaces the last piece.
    pub(crate) last: Bytes,
    /// A piece after the last piece.
    pub(crate) more: Option<Bytes>,
}

impl AnswerState {
    /// The family of the answer.
    pub(crate) fn family(&self) -> &'static Family {
        self.patch.family()
    }

    /// An answer in a single piece.
    pub(crate) fn whole(patch: Arc<Patch>) -> AnswerState {
        AnswerState {
            patch,
            stream: None,
            usage: None,
            whole: None,
        }
    }

    /// A stream of `expected` choices.
    pub(crate) fn stream(patch: Arc<Patch>, include_usage: bool, expected: u64) -> AnswerState {
        let stream = StreamState {
            reader: ChunkReader::new(Arc::clone(&patch), include_usage),
            progress: Progress::default(),
            include_usage,
            expected,
            over: false,
            first: None,
            usage_event: None,
            out: BytesMut::new(),
        };
        AnswerState {
            patch,
            stream: Some(Box::new(stream)),
            usage: None,
            whole: None,
        }
    }

    pub(crate) fn is_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Parses a piece, rewrites the piece, and records the piece's facts on the exchange.
    pub(crate) fn take(exchange: &mut Exchange, event: &mut Event<'_>) {
        if exchange.record.cache == Some(CacheStatus::Hit) {
            // The answer was parsed when the answer was stored, and its usage is the result of this parse.
            let reported = exchange
                .get::<AnswerUsage>()
                .and_then(|usage| usage.reported);
            if let Some(state) = exchange.get_mut::<AnswerState>() {
                state.usage =
                    reported.map(|Tokens { prompt, completion }| Usage::new(prompt, completion));
            }
            return;
        }
        let client_connected = exchange
            .get::<AnswerProgress>()
            .is_none_or(|progress| !progress.client_gone);
        // Moved out while the value grows, because two values of the exchange cannot be borrowed mutably together.
        let mut usage = match exchange.get_mut::<AnswerUsage>() {
            Some(usage) => std::mem::take(usage),
            None => AnswerUsage::default(),
        };
        let Some(state) = exchange.get_mut::<AnswerState>() else {
            return;
        };
        let facts = match (&mut state.stream, event.kind()) {
            (Some(stream), EventKind::Data) => stream.take(event, client_connected, &mut usage),
            (None, EventKind::Whole) => state.take_whole(event, &mut usage),
            // `[DONE]`; the driver has refused anything else.
            _ => Facts::default(),
        };
        state.usage = facts.usage.or(state.usage);
        usage.reported = facts.usage.map(tokens).or(usage.reported);
        let has_ended = facts.ended;
        if let Some(place) = exchange.get_mut::<AnswerUsage>() {
            *place = usage;
        }
        if let Some(progress) = exchange.get_mut::<AnswerProgress>() {
            progress.finished |= facts.finished;
            if event.kind() != EventKind::Done {
                progress.ended = facts.ended;
                progress.stopped = facts.stopped;
                progress.unfit = facts.unfit;
            }
            progress.fault = progress.fault.take().or(facts.fault);
        }
        if has_ended && exchange.get::<AnswerIdentity>().is_some() {
            AnswerState::identify(exchange);
        }
    }

    /// Records an ended answer's own statements. Read again from the answer's bytes: few requests are traced.
    #[cold]
    fn identify(exchange: &mut Exchange) {
        let state = exchange.get::<AnswerState>();
        if let Some(identity) = state.and_then(AnswerState::identity) {
            exchange.put(identity);
        }
    }

    fn identity(&self) -> Option<AnswerIdentity> {
        let (text, finishes): (&Bytes, Vec<FinishReason>) = match (&self.stream, &self.whole) {
            (Some(stream), _) => (stream.first.as_ref()?, stream.progress.finishes().collect()),
            (None, Some((body, _))) => {
                let answer = Answer::read(body, &self.patch).ok()?;
                let choices = answer.choices().iter();
                (body, choices.filter_map(|choice| choice.finish).collect())
            }
            (None, None) => return None,
        };
        let AnswerHead { id, model } = AnswerHead::read(text);
        Some(AnswerIdentity {
            id,
            model,
            finish_reasons: finishes.into_iter().map(FinishReason::word).collect(),
        })
    }

    /// Writes `metadata` into the last piece of a stored answer, whose end has the gateway's format. `None` where the answer's usage
    /// differs from the `charged` usage: the caller writes the answer like any other answer.
    pub(crate) fn stamp_stored(
        &self,
        last: &Bytes,
        metadata: &[u8],
        charged: Option<Usage>,
    ) -> Option<Bytes> {
        if charged.is_some() && charged != self.usage {
            return None;
        }
        let mut out = BytesMut::with_capacity(last.len() + metadata.len() + 32);
        self.patch.append_metadata(last, metadata, &mut out);
        Some(out.freeze())
    }

    /// Parses a whole answer, and keeps the result for the write of the answer.
    fn take_whole(&mut self, event: &Event<'_>, so_far: &mut AnswerUsage) -> Facts {
        let body = event.bytes();
        let answer = match Answer::read(&body, &self.patch) {
            Ok(answer) => answer,
            Err(error) => return Facts::unreadable(&body, &error.to_string()),
        };
        let failed = answer
            .choices()
            .iter()
            .any(|choice| choice.finish == Some(FinishReason::Error));
        let fault = match answer.error() {
            Some(error) => Some(reported(error)),
            None if failed => Some(fault("", "a choice ended with the finish reason `error`")),
            None => None,
        };
        let finishes = answer.choices().iter().map(|choice| choice.finish);
        let stopped = finishes
            .into_iter()
            .all(|finish| finish.is_some_and(FinishReason::is_stop));
        let broke_off = |finish: Option<FinishReason>| !finish.is_some_and(FinishReason::is_whole);
        let choices = answer.choices().iter();
        let unfit = if choices.clone().any(|choice| broke_off(choice.finish)) {
            Some(Unfit::Incomplete)
        } else if choices.clone().any(|choice| !choice.output) {
            Some(Unfit::Empty)
        } else {
            answer.has_duplicates().then_some(Unfit::Ambiguous)
        };
        let usage = answer.usage();
        // The text is needed only to count tokens without a reported usage.
        if usage.is_none() {
            answer.append_text(&mut so_far.text);
            so_far.media_bytes = answer.media_bytes();
        }
        let facts = answer.facts();
        drop(answer);
        self.whole = Some((body, facts));
        Facts {
            usage,
            finished: true,
            ended: true,
            stopped,
            unfit,
            fault,
        }
    }

    /// The last event of a stream without a held event: the usage event for a client that requested usage, else an event without text.
    pub(crate) fn last_event(&mut self, metadata: &[u8], charged: Option<Usage>) -> Option<Bytes> {
        let stream = self.stream.as_mut()?;
        if let Some(event) = stream.usage_event(metadata, charged) {
            return Some(event);
        }
        let first = stream.first.take()?;
        let chunk = stream.reader.read(&first).ok()?;
        let mut out = BytesMut::with_capacity(first.len() + metadata.len() + 128);
        match charged.or(self.usage).filter(|_| stream.include_usage) {
            Some(usage) => chunk.write_usage_chunk(usage, metadata, &mut out),
            None => chunk.write_silent_chunk(metadata, &mut out),
        }
        Some(out.freeze())
    }

    /// Writes `metadata` into the last piece of the answer. Writes the `charged` usage where the answer has another usage or no usage.
    ///
    /// A client that requested the usage of a stream gets the usage event, even if the provider does not send a usage event.
    pub(crate) fn stamp(
        &mut self,
        last: &Bytes,
        metadata: &[u8],
        charged: Option<Usage>,
    ) -> Option<Stamped> {
        let mut out = BytesMut::with_capacity(last.len() + metadata.len() + 128);
        let Some(stream) = &mut self.stream else {
            // Parsed on arrival and written now, when the charge is known.
            let facts = match self.whole.take() {
                Some((body, facts)) if is_same(&body, last) => facts,
                // Another filter has replaced the answer.
                _ => Answer::read(last, &self.patch).ok()?.facts(),
            };
            if !facts.write(last, &self.patch, charged, Some(metadata), &mut out) {
                return None;
            }
            return Some(Stamped {
                // A buffer without spare capacity needs no separate reference count and saves an allocation.
                last: Bytes::from(Vec::from(out).into_boxed_slice()),
                more: None,
            });
        };
        if let Some(event) = stream.usage_event(metadata, charged) {
            return Some(Stamped {
                last: last.clone(),
                more: Some(event),
            });
        }
        let chunk = stream.reader.read(last).ok()?;
        let missing = stream.include_usage && !chunk.choices().is_empty();
        if missing && let Some(usage) = charged.or(self.usage) {
            chunk.write_usage_chunk(usage, metadata, &mut out);
            return Some(Stamped {
                last: last.clone(),
                more: Some(out.freeze()),
            });
        }
        chunk.write_last(charged, metadata, &mut out);
        Some(Stamped {
            last: out.freeze(),
            more: None,
        })
    }
}

impl StreamState {
    /// The provider's usage event, with `metadata` and the `charged` usage. Returned once, and only for a client that requested usage.
    fn usage_event(&mut self, metadata: &[u8], charged: Option<Usage>) -> Option<Bytes> {
        let event = self.usage_event.take()?;
        let chunk = self.reader.read(&event).ok()?;
        let mut out = BytesMut::with_capacity(event.len() + metadata.len() + 128);
        chunk.write_last(charged, metadata, &mut out);
        Some(out.freeze())
    }

    fn take(
        &mut self,
        event: &mut Event<'_>,
        client_connected: bool,
        so_far: &mut AnswerUsage,
    ) -> Facts {
        if let Some(copy) = &mut so_far.copy {
            copy.event(event.data());
        }
        let chunk = match self.reader.read(event.data()) {
            Ok(chunk) => chunk,
            Err(error) => {
                event.set_disposition(Disposition::Drop);
                // Some proxies send `null` for an empty event.
                return match event.data() {
                    b"null" => self.unchanged(),
                    data => Facts::unreadable(data, &error.to_string()),
                };
            }
        };
        self.progress.note(&chunk);
        let usage = chunk.usage();
        let choices = chunk.choices();
        let ending = choices.iter().any(|choice| choice.finish.is_some());
        if self.progress.failed() {
            let fault = match chunk.error() {
                Some(error) => reported(error),
                None => {
                    let finish = choices.iter().find_map(|choice| choice.finish);
                    debug_assert_eq!(finish, Some(FinishReason::Error));
                    fault("", "a choice ended with the finish reason `error`")
                }
            };
            event.set_disposition(Disposition::Drop);
            return Facts {
                usage,
                fault: Some(fault),
                ..Facts::default()
            };
        }
        if client_connected {
            chunk.append_text(&mut so_far.text);
            so_far.media_bytes += chunk.media_bytes();
        }
        self.over =
            self.progress.all_finished() && self.progress.choices_seen() as u64 >= self.expected;
        if choices.is_empty() {
            // The usage event. The gateway always requests usage upstream. Other events without choices (filter results, a ping) would
            // break clients that read the first choice.
            if usage.is_some() && self.include_usage {
                self.usage_event = Some(event.bytes());
            }
            event.set_disposition(Disposition::Drop);
        } else {
            if self.first.is_none() {
                self.first = Some(event.bytes());
            }
            chunk.write(&mut self.out);
            // A possible last event is held, so that the metadata can be written into the event.
            if ending || self.over {
                event.set_disposition(Disposition::Hold);
            }
            event.replace(self.out.split().freeze());
            if event.data().len() > KEPT_BYTES {
                // The rest of the buffer would keep the whole buffer until the end of the stream.
                self.out = BytesMut::new();
            }
        }
        Facts {
            usage,
            ..self.unchanged()
        }
    }

    /// The facts so far.
    fn unchanged(&self) -> Facts {
        Facts {
            usage: None,
            finished: self.over,
            ended: self.progress.all_finished(),
            stopped: self.over && self.progress.all_stopped(),
            unfit: self.unfit(),
            fault: None,
        }
    }

    /// Why a stream that ends here is unfit for later requests. Duplicate members in an event are found when the events are joined.
    fn unfit(&self) -> Option<Unfit> {
        if !self.over {
            return None;
        }
        if !self.progress.all_whole() {
            return Some(Unfit::Incomplete);
        }
        (!self.progress.all_have_output()).then_some(Unfit::Empty)
    }
}

/// Whether two handles share their bytes in memory.
fn is_same(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

impl Facts {
    /// A piece that is no answer: the provider's error where the piece is a list of errors, as from Gemini.
    #[cold]
    fn unreadable(data: &[u8], detail: &str) -> Facts {
        let is_list = data.trim_ascii_start().starts_with(b"[");
        let error = is_list.then(|| ProviderError::read(data));
        let fault = match error.filter(|error| error.message.is_some()) {
            Some(_) => reported(data),
            None => AnswerFault {
                fault: UpstreamFault::Invalid,
                message: String::new(),
                detail: detail.to_owned(),
            },
        };
        Facts {
            fault: Some(fault),
            ..Facts::default()
        }
    }
}

/// An error with the provider's own message.
fn reported(error: &[u8]) -> AnswerFault {
    let error = ProviderError::read(error);
    let detail = format!(
        "the provider reported an error of type {} with code {}",
        error.kind.as_deref().unwrap_or("-"),
        error.code.as_deref().unwrap_or("-"),
    );
    fault(error.message.as_deref().unwrap_or_default(), &detail)
}

fn fault(message: &str, detail: &str) -> AnswerFault {
    AnswerFault {
        fault: UpstreamFault::Error,
        message: message.to_owned(),
        detail: detail.to_owned(),
    }
}

fn tokens(usage: Usage) -> Tokens {
    Tokens {
        prompt: usage.prompt_tokens,
        completion: usage.completion_tokens,
    }
}
