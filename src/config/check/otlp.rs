//! Validation of the export of traces: the collector, the share of requests, the header fields of an export.

use http::{HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use tollgate_filter::settings::{At, BaseUrl, Problems};
use tollgate_module::Named;

use super::CheckContext;
use crate::config::certificate;
use crate::config::raw::RawTelemetry;
use crate::config::settings::Otlp;

/// The path of traces below the collector's URL (OTLP/HTTP).
const TRACES: &str = "/v1/traces";
/// The share of requests that are traced by default.
const SAMPLE: f64 = 0.01;

pub(super) fn otlp(
    raw: &RawTelemetry,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Otlp> {
    let named = [
        ("otlp_headers_env", raw.otlp_headers_env.as_ref()),
        ("otlp_headers_file", raw.otlp_headers_file.as_ref()),
    ];
    let sample = share("otlp_sample", raw.otlp_sample.as_ref(), problems);
    let sample = sample.unwrap_or(SAMPLE);
    let Some(at) = &raw.otlp_url else {
        for (name, at) in named
            .into_iter()
            .chain([("otlp_ca_file", raw.otlp_ca_file.as_ref())])
        {
            if let Some(at) = at {
                let message = "has no effect without `otlp_url`; write the URL of the collector";
                problems.note(format!("telemetry.{name}"), at, message);
            }
        }
        return None;
    };
    let [variable, file] = named;
    let key = file.1.map_or(variable, |_| file);
    let named = Named {
        section: "telemetry",
        variable,
        file,
    };
    let headers = match (named.read("header field", context, problems), key) {
        (Some(secret), (name, Some(at))) => {
            let headers = headers(secret.expose_secret());
            if headers.is_none() {
                problems.note(
                    format!("telemetry.{name}"),
                    at,
                    "names header fields that cannot be read; write `NAME=VALUE`, separated by commas, values percent-encoded, as in `authorization=Bearer%20TOKEN`",
                );
            }
            headers.unwrap_or_default()
        }
        _ => Vec::new(),
    };
    let roots = raw.otlp_ca_file.as_ref().and_then(|at| {
        certificate::read_certificates(&context.path(at))
            .map_err(|error| problems.note("telemetry.otlp_ca_file", at, error))
            .ok()
    });
    let mut url: BaseUrl = problems.parse("telemetry.otlp_url", at)?;
    if !url.path.ends_with(TRACES) {
        url.path.push_str(TRACES);
    }
    Some(Otlp {
        url,
        sample,
        headers,
        roots,
    })
}

/// A share of requests; `None` when absent or invalid. An invalid share is noted.
pub(super) fn share(name: &str, at: Option<&At<f64>>, problems: &mut Problems) -> Option<f64> {
    let at = at?;
    if !(0.0..=1.0).contains(&at.value) {
        let message = format_args!(
            "is {}; use 0 to 1, such as 0.01 for one in a hundred",
            at.value
        );
        problems.note(format!("telemetry.{name}"), at, message);
        return None;
    }
    Some(at.value)
}

/// Header fields in the form of `OTEL_EXPORTER_OTLP_HEADERS`.
fn headers(text: &str) -> Option<Vec<(HeaderName, HeaderValue)>> {
    let fields = text.split(',').map(|field| {
        let (name, value) = field.split_once('=')?;
        let name = HeaderName::try_from(name).ok()?;
        let mut value = HeaderValue::from_bytes(&percent_decoded(value)?).ok()?;
        value.set_sensitive(true);
        Some((name, value))
    });
    fields.collect()
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let digits = [bytes.next()?, bytes.next()?];
            let mut value = [0];
            base16ct::mixed::decode(digits, &mut value).ok()?;
            decoded.push(value[0]);
        } else {
            decoded.push(byte);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_are_percent_decoded_and_sensitive() {
        let fields = headers("authorization=Bearer%20t0%3D,x-team=a").expect("two fields");
        let values: Vec<_> = fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes(), value.is_sensitive()))
            .collect();
        assert_eq!(
            values,
            [
                ("authorization", &b"Bearer t0="[..], true),
                ("x-team", b"a", true)
            ]
        );
        for text in ["", "token", "a=b,", "a b=c", "a=%2", "a=%zz", "a=%0a"] {
            assert!(headers(text).is_none(), "{text}");
        }
    }
}
