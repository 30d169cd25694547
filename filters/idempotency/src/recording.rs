//! Records an answer as the provider sent the answer, and replays the answer.
//!
//! The recorded form is the answer before changes by the outer filters. A replay passes the outer filters again with an equal charge, and
//! the result has equal bytes. Answers from the cache differ only in id and time. Id and time are in the metadata. The body has in their
//! place the common stamp of every hit of the entry, so that the store keeps a single body.

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tollgate_filter::{CacheEntryId, CacheStatus, Charge, EventKind, Record, Tokens};
use tollgate_money::Micros;
use tollgate_openai::Stamp;
use tollgate_openai::event::{self, EventCutter};
use tollgate_store::KeptAnswer;

/// The time in the recorded body of an answer from the cache.
const COMMON_TIME: u64 = 0;

/// The status of every stored answer.
const STATUS: u16 = 200;

/// An answer being recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    bytes: BytesMut,
    bytes_max: usize,
    too_large: bool,
    /// The id and the time of an answer from the cache.
    stamp: Option<(Box<str>, u64)>,
    /// Whether the recording has been submitted to the store.
    pub(crate) kept: bool,
}

impl Recording {
    pub(crate) fn new(bytes_max: usize) -> Recording {
        Recording {
            bytes: BytesMut::new(),
            bytes_max,
            too_large: false,
            stamp: None,
            kept: false,
        }
    }

    /// Whether an answer with `more` additional bytes is within the limit.
    pub(crate) fn fits(&self, more: usize) -> bool {
        !self.too_large && self.bytes.len() + more <= self.bytes_max
    }

    /// Stops the recording, and frees the recorded bytes; returns the number of bytes.
    pub(crate) fn give_up(&mut self) -> usize {
        self.too_large = true;
        std::mem::take(&mut self.bytes).len()
    }

    /// Appends an event or the whole body that [`fits`](Recording::fits). `hit` is the cache entry from which the answer was written.
    pub(crate) fn take(&mut self, kind: EventKind, data: &[u8], hit: Option<CacheEntryId>) {
        let common = hit.and_then(|entry| self.without_stamp(data, entry));
        let data = common.as_deref().unwrap_or(data);
        match kind {
            EventKind::Whole => self.bytes.extend_from_slice(data),
            EventKind::Data => event::write(data, &mut self.bytes),
            // Added again on replay.
            EventKind::Done => {}
        }
    }

    /// A reply from the cache with the common stamp of every hit of its entry. The common stamp is not longer than the reply's stamp.
    fn without_stamp(&mut self, data: &[u8], entry: CacheEntryId) -> Option<Bytes> {
        let (stamp, rest) = Stamp::split(data)?;
        let (id, created) = self
            .stamp
            .get_or_insert_with(|| (stamp.id.into(), stamp.created));
        let (prefix, _) = stamp.id.split_once('-')?;
        let entry = entry.text();
        let (_, digits) = entry.split_first_chunk::<3>()?;
        let common = format!("{prefix}-{}", std::str::from_utf8(digits).ok()?);
        let is_own = **id == *stamp.id && *created == stamp.created;
        (is_own && common.len() <= id.len()).then(|| {
            let stamp = Stamp {
                id: &common,
                created: COMMON_TIME,
            };
            stamp.join(rest)
        })
    }

    /// Whether the answer exceeds the limit.
    pub(crate) fn too_large(&self) -> bool {
        self.too_large
    }

    /// The answer with its metadata, for the store.
    pub(crate) fn finish(&mut self, metadata: &Metadata) -> KeptAnswer {
        self.kept = true;
        let bytes = std::mem::take(&mut self.bytes);
        KeptAnswer {
            status: STATUS,
            headers: match self.stamp.take() {
                Some((id, created)) => metadata.text_with(id.into(), created).into(),
                None => metadata.text().into(),
            },
            body: (!self.too_large).then(|| bytes[..].into()),
        }
    }
}

