//! Entry points of fuzzing: parsers of browser input, each called with any bytes.

use http::{HeaderMap, HeaderValue, header};
use tollgate_clock::Timestamp;
use tollgate_identity::signin::CodeLength;
use tollgate_identity::{Login, SessionValue};

use crate::cookie;
use crate::form::Form;
use crate::return_path::ReturnPath;
use crate::usage::period::Period;

/// A form, and its values as contents of page fields.
pub fn form(input: &[u8]) {
    let form = Form::read(input);
    let again = Form::read(form.write_without("\0").as_bytes());
    let unnamed = form.iter().any(|(name, _)| name == "\0");
    assert!(unnamed || again == form, "a form is read as it is written");
    for (name, value) in form.iter() {
        let path = ReturnPath::read(value);
        assert!(!path.as_str().starts_with("//"), "another host");
        let _ = Login::read(value);
        let _ = CodeLength::Six.read(value);
        let _ = Period::read(name, value, Timestamp::from_secs(1_800_000_000));
    }
}

/// `Cookie`; one line of the input for each line of the field.
pub fn cookie(input: &[u8]) {
    let lines = input.split(|byte| *byte == b'\n');
    let values = lines.filter_map(|line| HeaderValue::from_bytes(line).ok());
    let headers: HeaderMap = values.map(|value| (header::COOKIE, value)).collect();
    if let Some(value) = cookie::read(&headers, "__Host-session") {
        assert!(SessionValue::read(value.expose()).is_some());
    }
}
