//! Responses that filters produce themselves, and deferred response headers.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

/// A response of a filter. The response passes the later phases of every filter that has seen the request.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Fields of the response, overriding the fields of [`crate::Exchange::take_reply_headers`].
    pub headers: HeaderMap,
    /// The body.
    pub body: ReplyBody,
}

/// Deferred response fields, written with the head.
///
/// Between the request and the head of its response the gateway handles other requests, for as long as the provider takes. Fields written
/// before the wait have left the processor's caches. A few numbers occupy less cache than fields.
pub trait DeferredHeaders: Send + Sync {
    /// Writes the fields, adding to or replacing existing fields. Called at most once.
    fn write(&self, headers: &mut HeaderMap);
}

/// The body of a [`Reply`].
#[derive(Debug)]
pub enum ReplyBody {
    /// The whole body.
    Whole(Bytes),
    /// JSON texts, sent as events of a stream; `[DONE]` is added.
    Events(Vec<Bytes>),
}

impl Reply {
    /// A 200 with a JSON body.
    pub fn json(body: Bytes) -> Reply {
        Reply::of(StatusCode::OK, "application/json", body)
    }

    /// A response of any status and media type.
    pub fn of(status: StatusCode, media_type: &'static str, body: Bytes) -> Reply {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        Reply {
            status,
            headers,
            body: ReplyBody::Whole(body),
        }
    }
}
