//! Event boundaries: the positions in an event stream where a comment may be inserted.

/// The parse state of an event stream, as far as needed for inserting a comment.
///
/// A reader ignores a comment between two events (WHATWG HTML, server-sent events); a comment in the middle of a line would become part of
/// the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Boundary {
    /// At the start of a line.
    line_is_empty: bool,
    /// The previous line was empty too, or missing.
    is_between: bool,
    /// The last byte was a carriage return, to which a line feed may belong.
    after_return: bool,
}

impl Default for Boundary {
    fn default() -> Boundary {
        Boundary {
            line_is_empty: true,
            is_between: true,
            after_return: false,
        }
    }
}

impl Boundary {
    /// Updates the state with forwarded bytes.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' if self.after_return => self.after_return = false,
                b'\n' | b'\r' => {
                    self.is_between = self.line_is_empty;
                    self.line_is_empty = true;
                    self.after_return = byte == b'\r';
                }
                _ => {
                    self.is_between = false;
                    self.line_is_empty = false;
                    self.after_return = false;
                }
            }
        }
    }

    /// Whether a comment may be inserted here.
    pub(crate) fn is_between(&self) -> bool {
        self.is_between && self.line_is_empty && !self.after_return
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_inserted_only_between_two_events() {
        for (passed, may) in [
            ("", true),
            ("data: 1", false),
            ("data: 1\n", false),
            ("data: 1\n\n", true),
            ("data: 1\r\n", false),
            ("data: 1\r\n\r\n", true),
            // The line feed that belongs to the last return may still arrive.
            ("data: 1\r\r", false),
            ("data: 1\r\n\r", false),
            ("data: 1\n\nd", false),
            ("data: 1\n\ndata: 2\n\n", true),
            (": a comment\n", false),
            ("id: 1\n\n\n", true),
        ] {
            let mut whole = Boundary::default();
            whole.pass(passed.as_bytes());
            assert_eq!(whole.is_between(), may, "{passed:?}");
            let mut pieces = Boundary::default();
            for byte in passed.bytes() {
                pieces.pass(&[byte]);
            }
            assert_eq!(pieces.is_between(), may, "{passed:?} byte by byte");
        }
    }
}
