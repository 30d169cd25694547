//! Entry points of fuzzing: input of strangers on the public path of webhooks, parsed from any bytes.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use rustls::RootCertStore;
use tollgate_clock::Timestamp;

use crate::certificates::{Certificates, Chain};
use crate::environment::Environment;
use crate::webhook::{FIELDS, TRANSACTIONS_MAX, Transmission, parse};

/// Reads the input in three ways: header fields of an event (one line each) with the rest as body; the whole input as body; the whole input
/// as the signing chain.
pub fn webhook(input: &[u8]) {
    let now = Timestamp::from_secs(1_793_534_403);
    let lines: Vec<&[u8]> = input
        .splitn(FIELDS.len() + 1, |byte| *byte == b'\n')
        .collect();
    let fields = FIELDS.into_iter().zip(&lines);
    let headers: HeaderMap = fields
        .filter_map(|(name, line)| {
            let value = HeaderValue::from_bytes(line).ok()?;
            Some((HeaderName::from_static(name), value))
        })
        .collect();
    let body = lines.get(FIELDS.len()).copied().unwrap_or_default();
    if let Ok(transmission) = Transmission::of(&headers)
        && transmission.check(now).is_ok()
    {
        let live = Environment::at("https://api-m.paypal.com").expect("PayPal's own");
        if live.is_certificate(transmission.certificate) {
            let start = "https://api.paypal.com/v1/notifications/certs/";
            let start_m = "https://api-m.paypal.com/v1/notifications/certs/";
            let is_own = transmission.certificate.starts_with(start)
                || transmission.certificate.starts_with(start_m);
            assert!(is_own, "{} would be fetched", transmission.certificate);
        }
        let _ = BASE64.decode(transmission.signature);
        let _ = transmission.signed("webhook", body);
    }
    for body in [body, input] {
        if let Ok(event) = parse(body).and_then(|event| event.read()) {
            assert!(event.resource.transactions.len() <= TRANSACTIONS_MAX);
            let capture = event.resource.capture.unwrap_or_default();
            assert!(capture.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        }
    }
    if let Some(chain) = Chain::read(input) {
        let certificates = Certificates::new(RootCertStore::empty());
        let checked = certificates.check(&chain, now, b"text", b"signature");
        assert!(checked.is_err(), "no root has signed it");
        certificates.insert("address", chain, Duration::ZERO);
        assert!(certificates.cached("address", Duration::ZERO).is_some());
    }
}
