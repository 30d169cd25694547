//! HTTP/2 frames written by hand: requests forbidden in HTTP/2 because of a different meaning in HTTP/1.1.

mod answers;

use tollgate_testing::RawClient;

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// A frame (RFC 9113 section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame");
    let mut frame = length.to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, stream]);
    frame.extend_from_slice(payload);
    frame
}

/// Field lines as literals without indexing and without Huffman coding (RFC 7541 section 6.2.2).
pub(crate) fn fields(lines: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in lines {
        block.push(0);
        for text in [name, value] {
            // A length of seven bits, or the rest of the length in seven more bits.
            match u8::try_from(text.len()).expect("a short text") {
                short @ ..127 => block.push(short),
                long => block.extend([127, long - 127]),
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The gateway's answer to a request with `lines` and `body`: the kind of the first frame on the request's stream.
async fn answer(rig: &Rig, lines: &[(&str, &str)], body: &str) -> u8 {
    let mut raw = RawClient::connect(rig.plain).await;
    let request = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[]),
        &frame(HEADERS, END_HEADERS, 1, &fields(lines)),
        &frame(DATA, END_STREAM, 1, body.as_bytes()),
    ];
    raw.send(request.concat()).await;
    // Every frame is complete after the close by the gateway. The gateway closes after the client's close.
    let mut said = Vec::new();
    loop {
        let mut rest = &said[..];
        while rest.len() >= 9 {
            let length =
                usize::from(rest[0]) << 16 | usize::from(rest[1]) << 8 | usize::from(rest[2]);
            if [HEADERS, RST_STREAM, GOAWAY].contains(&rest[3]) {
                return rest[3];
            }
            let Some(next) = rest.get(9 + length..) else {
                break;
            };
            rest = next;
        }
        match raw.try_read_some().await {
            Ok(more) if !more.is_empty() => said.extend_from_slice(&more),
            _ => return GOAWAY,
        }
    }
}

#[tokio::test]
async fn a_request_that_http2_forbids_reaches_no_provider() {
    let rig = Rig::start().await;
    let bearer = format!("Bearer {}", rig.key);
    let body = chat(false).to_string();
    let good = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", CHAT),
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
    ];
    assert_eq!(answer(&rig, &good, &body).await, HEADERS);
    rig.quiet().await;
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    assert_eq!(rig.provider.call_count(), 1, "the frames as such are good");

    let mut reached = Vec::new();
    let mut checked = async |what: &str, lines: Vec<(&str, &str)>| {
        answer(&rig, &lines, &body).await;
        rig.quiet().await;
        if rig.provider.call_count() != 1 {
            rig.provider.forget_calls();
            reached.push(what.to_owned());
        }
    };
    for (what, name, value) in [
        ("a coding", "transfer-encoding", "chunked"),
        ("a connection field", "connection", "keep-alive"),
        ("a field of the connection", "keep-alive", "timeout=5"),
        (
            "a proxy's field of the connection",
            "proxy-connection",
            "keep-alive",
        ),
        ("an upgrade", "upgrade", "websocket"),
        ("TE of more than trailers", "te", "gzip"),
        ("a name in capitals", "X-Upper", "1"),
        ("a name with a space", "x y", "1"),
        ("a name with a colon", "x:y", "1"),
        ("a name with a line end", "x\r\ny", "1"),
        ("no name", "", "1"),
        (
            "a value with a line end",
            "x-a",
            "b\r\ntransfer-encoding: chunked",
        ),
        ("a value with a line feed", "x-a", "b\nc"),
        ("a value with NUL", "x-a", "b\0c"),
        ("a length above the body's", "content-length", "1000"),
        ("a length below the body's", "content-length", "5"),
        ("a length with a sign", "content-length", "+88"),
        ("two lengths in one", "content-length", "88, 5"),
        ("a pseudo-field behind the others", ":path", "/v1/models"),
        ("an unknown pseudo-field", ":x", "1"),
        ("a host that is not the authority", "host", "example.net"),
    ] {
        let mut lines = good.to_vec();
        lines.push((name, value));
        checked(what, lines).await;
    }
    for (what, name, value) in [
        (
            "a path with a line end",
            ":path",
            "/v1/chat/completions HTTP/1.1\r\nx: y",
        ),
        ("a path with a space", ":path", "/v1/chat/completions x"),
        ("a path without its slash", ":path", "v1/chat/completions"),
        ("an empty path", ":path", ""),
        ("an authority with a user", ":authority", "me@localhost"),
        ("a method with a space", ":method", "POST /"),
    ] {
        let lines = good.map(|line| if line.0 == name { (name, value) } else { line });
        checked(what, lines.to_vec()).await;
    }
    for missing in [":method", ":scheme", ":path"] {
        let lines = good.into_iter().filter(|line| line.0 != missing).collect();
        checked(missing, lines).await;
    }
    assert!(
        reached.is_empty(),
        "these reached the provider: {reached:?}"
    );
    rig.finish().await;
}
