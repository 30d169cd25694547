//! HTTP/1.1 heads: the prepared head of a request, and the parsed head of an answer.

use std::fmt;
use std::io::Write;
use std::mem::MaybeUninit;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::RequestHead;
use super::body::Framing;
use crate::upstream::transport::retry_after::RetryAfter;

/// Maximum size of an answer's head; a longer head is refused.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Fields with room on the stack. A head with more, within the maximum size, is parsed a second time.
const FIELDS_USUAL: usize = 100;

/// The prepared heads of the requests to one provider. The heads contain no field of a client's head, above all not the client's
/// credential.
///
/// The heads contain the provider's key, so `Debug` is not implemented.
pub(in crate::upstream::transport) struct Heads {
    /// Method and base path.
    start: Box<[u8]>,
    /// From the version to the name of the length field, for a stream.
    events: Box<[u8]>,
    /// The head for a whole answer.
    whole: Box<[u8]>,
}

impl Heads {
    /// `authorization` is the whole value of the field, visible ASCII, and so are the other values.
    pub(in crate::upstream::transport) fn new(
        base_path: &str,
        authority: &str,
        authorization: Option<&http::HeaderValue>,
    ) -> Heads {
        let fields = |accept: &str| {
            let mut fields = format!(
                " HTTP/1.1\r\nhost: {authority}\r\nuser-agent: tollgate/{}\r\naccept: {accept}\r\n\
                 accept-encoding: identity\r\ncontent-type: application/json\r\n",
                env!("CARGO_PKG_VERSION")
            )
            .into_bytes();
            if let Some(value) = authorization {
                fields.extend_from_slice(b"authorization: ");
                fields.extend_from_slice(value.as_bytes());
                fields.extend_from_slice(b"\r\n");
            }
            fields.extend_from_slice(b"content-length: ");
            fields.into_boxed_slice()
        };
        Heads {
            start: format!("POST {base_path}").into_bytes().into(),
            events: fields("text/event-stream"),
            whole: fields("application/json"),
        }
    }

    /// Appends the head of one request.
    pub(super) fn write(&self, out: &mut Vec<u8>, head: &RequestHead<'_>, length: usize) {
        let fields = if head.stream {
            &self.events
        } else {
            &self.whole
        };
        out.reserve(self.start.len() + head.path.len() + fields.len() + 24);
        out.extend_from_slice(&self.start);
        out.extend_from_slice(head.path.as_bytes());
        out.extend_from_slice(fields);
        let mut write = |tail: fmt::Arguments<'_>| {
            out.write_fmt(tail)
                .expect("writing to a vector does not fail");
        };
        write(format_args!("{length}\r\n"));
        if let Some(client) = head.client {
            write(format_args!("x-forwarded-for: {client}\r\n"));
        }
        for (name, value) in head.ids.iter().flat_map(|ids| ids.fields()) {
            out.extend_from_slice(name.as_str().as_bytes());
            out.extend_from_slice(b": ");
            out.extend_from_slice(value.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The relevant fields of the head of an answer.
#[derive(Debug)]
pub(in crate::upstream::transport) struct Head {
    pub(in crate::upstream::transport) status: StatusCode,
    /// Whether the body is declared as an event stream.
    pub(in crate::upstream::transport) is_stream: bool,
    /// Whether the body is compressed.
    pub(in crate::upstream::transport) is_encoded: bool,
    /// The wait that the provider asks for.
    pub(in crate::upstream::transport) retry_after: Option<RetryAfter>,
    /// The framing of the body.
    pub(super) framing: Framing,
    /// Whether the provider keeps the connection alive.
    pub(super) is_persistent: bool,
}

impl Head {
    pub(super) fn is_informational(&self) -> bool {
        self.status.is_informational()
    }
}

/// The first head in `input` and its length, `None` if more has to be read.
pub(super) fn parse(input: &[u8]) -> Result<Option<(Head, usize)>, &'static str> {
    let mut usual = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; FIELDS_USUAL];
    match parse_in(input, &mut usual) {
        Err(ParseError::TooManyFields) if input.len() <= HEAD_BYTES_MAX => {
            let mut all = vec![MaybeUninit::uninit(); lines(input)];
            parse_in(input, &mut all)
        }
        parsed => parsed,
    }
    .map_err(|error| match error {
        ParseError::TooManyFields => "the head of the answer is too long",
        ParseError::Refused(why) => why,
    })
}

/// Lines of a head, a bound on the number of fields.
fn lines(input: &[u8]) -> usize {
    input.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Why a head is refused.
enum ParseError {
    /// No room for every field of the head.
    TooManyFields,
    Refused(&'static str),
}

impl From<&'static str> for ParseError {
    fn from(why: &'static str) -> ParseError {
        ParseError::Refused(why)
    }
}

fn parse_in<'i>(
    input: &'i [u8],
    fields: &mut [MaybeUninit<httparse::Header<'i>>],
) -> Result<Option<(Head, usize)>, ParseError> {
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        input,
        fields,
    );
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) if length <= HEAD_BYTES_MAX => length,
        Ok(httparse::Status::Partial) if input.len() <= HEAD_BYTES_MAX => return Ok(None),
        Ok(_) => return Err("the head of the answer is too long".into()),
        Err(httparse::Error::TooManyHeaders) => return Err(ParseError::TooManyFields),
        Err(_) => return Err("the head of the answer is not HTTP".into()),
    };
    let status = response
        .code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or("the answer has no status")?;
    let mut seen = Fields::default();
    for field in &*response.headers {
        seen.note(field.name, field.value)?;
    }
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err("the answer switches protocols, which was not requested".into());
    }
    let is_newer = response.version == Some(1);
    let framing = seen.framing(status);
    let head = Head {
        status,
        is_stream: seen.is_stream,
        is_encoded: seen.is_encoded,
        retry_after: RetryAfter::read(seen.retry_after.as_deref(), seen.retry_after_ms.as_deref()),
        framing,
        is_persistent: match seen.connection {
            Connection::Close => false,
            Connection::KeepAlive => true,
            Connection::Unspecified => is_newer,
            // Both framings, or chunks from an HTTP/1.0 sender: accepted once, and the connection is not reused (RFC 9112
            // section 6.1).
        } && !(seen.is_chunked && (seen.length.is_some() || !is_newer)),
    };
    Ok(Some((head, length)))
}

