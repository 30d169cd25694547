//! Streams split into events: the same events at any fragmentation.

use proptest::prelude::*;
use tollgate_openai::{EventCutter, Tail};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Event(String, bool),
    TooLarge,
    Torn,
}

/// All output of a stream that arrives in these pieces.
fn cut<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, bytes_max: usize) -> Vec<Seen> {
    let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    let mut cutter = EventCutter::new(bytes_max);
    let mut seen = Vec::new();
    for piece in pieces {
        let mut events = cutter.push(piece);
        loop {
            match events.next() {
                Ok(Some(event)) => seen.push(Seen::Event(text(event.data), event.named_error)),
                Ok(None) => break,
                Err(_) => {
                    seen.push(Seen::TooLarge);
                    return seen;
                }
            }
        }
    }
    match cutter.finish() {
        Tail::Nothing => {}
        Tail::Event(event) => seen.push(Seen::Event(text(event.data), event.named_error)),
        Tail::Torn => seen.push(Seen::Torn),
    }
    seen
}

fn events(data: &[&str]) -> Vec<Seen> {
    data.iter()
        .map(|data| Seen::Event((*data).to_owned(), false))
        .collect()
}

/// Streams with their events. All other tests of this file split the same ones differently.
fn streams() -> Vec<(&'static str, Vec<Seen>)> {
    let torn = |mut seen: Vec<Seen>| {
        seen.push(Seen::Torn);
        seen
    };
    let error = |data: &str| Seen::Event(data.to_owned(), true);
    vec![
        ("", vec![]),
        (
            "data: {\"a\":1}\n\ndata: [DONE]\n\n",
            events(&["{\"a\":1}", "[DONE]"]),
        ),
        ("data: {\"é\":\"😀\"}\n\n", events(&["{\"é\":\"😀\"}"])),
        (
            "data: {}\r\n\r\ndata: [DONE]\r\n\r\n",
            events(&["{}", "[DONE]"]),
        ),
        ("data: {}\r\rdata: [DONE]\r\r", events(&["{}", "[DONE]"])),
        (
            "data: {}\r\n\ndata: {}\n\r\ndata: {}\r\r\n\ndata: {}\n\r",
            events(&["{}", "{}", "{}", "{}"]),
        ),
        ("data:{}\n\ndata:  {}\n\n", events(&["{}", " {}"])),
        (
            "data: {\ndata: \"a\":1\ndata:}\n\n",
            events(&["{\n\"a\":1\n}"]),
        ),
        (
            "data: {\r\ndata: }\r\n\r\nevent: error\r\ndata: 1\r\n\r\n",
            vec![Seen::Event("{\n}".into(), false), error("1")],
        ),
        (
            ": keep-alive\ndata: {}\n\n: ping\n\n:\n\ndata: {}\n: in between\n\n",
            events(&["{}", "{}"]),
        ),
        (
            "id: 1\nretry: 5\ndata: {}\nunknown\nunknown: x\n\n",
            events(&["{}"]),
        ),
        ("\u{feff}data: {}\n\n", events(&["{}"])),
        ("\u{feff}\u{feff}data: {}\n\ndata: 1\n\n", events(&["1"])),
        ("\u{feff}\n\ndata: 2\n\n", events(&["2"])),
        (
            "data: {}\n\n\u{feff}data: {}\n\ndata: 3\n\n",
            events(&["{}", "3"]),
        ),
        (
            "event: error\ndata: {\"message\":\"x\"}\n\ndata: {}\n\n",
            vec![
                error("{\"message\":\"x\"}"),
                Seen::Event("{}".into(), false),
            ],
        ),
        ("data: {}\nevent:error\n\n", vec![error("{}")]),
        ("event: error\nevent: other\ndata: {}\n\n", events(&["{}"])),
        ("event: error\n\ndata: {}\n\n", events(&["{}"])),
        ("data\n\ndata:\n\ndata: \n\ndata: 1\n\n", events(&["1"])),
        ("data\ndata: 1\n\n", events(&["\n1"])),
        ("\n\n\r\n\r\ndata: 1\n\n\n\n", events(&["1"])),
        // Tails without a blank line.
        ("data: {\"a\":1}", events(&["{\"a\":1}"])),
        ("data: {\"a\":1}\n", events(&["{\"a\":1}"])),
        ("data: {}\n\ndata: [DONE]", events(&["{}", "[DONE]"])),
        ("data: [DONE]\r", events(&["[DONE]"])),
        ("event: error\ndata: {}", vec![error("{}")]),
        ("data: {\"a\":", torn(vec![])),
        ("data: {}\n\ndata: {\"a\":1}}", torn(events(&["{}"]))),
        ("data: {}\n\ndat", torn(events(&["{}"]))),
        ("data: {\"a\":\ndata: 1}", events(&["{\"a\":\n1}"])),
        ("data: [DON", torn(vec![])),
        // Field names have to match exactly.
        (
            "Data: 1\n\n data: 2\n\ndata : 3\n\ndata:4\n\n",
            events(&["4"]),
        ),
    ]
}

