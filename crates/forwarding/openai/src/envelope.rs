//! The error envelope: the format of every error for clients.

use bytes::{Bytes, BytesMut};

use crate::{event, string};

/// The content of an error envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEnvelope<'a> {
    /// Advice for correcting the request, for people.
    pub message: &'a str,
    /// The stable category, like `invalid_request_error`; the member is called `type`.
    pub kind: &'a str,
    /// Path of the invalid member.
    pub param: Option<&'a str>,
    /// The cause, for programs.
    pub code: Option<&'a str>,
}

impl ErrorEnvelope<'_> {
    /// Appends `{"error":{...}}`, always with the four members.
    pub fn write(&self, out: &mut BytesMut) {
        let or_null = |text: Option<&str>, out: &mut BytesMut| match text {
            Some(text) => string::write(text, out),
            None => out.extend_from_slice(b"null"),
        };
        out.reserve(96 + self.message.len());
        out.extend_from_slice(br#"{"error":{"message":"#);
        string::write(self.message, out);
        out.extend_from_slice(br#","type":"#);
        string::write(self.kind, out);
        out.extend_from_slice(br#","param":"#);
        or_null(self.param, out);
        out.extend_from_slice(br#","code":"#);
        or_null(self.code, out);
        out.extend_from_slice(b"}}");
    }

    /// The envelope as a body.
    pub fn body(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.write(&mut out);
        out.freeze()
    }

    /// The envelope as the last event of a failed stream. No `[DONE]` may follow the event.
    pub fn event(&self) -> Bytes {
        let mut out = BytesMut::new();
        event::write(&self.body(), &mut out);
        out.freeze()
    }
}