/// Every field of a head that [`parse`] has accepted.
pub(super) fn fields(head: &[u8]) -> Result<HeaderMap, &'static str> {
    let mut fields = vec![httparse::EMPTY_HEADER; lines(head)];
    let mut response = httparse::Response::new(&mut fields);
    match response.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        _ => return Err("the head of the answer is not HTTP"),
    }
    let mut all = HeaderMap::with_capacity(response.headers.len());
    for field in &*response.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_bytes(field.value);
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err("the head of the answer has a malformed field");
        };
        all.append(name, value);
    }
    Ok(all)
}

#[derive(Default)]
enum Connection {
    #[default]
    Unspecified,
    KeepAlive,
    Close,
}

/// The relevant fields found so far.
#[derive(Default)]
struct Fields {
    length: Option<u64>,
    is_chunked: bool,
    connection: Connection,
    is_stream: bool,
    is_encoded: bool,
    retry_after: Option<Box<[u8]>>,
    retry_after_ms: Option<Box<[u8]>>,
}

impl Fields {
    fn note(&mut self, name: &str, value: &[u8]) -> Result<(), &'static str> {
        // The length distinguishes most names from the relevant names.
        match name.len() {
            10 if name.eq_ignore_ascii_case("connection") => {
                for option in value.split(|&byte| byte == b',') {
                    let option = option.trim_ascii();
                    if option.eq_ignore_ascii_case(b"close") {
                        self.connection = Connection::Close;
                    } else if option.eq_ignore_ascii_case(b"keep-alive")
                        && !matches!(self.connection, Connection::Close)
                    {
                        self.connection = Connection::KeepAlive;
                    }
                }
            }
            11 if name.eq_ignore_ascii_case("retry-after") => {
                self.retry_after = Some(value.into());
            }
            12 if name.eq_ignore_ascii_case("content-type") => {
                let essence = value.split(|&byte| byte == b';').next();
                self.is_stream = essence
                    .unwrap_or_default()
                    .trim_ascii()
                    .eq_ignore_ascii_case(b"text/event-stream");
            }
            14 if name.eq_ignore_ascii_case("content-length") => {
                let length = decimal(value).ok_or("the answer's length is not a number")?;
                if self.length.is_some_and(|earlier| earlier != length) {
                    return Err("the answer has contradicting lengths");
                }
                self.length = Some(length);
            }
            14 if name.eq_ignore_ascii_case("retry-after-ms") => {
                self.retry_after_ms = Some(value.into());
            }
            16 if name.eq_ignore_ascii_case("content-encoding") => {
                self.is_encoded |= is_coded(value);
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                if self.is_chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err("the answer has a transfer coding that was not requested");
                }
                self.is_chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// RFC 9112 section 6.3, for the answer to a POST.
    fn framing(&self, status: StatusCode) -> Framing {
        let is_bodiless = status.is_informational()
            || status == StatusCode::NO_CONTENT
            || status == StatusCode::NOT_MODIFIED;
        match (is_bodiless, self.is_chunked, self.length) {
            (true, _, _) | (false, false, Some(0)) => Framing::Done,
            (false, true, _) => Framing::chunked(),
            (false, false, Some(length)) => Framing::Length(length),
            (false, false, None) => Framing::UntilClose,
        }
    }
}

/// Whether a value of `Content-Encoding` names a coding (RFC 9110 section 8.4). False for `identity`, for an empty value, and for a
/// character set as sent by some providers.
pub(in crate::upstream::transport) fn is_coded(value: &[u8]) -> bool {
    let none = |coding: &[u8]| {
        let none = [&b""[..], b"identity", b"utf-8", b"utf8"];
        none.iter().any(|none| coding.eq_ignore_ascii_case(none))
    };
    !value
        .split(|&byte| byte == b',')
        .all(|coding| none(coding.trim_ascii()))
}

/// Digits only (RFC 9110 section 8.6), perhaps the same number several times in a list.
fn decimal(value: &[u8]) -> Option<u64> {
    let mut all = None;
    for one in value.split(|&byte| byte == b',') {
        let one = one.trim_ascii();
        if one.is_empty() || !one.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number = std::str::from_utf8(one).ok()?.parse::<u64>().ok()?;
        if all.is_some_and(|earlier| earlier != number) {
            return None;
        }
        all = Some(number);
    }
    all
}