/// The metadata of an answer: the content of the `x_svc` object.
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
    /// The id and the time of an answer from the cache. The recorded body lacks id and time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    created: Option<u64>,
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
            id: None,
            created: None,
        }
    }

    /// The metadata with another charge.
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

    /// The short form, so that a key is a small row: the members in order, separated by spaces, with `-` for a missing member.
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
            id: _,
            created: _,
        } = self;
        let (stream, estimated) = (u8::from(*stream), u8::from(*estimated));
        let cache = cache.as_deref().unwrap_or("-");
        let entry = cache_entry.as_deref().unwrap_or("-");
        format!(
            "{stream} {used} {remaining} {prompt_tokens} {completion_tokens} {estimated} {cache} {entry}"
        )
    }

    /// The form with an id and a time, in JSON: earlier releases skip unknown members. An earlier release replays the answer with the id
    /// and the time in the recorded body.
    fn text_with(&self, id: String, created: u64) -> String {
        let metadata = Metadata {
            id: Some(id),
            created: Some(created),
            ..self.clone()
        };
        // Texts, numbers and booleans always serialise.
        serde_json::to_string(&metadata).unwrap_or_else(|_| self.text())
    }

    /// Parses what [`Metadata::text`] or [`Metadata::text_with`] wrote, or the JSON of an earlier release.
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
            id: None,
            created: None,
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

    /// The body for a replay; `None` for a damaged body.
    pub(crate) fn body(&self, body: &[u8]) -> Option<Body> {
        if !self.stream {
            return Some(Body::Whole(self.stamped(body)));
        }
        let mut cutter = EventCutter::new(body.len());
        let mut events = Vec::new();
        let mut pieces = cutter.push(body);
        while let Some(event) = pieces.next().ok()? {
            events.push(self.stamped(event.data));
        }
        Some(Body::Events(events))
    }

    /// An event or the whole body with the id and the time of the first answer.
    fn stamped(&self, data: &[u8]) -> Bytes {
        if let (Some(id), Some(created)) = (&self.id, self.created)
            && let Some((common, rest)) = Stamp::split(data)
            && common.created == COMMON_TIME
        {
            return Stamp { id, created }.join(rest);
        }
        Bytes::copy_from_slice(data)
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
            recording.take(EventKind::Data, data, None);
        }
        recording.take(EventKind::Done, b"[DONE]", None);
        let kept = recording.finish(&metadata(true));
        let again = Metadata::read(&kept.headers).expect("what was written");
        assert_eq!(again, metadata(true));
        let body = again.body(&kept.body.expect("a small answer"));
        let events = events.iter().map(|data| Bytes::from_static(data));
        assert_eq!(body, Some(Body::Events(events.collect())));
    }

    /// A line break within an event is white space between tokens. Events are written on a single line, so that no client sees the line
    /// break, neither the first time nor in a replay.
    #[test]
    fn clients_receive_the_same_bytes_from_the_provider_and_from_a_replay() {
        const DATA: &[u8] = b"{\"b\":\n2}";
        let mut recording = Recording::new(1_000);
        recording.take(EventKind::Data, DATA, None);
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
        recording.take(EventKind::Whole, b"{ \"x\" : \"data: \\n\\n\" }", None);
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
        recording.take(EventKind::Whole, b"1234567", None);
        assert!(recording.fits(3) && !recording.fits(4));
        assert_eq!(recording.give_up(), 7, "what was recorded is freed");
        assert!(recording.too_large() && !recording.fits(0));
        let kept = recording.finish(&metadata(true));
        assert_eq!((kept.status, kept.body), (200, None));
    }

    #[test]
    fn hits_of_one_entry_have_one_body_and_are_replayed_with_their_own_ids_and_times() {
        let entry = CacheEntryId([9; 16]);
        let record = |stream| Record {
            cache: Some(CacheStatus::Hit),
            ..Record {
                stream,
                cache_entry: Some(entry),
                ..Record::default()
            }
        };
        for stream in [false, true] {
            let kind = match stream {
                true => EventKind::Data,
                false => EventKind::Whole,
            };
            let hit = |digit: char, created: u64| {
                let id = format!("chatcmpl-{}", digit.to_string().repeat(32));
                let pieces = ["\"a\":1}", "\"b\":{\"id\":\"x\"}}"];
                let pieces: Vec<Bytes> = pieces[..1 + usize::from(stream)]
                    .iter()
                    .map(|rest| Stamp { id: &id, created }.join(rest.as_bytes()))
                    .collect();
                let mut recording = Recording::new(1_000);
                for piece in &pieces {
                    recording.take(kind, piece, Some(entry));
                }
                let metadata = Metadata::new(&record(stream), &metadata(stream).charge());
                (pieces, recording.finish(&metadata))
            };
            let (one, kept) = hit('1', 1_700_000_000);
            let (other, again) = hit('2', 1_700_000_060);
            assert_eq!(kept.body, again.body, "stored once");
            for (pieces, kept) in [(one, kept), (other, again)] {
                let read = Metadata::read(&kept.headers).expect("what was written");
                let expected = match stream {
                    true => Body::Events(pieces),
                    false => Body::Whole(pieces[0].clone()),
                };
                assert_eq!(
                    read.body(&kept.body.expect("a small answer")),
                    Some(expected)
                );
                assert_eq!(read.cache_entry(), Some(entry));
                assert!(kept.headers.len() <= 320, "a small row: {}", kept.headers);
            }
        }
    }

    /// An earlier release's reading of the record of a hit: JSON without members unknown to the release.
    #[test]
    fn an_earlier_release_reads_the_record_of_a_hit() {
        #[derive(Deserialize)]
        #[allow(dead_code, reason = "parsed as the earlier release does")]
        struct Earlier {
            stream: bool,
            used: i64,
            remaining: i64,
            prompt_tokens: u64,
            completion_tokens: u64,
            estimated: bool,
            cache: Option<String>,
            cache_entry: Option<String>,
        }
        let mut recording = Recording::new(1_000);
        let id = "chatcmpl-11112222333344445555666677778888";
        let whole = Stamp { id, created: 7 }.join(b"\"choices\":[]}");
        recording.take(EventKind::Whole, &whole, Some(CacheEntryId([9; 16])));
        let kept = recording.finish(&metadata(false));
        let earlier: Earlier = serde_json::from_str(&kept.headers).expect("its form");
        assert_eq!((earlier.used, earlier.remaining), (7, -3));
        let body: serde_json::Value =
            serde_json::from_slice(&kept.body.expect("a small answer")).expect("an answer");
        assert_eq!(body["id"], "chatcmpl-09090909090909090909090909090909");
    }
}
