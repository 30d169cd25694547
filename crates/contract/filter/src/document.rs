//! Public documents: conditional requests (`ETag`, 304) and compression, identical for every client.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use crate::gzip::{self, Effort};
use crate::{Reply, ReplyBody, Request};

/// Cache lifetime of a copy.
const CACHE_CONTROL: HeaderValue = HeaderValue::from_static("public, max-age=300");

/// Smaller bodies are not worth the header fields of a compressed response.
const COMPRESSED_BYTES_MIN: usize = 1024;

/// A document that is sent to every client: discovery, descriptions of the service, style sheets.
///
/// A document has a strong `ETag` per coding and supports conditional requests with 304 (RFC 9110 sections 8.8.3 and 13.1.2). Text is sent
/// with gzip to clients that accept gzip. A document must contain no session data: a compressed response reveals by its length whether a
/// secret equals a text chosen by an attacker (BREACH).
#[derive(Clone)]
pub struct Document {
    /// Fields of every 200, `Content-Type` included.
    headers: HeaderMap,
    body: Bytes,
    etag: HeaderValue,
    /// The body and its `ETag` with gzip, compressed at the first request for gzip; `None` for a small or already compressed body.
    gzip: Option<Arc<OnceLock<(Bytes, HeaderValue)>>>,
}

impl Document {
    /// A document of any media type.
    pub fn new(media_type: &'static str, body: impl Into<Bytes>) -> Document {
        let mut headers = HeaderMap::with_capacity(8);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
        headers.insert(header::CACHE_CONTROL, CACHE_CONTROL);
        Document::with_headers(headers, body.into())
    }

    /// A document with the fields, `Content-Type` and `Cache-Control` among them.
    pub fn with_headers(headers: HeaderMap, body: Bytes) -> Document {
        let media_type = headers.get(header::CONTENT_TYPE);
        let media_type = media_type.and_then(|value| value.to_str().ok());
        let is_text = media_type.is_some_and(|media_type| {
            let text = ["text/", "application/json", "image/svg"];
            text.iter().any(|text| media_type.starts_with(text))
        });
        let gzip = (is_text && body.len() >= COMPRESSED_BYTES_MIN).then(Arc::default);
        let etag = etag(&body, "");
        Document {
            headers,
            body,
            etag,
            gzip,
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

    /// The `ETag` of the body.
    pub fn etag(&self) -> &HeaderValue {
        &self.etag
    }

    /// The response to a `GET` or `HEAD`: 200, or 304 when the client's copy is current.
    pub fn reply(&self, request: &Request) -> Reply {
        let gzip = self
            .gzip
            .as_ref()
            .filter(|_| gzip::is_accepted(&request.headers))
            .map(|gzip| gzip.get_or_init(|| compressed(&self.body)));
        let (body, etag) = match gzip {
            Some((body, etag)) => (body, etag),
            None => (&self.body, &self.etag),
        };
        let mut headers = self.headers.clone();
        headers.insert(header::ETAG, etag.clone());
        if self.gzip.is_some() {
            headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        let is_current = is_known(etag, &request.headers);
        if is_current {
            headers.remove(header::CONTENT_TYPE);
        } else if gzip.is_some() {
            let coding = HeaderValue::from_static("gzip");
            headers.insert(header::CONTENT_ENCODING, coding);
        }
        let (status, body) = match is_current {
            true => (StatusCode::NOT_MODIFIED, Bytes::new()),
            false => (StatusCode::OK, body.clone()),
        };
        Reply {
            status,
            headers,
            body: ReplyBody::Whole(body),
        }
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Document").field(&self.etag).finish()
    }
}

/// A strong `ETag`: a digest of the body, and the coding.
fn etag(body: &[u8], coding: &str) -> HeaderValue {
    let digest = blake3::hash(body).to_hex();
    HeaderValue::try_from(format!("\"{}{coding}\"", &digest[..32]))
        .expect("hex digits and a word in quotes are a field value")
}

fn compressed(body: &[u8]) -> (Bytes, HeaderValue) {
    (gzip::compress(body, Effort::Best), etag(body, "-gzip"))
}

/// Whether `If-None-Match` names this version. Weak comparison: proxies add weak marks (RFC 9110 section 13.1.2).
fn is_known(etag: &HeaderValue, headers: &HeaderMap) -> bool {
    headers
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .flat_map(|field| field.as_bytes().split(|&byte| byte == b','))
        .map(<[u8]>::trim_ascii)
        .any(|tag| {
            let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
            tag == b"*" || tag == etag.as_bytes()
        })
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
    fn gzip_is_sent_to_those_who_accept_it() {
        for (fields, is_accepted) in [
            (vec![], false),
            (vec!["gzip"], true),
            (vec!["br, GZIP;q=0.5"], true),
            (vec!["br", "gzip; q=1"], true),
            (vec!["*"], true),
            (vec!["identity"], false),
            (vec!["gzip;q=0, *"], false),
            (vec!["*;q=0"], false),
            (vec!["gzip;q=nonsense"], false),
            (vec!["x-gzip"], false),
        ] {
            let mut headers = HeaderMap::new();
            for field in &fields {
                let field = HeaderValue::from_static(field);
                headers.append(header::ACCEPT_ENCODING, field);
            }
            assert_eq!(gzip::is_accepted(&headers), is_accepted, "{fields:?}");
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
