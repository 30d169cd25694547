//! Records an answer as the provider sent it, and replays it.
//!
//! The recorded form is the answer before the outer filters changed it. A replay passes them again with the same charge, which makes the
//! same bytes.

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tollgate_filter::{CacheEntryId, CacheStatus, Charge, EventKind, Record, Tokens};
use tollgate_money::Micros;
use tollgate_openai::event::{self, EventCutter};
use tollgate_store::KeptAnswer;

/// The status of every stored answer.
const STATUS: u16 = 200;

/// An answer being recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    bytes: BytesMut,
    bytes_max: usize,
    too_large: bool,
    /// Whether it has been submitted to the store.
    pub(crate) kept: bool,
}

impl Recording {
    pub(crate) fn new(bytes_max: usize) -> Recording {
        Recording {
            bytes: BytesMut::new(),
            bytes_max,
            too_large: false,
            kept: false,
        }
    }

    /// Whether an answer with so many more bytes is within the limit.
    pub(crate) fn fits(&self, more: usize) -> bool {
        !self.too_large && self.bytes.len() + more <= self.bytes_max
    }

    /// Stops recording, and frees what was recorded; returns how many bytes.
    pub(crate) fn give_up(&mut self) -> usize {
        self.too_large = true;
        std::mem::take(&mut self.bytes).len()
    }

    /// Appends one event or the whole body that [`fits`](Recording::fits).
    pub(crate) fn take(&mut self, kind: EventKind, data: &[u8]) {
        match kind {
            EventKind::Whole => self.bytes.extend_from_slice(data),
            EventKind::Data => event::write(data, &mut self.bytes),
            // Added again on replay.
            EventKind::Done => {}
        }
    }

    /// Whether it exceeds the limit.
    pub(crate) fn too_large(&self) -> bool {
        self.too_large
    }

    /// The answer with its metadata, for the store.
    pub(crate) fn finish(&mut self, metadata: &Metadata) -> KeptAnswer {
        self.kept = true;
        let bytes = std::mem::take(&mut self.bytes);
        KeptAnswer {
            status: STATUS,
            headers: metadata.text().into(),
            body: (!self.too_large).then(|| bytes[..].into()),
        }
    }
}

/// The metadata of an answer: what its `x_svc` object is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Metadata {
    stream: bool,
    used: i64,
    remaining: i64,
    prompt_tokens: u64,
    completion_tokens: u64,
    estimated: bool,
    cache: Option<String>,
    cache_entry: Option<String>,
}

impl Metadata {
    /// The metadata of an answer with this charge.
    pub(crate) fn new(record: &Record, charge: &Charge) -> Metadata {
        Metadata {
            stream: record.stream,
            used: charge.used.get(),
            remaining: charge.remaining.get(),
            prompt_tokens: charge.tokens.prompt,
            completion_tokens: charge.tokens.completion,
            estimated: charge.estimated,
            cache: record.cache.map(|cache| cache.word().to_owned()),
            cache_entry: record.cache_entry.map(|entry| entry.to_string()),
        }
    }

    /// The same for another charge.
    pub(crate) fn charged(self, charge: &Charge) -> Metadata {
        Metadata {
            used: charge.used.get(),
            remaining: charge.remaining.get(),
            prompt_tokens: charge.tokens.prompt,
            completion_tokens: charge.tokens.completion,
            estimated: charge.estimated,
            ..self
        }
    }

    /// The short form, so that a key is a small row: the members in order with a space between, `-` for one that is missing.
    fn text(&self) -> String {
        let Metadata {
            stream,
            used,
            remaining,
            prompt_tokens,
            completion_tokens,
            estimated,
            cache,
            cache_entry,
        } = self;
        let (stream, estimated) = (u8::from(*stream), u8::from(*estimated));
        let cache = cache.as_deref().unwrap_or("-");
        let entry = cache_entry.as_deref().unwrap_or("-");
        format!(
            "{stream} {used} {remaining} {prompt_tokens} {completion_tokens} {estimated} {cache} {entry}"
        )
    }

    /// Parses what [`Metadata::text`] wrote, or the JSON of an earlier release.
    pub(crate) fn read(text: &str) -> Option<Metadata> {
        if text.starts_with('{') {
            return serde_json::from_str(text).ok();
        }
        let mut words = text.split(' ');
        let metadata = Metadata {
            stream: words.next()? == "1",
            used: words.next()?.parse().ok()?,
            remaining: words.next()?.parse().ok()?,
            prompt_tokens: words.next()?.parse().ok()?,
            completion_tokens: words.next()?.parse().ok()?,
            estimated: words.next()? == "1",
            cache: word(words.next()?),
            cache_entry: word(words.next()?),
        };
        words.next().is_none().then_some(metadata)
    }

    /// The charge.
    pub(crate) fn charge(&self) -> Charge {
        Charge {
            used: Micros::new(self.used),
            remaining: Micros::new(self.remaining),
            tokens: Tokens {
                prompt: self.prompt_tokens,
                completion: self.completion_tokens,
            },
            estimated: self.estimated,
        }
    }

