//! Answers that filters make themselves.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

/// An answer made by a filter. It passes the later phases of every filter that has seen the request.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// Fields of this answer; those of [`crate::Exchange::reply_headers`] come on top.
    pub headers: HeaderMap,
    /// The body.
    pub body: ReplyBody,
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
