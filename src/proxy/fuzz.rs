//! Entry points of fuzzing: heads of requests and the bytes before a head, each parsed from any bytes.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tollgate_filter::{ClientAddress, Protocol, Request};
use tollgate_money::OperationId;

use super::{head, proxy_protocol, source::Source};
use crate::config::{ConnectionLimits, ForwardedField, TrustedProxies};

const LIMITS: ConnectionLimits = ConnectionLimits {
    head_bytes_max: 32 * 1024,
    head_fields_max: 100,
    head: Duration::ZERO,
    idle: Duration::ZERO,
    body: Duration::ZERO,
    write: Duration::ZERO,
    h2_streams_max: 1,
    h2_idle: Duration::ZERO,
    connections_max: 1,
    connections_per_address_max: 1,
    accept_queue: 1,
};

/// A header of the PROXY protocol: the result does not change with more input.
pub(crate) fn proxy_header(input: &[u8]) {
    let whole = proxy_protocol::parse(input);
    let mut decided = Ok(None);
    for end in 0..=input.len().min(300) {
        let now = proxy_protocol::parse(&input[..end]);
        assert!(decided == Ok(None) || decided == now, "it changes at {end}");
        decided = now;
    }
    assert!(decided == Ok(None) || decided == whole);
}

/// The head of a request: another parser has to read an accepted head with equal framing.
pub(crate) fn request_head(input: &[u8]) {
    let mut fields = [httparse::EMPTY_HEADER; 100];
    let mut parsed = httparse::Request::new(&mut fields);
    let Ok(httparse::Status::Complete(length)) = parsed.parse(input) else {
        return;
    };
    let raw = &input[..length];
    let method = parsed.method.and_then(|method| method.parse().ok());
    let target = parsed.path.and_then(|path| path.parse::<Uri>().ok());
    let (Some(method), Some(target)) = (method, target) else {
        return;
    };
    let mut headers = HeaderMap::new();
    for field in &*parsed.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) else {
            return;
        };
        headers.append(name, value);
    }
    let request = request(method, &target, headers);
    if head::check(&request, Some(raw), &LIMITS).is_ok() {
        let codings = request.headers.get_all("transfer-encoding").iter().count();
        let lengths = request.headers.get_all("content-length").iter().count();
        assert!(codings == 0 || codings == 1 && lengths == 0, "ambiguous");
    }
}

fn request(method: Method, target: &Uri, headers: HeaderMap) -> Request {
    Request {
        id: OperationId::from_parts(1, [0; 10]),
        method,
        path: target.path().into(),
        query: target.query().map(Into::into),
        headers,
        body: Bytes::new(),
        client: ClientAddress::direct(IpAddr::from([192, 0, 2, 1])),
        tls: false,
        protocol: Protocol::Http11,
    }
}

/// `Forwarded` and `X-Forwarded-For`: the lines of the input in turn, of each field alone and of both.
pub(crate) fn forwarded(input: &[u8]) {
    let names = [
        HeaderName::from_static("forwarded"),
        HeaderName::from_static("x-forwarded-for"),
    ];
    let lines = input.split(|byte| *byte == b'\n');
    let fields = names.into_iter().cycle().zip(lines);
    let headers: HeaderMap = fields
        .filter_map(|(name, value)| Some((name, HeaderValue::from_bytes(value).ok()?)))
        .collect();
    let peer = IpAddr::from([10, 0, 0, 1]);
    for forwarded_field in [
        ForwardedField::Either,
        ForwardedField::XForwardedFor,
        ForwardedField::Forwarded,
    ] {
        let proxies = Arc::new(TrustedProxies {
            networks: vec!["10.0.0.0/8".parse().expect("a range")],
            forwarded_field,
            names_field: true,
            proxy_protocol: false,
        });
        let _ = Source::of(peer, Some(&proxies)).request(&headers);
    }
}
