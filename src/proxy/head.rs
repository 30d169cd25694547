//! Request head validation: from a parsed head to a request that may be handled.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Version, header};
use memchr::memchr_iter;
use pingora_http::RequestHeader;
use tollgate_filter::{AddressPrefix, ApiError, ClientAddress, ErrorCode, Protocol, Request};
use tollgate_memory::{AddressMemory, MemoryBudget};
use tollgate_money::OperationId;

use super::source::Source;
use crate::config::ConnectionLimits;

/// Maximum length of a target.
const TARGET_BYTES_MAX: usize = 8 * 1024;

/// Memory of one header field beside the bytes: the places in the maps of the session and of the exchange.
const FIELD_BYTES: usize = 256;

/// Properties of a connection for every request on the connection.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    pub(super) source: Source,
    pub(super) tls: bool,
    /// A version of TLS before 1.3.
    pub(super) old_tls: bool,
    /// The listener answers probes of its load balancer.
    pub(super) health: bool,
    /// The open requests of the connection's address.
    pub(super) memory: Arc<AddressMemory>,
}

/// The open requests of a client's address.
pub(super) fn memory_of(client: ClientAddress, budget: &MemoryBudget) -> Arc<AddressMemory> {
    budget.address(client.limited_prefix().map(AddressPrefix::number))
}

/// Memory of a decoded head. `raw_bytes` is its length as received, for HTTP/1.
pub(super) fn memory_bytes(head: &RequestHeader, raw_bytes: Option<usize>) -> usize {
    let bytes = raw_bytes.unwrap_or_else(|| {
        let fields = head.headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
        head.raw_path().len() + fields.sum::<usize>()
    });
    bytes + FIELD_BYTES * head.headers.len()
}

/// A request without its body, and the refusal if the client address cannot be determined.
pub(super) fn request(
    id: OperationId,
    head: &RequestHeader,
    origin: &Origin,
) -> (Request, Result<(), ApiError>) {
    let (client, known) = match origin.source.request(&head.headers) {
        Ok(client) => (client, Ok(())),
        Err(error) => (origin.source.connection(), Err(error)),
    };
    let protocol = match head.version {
        Version::HTTP_2 => Protocol::Http2,
        Version::HTTP_10 => Protocol::Http10,
        _ => Protocol::Http11,
    };
    let request = Request {
        id,
        method: head.method.clone(),
        // The path of an absolute-form target follows the authority; of `*` it is `*`.
        path: head.uri.path().into(),
        query: head.uri.query().map(Into::into),
        headers: head.headers.clone(),
        body: Bytes::new(),
        client,
        tls: origin.tls,
        protocol,
    };
    (request, known)
}

/// A request whose head could not be parsed, for the log.
pub(super) fn unparsed(id: OperationId, origin: &Origin) -> Request {
    Request {
        id,
        method: Method::GET,
        path: "".into(),
        query: None,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        client: origin.source.connection(),
        tls: origin.tls,
        protocol: Protocol::Http11,
    }
}

