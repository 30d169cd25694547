//! Static documents with conditional requests (`ETag`, 304), identical for every client.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::{Reply, ReplyBody, Request};

/// Cache lifetime of a copy.
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// A document that is built once and sent to every client: discovery, descriptions of the service.
///
/// It has a strong `ETag` and supports conditional requests with 304 (RFC 9110 sections 8.8.3 and 13.1.2).
#[derive(Clone, Debug)]
pub struct Document {
    media_type: &'static str,
    body: Bytes,
    etag: HeaderValue,
}

impl Document {
    /// A document of any media type.
    pub fn new(media_type: &'static str, body: impl Into<Bytes>) -> Document {
        let body = body.into();
        let digest = blake3::hash(&body).to_hex();
        let etag = HeaderValue::try_from(format!("\"{}\"", &digest[..32]))
            .expect("hex digits in quotes are a field value");
        Document {
            media_type,
            body,
            etag,
        }
    }

    /// A JSON document.
    pub fn json(value: &serde_json::Value) -> Document {
        Document::new("application/json", value.to_string())
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The response to a `GET` or `HEAD`: 200, or 304 when the client's copy is current.
    pub fn reply(&self, request: &Request) -> Reply {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(header::ETAG, self.etag.clone());
        headers.insert(header::CACHE_CONTROL, CACHE_CONTROL);
        if self.is_known(&request.headers) {
            return Reply {
                status: StatusCode::NOT_MODIFIED,
                headers,
                body: ReplyBody::Whole(Bytes::new()),
            };
        }
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static(self.media_type),
        );
        Reply {
            status: StatusCode::OK,
            headers,
            body: ReplyBody::Whole(self.body.clone()),
        }
    }

    /// Whether `If-None-Match` names this version. Weak comparison: proxies add weak marks (RFC 9110 section 13.1.2).
    fn is_known(&self, headers: &HeaderMap) -> bool {
        headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .flat_map(|field| field.as_bytes().split(|&byte| byte == b','))
            .map(<[u8]>::trim_ascii)
            .any(|tag| {
                let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
                tag == b"*" || tag == self.etag.as_bytes()
            })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::Method;
    use tollgate_money::OperationId;

    use super::*;
    use crate::Protocol;

    fn asked(if_none_match: &[&str]) -> Request {
        let mut headers = HeaderMap::new();
        for value in if_none_match {
            let value = HeaderValue::from_str(value).expect("a field value");
            headers.append(header::IF_NONE_MATCH, value);
        }
        Request {
            id: OperationId::from_bytes([7; 16]),
            method: Method::GET,
            path: "/document".into(),
            query: None,
            headers,
            body: Bytes::new(),
            client: crate::ClientAddress::direct(Ipv4Addr::LOCALHOST.into()),
            tls: false,
            protocol: Protocol::Http11,
        }
    }

    #[test]
    fn a_current_copy_is_answered_with_304() {
        let document = Document::new("text/plain", "a");
        let tag = document.etag.to_str().expect("ASCII").to_owned();
        let weak = format!("W/{tag}");
        let among = format!("\"x\", {tag} , \"y\"");
        let cut = &tag[..tag.len() - 2];
        for (fields, status) in [
            (vec![], 200),
            (vec![&*tag], 304),
            (vec![&*weak], 304),
            (vec![&*among], 304),
            (vec!["\"x\"", &*tag], 304),
            (vec!["*"], 304),
            (vec!["\"x\""], 200),
            (vec![cut], 200),
        ] {
            let reply = document.reply(&asked(&fields));
            assert_eq!(reply.status.as_u16(), status, "{fields:?}");
            assert_eq!(reply.headers[header::ETAG], document.etag);
            let ReplyBody::Whole(body) = reply.body else {
                panic!("a document is no stream");
            };
            assert_eq!(body.is_empty(), status == 304);
        }
        assert_ne!(Document::new("text/plain", "b").etag, document.etag);
    }
}
