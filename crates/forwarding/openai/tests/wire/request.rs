//! Every field and limit of the two completion requests.

use proptest::prelude::*;
use tollgate_openai::RequestErrorCode::{
    InvalidJson, InvalidType, MissingField, OutOfRange, UnknownField,
};
use tollgate_openai::{CompletionRequest, Family, RequestErrorCode};

fn read(family: &'static Family, body: &str) -> Box<CompletionRequest> {
    match CompletionRequest::read(family, body.as_bytes()) {
        Ok(request) => request,
        Err(error) => panic!("{body} was refused: {error:?}"),
    }
}

/// A chat request with one valid message and these members.
fn chat_with(members: &str) -> String {
    format!(r#"{{"messages":[{{"role":"user","content":"hi"}}],{members}}}"#)
}

fn check(family: &'static Family, body: &str, code: RequestErrorCode, param: Option<&str>) {
    let error = match CompletionRequest::read(family, body.as_bytes()) {
        Ok(request) => panic!("{body} was read as {request:?}"),
        Err(error) => error,
    };
    assert_eq!(
        (error.code, error.param.as_deref()),
        (code, param),
        "{body}: {error}"
    );
    assert!(error.message.len() > 15, "{body}: `{error}` is no help");
}

#[test]
fn a_body_that_is_not_one_json_object_is_refused_as_such() {
    let good = r#"{"messages":[{"role":"user","content":"x"}]}"#;
    for body in [
        "",
        " ",
        "null",
        "[]",
        "\"messages\"",
        "1",
        "{",
        r#"{"messages":[{"role":"user","content":"x"}]"#,
        r#"{"messages":[{"role":"user","content":"x"}],}"#,
        r#"{"messages":[{"role":"user","content":"x"}],"a":01}"#,
        &format!("\u{feff}{good}"),
        &format!("{good}x"),
        &format!("{good}{good}"),
        &format!("{good}\0"),
        &chat_with(r#""model":"a","model":"b""#),
        &chat_with(r#""model":"a","mod\u0065l":"b""#),
        &chat_with(r#""messages":[{"role":"user","content":"y"}]"#),
        &chat_with(r#""unknown":1,"other":2,"unknown":3"#),
        &chat_with(r#""half\ud83d":1"#),
    ] {
        check(Family::CHAT, body, InvalidJson, None);
    }
}

#[test]
fn a_text_that_only_begins_like_a_value_is_not_called_one() {
    for (body, message) in [
        ("null", "the body is null"),
        ("[1]", "the body is an array"),
        ("not json", "the body is not valid JSON"),
        ("true story", "the body is not valid JSON"),
        ("1 + 1", "the body is not valid JSON"),
        ("[1", "the body is not valid JSON"),
        ("\"quoted\" words", "the body is not valid JSON"),
    ] {
        let error = CompletionRequest::read(Family::CHAT, body.as_bytes()).expect_err("no object");
        assert!(error.message.starts_with(message), "{body}: {error}");
    }
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_wherever_they_stand() {
    for at in [2, 15, 40] {
        let mut body = chat_with(r#""model":"m","other":"zzzz""#).into_bytes();
        body[at] = 0xff;
        let error = CompletionRequest::read(Family::CHAT, &body).expect_err("0xff is never UTF-8");
        assert_eq!(error.code, InvalidJson);
        assert!(error.message.contains(&format!("byte {at}")), "{error}");
    }
}

#[test]
fn every_limit_of_a_chat_request_names_its_member() {
    for (members, code, param) in [
        (r#""model":1"#, InvalidType, "model"),
        (r#""model":["m"]"#, InvalidType, "model"),
        (r#""model":"\ud83d""#, InvalidJson, "model"),
        (r#""temperature":"1""#, InvalidType, "temperature"),
        (r#""temperature":-0.1"#, OutOfRange, "temperature"),
        (r#""temperature":-1e-9"#, OutOfRange, "temperature"),
        (r#""max_tokens":0"#, OutOfRange, "max_tokens"),
        (r#""max_tokens":-1"#, OutOfRange, "max_tokens"),
        (r#""max_tokens":-1.5"#, OutOfRange, "max_tokens"),
        (r#""max_tokens":1.5"#, InvalidType, "max_tokens"),
        (r#""max_tokens":"10""#, InvalidType, "max_tokens"),
        (r#""max_tokens":true"#, InvalidType, "max_tokens"),
        (
            r#""max_completion_tokens":0.0"#,
            OutOfRange,
            "max_completion_tokens",
        ),
        (
            r#""max_completion_tokens":{}"#,
            InvalidType,
            "max_completion_tokens",
        ),
        (r#""stream":1"#, InvalidType, "stream"),
        (r#""stream":"true""#, InvalidType, "stream"),
        (r#""cache":0"#, InvalidType, "cache"),
        (r#""cache":"no""#, InvalidType, "cache"),
        (r#""tools":{}"#, InvalidType, "tools"),
        (r#""tools":[{},"x"]"#, InvalidType, "tools"),
        (r#""tools":[null]"#, InvalidType, "tools"),
        (r#""tool_choice":1"#, InvalidType, "tool_choice"),
        (r#""tool_choice":[]"#, InvalidType, "tool_choice"),
        (r#""plugins":"web""#, InvalidType, "plugins"),
        (r#""plugins":["web"]"#, InvalidType, "plugins"),
        (r#""modalities":"text""#, InvalidType, "modalities"),
        (r#""modalities":["text",1]"#, InvalidType, "modalities"),
        (r#""image_config":[]"#, InvalidType, "image_config"),
        (r#""reasoning":"high""#, InvalidType, "reasoning"),
        (r#""n":0"#, OutOfRange, "n"),
        (r#""n":"5""#, InvalidType, "n"),
        (r#""best_of":2.5"#, InvalidType, "best_of"),
        (r#""stream_options":"x""#, InvalidType, "stream_options"),
        (
            r#""stream_options":{"include_usage":"yes"}"#,
            InvalidType,
            "stream_options.include_usage",
        ),
        (
            r#""stream_options":{"include_usage":true,"include_usage":false}"#,
            OutOfRange,
            "stream_options.include_usage",
        ),
    ] {
        check(Family::CHAT, &chat_with(members), code, Some(param));
    }
}

#[test]
fn every_limit_of_a_message_names_its_place() {
    let good = r#"{"role":"user","content":"x"}"#;
    for (messages, code, param) in [
        ("null", InvalidType, "messages"),
        (r#""hi""#, InvalidType, "messages"),
        ("{}", InvalidType, "messages"),
        ("[]", OutOfRange, "messages"),
        (r#"["hi"]"#, InvalidType, "messages[0]"),
        (&format!("[{good},null]"), InvalidType, "messages[1]"),
        (r#"[{"content":"x"}]"#, MissingField, "messages[0].role"),
        (
            &format!(r#"[{good},{good},{{"role":"narrator","content":"x"}}]"#),
            OutOfRange,
            "messages[2].role",
        ),
        (
            r#"[{"role":"User","content":"x"}]"#,
            OutOfRange,
            "messages[0].role",
        ),
        (
            r#"[{"role":"","content":"x"}]"#,
            OutOfRange,
            "messages[0].role",
        ),
        (
            r#"[{"role":null,"content":"x"}]"#,
            InvalidType,
            "messages[0].role",
        ),
        (
            r#"[{"role":1,"content":"x"}]"#,
            InvalidType,
            "messages[0].role",
        ),
        (
            r#"[{"role":"\ud83d","content":"x"}]"#,
            OutOfRange,
            "messages[0].role",
        ),
        (
            &format!(r#"[{good},{{"role":"user"}}]"#),
            MissingField,
            "messages[1].content",
        ),
        (
            r#"[{"role":"user","tool_calls":[{"id":"1"}]}]"#,
            MissingField,
            "messages[0].content",
        ),
        (
            r#"[{"tool_calls":[],"role":"assistant"}]"#,
            MissingField,
            "messages[0].content",
        ),
        (
            r#"[{"role":"assistant","tool_calls":null,"function_call":null}]"#,
            MissingField,
            "messages[0].content",
        ),
        (
            r#"[{"role":"assistant","function_call":"none"}]"#,
            MissingField,
            "messages[0].content",
        ),
        (
            r#"[{"role":"user","content":1}]"#,
            InvalidType,
            "messages[0].content",
        ),
        (
            r#"[{"role":"user","content":{}}]"#,
            InvalidType,
            "messages[0].content",
        ),
        (
            r#"[{"role":"user","content":true}]"#,
            InvalidType,
            "messages[0].content",
        ),
        (
            r#"[{"role":"user","content":[{"type":"text","text":"x"},"y"]}]"#,
            InvalidType,
            "messages[0].content",
        ),
        (
            r#"[{"role":"user","content":[null]}]"#,
            InvalidType,
            "messages[0].content",
        ),
        (
            r#"[{"role":"user","content":"x","name":1}]"#,
            InvalidType,
            "messages[0].name",
        ),
        (
            r#"[{"role":"tool","content":"x","tool_call_id":[]}]"#,
            InvalidType,
            "messages[0].tool_call_id",
        ),
        (
            r#"[{"role":"assistant","content":null,"tool_calls":{}}]"#,
            InvalidType,
            "messages[0].tool_calls",
        ),
        (
            r#"[{"role":"assistant","content":null,"tool_calls":["f"]}]"#,
            InvalidType,
            "messages[0].tool_calls",
        ),
    ] {
        check(
            Family::CHAT,
            &format!(r#"{{"messages":{messages}}}"#),
            code,
            Some(param),
        );
    }
    check(Family::CHAT, "{}", MissingField, Some("messages"));
    check(
        Family::CHAT,
        r#"{"prompt":"x"}"#,
        MissingField,
        Some("messages"),
    );
}

#[test]
fn every_limit_of_a_text_request_names_its_member() {
    for (body, code, param) in [
        ("{}", MissingField, "prompt"),
        (
            r#"{"messages":[{"role":"user","content":"x"}]}"#,
            MissingField,
            "prompt",
        ),
        (r#"{"prompt":null}"#, InvalidType, "prompt"),
        (r#"{"prompt":1}"#, InvalidType, "prompt"),
        (r#"{"prompt":[1,2,3]}"#, InvalidType, "prompt"),
        (r#"{"prompt":[[1,2],[3]]}"#, InvalidType, "prompt"),
        (r#"{"prompt":["a",null]}"#, InvalidType, "prompt"),
        (r#"{"prompt":"x","system":1}"#, InvalidType, "system"),
        (
            r#"{"prompt":"x","temperature":-1}"#,
            OutOfRange,
            "temperature",
        ),
        (r#"{"prompt":"x","max_tokens":0}"#, OutOfRange, "max_tokens"),
        (r#"{"prompt":"x","stream":"no"}"#, InvalidType, "stream"),
        (r#"{"prompt":"x","cache":1}"#, InvalidType, "cache"),
        (r#"{"prompt":"x","model":{}}"#, InvalidType, "model"),
        (r#"{"prompt":"x","best_of":-1}"#, OutOfRange, "best_of"),
    ] {
        check(Family::TEXT, body, code, Some(param));
    }
}

#[test]
fn undescribed_members_are_skipped() {
    read(
        Family::CHAT,
        &chat_with(
            r#""top_p":2,"seed":-5,"stop":["a",1],"logprobs":"?","user":7,"metadata":[],"response_format":{"type":"json"},
        "prompt":1,"system":{"a":1},"service_tier":null,"x_svc":{},"audio":"\ud83d","":0"#,
        ),
    );
    read(
        Family::TEXT,
        r#"{"prompt":"x","tools":"none","modalities":3,"reasoning":[],"plugins":0,"messages":1,"suffix":{}}"#,
    );
    read(
        Family::CHAT,
        r#"{"messages":[{"role":"assistant","content":null,"refusal":1,"audio":{"id":"a"},"extra":[[]]}]}"#,
    );
    read(
        Family::CHAT,
        r#"{"messages":[{"role":"user","content":"half \ud83d of a pair"}]}"#,
    );
}

#[test]
fn null_is_absent_for_optional_members() {
    let members: Vec<_> = [
        "model",
        "temperature",
        "max_tokens",
        "max_completion_tokens",
        "stream",
        "cache",
        "tools",
        "tool_choice",
        "plugins",
        "modalities",
        "image_config",
        "reasoning",
        "n",
        "best_of",
        "stream_options",
    ]
    .iter()
    .map(|name| format!(r#""{name}":null"#))
    .collect();
    let request = read(Family::CHAT, &chat_with(&members.join(",")));
    assert_eq!(
        (request.model.as_deref(), request.stream, request.cache),
        (None, false, true)
    );
    assert_eq!(
        (request.output_max(), request.n, request.best_of),
        (None, 1, 1)
    );
    assert!(!request.tools && !request.plugins);
    let message = r#"{"messages":[{"role":"user","content":null,"name":null,"tool_call_id":null,"tool_calls":null}]}"#;
    assert_eq!(read(Family::CHAT, message).text_bytes, 0);
    let text = r#"{"prompt":"","system":null,"max_tokens":null,"model":null}"#;
    assert_eq!(read(Family::TEXT, text).prompts, 1);
}

#[test]
fn the_facts_of_a_request_are_those_it_states() {
    let request = read(
        Family::CHAT,
        &chat_with(
            r#""model":"m\u002dsmall","stream":true,"cache":false,"max_tokens":5.0,"max_completion_tokens":1e3,"n":3,
        "stream_options":{"include_usage":true,"x":[{}]},"tools":[{}],"plugins":[{"id":"web"}],"tool_choice":"auto""#,
        ),
    );
    assert_eq!(request.model.as_deref(), Some("m-small"));
    assert!(
        request.stream
            && !request.cache
            && request.include_usage
            && request.tools
            && request.plugins
    );
    assert_eq!(
        (request.max_tokens, request.max_completion_tokens),
        (Some(5), Some(1000))
    );
    assert_eq!(
        (request.output_max(), request.answers_max()),
        (Some(1000), 3)
    );
    assert_eq!((request.messages, request.prompts), (1, 1));
}

#[test]
fn usage_is_asked_for_only_by_a_stream() {
    let options = r#""stream_options":{"include_usage":true}"#;
    assert!(!read(Family::CHAT, &chat_with(options)).include_usage);
    // The order of the two members does not matter.
    assert!(
        read(
            Family::CHAT,
            &chat_with(&format!(r#"{options},"stream":true"#))
        )
        .include_usage
    );
    assert!(
        read(
            Family::CHAT,
            &chat_with(&format!(r#""stream":true,{options}"#))
        )
        .include_usage
    );
}

#[test]
fn prompts_and_answers_multiply() {
    for (body, prompts, answers) in [
        (r#"{"prompt":"x"}"#, 1, 1),
        (r#"{"prompt":["x","y","z"]}"#, 3, 3),
        (r#"{"prompt":["x","y"],"n":2,"best_of":5}"#, 2, 10),
        (r#"{"prompt":["x","y"],"n":7,"best_of":5}"#, 2, 14),
        (r#"{"prompt":[]}"#, 1, 1),
        (r#"{"prompt":["a","b"],"n":1e30}"#, 2, u64::MAX),
    ] {
        let request = read(Family::TEXT, body);
        assert_eq!(
            (request.prompts, request.answers_max()),
            (prompts, answers),
            "{body}"
        );
    }
}

#[test]
fn text_bytes_hold_everything_that_may_reach_the_prompt() {
    for (body, text_bytes) in [
        (r#"{"messages":[{"role":"user","content":"12345"}]}"#, 5),
        (
            r#"{"messages":[{"role":"user","content":"12345"},{"content":"123","role":"system"}]}"#,
            8,
        ),
        // As encoded in the body: an escape is never shorter than its character.
        (r#"{"messages":[{"role":"user","content":"\u00e9"}]}"#, 6),
        (
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"1234"},{"text":"12","type":"text"}]}]}"#,
            6,
        ),
        (
            r#"{"messages":[{"role":"user","content":"","name":"bob"}]}"#,
            5,
        ),
        (
            r#"{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}"#,
            12,
        ),
        (
            r#"{"messages":[{"role":"user","content":""}],"tools":[{"a":1}]}"#,
            9,
        ),
        (
            r#"{"messages":[{"role":"user","content":""}],"documents":["abc"]}"#,
            7,
        ),
        (
            r#"{"messages":[{"role":"user","content":""}],"user":"abc","metadata":{"a":"b"},"model":"m","top_p":0.25}"#,
            0,
        ),
    ] {
        assert_eq!(read(Family::CHAT, body).text_bytes, text_bytes, "{body}");
    }
    assert_eq!(
        read(Family::TEXT, r#"{"prompt":["ab","cde"],"system":"xy"}"#).text_bytes,
        9,
        "the system text is read before every prompt"
    );
}

#[test]
fn parts_are_counted_by_type_and_media_is_no_text() {
    let request = read(
        Family::CHAT,
        r#"{"messages":[{"role":"user","content":[
        {"type":"text","text":"1234"},
        {"image_url":{"url":"data:image/png;base64,AAAA"},"type":"image_url"},
        {"type":"image_url","image_url":"http://x"},
        {"type":"input_audio","input_audio":{"data":"AAAAAAAA","format":"wav"}},
        {"type":"file","file":{"file_data":"AAAAAAAAAAAA"}},
        {"type":"video_url","video_url":{"url":"12345678"}},
        {"no":"type"}]}]}"#,
    );
    let parts = request.parts;
    assert_eq!(
        (parts.images, parts.audios, parts.files, parts.others),
        (2, 1, 1, 2)
    );
    assert_eq!(parts.media_bytes, 36 + 8 + 34 + 28);
    assert_eq!(request.text_bytes, 4 + 18 + 4);
}

#[test]
fn a_text_hidden_in_a_part_of_another_type_is_still_counted() {
    let hidden = |kind: &str, member: &str| {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":[{{"type":"{kind}","{member}":"0123456789"}}]}}]}}"#
        );
        let request = read(Family::CHAT, &body);
        (request.text_bytes, request.parts.media_bytes)
    };
    assert_eq!(hidden("image_url", "text"), (10, 0));
    assert_eq!(hidden("text", "image_url"), (10, 0));
    assert_eq!(hidden("file", "input_audio"), (10, 0));
    assert_eq!(hidden("unknown", "image_url"), (10, 0));
    assert_eq!(hidden("input_image", "image_url"), (0, 10));
}

#[test]
fn a_member_that_differs_from_a_known_one_in_case_alone_is_refused_at_every_level() {
    let message = |members: &str| {
        format!(r#"{{"messages":[{{"role":"user","content":"a"}},{{"role":"user",{members}}}]}}"#)
    };
    for (body, param) in [
        (chat_with(r#""MODEL":"x""#), "MODEL"),
        (
            chat_with(r#""Max_Completion_Tokens":1"#),
            "Max_Completion_Tokens",
        ),
        (
            chat_with("\"\u{212a}\":1,\"n\u{17f}\":1,\"\u{17f}tream\":true"),
            "\u{17f}tream",
        ),
        (
            chat_with(r#""reasoning":{"max_to\u212aens":1}"#),
            "reasoning.max_to\u{212a}ens",
        ),
        (
            chat_with(r#""stream_options":{"INCLUDE_USAGE":true}"#),
            "stream_options.INCLUDE_USAGE",
        ),
        (message(r#""Content":null"#), "messages[1].Content"),
        (message(r#""content":null,"Name":null"#), "messages[1].Name"),
        (
            message(r#""content":[{},{"type":"text","Input_Audio":{}}]"#),
            "messages[1].content[1].Input_Audio",
        ),
    ] {
        check(Family::CHAT, &body, UnknownField, Some(param));
    }
    check(
        Family::TEXT,
        r#"{"prompt":"a","reasoning":{"Effort":"high"}}"#,
        UnknownField,
        Some("reasoning.Effort"),
    );
}

/// A name as a case-insensitive decoder sees it: in capitals, and back in small letters.
fn case_folded(name: &str) -> String {
    let capitals = name.chars().flat_map(char::to_uppercase);
    capitals.flat_map(char::to_lowercase).collect()
}

/// A name with some letters in another case, and some as escapes.
fn spelled(name: &'static str) -> impl Strategy<Value = (String, String)> {
    let letter = |letter: char| {
        let other = match letter {
            's' => vec!['S', '\u{17f}'],
            'k' => vec!['K', '\u{212a}'],
            'i' => vec!['I', '\u{131}'],
            other => vec![other.to_ascii_uppercase()],
        };
        let plain = prop_oneof![12 => Just(letter), 1 => prop::sample::select(other)];
        (plain, prop::bool::weighted(0.1))
    };
    let letters: Vec<_> = name.chars().map(letter).collect();
    letters.prop_map(|letters| {
        let plain = letters.iter().map(|(letter, _)| *letter).collect();
        let written = letters.iter().map(|(letter, escaped)| match escaped {
            true => format!("\\u{:04x}", u32::from(*letter)),
            false => letter.to_string(),
        });
        (plain, written.collect())
    })
}

/// One member of a body: its decoded name, its encoded name, and its value.
fn member() -> impl Strategy<Value = (String, String, u64)> {
    let name = prop::sample::select(vec![
        "model",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "best_of",
        "max_token",
        "x",
    ]);
    (name.prop_flat_map(spelled), 1u64..9)
        .prop_map(|((plain, written), value)| (plain, written, value))
}

proptest! {
    #[test]
    fn no_body_is_accepted_that_a_case_insensitive_parser_reads_otherwise(
        members in prop::collection::vec(member(), 0..5),
        text in any::<bool>(),
    ) {
        let value = |plain: &str, value: u64| match case_folded(plain).as_str() {
            "model" => format!("\"m{value}\""),
            _ => value.to_string(),
        };
        let written = members.iter().map(|(plain, written, number)| format!(",\"{written}\":{}", value(plain, *number)));
        let rest: String = written.collect();
        let (family, body) = match text {
            false => (Family::CHAT, format!(r#"{{"messages":[{{"role":"user","content":"a"}}]{rest}}}"#)),
            true => (Family::TEXT, format!(r#"{{"prompt":"a"{rest}}}"#)),
        };
        let Ok(request) = CompletionRequest::read(family, body.as_bytes()) else {
            return Ok(());
        };
        let last = |name: &str| {
            let same = members.iter().rev().find(|(plain, ..)| case_folded(plain) == name);
            same.map(|(_, _, value)| *value)
        };
        prop_assert_eq!(request.model, last("model").map(|value| format!("m{value}")), "{}", body);
        prop_assert_eq!(request.max_tokens, last("max_tokens"), "{}", body);
        prop_assert_eq!(request.max_completion_tokens, last("max_completion_tokens"), "{}", body);
        prop_assert_eq!(request.n, last("n").unwrap_or(1), "{}", body);
        prop_assert_eq!(request.best_of, last("best_of").unwrap_or(1), "{}", body);
    }
}