/// Validates a parsed head: sizes, framing, and fields with a required single occurrence. `raw` is the head as received, for HTTP/1.
///
/// The parser is lenient as far as the standard permits. A gateway stands between implementations with different readings of equal bytes,
/// so ambiguous heads are refused (RFC 9112 section 11.2).
pub(super) fn check(
    request: &Request,
    raw: Option<&[u8]>,
    limits: &ConnectionLimits,
) -> Result<(), ApiError> {
    let headers = &request.headers;
    let bytes = raw.map_or_else(|| list_bytes(headers), <[u8]>::len);
    if headers.len() > limits.head_fields_max || bytes > limits.head_bytes_max {
        return Err(ApiError::new(
            ErrorCode::HeadTooLarge,
            format!(
                "The request head exceeds {} header fields or {} bytes. Send fewer or shorter header fields.",
                limits.head_fields_max, limits.head_bytes_max
            ),
        )
        .closing());
    }
    let target = request.path.len() + request.query.as_deref().map_or(0, str::len);
    if target > TARGET_BYTES_MAX {
        return Err(ApiError::new(
            ErrorCode::UriTooLong,
            format!(
                "The request target exceeds {TARGET_BYTES_MAX} bytes. Put long values into the body."
            ),
        )
        .closing());
    }
    if let Some(raw) = raw {
        check_raw(raw, request)?;
    }
    // RFC 9112 section 3.2: exactly one in HTTP/1.1. The parser refuses a second field.
    if request.protocol == Protocol::Http11 && !headers.contains_key(header::HOST) {
        return Err(malformed("`Host` is missing. Send it once."));
    }
    if let Some(value) = headers.get(header::EXPECT)
        && !value.as_bytes().eq_ignore_ascii_case(b"100-continue")
    {
        return Err(ApiError::new(
            ErrorCode::ExpectationFailed,
            "The only supported expectation is `100-continue`. Leave `Expect` out.",
        )
        .closing());
    }
    check_coding(request.protocol, headers)
}

/// The parser checks only the end of `Transfer-Encoding`. Of the codings only `chunked` is decoded here, and a double `chunked` would be
/// decoded once by one implementation and twice by the next (RFC 9112 section 6.1).
fn check_coding(protocol: Protocol, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let Some(coding) = codings.next() else {
        return Ok(());
    };
    if protocol == Protocol::Http2 {
        return Err(malformed(
            "HTTP/2 does not allow `Transfer-Encoding`. Leave it out.",
        ));
    }
    if codings.next().is_some() || !coding.as_bytes().eq_ignore_ascii_case(b"chunked") {
        return Err(malformed(
            "The only supported `Transfer-Encoding` is `chunked`. Send it once and alone.",
        ));
    }
    Ok(())
}

/// Checks of the raw bytes.
fn check_raw(raw: &[u8], request: &Request) -> Result<(), ApiError> {
    let headers = &request.headers;
    // For a target that is neither a path nor a whole address, this parser assumes the path `/`, and others report an error (RFC 9112
    // section 3.2). The parser has encoded spaces in the target as `%20`.
    let target = raw.split(|&byte| byte == b' ').nth(1).unwrap_or_default();
    let forms: [&[u8]; 4] = [b"/", b"*", b"http://", b"https://"];
    let starts = |form: &[u8]| {
        let start = target.get(..form.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(form))
    };
    // `CONNECT` names a host and a port; no route answers `CONNECT`.
    if request.method != Method::CONNECT && !forms.into_iter().any(starts) {
        return Err(malformed(
            "The request target starts with neither `/` nor `http://`. Send a path or a whole URL.",
        ));
    }
    // A line feed alone may end a line (RFC 9112 section 2.2), but the next implementation may read it as part of a value.
    if memchr_iter(b'\n', raw).any(|at| at == 0 || raw[at - 1] != b'\r') {
        return Err(malformed(
            "A line of the head ends without a carriage return. End each line with CRLF.",
        ));
    }
    // The parser drops `Content-Length` beside `Transfer-Encoding`. No well-behaved client sends both (RFC 9112 section 6.1).
    if headers.contains_key(header::TRANSFER_ENCODING) && has_field(raw, b"content-length") {
        return Err(malformed(
            "`Content-Length` and `Transfer-Encoding` exclude each other. Send one of them.",
        ));
    }
    Ok(())
}

fn has_field(raw: &[u8], name: &[u8]) -> bool {
    memchr_iter(b'\n', raw).any(|at| {
        raw.get(at + 1..at + 1 + name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
    })
}

fn malformed(message: &'static str) -> ApiError {
    ApiError::new(ErrorCode::InvalidRequest, message).closing()
}

/// The size of a header list as HTTP/2 counts it (RFC 9113 section 6.5.2).
fn list_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32)
        .sum()
}
