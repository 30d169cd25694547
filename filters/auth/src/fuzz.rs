//! Entry point of fuzzing: the parser of credentials, called with any bytes.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use tollgate_identity::Form;

use crate::bearer::Presented;
use crate::payment::both;

/// `Authorization` and the fields beside; one line of the input for each line of a field, in turn.
pub fn credentials(input: &[u8]) {
    if let Presented::Text(text) = Presented::of(input) {
        assert!(text.len() <= 512 && text.iter().all(u8::is_ascii_graphic));
        for form in [Form::api_key("name"), Form::access_token("name")] {
            let _ = form.digest(text);
        }
    }
    let other = HeaderName::from_static("x-name-authorization");
    let names = [
        header::AUTHORIZATION,
        other.clone(),
        HeaderName::from_static("payment-authorization"),
    ];
    let lines = input.split(|byte| *byte == b'\n');
    let values = lines.map(HeaderValue::from_bytes);
    let fields = names.into_iter().cycle().zip(values);
    let headers: HeaderMap = fields
        .filter_map(|(name, value)| Some((name, value.ok()?)))
        .collect();
    let _ = Presented::read(&headers);
    let _ = both(&headers, &other);
}
