//! Answers that filters make themselves.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

/// An answer made by a filter. It passes the later phases of every filter that has seen the request.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Fields of this answer, in place of those that [`crate::Exchange::take_reply_headers`] gives.
    pub headers: HeaderMap,
    /// The body.
    pub body: ReplyBody,
}

/// Fields of an answer that are written when its head is.
///
/// Between the request and the head of its answer the gateway serves others, for as long as the provider thinks: what has been written by
/// then has left the processor's caches, and a few numbers take less of them than fields do.
pub trait LateFields: Send + Sync {
    /// Writes the fields, beside or in place of those that are there. Called at most once.
    fn write(&self, headers: &mut HeaderMap);
}

/// The body of a [`Reply`].
#[derive(Debug)]
pub enum ReplyBody {
    /// All of it.
    Whole(Bytes),
    /// JSON texts to be sent as events of a stream; `[DONE]` is added.
    Events(Vec<Bytes>),
}

impl Reply {
    /// A 200 with a JSON body.
    pub fn json(body: Bytes) -> Reply {
        Reply::of(StatusCode::OK, "application/json", body)
    }

    /// An answer of any status and media type.
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
