//! HTTP/2 response frames of the gateway: flow control and header compression.

use tollgate_testing::{RawClient, Script};

use super::{DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS};
use super::{fields, frame};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

const WINDOW_UPDATE: u8 = 8;

/// A client with unlimited flow-control windows.
struct Reader {
    raw: RawClient,
    said: Vec<u8>,
    bearer: String,
}

/// One frame.
struct Frame {
    kind: u8,
    flags: u8,
    stream: u8,
    payload: Vec<u8>,
}

impl Reader {
    async fn over(mut raw: RawClient, rig: &Rig) -> Reader {
        let widest = i32::MAX.to_be_bytes();
        // SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 section 6.5.2), and the rest for the connection's window. The window begins with 65,535.
        let window = [&[0, 4][..], &widest].concat();
        let more = (i32::MAX - 65_535).to_be_bytes();
        let begin = [
            PREFACE,
            &frame(SETTINGS, 0, 0, &window),
            &frame(WINDOW_UPDATE, 0, 0, &more),
        ];
        raw.send(begin.concat()).await;
        Reader {
            raw,
            said: Vec::new(),
            bearer: format!("Bearer {}", rig.key),
        }
    }

    async fn ask(&mut self, stream: u8, method: &str, path: &str, body: &str) {
        let lines = [
            (":method", method),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", path),
            ("authorization", &self.bearer),
            ("content-type", "application/json"),
        ];
        let request = match body {
            "" => frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields(&lines)),
            _ => [
                frame(HEADERS, END_HEADERS, stream, &fields(&lines)),
                frame(DATA, END_STREAM, stream, body.as_bytes()),
            ]
            .concat(),
        };
        self.raw.send(request).await;
    }

    async fn next(&mut self) -> Frame {
        loop {
            if let [a, b, c, kind, flags, _, _, _, stream, rest @ ..] = &self.said[..] {
                let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                if let Some(payload) = rest.get(..length) {
                    let frame = Frame {
                        kind: *kind,
                        flags: *flags,
                        stream: *stream,
                        payload: payload.to_vec(),
                    };
                    self.said.drain(..9 + length);
                    return frame;
                }
            }
            let more = self.raw.try_read_some().await.expect("an open connection");
            assert!(!more.is_empty(), "it was closed in the middle");
            self.said.extend_from_slice(&more);
        }
    }

    /// The bodies of `streams`, after the end of every stream.
    async fn bodies(&mut self, streams: &[u8]) -> Vec<Vec<u8>> {
        let mut bodies = vec![Vec::new(); streams.len()];
        let mut open = streams.len();
        while open > 0 {
            let frame = self.next().await;
            assert!(
                ![RST_STREAM, GOAWAY].contains(&frame.kind),
                "stream {} is cut: {:?}",
                frame.stream,
                frame.payload
            );
            let known = streams.iter().position(|stream| *stream == frame.stream);
            let Some(at) = known else { continue };
            if frame.kind == DATA {
                bodies[at].extend(frame.payload);
            }
            open -= usize::from(frame.flags & END_STREAM);
        }
        bodies
    }

    /// The field lines of the next answer, encoded.
    async fn head(&mut self) -> Vec<u8> {
        loop {
            let frame = self.next().await;
            if frame.kind == HEADERS {
                assert_ne!(frame.flags & END_HEADERS, 0, "it fits one frame");
                return frame.payload;
            }
        }
    }
}

/// The answers of several streams arrive whole, every byte in the right stream and place, however little the client takes at a time.
#[tokio::test]
async fn concurrent_responses_reach_a_client_with_small_windows() {
    const WORDS: usize = 30_000;
    let rig = Rig::start().await;
    let document = rig.client().get("/openapi.json").await.body;
    assert!(document.len() > 20_000, "{} bytes", document.len());
    for (what, address, trust) in [
        ("h2c", rig.plain, None),
        ("over TLS", rig.tls, Some((&*rig.ca_pem, "h2"))),
    ] {
        rig.provider.script(
            Script {
                words: Some(WORDS as u64),
                ..Script::default()
            }
            .once(),
        );
        let raw = RawClient::connect_narrow(address, trust).await;
        let mut reader = Reader::over(raw.expect("a connection"), &rig).await;
        let mut long = chat(false);
        long["max_tokens"] = WORDS.into();
        reader.ask(1, "POST", CHAT, &long.to_string()).await;
        let taken = rig.provider.calls_when("a call", |calls| !calls.is_empty());
        taken.await;
        for stream in [3, 5, 7] {
            reader.ask(stream, "GET", "/openapi.json", "").await;
        }
        reader.ask(9, "POST", CHAT, &chat(true).to_string()).await;
        let bodies = reader.bodies(&[1, 3, 5, 7, 9]).await;
        for body in &bodies[1..4] {
            assert!(*body == document, "{what}: another document");
        }
        let answer: serde_json::Value = serde_json::from_slice(&bodies[0]).expect("JSON");
        rig.record_charge(&answer);
        let text = &answer["choices"][0]["message"]["content"];
        let words = text.as_str().expect("a text").split_whitespace();
        assert_eq!(words.count(), WORDS, "{what}");
        assert!(bodies[4].ends_with(b"data: [DONE]\n\n"), "{what}");
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        rig.provider.forget_calls();
    }
    rig.finish().await;
}

