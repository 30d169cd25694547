//! Entry points of fuzzing: the parsers of UCP requests, each called with any bytes.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::ucp::{agent, idempotency_key, negotiation, request};

/// Bodies of checkouts, of the protocol and of the service.
pub fn checkout(input: &[u8]) {
    let _ = request::protocol(input, "plan");
    let _ = request::service(input, "plan");
}

/// The profile of a platform.
pub fn profile(input: &[u8]) {
    if let Ok(profile) = negotiation::parse(input) {
        let _ = negotiation::for_checkout(&profile);
    }
}

/// `UCP-Agent` and `Idempotency-Key`; one line of the input for each line of the field.
pub fn fields(input: &[u8]) {
    let (mut agents, mut keys) = (HeaderMap::new(), HeaderMap::new());
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            keys.append(HeaderName::from_static("idempotency-key"), value.clone());
            agents.append(HeaderName::from_static("ucp-agent"), value);
        }
    }
    if let Ok(Some(key)) = idempotency_key::read(&keys) {
        assert!(
            (1..=255).contains(&key.len()),
            "a key of {} bytes",
            key.len()
        );
    }
    if let Ok(Some(platform)) = agent::read(&agents, false) {
        assert_eq!(platform.profile.scheme(), "https");
    }
}
