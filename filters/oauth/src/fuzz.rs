//! Entry points of fuzzing: the parsers of OAuth requests, each called with any bytes.

use tollgate_identity::oauth::{
    Challenge, Destination, RedirectUri, form_action_source, redirect_matches,
};

use crate::form::Form;
use crate::json::Json;
use crate::register::parse_metadata;

/// A query or a form body, with each value as a redirect URI and as a PKCE challenge.
pub fn parameters(input: &[u8]) {
    let Ok(form) = Form::parse(input) else { return };
    let _ = form.duplicate(&[]);
    for name in ["redirect_uri", "code_challenge", "state", "scope"] {
        for value in form.all(name) {
            let _ = Challenge::parse(value);
            redirect_uri(value);
        }
    }
}

/// The metadata of a client.
pub fn metadata(input: &[u8]) {
    let Some(members) = Json::object(input) else {
        return;
    };
    if let Ok(metadata) = parse_metadata(members) {
        for uri in &metadata.redirect_uris {
            redirect_uri(uri);
        }
    }
}

fn redirect_uri(text: &str) {
    let _ = Destination::of(text).to_string();
    let _ = form_action_source(text);
    if let Ok(uri) = text.parse::<RedirectUri>() {
        assert!(redirect_matches(uri.as_str(), text), "`{text}` is itself");
    }
}