/// A request with an unknown key whose body is announced and not sent.
fn refused_early(body_bytes: usize) -> Vec<u8> {
    let lines = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", CHAT),
        ("authorization", "Bearer sk-svc-unknown"),
        ("content-type", "application/json"),
        ("content-length", &body_bytes.to_string()),
    ];
    frame(HEADERS, END_HEADERS, 1, &fields(&lines))
}

/// Clients by nghttp2 lose an answer with a reset of the stream in the read of the answer (RFC 9113 section 8.1).
#[tokio::test]
async fn a_stream_that_is_answered_early_is_not_reset_while_its_body_arrives() {
    let rig = Rig::start().await;
    for (tls, address, trust) in [
        (false, rig.plain, None),
        (true, rig.tls, Some((&*rig.ca_pem, "h2"))),
    ] {
        let raw = RawClient::connect_narrow(address, trust).await;
        let mut reader = Reader::over(raw.expect("a connection"), &rig).await;
        let body = "x".repeat(200_000);
        reader.raw.send(refused_early(body.len())).await;
        let refusal = reader.bodies(&[1]).await.remove(0);
        let refusal = String::from_utf8_lossy(&refusal);
        assert!(refusal.contains("invalid_credential"), "{refusal}");
        // More than the initial windows of the stream and of the connection: the gateway reads the body.
        let mut window = 65_535;
        let mut rest = body.as_bytes();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(16_000).min(window));
            if piece.is_empty() {
                let more = reader.next().await;
                assert_ne!(more.kind, RST_STREAM, "TLS {tls}: it is cut");
                if more.kind == WINDOW_UPDATE && more.stream == 1 {
                    let more = more.payload.try_into().map(u32::from_be_bytes);
                    window += more.expect("four bytes") as usize;
                }
                continue;
            }
            rest = after;
            window -= piece.len();
            let flags = if rest.is_empty() { END_STREAM } else { 0 };
            reader.raw.send(frame(DATA, flags, 1, piece)).await;
        }
        reader.ask(3, "GET", "/v1/models", "").await;
        reader.bodies(&[3]).await;
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_whose_body_does_not_end_is_reset_without_an_error_after_its_answer() {
    let rig = Rig::with("[server]\nbody_secs = 1").await;
    let mut reader = Reader::over(RawClient::connect(rig.plain).await, &rig).await;
    reader.raw.send(refused_early(200_000)).await;
    reader.bodies(&[1]).await;
    let reset = loop {
        let frame = reader.next().await;
        if frame.stream == 1 {
            break frame;
        }
    };
    assert_eq!((reset.kind, &reset.payload[..]), (RST_STREAM, &[0; 4][..]));
    reader.ask(3, "GET", "/v1/models", "").await;
    reader.bodies(&[3]).await;
    rig.finish().await;
}

/// How a field line is written (RFC 7541 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Indexed,
    /// A literal with incremental indexing.
    Remembered,
    /// A literal without indexing.
    Forgotten,
    /// A never indexed literal, not even by intermediaries.
    NeverIndexed,
}

/// A prefixed number (RFC 7541 section 5.1).
fn number(bytes: &mut &[u8], bits: u8) -> usize {
    let most = (1 << bits) - 1;
    let (first, mut rest) = bytes.split_first().expect("a number");
    let mut value = usize::from(*first) & most;
    if value == most {
        for shift in (0..).step_by(7) {
            let (next, after) = rest.split_first().expect("the rest of a number");
            rest = after;
            value += usize::from(next & 127) << shift;
            if next & 128 == 0 {
                break;
            }
        }
    }
    *bytes = rest;
    value
}

/// The field lines of a block: form, place of the name in the tables, and the literal name. The place is 0, or the name is empty.
fn lines(mut block: &[u8]) -> Vec<(Form, usize, Vec<u8>)> {
    let mut lines = Vec::new();
    while let Some(first) = block.first() {
        let (form, bits) = match first {
            128.. => (Form::Indexed, 7),
            64.. => (Form::Remembered, 6),
            32.. => {
                // The size of the table: no line.
                number(&mut block, 5);
                continue;
            }
            16.. => (Form::NeverIndexed, 4),
            _ => (Form::Forgotten, 4),
        };
        let place = number(&mut block, bits);
        let mut text = || {
            let length = number(&mut block, 7);
            let (text, rest) = block.split_at(length);
            block = rest;
            text.to_vec()
        };
        let mut name = Vec::new();
        if form != Form::Indexed {
            if place == 0 {
                name = text();
            }
            text();
        }
        lines.push((form, place, name));
    }
    lines
}

