//! CORS: cross-origin resource sharing (WHATWG Fetch, CORS protocol).
//!
//! Decided before authentication, so that refusals carry the fields too: a page cannot show an unreadable error to its user.

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use tollgate_filter::Exchange;

use crate::config::Cors;

/// Response fields readable by pages.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "WWW-Authenticate, X-Request-Id, Retry-After, RateLimit, RateLimit-Policy, RateLimit-Limit, \
     RateLimit-Remaining, RateLimit-Reset, Location, Deprecation, Sunset, Link, Idempotent-Replayed, \
     MCP-Session-Id, PAYMENT-REQUIRED, PAYMENT-RESPONSE, Payment-Receipt",
);

const ANY: HeaderValue = HeaderValue::from_static("*");

/// Seconds a browser may remember a preflight.
const MAX_AGE: HeaderValue = HeaderValue::from_static("600");

/// Maximum number of names in a preflight; browsers send fewer.
const NAMES_MAX: usize = 64;

/// Whether the request is a preflight.
pub(super) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Adds the fields of an ordinary response.
pub(super) fn mark(exchange: &mut Exchange, cors: Cors) {
    if cors == Cors::None || !exchange.request.headers.contains_key(header::ORIGIN) {
        return;
    }
    let headers = &mut exchange.reply_headers;
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
}

/// The fields of a preflight response: 204, without authentication and without rate limiting.
pub(super) fn preflight(
    cors: Cors,
    allow: HeaderValue,
    requested: &HeaderMap,
) -> (StatusCode, HeaderMap) {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(header::ALLOW, allow.clone());
    if cors == Cors::None {
        return (StatusCode::NO_CONTENT, headers);
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, allow);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
    // Each name is echoed, never `*`: the wildcard does not cover `Authorization`, and a fixed list would break with the next field of a
    // client library.
    let names: Vec<&str> = requested
        .get_all(header::ACCESS_CONTROL_REQUEST_HEADERS)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| is_field_name(name))
        .take(NAMES_MAX)
        .collect();
    if let Ok(names) = HeaderValue::from_str(&names.join(", "))
        && !names.is_empty()
    {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names);
    }
    headers.insert(
        header::VARY,
        HeaderValue::from_name(HeaderName::from_static("access-control-request-headers")),
    );
    (StatusCode::NO_CONTENT, headers)
}

fn is_field_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preflight_echoes_valid_field_names_only() {
        let mut requested = HeaderMap::new();
        requested.append(
            header::ACCESS_CONTROL_REQUEST_HEADERS,
            HeaderValue::from_static("authorization, x-stainless-os,bad name, x\"y"),
        );
        let allow = HeaderValue::from_static("POST, OPTIONS");
        let (status, headers) = preflight(Cors::Api, allow.clone(), &requested);
        assert_eq!(status, StatusCode::NO_CONTENT);
        assert_eq!(
            headers[header::ACCESS_CONTROL_ALLOW_HEADERS],
            "authorization, x-stainless-os"
        );
        assert_eq!(headers[header::ACCESS_CONTROL_ALLOW_METHODS], allow);
        let (_, none) = preflight(Cors::None, allow, &requested);
        assert!(!none.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN));
    }
}
