//! Entry points of fuzzing: the parsers of payments and purchase requests, each called with any bytes.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use tollgate_clock::Timestamp;
use tollgate_filter::{ClientAddress, PaymentField, Protocol, Request};
use tollgate_money::OperationId;

use crate::mpp::{Credential, Expected, Secrets, accepted_intents};
use crate::request;
use crate::x402::Payment;

/// `PAYMENT-SIGNATURE` as sent, and with the input as its JSON.
pub fn x402(input: &[u8]) {
    let _ = Payment::read(input);
    if let Ok(payment) = Payment::read(STANDARD.encode(input).as_bytes()) {
        let again = STANDARD.encode(payment.whole().to_string());
        let again = Payment::read(again.as_bytes()).expect("a payment is read from its own JSON");
        assert!(again == payment, "and is the same payment");
    }
}

/// A payment credential as sent, and with the input as its JSON; and `Accept-Payment`.
pub fn mpp(input: &[u8]) {
    let secrets = Secrets::new(&[b's'; 32], None).expect("long enough");
    let expected = Expected {
        secrets: &secrets,
        owner: "account",
        now: Timestamp::from_secs(1_800_000_000),
        field: PaymentField::Authorization,
        body: b"",
    };
    for token in [
        String::from_utf8_lossy(input).into_owned(),
        URL_SAFE_NO_PAD.encode(input),
    ] {
        let read = Credential::read(&token, &expected);
        assert!(read.is_err(), "a challenge that was not issued is refused");
    }
    let fields = headers("accept-payment", input);
    assert!(!accepted_intents(&fields).is_empty(), "one is offered");
}

/// The body of a purchase, and its first line as the idempotency key.
pub fn purchase(input: &[u8]) {
    let line = input.split(|byte| *byte == b'\n').next();
    let request = Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::POST,
        path: "/commerce/subscriptions/plan/mpp".into(),
        query: None,
        headers: headers("idempotency-key", line.unwrap_or_default()),
        body: Bytes::copy_from_slice(input),
        client: ClientAddress::direct([192, 0, 2, 1].into()),
        tls: false,
        protocol: Protocol::Http11,
    };
    let _ = request::read(&request, "plan");
    let without_key = Request {
        headers: HeaderMap::new(),
        ..request
    };
    let _ = request::read(&without_key, "plan");
}

/// One line of the input is one line of the field.
fn headers(name: &'static str, input: &[u8]) -> HeaderMap {
    let values = input.split(|byte| *byte == b'\n');
    let values = values.filter_map(|value| HeaderValue::from_bytes(value).ok());
    values
        .map(|value| (name.parse().expect("a name"), value))
        .collect()
}