/// A name in the code of RFC 7541 appendix B.
fn coded(name: &str) -> Vec<u8> {
    const CODE: [(char, u32, u32); 15] = [
        ('-', 0b1_0110, 6),
        ('a', 0b11, 5),
        ('d', 0b10_0100, 6),
        ('e', 0b101, 5),
        ('g', 0b10_0110, 6),
        ('i', 0b110, 5),
        ('l', 0b10_1000, 6),
        ('m', 0b10_1001, 6),
        ('n', 0b10_1010, 6),
        ('q', 0b111_0110, 7),
        ('r', 0b10_1100, 6),
        ('s', 0b1000, 5),
        ('t', 0b1001, 5),
        ('u', 0b10_1101, 6),
        ('x', 0b111_1001, 7),
    ];
    let (mut coded, mut held, mut count) = (Vec::new(), 0u32, 0);
    for letter in name.chars() {
        let found = CODE.iter().find(|(of, ..)| *of == letter);
        let (_, code, bits) = found.expect("a letter of these names");
        held = held << bits | code;
        count += bits;
        while count >= 8 {
            count -= 8;
            coded.push((held >> count) as u8);
            held &= (1 << count) - 1;
        }
    }
    // Filled up with ones.
    if count > 0 {
        coded.push(((held << (8 - count)) | ((1 << (8 - count)) - 1)) as u8);
    }
    coded
}

/// A value that changes with every answer would push repeated values out of the table. A client could guess values of another client's
/// answers in the memory of a proxy (RFC 7541 section 7.1).
#[tokio::test]
async fn per_response_fields_are_never_indexed() {
    let rig = Rig::start().await;
    let mut reader = Reader::over(rig.raw().await, &rig).await;
    let changing = ["x-request-id", "ratelimit", "ratelimit-remaining"].map(coded);
    let mut remembered = Vec::new();
    for stream in [1, 3, 5] {
        reader.ask(stream, "GET", "/v1/models", "").await;
        let head = lines(&reader.head().await);
        let of_form = |wanted| head.iter().filter(move |(form, ..)| *form == wanted);
        let mut marked: Vec<_> = of_form(Form::NeverIndexed)
            .map(|(_, _, name)| name.clone())
            .collect();
        let mut wanted = changing.to_vec();
        marked.sort();
        wanted.sort();
        assert_eq!(marked, wanted, "stream {stream}: {head:?}");
        remembered.push(of_form(Form::Remembered).count());
    }
    assert!(remembered[0] > 0, "what comes again is remembered");
    assert!(remembered[2] < remembered[0], "and is not said again");
    rig.finish().await;
}

/// Half of the streams of a connection could have heads of the largest size, in sum for every client behind the proxy.
#[tokio::test]
async fn large_heads_of_some_clients_refuse_no_others_behind_a_trusted_proxy() {
    const STREAMS: u8 = 100;
    let rig = Rig::with(
        r#"
        [[listener]]
        trusted_proxies = ["127.0.0.1"]
        proxy_protocol = false
        "#,
    )
    .await;
    let mut raw = RawClient::connect(rig.plain).await;
    // The windows are closed: every stream is open until the end.
    let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    for number in 0..STREAMS {
        let client = format!("192.0.2.{number}");
        let mut block = fields(&[
            (":method", "GET"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", "/v1/models"),
            ("x-forwarded-for", &client),
        ]);
        match number {
            // A literal with indexing of 3,900 bytes: 127, and the rest in groups of seven bits (RFC 7541 section 5.1).
            0 => {
                block.extend([0x40, 1, b'x', 127, 0xbd, 0x1d]);
                block.extend([b'v'; 3_900]);
            }
            // Eight references to the field.
            _ => block.extend([0xbe; 8]),
        }
        let stream = 2 * number + 1;
        sent.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, &block));
    }
    raw.send(sent).await;
    let mut reader = Reader {
        raw,
        said: Vec::new(),
        bearer: String::new(),
    };
    let mut answered = 0;
    while answered < STREAMS {
        let frame = reader.next().await;
        assert!(![RST_STREAM, GOAWAY].contains(&frame.kind), "{answered}");
        answered += u8::from(frame.kind == HEADERS);
    }
    drop(reader);
    rig.finish().await;
}
