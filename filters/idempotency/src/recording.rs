//! An answer taken down as the provider gave it, and told again from that.
//!
//! What is taken down is the answer before the filters outside this one have changed it. Told again it passes them again, with the same
//! charge beside it, and comes out as the same bytes.

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tollgate_filter::{CacheEntryId, CacheStatus, Charge, EventKind, Record, Tokens};
use tollgate_money::Micros;
use tollgate_openai::event::{self, EventCutter};
use tollgate_store::KeptAnswer;

/// Every answer that is kept is one of these.
const STATUS: u16 = 200;

/// An answer while it comes.
#[derive(Debug)]
pub(crate) struct Recording {
    bytes: BytesMut,
    bytes_max: usize,
    too_large: bool,
    /// It has been handed to those who keep it.
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

    /// Takes down one piece.
    pub(crate) fn take(&mut self, kind: EventKind, data: &[u8]) {
        // Nothing is taken down of an answer that has outgrown its room; what there was of it goes at once.
        if self.too_large || self.bytes.len() + data.len() > self.bytes_max {
            self.too_large = true;
            self.bytes = BytesMut::new();
            return;
        }
        match kind {
            EventKind::Whole => self.bytes.extend_from_slice(data),
            EventKind::Data => event::write(data, &mut self.bytes),
            // It is added when the stream is told again.
            EventKind::Done => {}
        }
    }

    /// Whether it has outgrown its room.
    pub(crate) fn too_large(&self) -> bool {
        self.too_large
    }

    /// The answer, to be kept together with what it was charged.
    pub(crate) fn finish(&mut self, about: &About) -> KeptAnswer {
        self.kept = true;
        let bytes = std::mem::take(&mut self.bytes);
        KeptAnswer {
            status: STATUS,
            headers: about.text().into(),
            body: (!self.too_large).then(|| bytes[..].into()),
        }
    }
}

/// What belongs to an answer besides its body: what the client was told in its metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    stream: bool,
    used: i64,
    remaining: i64,
    prompt_tokens: u64,
    completion_tokens: u64,
    estimated: bool,
    cache: Option<String>,
    cache_entry: Option<String>,
}

impl About {
    /// What is known of an answer that was charged this much.
    pub(crate) fn new(record: &Record, charge: &Charge) -> About {
        About {
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
    pub(crate) fn charged(self, charge: &Charge) -> About {
        About {
            used: charge.used.get(),
            remaining: charge.remaining.get(),
            prompt_tokens: charge.tokens.prompt,
            completion_tokens: charge.tokens.completion,
            estimated: charge.estimated,
            ..self
        }
    }

    fn text(&self) -> String {
        serde_json::to_string(self).expect("numbers and words serialise")
    }

    /// Reads what [`About::text`] has written.
    pub(crate) fn read(text: &str) -> Option<About> {
        serde_json::from_str(text).ok()
    }

    /// What was charged.
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

    /// What the cache had done.
    pub(crate) fn cache(&self) -> Option<CacheStatus> {
        self.cache.as_deref().and_then(CacheStatus::from_word)
    }

    /// The entry that it had read or written.
    pub(crate) fn cache_entry(&self) -> Option<CacheEntryId> {
        self.cache_entry.as_deref()?.parse().ok()
    }

    /// The body of a stream or a whole answer, as it is told again; `None` when it is damaged.
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

/// An answer that is told again.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Whole(Bytes),
    /// Without `[DONE]`.
    Events(Vec<Bytes>),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(stream: bool) -> About {
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
        About::new(&record, &charge)
    }

    #[test]
    fn what_was_taken_down_is_told_again_byte_for_byte() {
        let mut recording = Recording::new(1_000);
        let events = [&b"{\"a\":1}"[..], b"{ \"b\" :\t2}", b"{}"];
        for data in events {
            recording.take(EventKind::Data, data);
        }
        recording.take(EventKind::Done, b"[DONE]");
        let kept = recording.finish(&about(true));
        let again = About::read(&kept.headers).expect("what was written");
        assert_eq!(again, about(true));
        let body = again.body(&kept.body.expect("a small answer"));
        let events = events.iter().map(|data| Bytes::from_static(data));
        assert_eq!(body, Some(Body::Events(events.collect())));
    }

    /// A line break in the middle of an event is white space between tokens: no client ever sees it, since events are written in one
    /// line, and none sees it when the answer is told again.
    #[test]
    fn what_clients_are_sent_is_the_same_whether_from_the_provider_or_the_record() {
        const DATA: &[u8] = b"{\"b\":\n2}";
        let mut recording = Recording::new(1_000);
        recording.take(EventKind::Data, DATA);
        let kept = recording.finish(&about(true));
        let Some(Body::Events(events)) = about(true).body(&kept.body.expect("a small answer"))
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
    fn a_whole_answer_is_kept_as_it_is() {
        let mut recording = Recording::new(1_000);
        recording.take(EventKind::Whole, b"{ \"x\" : \"data: \\n\\n\" }");
        let kept = recording.finish(&about(false));
        let again = About::read(&kept.headers).expect("what was written");
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
    fn an_answer_that_outgrows_its_room_leaves_its_end_and_no_body() {
        for pieces in [&[&b"12345678901"[..]][..], &[b"1", b"1234567890"]] {
            let mut recording = Recording::new(10);
            for piece in pieces {
                recording.take(EventKind::Data, piece);
            }
            assert!(recording.too_large(), "{pieces:?}");
            recording.take(EventKind::Data, b"2");
            let kept = recording.finish(&about(true));
            assert_eq!((kept.status, kept.body), (200, None), "{pieces:?}");
        }
    }
}
