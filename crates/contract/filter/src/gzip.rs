//! Compression of responses with gzip (RFC 9110 section 8.4.1.3).

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, header};

/// The processor time spent on a smaller body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// For a body that is compressed for each response.
    Fast,
    /// For a body that is compressed once and sent often.
    Best,
}

/// The body with gzip.
pub fn compress(body: &[u8], effort: Effort) -> Bytes {
    let level = match effort {
        Effort::Fast => Compression::fast(),
        Effort::Best => Compression::best(),
    };
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 3), level);
    let written = encoder.write_all(body).and_then(|()| encoder.finish());
    written.expect("a vector takes every byte").into()
}

/// Whether `Accept-Encoding` names gzip, or everything, with a weight above zero (RFC 9110 section 12.5.3).
pub fn is_accepted(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(header::ACCEPT_ENCODING);
    let codings = fields
        .iter()
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','));
    let mut others = false;
    for coding in codings {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight
            .trim()
            .trim_start_matches("q=")
            .trim_start_matches("Q=");
        let is_wanted = weight.is_empty() || weight.parse::<f32>().is_ok_and(|weight| weight > 0.0);
        match name.trim() {
            name if name.eq_ignore_ascii_case("gzip") => return is_wanted,
            "*" => others = is_wanted,
            _ => {}
        }
    }
    others
}
