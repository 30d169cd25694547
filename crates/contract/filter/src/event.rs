//! The events of a response: an event is sent, held back or dropped by the filters.

use bytes::Bytes;
use smallvec::SmallVec;

use crate::Ending;

/// The kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A `data:` event of a stream, other than the last event.
    Data,
    /// `data: [DONE]`.
    Done,
    /// The whole body of a response that is not a stream.
    Whole,
}

/// The disposition of an event after the filters have seen the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Send the event as soon as possible.
    Send,
    /// Hold the event back until another event of the stream is sent or held, or until the tail. Whole responses and `[DONE]` are always
    /// held.
    Hold,
    /// Never send the event.
    Drop,
}

/// A whole piece of a response, borrowed from the read buffer until a filter replaces the piece.
#[derive(Debug)]
pub struct Event<'a> {
    kind: EventKind,
    data: &'a [u8],
    /// The buffer that contains `data`, if any.
    whole: Option<&'a Bytes>,
    replaced: Option<Bytes>,
    disposition: Disposition,
}

impl<'a> Event<'a> {
    /// An event as the upstream sent the event: for a stream the payload after `data: `.
    pub fn new(kind: EventKind, data: &'a [u8]) -> Event<'a> {
        let disposition = if kind == EventKind::Data {
            Disposition::Send
        } else {
            Disposition::Hold
        };
        Event {
            kind,
            data,
            whole: None,
            replaced: None,
            disposition,
        }
    }

    /// A whole response in one piece.
    pub fn whole(body: &'a Bytes) -> Event<'a> {
        Event {
            whole: Some(body),
            ..Event::new(EventKind::Whole, body)
        }
    }

    /// The kind.
    pub fn kind(&self) -> EventKind {
        self.kind
    }

    /// The current JSON text.
    pub fn data(&self) -> &[u8] {
        self.replaced.as_deref().unwrap_or(self.data)
    }

    /// The current text, for keeping. Copied only if the text is part of a larger buffer.
    pub fn bytes(&self) -> Bytes {
        match (&self.replaced, self.whole) {
            (Some(bytes), _) => bytes.clone(),
            (None, Some(whole)) => whole.clone(),
            (None, None) => Bytes::copy_from_slice(self.data),
        }
    }

    /// Replaces the text.
    pub fn replace(&mut self, data: Bytes) {
        self.replaced = Some(data);
    }

    /// The disposition.
    pub fn disposition(&self) -> Disposition {
        self.disposition
    }

    /// Sets the disposition. The last filter wins, but a dropped event stays dropped.
    pub fn set_disposition(&mut self, disposition: Disposition) {
        if self.disposition != Disposition::Drop {
            self.disposition = disposition;
        }
    }

    /// The text, if a filter replaced the text.
    pub fn into_replaced(self) -> Option<Bytes> {
        self.replaced
    }
}

/// A held event.
#[derive(Clone, Debug)]
pub struct HeldEvent {
    /// The kind.
    pub kind: EventKind,
    /// The JSON text.
    pub data: Bytes,
}

/// The tail of a response: the rest to be sent at the end, when the outcome is known.
#[derive(Debug)]
pub struct Tail {
    /// The held pieces, in order.
    pub held: SmallVec<[HeldEvent; 2]>,
    ending: Ending,
    /// Whether the client can still be written to.
    deliverable: bool,
}

impl Tail {
    /// A tail of held pieces.
    pub fn new(held: SmallVec<[HeldEvent; 2]>, ending: Ending, deliverable: bool) -> Tail {
        Tail {
            held,
            ending,
            deliverable,
        }
    }

    /// The response's end: [`Ending::Complete`], [`Ending::Answered`], [`Ending::UpstreamCut`] or [`Ending::GoneDuring`]. Also
    /// [`Ending::GoneBefore`] when the client disconnected before the first byte but the upstream was read to its end.
    pub fn ending(&self) -> Ending {
        self.ending
    }

    /// Whether the client can still be written to.
    pub fn deliverable(&self) -> bool {
        self.deliverable
    }

    /// The piece for metadata about the whole response: the body, or the last data event before `[DONE]`.
    pub fn last_data(&mut self) -> Option<&mut HeldEvent> {
        self.held
            .iter_mut()
            .rev()
            .find(|event| event.kind != EventKind::Done)
    }
}
