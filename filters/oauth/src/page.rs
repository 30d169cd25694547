//! The page for a request that cannot be answered to its client.

use http::{HeaderValue, StatusCode, header};
use tollgate_filter::Reply;

use crate::authorize::Local;

impl Local {
    /// The reason, for the maker of the app.
    fn reason(self) -> &'static str {
        match self {
            Local::Encoding => "The query is not encoded as queries are.",
            Local::ClientMissing => "client_id has to stand in the address, once.",
            Local::RedirectMissing => "redirect_uri has to stand in the address, once.",
            Local::ClientUnknown => "No app is registered under this client_id. Register it again.",
            Local::RedirectUnknown => "This redirect_uri is none that the app has registered.",
        }
    }
}

/// 400, for a person whom an app has sent here with a request that cannot be trusted. Nothing of the request is repeated.
pub(crate) fn cannot_be_trusted(why: Local) -> Reply {
    let reason = why.reason();
    let page = format!(
        "<!doctype html><html lang=\"en\"><title>This request cannot be trusted</title><h1>This request cannot be trusted</h1>\
         <p>The app that sent you here made a mistake, or is not what it says. Nothing was allowed.</p><p>For its maker: {reason}</p></html>"
    );
    let mut reply = Reply::of(
        StatusCode::BAD_REQUEST,
        "text/html; charset=utf-8",
        page.into(),
    );
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        ),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
    ] {
        reply.headers.insert(name, HeaderValue::from_static(value));
    }
    reply
}