    /// The cache status.
    pub(crate) fn cache(&self) -> Option<CacheStatus> {
        self.cache.as_deref().and_then(CacheStatus::from_word)
    }

    /// The cache entry that was read or written.
    pub(crate) fn cache_entry(&self) -> Option<CacheEntryId> {
        self.cache_entry.as_deref()?.parse().ok()
    }

    /// The body for a replay; `None` when it is damaged.
    pub(crate) fn body(&self, body: &[u8]) -> Option<Body> {
        if !self.stream {
            return Some(Body::Whole(Bytes::copy_from_slice(body)));
        }
        let mut cutter = EventCutter::new(body.len());
        let mut events = Vec::new();
        let mut pieces = cutter.push(body);
        while let Some(event) = pieces.next().ok()? {
            events.push(Bytes::copy_from_slice(event.data));
        }
        Some(Body::Events(events))
    }
}

fn word(text: &str) -> Option<String> {
    (text != "-").then(|| text.to_owned())
}

/// The body of a replayed answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Whole(Bytes),
    /// Without `[DONE]`.
    Events(Vec<Bytes>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(stream: bool) -> Metadata {
        let record = Record {
            stream,
            cache: Some(CacheStatus::Stored),
            cache_entry: Some(CacheEntryId([9; 16])),
            ..Record::default()
        };
        let charge = Charge {
            used: Micros::new(7),
            remaining: Micros::new(-3),
            tokens: Tokens {
                prompt: 5,
                completion: u64::MAX,
            },
            estimated: true,
        };
        Metadata::new(&record, &charge)
    }

    #[test]
    fn a_recorded_stream_is_replayed_byte_for_byte() {
        let mut recording = Recording::new(1_000);
        let events = [&b"{\"a\":1}"[..], b"{ \"b\" :\t2}", b"{}"];
        for data in events {
            recording.take(EventKind::Data, data);
        }
        recording.take(EventKind::Done, b"[DONE]");
        let kept = recording.finish(&metadata(true));
        let again = Metadata::read(&kept.headers).expect("what was written");
        assert_eq!(again, metadata(true));
        let body = again.body(&kept.body.expect("a small answer"));
        let events = events.iter().map(|data| Bytes::from_static(data));
        assert_eq!(body, Some(Body::Events(events.collect())));
    }

    /// A line break within an event is white space between tokens: events are written in one line, so no client sees it, neither the first
    /// time nor in a replay.
    #[test]
    fn clients_receive_the_same_bytes_from_the_provider_and_from_a_replay() {
        const DATA: &[u8] = b"{\"b\":\n2}";
        let mut recording = Recording::new(1_000);
        recording.take(EventKind::Data, DATA);
        let kept = recording.finish(&metadata(true));
        let Some(Body::Events(events)) = metadata(true).body(&kept.body.expect("a small answer"))
        else {
            panic!("a stream has events");
        };
        let written = |data: &[u8]| {
            let mut out = BytesMut::new();
            event::write(data, &mut out);
            out
        };
        assert_eq!(written(&events[0]), written(DATA));
    }

    #[test]
    fn metadata_of_an_earlier_release_is_read() {
        let text = serde_json::to_string(&metadata(true)).expect("it serialises");
        assert_eq!(Metadata::read(&text), Some(metadata(true)));
        let none = Metadata::new(&Record::default(), &metadata(false).charge());
        assert_eq!(Metadata::read(&none.text()), Some(none));
        assert_eq!(Metadata::read("1 2 3"), None);
    }

    #[test]
    fn a_whole_answer_is_recorded_unchanged() {
        let mut recording = Recording::new(1_000);
        recording.take(EventKind::Whole, b"{ \"x\" : \"data: \\n\\n\" }");
        let kept = recording.finish(&metadata(false));
        let again = Metadata::read(&kept.headers).expect("what was written");
        assert_eq!(
            again.body(&kept.body.expect("a small answer")),
            Some(Body::Whole(Bytes::from_static(
                b"{ \"x\" : \"data: \\n\\n\" }"
            )))
        );
        assert_eq!(again.charge().used, Micros::new(7));
        assert_eq!(again.charge().remaining, Micros::new(-3));
        assert_eq!(again.charge().tokens.completion, u64::MAX);
        assert_eq!(again.cache(), Some(CacheStatus::Stored));
        assert_eq!(again.cache_entry(), Some(CacheEntryId([9; 16])));
    }

    #[test]
    fn an_answer_above_the_limit_is_stored_without_body() {
        let mut recording = Recording::new(10);
        assert!(recording.fits(10) && !recording.fits(11));
        recording.take(EventKind::Whole, b"1234567");
        assert!(recording.fits(3) && !recording.fits(4));
        assert_eq!(recording.give_up(), 7, "what was recorded is freed");
        assert!(recording.too_large() && !recording.fits(0));
        let kept = recording.finish(&metadata(true));
        assert_eq!((kept.status, kept.body), (200, None));
    }
}
