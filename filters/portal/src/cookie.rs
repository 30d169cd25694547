//! The cookies of a browser, session and mark: parsing and `Set-Cookie`.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use tollgate_identity::SessionValue;

/// Parses a cookie (RFC 6265 section 5.4). The `__Host-` prefix keeps other hosts and paths from setting it.
pub(crate) fn read(headers: &HeaderMap, name: &str) -> Option<SessionValue> {
    let fields = headers.get_all(header::COOKIE);
    let pairs = fields
        .iter()
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(';'));
    let value = pairs
        .filter_map(|pair| pair.trim().split_once('='))
        .find_map(|(known, value)| (known == name).then_some(value))?;
    SessionValue::read(value)
}

/// Sets a cookie. `SameSite=Lax`, not `Strict`: a person who follows a link from a local program stays signed in.
pub(crate) fn set(headers: &mut HeaderMap, name: &str, value: &SessionValue, life: Duration) {
    let life = life.as_secs();
    let text = format!(
        "{name}={}; Path=/; Max-Age={life}; Secure; HttpOnly; SameSite=Lax",
        value.expose()
    );
    let mut value =
        HeaderValue::try_from(text).expect("a cookie of hex digits is a valid header value");
    value.set_sensitive(true);
    headers.append(header::SET_COOKIE, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_is_found_among_others_and_in_several_fields() {
        let value = "ab".repeat(32);
        let name = "__Host-svc-session";
        let found = |fields: &[String]| {
            let mut headers = HeaderMap::new();
            for field in fields {
                let field = HeaderValue::from_str(field).expect("a value");
                headers.append(header::COOKIE, field);
            }
            read(&headers, name).is_some()
        };
        assert!(found(&[format!("a=b; {name}={value}; c=d")]));
        assert!(found(&["a=b".into(), format!("{name}={value}")]));
        assert!(!found(&[format!("svc-session={value}")]));
        assert!(!found(&[format!("{name}={value}0")]));
        assert!(!found(&[]));
    }

    #[test]
    fn the_cookie_is_secure_http_only_and_sensitive() {
        let mut headers = HeaderMap::new();
        let value = SessionValue::draw(|out| out.fill(0xab));
        set(
            &mut headers,
            "__Host-svc-session",
            &value,
            Duration::from_secs(43_200),
        );
        let text = headers[header::SET_COOKIE].to_str().expect("text");
        assert_eq!(
            text,
            format!(
                "__Host-svc-session={}; Path=/; Max-Age=43200; Secure; HttpOnly; SameSite=Lax",
                "ab".repeat(32)
            )
        );
        assert!(
            headers[header::SET_COOKIE].is_sensitive(),
            "excluded from HTTP/2 header compression"
        );
    }
}
