//! Adversarial input that costs time, stack or memory. None of these tests reads a clock: a quadratic or recursive parser would not
//! terminate, or would overflow.

use bytes::{Bytes, BytesMut};
use tollgate_openai::RequestErrorCode::InvalidJson;
use tollgate_openai::count::{self, VocabularyFactor};
use tollgate_openai::{
    Answer, BodyEdit, CompletionRequest, EventCutter, Family, Patch, ProviderError, Usage,
};

const MILLION: usize = 1_000_000;

fn read(body: &str) -> Result<Box<CompletionRequest>, tollgate_openai::RequestError> {
    CompletionRequest::read(Family::CHAT, body.as_bytes())
}

fn with(members: &str) -> String {
    format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{members}}}"#)
}

#[test]
fn deep_nesting_is_refused_and_costs_no_stack() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
        let nested = open.repeat(MILLION) + "1" + &close.repeat(MILLION);
        let body = with(&format!(r#""a":{nested}"#));
        assert_eq!(read(&body).expect_err("too deep").code, InvalidJson);
        assert!(Answer::read(nested.as_bytes(), &Patch::new(Family::CHAT, "x")).is_err());
        assert_eq!(Usage::read(nested.as_bytes()), None);
        assert_eq!(ProviderError::read(nested.as_bytes()).message, None);
    }
}

#[test]
fn the_deepest_request_that_is_read_has_64_levels() {
    // The value is on the second level.
    let nested = |levels: usize| {
        with(&format!(
            r#""a":{}{}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        ))
    };
    assert!(read(&nested(63)).is_ok());
    assert!(read(&nested(64)).is_err());
    let content = |levels: usize| {
        format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"x","y":{}{}}}]}}]}}"#,
            "[".repeat(levels),
            "]".repeat(levels)
        )
    };
    assert!(read(&content(59)).is_ok());
    assert!(read(&content(60)).is_err());
}

#[test]
fn many_members_are_refused_and_many_below_the_top_are_read() {
    let members = |count: usize| {
        (0..count)
            .map(|at| format!(r#""k{at}":0"#))
            .collect::<Vec<_>>()
            .join(",")
    };
    assert!(read(&with(&members(1023))).is_ok());
    assert!(read(&with(&members(1024))).is_err());
    assert!(read(&with(&members(100_000))).is_err());
    assert!(read(&with(&format!(r#""deep":{{{}}}"#, members(100_000)))).is_ok());
    let duplicates = with(&format!("{},\"k500\":1", members(1000)));
    assert!(
        read(&duplicates)
            .expect_err("duplicates")
            .message
            .contains("`k500`")
    );
}

#[test]
fn many_messages_parts_and_choices_are_read_once() {
    let many = |item: &str| vec![item; 100_000].join(",");
    let request = read(&format!(
        r#"{{"messages":[{}]}}"#,
        many(r#"{"role":"user","content":"x"}"#)
    ));
    assert_eq!(request.expect("good").messages, 100_000);
    let parts = many(r#"{"type":"image_url","image_url":"x"}"#);
    let request = read(&format!(
        r#"{{"messages":[{{"role":"user","content":[{parts}]}}]}}"#
    ))
    .expect("good");
    assert_eq!((request.parts.images, request.text_bytes), (100_000, 0));
    let answer = format!(r#"{{"choices":[{}]}}"#, many(r#"{"text":"x"}"#));
    let answer =
        Answer::read(answer.as_bytes(), &Patch::new(Family::TEXT, "x")).expect("an answer");
    assert_eq!(
        (answer.choices().len(), answer.text_bytes()),
        (100_000, 100_000)
    );
}

#[test]
fn strings_of_a_megabyte_are_read_wherever_they_stand() {
    for filler in ["x", "\\n", "\\ud83d", "é", "\\\""] {
        let long = filler.repeat(MILLION);
        let request = read(&format!(
            r#"{{"messages":[{{"role":"user","content":"{long}"}}]}}"#
        ))
        .expect("good");
        assert_eq!(request.text_bytes, long.len() as u64);
        read(&with(&format!(
            r#""{}":"{long}""#,
            filler.replace("\\ud83d", "y").repeat(MILLION)
        )))
        .expect("good");
    }
    let error = read(&format!(
        r#"{{"messages":[{{"role":"{}","content":"x"}}]}}"#,
        "r".repeat(MILLION)
    ));
    assert!(
        error.expect_err("no such role").message.len() < 200,
        "a message quotes the beginning only"
    );
    let model = "m".repeat(MILLION);
    let body = Bytes::from(with(&format!(r#""model":"{model}""#)));
    let request = CompletionRequest::read(Family::CHAT, &body).expect("good");
    let edited = BodyEdit::new(&request).model("m").apply(&body);
    assert!(edited.ends_with(br#""model":"m"}"#));
}

#[test]
fn numbers_of_any_length_are_read() {
    let digits = "9".repeat(MILLION);
    let request = read(&with(&format!(
        r#""max_tokens":{digits},"n":1e{digits},"temperature":{digits}.{digits}e-{digits}"#
    )));
    let request = request.expect("they are numbers");
    assert_eq!((request.max_tokens, request.n), (Some(u64::MAX), u64::MAX));
    assert!(read(&with(&format!(r#""max_tokens":0.{digits}"#))).is_err());
    assert!(read(&with(&format!(r#""max_tokens":1e-{digits}"#))).is_err());
}

#[test]
fn invalid_utf_8_of_every_kind_is_refused() {
    for bytes in [
        &b"\x80"[..],
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\xff\xfe",
    ] {
        let mut body = br#"{"messages":[{"role":"user","content":""#.to_vec();
        body.extend_from_slice(bytes);
        body.extend_from_slice(br#""}]}"#);
        let error = CompletionRequest::read(Family::CHAT, &body).expect_err("no UTF-8");
        assert_eq!(error.code, InvalidJson, "{bytes:x?}");
    }
}

#[test]
fn an_event_that_arrives_byte_by_byte_is_joined_once() {
    let mut stream = b"data: ".to_vec();
    stream.resize(MILLION, b'x');
    stream.extend_from_slice(b"\n\n");
    let mut cutter = EventCutter::new(2 * MILLION);
    let mut lengths = Vec::new();
    for byte in stream.chunks(1) {
        let mut events = cutter.push(byte);
        while let Some(event) = events.next().expect("small enough") {
            lengths.push(event.data.len());
        }
    }
    assert_eq!(lengths, [MILLION - 6]);
}

#[test]
fn an_answer_with_our_member_a_hundred_thousand_times_is_cleaned() {
    let body = format!(
        r#"{{"choices":[{{}}]{}}}"#,
        r#","x":1,"usage":null"#.repeat(100_000)
    );
    let patch = Patch::new(Family::CHAT, "x");
    let mut out = BytesMut::new();
    Answer::read(body.as_bytes(), &patch)
        .expect("an answer")
        .facts()
        .write(body.as_bytes(), &patch, None, Some(b"{}"), &mut out);
    assert_eq!(
        out.windows(4).filter(|window| window == b"\"x\":").count(),
        1
    );
}

#[test]
fn long_texts_of_one_kind_are_counted() {
    for unit in [
        "a",
        " ",
        "\n",
        "word ",
        "😀",
        "a\u{301}",
        "'s",
        "0",
        "\u{0}",
        "!?",
        " \t",
        "收费站",
    ] {
        let text = unit.repeat(100_000);
        let counted = count::tokens(&text, VocabularyFactor::default());
        assert!(
            counted.0 > 0 && counted.0 <= text.len() as u64,
            "{unit:?}: {counted:?}"
        );
    }
}