#[test]
fn streams_are_cut_by_the_standard() {
    for (stream, expected) in streams() {
        assert_eq!(cut([stream.as_bytes()], 1000), expected, "{stream:?}");
    }
}

#[test]
fn a_cut_at_any_place_changes_nothing() {
    for (stream, expected) in streams() {
        let bytes = stream.as_bytes();
        for at in 0..=bytes.len() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(
                cut([first, second], 1000),
                expected,
                "{stream:?} cut at {at}"
            );
        }
        assert_eq!(
            cut(bytes.chunks(1), 1000),
            expected,
            "{stream:?} byte by byte"
        );
    }
}

#[test]
fn an_event_above_the_bound_is_refused_in_any_pieces() {
    for (stream, expected) in [
        ("data: 12345678\n\n", events(&["12345678"])),
        ("data: 123456789\n\n", vec![Seen::TooLarge]),
        (
            "data: 1\n\ndata: 1234\ndata: 123\n\n",
            events(&["1", "1234\n123"]),
        ),
        ("data: 1\n\ndata: 1234\ndata: 1234\n\n", {
            let mut seen = events(&["1"]);
            seen.push(Seen::TooLarge);
            seen
        }),
        (
            ": a comment that is longer than any event\n\n",
            vec![Seen::TooLarge],
        ),
    ] {
        let bytes = stream.as_bytes();
        for at in 0..=bytes.len() {
            let (first, second) = bytes.split_at(at);
            assert_eq!(cut([first, second], 8), expected, "{stream:?} cut at {at}");
        }
    }
    // A line without an end is refused at the limit, before memory is exhausted.
    assert_eq!(
        cut(std::iter::repeat_n(&b"xxxx"[..], 1000), 100),
        vec![Seen::TooLarge]
    );
}

#[test]
fn an_event_in_one_piece_is_not_copied() {
    let piece = b"data: {\"a\":1}\n\ndata: {}\n\n";
    let mut cutter = EventCutter::new(1000);
    let mut events = cutter.push(piece);
    for start in [6, 21] {
        let event = events.next().expect("small").expect("an event");
        assert_eq!(event.data.as_ptr(), piece[start..].as_ptr());
    }
}

#[test]
fn an_event_is_written_as_one_line_and_read_back() {
    for data in [&b"{}"[..], b"{\n\"a\":1\n}", b"[DONE]"] {
        let mut out = bytes::BytesMut::new();
        tollgate_openai::event::write(data, &mut out);
        let expected = String::from_utf8_lossy(data).replace('\n', " ");
        assert_eq!(cut([&out[..]], 1000), events(&[&expected]));
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 2);
    }
}

/// Pieces of streams, joined arbitrarily.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop::sample::select(vec![
        "data: ",
        "data:",
        "data",
        "event: error",
        "event:",
        ": c",
        "\n",
        "\r",
        "\r\n",
        "\n\n",
        "{\"a\":1}",
        "[DONE]",
        "{",
        "é",
        "\u{feff}",
        ":",
        " ",
        "id: 1",
        "data: {\"b\":\"😀\"}\n\n",
    ]);
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat().into_bytes())
}

proptest! {
    #[test]
    fn every_split_of_the_same_bytes_gives_the_same_events(
        stream in stream(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        bytes_max in prop::sample::select(vec![5usize, 12, 1000]),
    ) {
        let whole = cut([&stream[..]], bytes_max);
        for at in 0..=stream.len() {
            let (first, second) = stream.split_at(at);
            prop_assert_eq!(&cut([first, second], bytes_max), &whole, "cut at {}", at);
        }
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        places.extend([0, stream.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| &stream[pair[0]..pair[1]]);
        prop_assert_eq!(&cut(pieces, bytes_max), &whole, "cut at {:?}", places);
    }
}
