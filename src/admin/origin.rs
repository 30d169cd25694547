//! Protection from pages in a browser on the operator's machine: DNS rebinding, and requests across origins.
//!
//! On loopback, health, metrics and the cache need no token. A page can reach a loopback address by DNS rebinding. The page's host name is
//! made to resolve to 127.0.0.1, and the browser takes the admin address for the page's own origin. The host name reveals the page's
//! request: no page is served under `localhost`, or under an IP address beyond the control of the page's author.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderMap, Method, Request, header};
use tollgate_filter::{ApiError, ErrorCode, ErrorType, FilterCode};

static HOST: FilterCode = FilterCode::new("admin.host", 421, ErrorType::InvalidRequest);
static ORIGIN: FilterCode = FilterCode::new("admin.origin", 403, ErrorType::Permission);

/// Refuses a request that may come from a page of another site.
///
/// # Errors
///
/// 421 at a loopback address, unless the host is `localhost` or an IP address (RFC 9110 section 15.5.20). 403 for a method with effects,
/// unless the `Origin` is the request's own host (RFC 6454 section 7).
pub(super) fn check<B>(request: &Request<B>, is_local: bool) -> Result<(), ApiError> {
    let Some(host) = host(request) else {
        let message = "The `Host` is not one host and port: correct it.";
        return Err(ApiError::new(ErrorCode::InvalidHeader, message));
    };
    if is_local && !host.as_ref().is_none_or(is_own_name) {
        let message = "The admin address is known as `localhost` and by its IP address only: send one of them as `Host`.";
        return Err(ApiError::new(ErrorCode::OfFilter(&HOST), message));
    }
    let is_read = matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    );
    if !is_read && !is_own_origin(request.headers(), host.as_ref()) {
        let message =
            "Pages of other origins may change nothing here: send the request without `Origin`.";
        return Err(ApiError::new(ErrorCode::OfFilter(&ORIGIN), message));
    }
    Ok(())
}

/// The host of a request, from the target or the only `Host` field. `Some(None)` for a request without a host (HTTP/1.0); `None` for a
/// malformed host or several `Host` fields.
fn host<B>(request: &Request<B>) -> Option<Option<Authority>> {
    if let Some(authority) = request.uri().authority() {
        return Some(Some(authority.clone()));
    }
    let mut fields = request.headers().get_all(header::HOST).iter();
    match (fields.next(), fields.next()) {
        (None, _) => Some(None),
        (Some(field), None) => Authority::try_from(field.as_bytes()).ok().map(Some),
        (Some(_), Some(_)) => None,
    }
}

/// Whether the host is an IP address or `localhost`. Browsers resolve `localhost` without DNS.
fn is_own_name(authority: &Authority) -> bool {
    let host = authority.host();
    let bare = host.strip_prefix('[').and_then(|v6| v6.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost") || bare.unwrap_or(host).parse::<IpAddr>().is_ok()
}

/// Whether every `Origin` field names `host`. Programs send no `Origin`.
fn is_own_origin(headers: &HeaderMap, host: Option<&Authority>) -> bool {
    headers.get_all(header::ORIGIN).iter().all(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        host.is_some_and(|host| {
            authority.is_some_and(|own| own.eq_ignore_ascii_case(host.as_str()))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(line: (&str, &str), fields: &[(&str, &str)], is_local: bool) -> u16 {
        let mut request = Request::builder().method(line.0).uri(line.1);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        check(&request, is_local).map_or_else(|error| error.status().as_u16(), |()| 200)
    }

    #[test]
    fn a_loopback_address_answers_to_its_own_names_only() {
        for own in [
            "localhost",
            "LocalHost:9090",
            "127.0.0.1:9090",
            "[::1]:9090",
            "10.0.0.7",
        ] {
            let fields = [("host", own)];
            assert_eq!(status(("GET", "/metrics"), &fields, true), 200, "{own}");
        }
        for other in [
            "rebound.example",
            "rebound.example:9090",
            "localhost.rebound.example",
            "127.0.0.1.rebound.example",
            "localhost.",
        ] {
            let fields = [("host", other)];
            assert_eq!(status(("GET", "/live"), &fields, true), 421, "{other}");
            assert_eq!(status(("GET", "/live"), &fields, false), 200, "{other}");
            let target = format!("http://{other}/metrics");
            let fields = [("host", "localhost")];
            assert_eq!(status(("GET", &target), &fields, true), 421, "{other}");
        }
        assert_eq!(status(("GET", "/live"), &[], true), 200, "HTTP/1.0");
        let two = [("host", "localhost"), ("host", "rebound.example")];
        assert_eq!(status(("GET", "/live"), &two, true), 400);
        assert_eq!(status(("GET", "/live"), &[("host", "a b")], true), 400);
    }

    #[test]
    fn a_page_of_another_origin_changes_nothing() {
        for is_local in [true, false] {
            for method in ["DELETE", "POST", "PUT", "PATCH"] {
                let with = |origin| {
                    let fields = [("host", "127.0.0.1:9090"), ("origin", origin)];
                    status((method, "/cache?all"), &fields, is_local)
                };
                assert_eq!(with("http://127.0.0.1:9090"), 200);
                for foreign in [
                    "http://rebound.example",
                    "http://127.0.0.1:9091",
                    "http://localhost:9090",
                    "null",
                    "",
                ] {
                    assert_eq!(with(foreign), 403, "{method} {foreign}");
                }
            }
            let fields = [("host", "localhost"), ("origin", "http://other.example")];
            assert_eq!(status(("GET", "/metrics"), &fields, is_local), 200);
        }
    }
}
