//! Splicing: edits of single members of an object, with every other byte unchanged.

use bytes::BytesMut;
use smallvec::SmallVec;

use crate::json::Span;

/// The position of a member of an object, in compact form: a request keeps the position until the request's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    /// The number of members before this member.
    ordinal: u32,
    key: u32,
    value: u32,
    end: u32,
}

impl Member {
    /// The member after `ordinal` other members. The opening quote of the member's key is at `key`. `None` for a text of four gigabytes.
    pub(crate) fn new(ordinal: u32, key: usize, value: Span) -> Option<Self> {
        // The end is the last of the three.
        let end = u32::try_from(value.end).ok()?;
        Some(Self {
            ordinal,
            key: key as u32,
            value: value.start as u32,
            end,
        })
    }

    /// Maps each offset by `to`, in the order of the text.
    pub(crate) fn move_places(&mut self, mut to: impl FnMut(usize) -> usize) {
        for place in [&mut self.key, &mut self.value, &mut self.end] {
            *place = to(*place as usize) as u32;
        }
    }

    /// Offset of the opening quote of the key.
    pub(crate) fn key(&self) -> usize {
        self.key as usize
    }

    pub(crate) fn value(&self) -> Span {
        Span {
            start: self.value as usize,
            end: self.end as usize,
        }
    }
}

/// The editable members of an object, in the order of the text, with the names in `K`.
///
/// A name may occur twice where the parser of the object allows it.
#[derive(Debug)]
pub(crate) struct Layout<K> {
    pub(crate) members: SmallVec<[(K, Member); 4]>,
    /// The number of members of the object.
    pub(crate) count: u32,
    /// Offset of the closing brace.
    pub(crate) close: usize,
}

impl<K: Copy> Clone for Layout<K> {
    fn clone(&self) -> Self {
        Self {
            // One memory copy, unlike the list's own clone.
            members: SmallVec::from_slice(&self.members),
            ..*self
        }
    }
}

impl<K: Copy + PartialEq> Layout<K> {
    pub(crate) fn new() -> Self {
        Self {
            members: SmallVec::new(),
            count: 0,
            close: 0,
        }
    }

    pub(crate) fn find(&self, name: K) -> Option<Member> {
        let found = self.members.iter().find(|(key, _)| *key == name);
        found.map(|(_, member)| *member)
    }
}

/// A copy of a text in progress, with edits in the order of the text.
pub(crate) struct Splice<'t, 'o> {
    text: &'t [u8],
    out: &'o mut BytesMut,
    /// The text before this offset is done.
    done: usize,
    /// The number of removed members.
    removed: u32,
    /// A member was added.
    added: bool,
}

impl<'t, 'o> Splice<'t, 'o> {
    pub(crate) fn new(text: &'t [u8], out: &'o mut BytesMut) -> Self {
        out.reserve(text.len() + 64);
        Self {
            text,
            out,
            done: 0,
            removed: 0,
            added: false,
        }
    }

    /// Copies up to `at`, and returns the output for an insertion.
    pub(crate) fn up_to(&mut self, at: usize) -> &mut BytesMut {
        self.out.extend_from_slice(&self.text[self.done..at]);
        self.done = at;
        self.out
    }

    /// Copies up to `span`, skips `span`, and returns the output for a replacement.
    pub(crate) fn instead_of(&mut self, span: Span) -> &mut BytesMut {
        self.up_to(span.start);
        self.done = span.end;
        self.out
    }

    /// Removes a member, with the comma that becomes redundant.
    ///
    /// The redundant comma is the comma before the member. Without an earlier remaining member, the redundant comma is the comma after the
    /// member.
    pub(crate) fn remove(&mut self, member: &Member) {
        let mut span = Span {
            start: member.key(),
            end: member.value().end,
        };
        if self.removed < member.ordinal {
            let before = &self.text[..member.key()];
            span.start = before
                .iter()
                .rposition(|&byte| byte == b',')
                .unwrap_or(span.start);
        } else {
            let rest = &self.text[member.value().end..];
            let next = rest.iter().position(|byte| !byte.is_ascii_whitespace());
            if let Some(at) = next.filter(|&at| rest[at] == b',') {
                span.end += at + 1;
            }
        }
        self.instead_of(span);
        self.removed += 1;
    }

    /// Copies up to the closing brace of the object, and returns the output for an additional member.
    ///
    /// The comma before the member is written here if needed.
    pub(crate) fn append<K>(&mut self, layout: &Layout<K>) -> &mut BytesMut {
        self.up_to(layout.close);
        if self.added || self.removed < layout.count {
            self.out.extend_from_slice(b",");
        }
        self.added = true;
        self.out
    }

    /// Copies the rest.
    pub(crate) fn finish(mut self) {
        self.up_to(self.text.len());
    }
}
