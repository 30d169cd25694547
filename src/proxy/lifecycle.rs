//! Lifecycle headers: deprecation and sunset of a route in its responses.

use http::header::{HeaderMap, HeaderName, HeaderValue, LINK};
use jiff::Timestamp;

use crate::config::Lifecycle;

const DEPRECATION: HeaderName = HeaderName::from_static("deprecation");
const SUNSET: HeaderName = HeaderName::from_static("sunset");

/// The fields, prepared once.
#[derive(Debug)]
pub(crate) struct LifecycleHeaders(Vec<(HeaderName, HeaderValue)>);

impl LifecycleHeaders {
    /// `Deprecation` is a date of structured fields (RFC 9745 section 2), `Sunset` an HTTP date (RFC 8594 section 3); the links name the
    /// documentation of both (RFC 9745 section 3, RFC 8594 section 6) and the successor (RFC 5829 section 3.4).
    pub(crate) fn of(lifecycle: &Lifecycle) -> LifecycleHeaders {
        let mut fields = Vec::with_capacity(5);
        let mut field = |name: HeaderName, value: String| {
            let value = HeaderValue::try_from(value).expect("checked settings are visible ASCII");
            fields.push((name, value));
        };
        let notice = |relation: &str| {
            format!(
                "<{}>; rel=\"{relation}\"; type=\"text/html\"",
                lifecycle.notice
            )
        };
        if let Some(at) = lifecycle.deprecated_at {
            field(DEPRECATION, format!("@{}", at.as_second()));
            field(LINK, notice("deprecation"));
        }
        if let Some(at) = lifecycle.sunset_at {
            field(SUNSET, http_date(at));
            field(LINK, notice("sunset"));
        }
        if let Some(successor) = &lifecycle.successor {
            field(LINK, format!("<{successor}>; rel=\"successor-version\""));
        }
        LifecycleHeaders(fields)
    }

    /// Adds the fields to a response, beside the response's links.
    pub(super) fn add_to(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.0 {
            headers.append(name, value.clone());
        }
    }
}

/// As in `Thu, 01 Jul 2027 00:00:00 GMT` (RFC 9110 section 5.6.7).
fn http_date(at: Timestamp) -> String {
    at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc9745_2_and_rfc8594_3_dates_are_written_in_the_format_of_each_field() {
        let at = |text: &str| Some(text.parse().expect("a time"));
        let lifecycle = LifecycleHeaders::of(&Lifecycle {
            deprecated_at: at("2027-01-01T00:00:00Z"),
            sunset_at: at("2027-07-01T02:00:00+02:00"),
            successor: Some("https://api.example.com/v2".to_owned()),
            notice: "https://api.example.com/docs/lifecycle".to_owned(),
        });
        let mut headers = HeaderMap::new();
        headers.insert(
            LINK,
            HeaderValue::from_static("<https://e.example>; rel=\"payment\""),
        );
        lifecycle.add_to(&mut headers);
        assert_eq!(headers["deprecation"], "@1798761600");
        assert_eq!(headers["sunset"], "Thu, 01 Jul 2027 00:00:00 GMT");
        let links: Vec<&HeaderValue> = headers.get_all(LINK).iter().collect();
        assert_eq!(
            links,
            [
                "<https://e.example>; rel=\"payment\"",
                "<https://api.example.com/docs/lifecycle>; rel=\"deprecation\"; type=\"text/html\"",
                "<https://api.example.com/docs/lifecycle>; rel=\"sunset\"; type=\"text/html\"",
                "<https://api.example.com/v2>; rel=\"successor-version\"",
            ]
        );
    }
}
