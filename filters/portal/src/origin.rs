//! Cross-site request forgery: checks of `Sec-Fetch-Site` and `Origin`.

use http::HeaderMap;
use http::header::{HOST, ORIGIN};

/// Whether the request headers allow a form submission (Fetch Metadata; RFC 6454 section 7).
///
/// Browsers send `Sec-Fetch-Site` and `Origin`, and pages of another site cannot change these fields. A client without either field is not
/// a browser and has only its own cookies; the form token alone decides then.
pub(crate) fn is_same_origin(headers: &HeaderMap, origins: &[String]) -> bool {
    let site = headers.get("sec-fetch-site");
    if site.is_some_and(|site| site != "same-origin") {
        return false;
    }
    let Some(origin) = headers.get(ORIGIN) else {
        return true;
    };
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    // A gateway may be reachable under more host names than its settings list; the host requested by the browser counts.
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let matches_host = host.is_some_and(|host| {
        let authority = origin
            .strip_prefix("https://")
            .or(origin.strip_prefix("http://"));
        authority.is_some_and(|authority| authority.eq_ignore_ascii_case(host))
    });
    matches_host || origins.iter().any(|known| known == origin)
}

/// Whether the client states the origin of a form at all, as browsers do.
pub(crate) fn is_stated(headers: &HeaderMap) -> bool {
    headers.contains_key("sec-fetch-site") || headers.contains_key(ORIGIN)
}

/// Scheme, host and port of a URL.
pub(crate) fn of(url: &str) -> String {
    let end = url
        .find("://")
        .and_then(|scheme| {
            let rest = scheme + 3;
            url[rest..].find('/').map(|path| rest + path)
        })
        .unwrap_or(url.len());
    url[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn forms_are_accepted_from_own_pages_and_non_browsers_only() {
        //    Sec-Fetch-Site, Origin, Host
        let ours = [
            (None, None, "svc.example"),
            (Some("same-origin"), None, "svc.example"),
            (
                Some("same-origin"),
                Some("https://svc.example"),
                "svc.example",
            ),
            (None, Some("https://api.svc.example"), "internal:8080"),
            (None, Some("http://127.0.0.1:8080"), "127.0.0.1:8080"),
        ];
        for case in ours {
            assert!(judge(case), "{case:?}");
        }
        let others = [
            (Some("cross-site"), None, "svc.example"),
            (
                Some("same-site"),
                Some("https://svc.example"),
                "svc.example",
            ),
            (Some("none"), None, "svc.example"),
            (None, Some("null"), "svc.example"),
            (None, Some("https://evil.example"), "svc.example"),
            (
                Some("same-origin"),
                Some("https://svc.example.evil"),
                "svc.example",
            ),
            (None, Some("https://svc.example:8443"), "svc.example"),
        ];
        for case in others {
            assert!(!judge(case), "{case:?}");
        }

        fn judge((site, origin, host): (Option<&str>, Option<&str>, &str)) -> bool {
            let mut headers = HeaderMap::new();
            for (name, value) in [
                ("sec-fetch-site", site),
                ("origin", origin),
                ("host", Some(host)),
            ] {
                if let Some(value) = value {
                    headers.insert(name, HeaderValue::from_str(value).expect("a value"));
                }
            }
            is_same_origin(&headers, &[String::from("https://api.svc.example")])
        }
    }

    #[test]
    fn an_origin_is_the_url_up_to_the_path() {
        assert_eq!(
            of("https://api.svc.example/base/"),
            "https://api.svc.example"
        );
        assert_eq!(of("http://localhost:8080"), "http://localhost:8080");
    }
}
