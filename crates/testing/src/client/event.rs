//! Server-sent events as received.

use bytes::BytesMut;

use crate::head::find;

/// One event of a stream, unchanged: the lines before a blank line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The lines with their line ends, without the blank line.
    pub raw: String,
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The body was complete.
    Proper,
    /// The connection, the HTTP/2 stream or an event was cut off.
    Cut(String),
}

impl Event {
    /// Its data lines, joined with line feeds; empty for an event that is only a comment.
    pub fn data(&self) -> String {
        let lines = self
            .raw
            .lines()
            .filter_map(|line| line.strip_prefix("data:"));
        let lines: Vec<&str> = lines
            .map(|line| line.strip_prefix(' ').unwrap_or(line))
            .collect();
        lines.join("\n")
    }

    /// Whether it is the `[DONE]` at the end.
    pub fn is_done(&self) -> bool {
        self.data().starts_with("[DONE]")
    }

    /// Its data as JSON.
    ///
    /// # Panics
    ///
    /// When it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        let data = self.data();
        serde_json::from_str(&data)
            .unwrap_or_else(|problem| panic!("{problem} in the event {:?}", self.raw))
    }
}

/// Takes the next complete event off the front of `inbox`.
pub(super) fn take(inbox: &mut BytesMut) -> Option<Event> {
    let ends = [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"];
    let (at, blank) = ends
        .iter()
        .filter_map(|end| find(inbox, end).map(|at| (at, end.len())))
        .min()?;
    let raw = inbox.split_to(at);
    let _ = inbox.split_to(blank);
    Some(Event {
        raw: String::from_utf8_lossy(&raw).into_owned(),
    })
}

/// The result for a complete body with `inbox` left over.
pub(super) fn end(inbox: &BytesMut) -> StreamEnd {
    // Keep-alive comments are lines of their own, which no blank line ends.
    let is_whole = inbox.is_empty() || inbox.ends_with(b"\n");
    let is_comment = |line: &[u8]| line.is_empty() || line.starts_with(b":");
    match is_whole && inbox[..].split(|byte: &u8| *byte == b'\n').all(is_comment) {
        true => StreamEnd::Proper,
        false => StreamEnd::Cut(format!(
            "half an event: {:?}",
            String::from_utf8_lossy(inbox)
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_end_at_a_blank_line_of_any_kind() {
        let mut inbox = BytesMut::from("data: a\n\ndata:b\r\n\r\n: ping\ndata: c\r\rrest");
        let data: Vec<String> = std::iter::from_fn(|| take(&mut inbox))
            .map(|event| event.data())
            .collect();
        assert_eq!(data, ["a", "b", "c"]);
        assert!(matches!(end(&inbox), StreamEnd::Cut(_)));
    }

    #[test]
    fn a_body_may_end_after_a_comment_but_not_within_one() {
        for (rest, is_proper) in [
            ("", true),
            (": a\n: b\n", true),
            (": a", false),
            (": a\ndata: b\n", false),
        ] {
            let end = end(&BytesMut::from(rest));
            assert_eq!(matches!(end, StreamEnd::Proper), is_proper, "{rest:?}");
        }
    }
}
