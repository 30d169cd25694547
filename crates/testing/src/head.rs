//! A strict parser for the head of an HTTP/1.1 message.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue};

/// More than any test sends on purpose; it detects a peer that never ends its head.
const HEAD_BYTES_MAX: usize = 256 * 1024;

/// The head of an HTTP/1.1 request or response.
///
/// The parser is stricter than RFC 9112 requires of a recipient: bare line feeds, folded lines and space before a colon are refused,
/// because a gateway must never forward them.
#[derive(Clone, Debug)]
pub struct Head {
    /// The original bytes of the head, with the empty line.
    pub raw: Bytes,
    /// The first line, without its line end.
    pub start_line: String,
    /// Field lines by name.
    pub headers: HeaderMap,
}

/// Why a head is invalid, in a few words with the offending line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadHead(pub String);

impl fmt::Display for BadHead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not an HTTP/1.1 head: {}", self.0)
    }
}

impl std::error::Error for BadHead {}

impl Head {
    /// Takes a head off the front of `inbox`; `None` while its empty line has not arrived.
    ///
    /// # Errors
    ///
    /// [`BadHead`] when the bytes cannot become a head.
    pub fn take(inbox: &mut BytesMut) -> Result<Option<Self>, BadHead> {
        let Some(end) = find(inbox, b"\r\n\r\n") else {
            return match inbox.len() {
                len if len > HEAD_BYTES_MAX => {
                    Err(BadHead(format!("{len} bytes without an empty line")))
                }
                _ => Ok(None),
            };
        };
        let raw = inbox.split_to(end + 4).freeze();
        let text = std::str::from_utf8(&raw[..end])
            .map_err(|_| BadHead("bytes that are not UTF-8".to_owned()))?;
        let mut lines = text.split("\r\n");
        let start_line = lines.next().unwrap_or_default().to_owned();
        let mut headers = HeaderMap::new();
        for line in lines {
            let (name, value) =
                field(line).ok_or_else(|| BadHead(format!("`{}`", line.escape_debug())))?;
            headers.append(name, value);
        }
        if start_line.is_empty() || start_line.contains(['\r', '\n']) {
            return Err(BadHead(format!(
                "first line `{}`",
                start_line.escape_debug()
            )));
        }
        Ok(Some(Self {
            raw,
            start_line,
            headers,
        }))
    }

    /// The status of a response's head, e.g. 200.
    ///
    /// # Panics
    ///
    /// When the first line is not the status line of HTTP/1.1 or 1.0.
    pub fn status(&self) -> u16 {
        let parts: Vec<&str> = self.start_line.splitn(3, ' ').collect();
        match parts.as_slice() {
            ["HTTP/1.1" | "HTTP/1.0", status, ..] => status.parse().ok(),
            _ => None,
        }
        .unwrap_or_else(|| panic!("`{}` is no status line", self.start_line.escape_debug()))
    }

    /// The only value of field `name` as text; `None` when there is no such field.
    ///
    /// # Panics
    ///
    /// When the field occurs more than once or is not ASCII: a test that expects one value has to fail on two.
    pub fn header(&self, name: &str) -> Option<&str> {
        one_value(&self.headers, name)
    }

    /// The framing of the body after this head (RFC 9112 section 6.3). `is_request` distinguishes a request from a response: only a
    /// response may run until the connection closes.
    pub(crate) fn framing(&self, is_request: bool) -> Result<Framing, BadHead> {
        for name in ["transfer-encoding", "content-length"] {
            if self.headers.get_all(name).iter().count() > 1 {
                return Err(BadHead(format!("more than one {name}")));
            }
        }
        let coding = self.header("transfer-encoding");
        let length = self.header("content-length");
        match (coding, length) {
            (Some(_), Some(_)) => Err(BadHead(
                "both transfer-encoding and content-length".to_owned(),
            )),
            (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
            (Some(coding), None) => Err(BadHead(format!("transfer-encoding `{coding}`"))),
            // `parse` would accept a plus sign, HTTP does not.
            (None, Some(length)) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                let length = length
                    .parse()
                    .map_err(|_| BadHead(format!("content-length `{length}`")))?;
                Ok(Framing::Length(length))
            }
            (None, Some(length)) => Err(BadHead(format!("content-length `{length}`"))),
            (None, None) if is_request => Ok(Framing::Length(0)),
            (None, None) => match self.status() {
                100..200 | 204 | 304 => Ok(Framing::Length(0)),
                _ => Ok(Framing::UntilClose),
            },
        }
    }
}

/// The end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// After this many bytes.
    Length(usize),
    /// After the chunk of size 0 and its trailer.
    Chunked,
    /// Where the connection is closed.
    UntilClose,
}

/// The only value of field `name` in `headers`.
pub(crate) fn one_value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?;
    assert!(
        values.next().is_none(),
        "field `{name}` occurs more than once"
    );
    Some(
        value
            .to_str()
            .unwrap_or_else(|_| panic!("field `{name}` is not ASCII")),
    )
}

fn field(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    let value = value.trim_matches([' ', '\t']);
    Some((name.parse().ok()?, value.parse().ok()?))
}

pub(crate) fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len())
        .position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Result<Option<Head>, BadHead> {
        Head::take(&mut BytesMut::from(text))
    }

    #[test]
    fn a_head_is_consumed_and_the_following_bytes_stay() {
        let mut inbox = BytesMut::from("GET /a HTTP/1.1\r\nHost: b\r\n\r\nrest");
        let head = Head::take(&mut inbox)
            .expect("well-formed")
            .expect("complete");
        assert_eq!(head.start_line, "GET /a HTTP/1.1");
        assert_eq!(head.header("host"), Some("b"));
        assert_eq!(&inbox[..], b"rest");
    }

    #[test]
    fn half_a_head_is_waited_for() {
        assert!(
            take("GET /a HTTP/1.1\r\nHost: b\r\n")
                .expect("not wrong yet")
                .is_none()
        );
    }

    #[test]
    fn fields_that_must_not_be_forwarded_are_refused() {
        for bad in [
            "GET / HTTP/1.1\r\nHost : b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: b\r\n folded\r\n\r\n",
            "GET / HTTP/1.1\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        ] {
            assert!(take(bad).is_err(), "accepted {bad:?}");
        }
    }

    #[test]
    fn two_framings_at_once_are_refused() {
        for bad in [
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        ] {
            let head = take(bad).expect("a head").expect("complete");
            assert!(head.framing(true).is_err(), "accepted {bad:?}");
        }
    }
}
