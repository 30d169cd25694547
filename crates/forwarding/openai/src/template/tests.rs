//! Answers parsed by templates, against the same answers parsed in full.

use proptest::prelude::*;

use super::*;

const METADATA: &str = "x_svc";

/// The result of a parser without templates.
fn walked(text: &str) -> (String, Result<(), SyntaxError>) {
    let mut facts = Completion::new();
    let read = facts.read(Completion::walk, text.as_bytes(), METADATA);
    (format!("{facts:?}"), read)
}

fn read_by(templates: &mut Templates, text: &str) -> (String, Result<(), SyntaxError>, bool) {
    let known = templates.known.len();
    let bytes = Bytes::of(text.as_bytes());
    let (template, read) = templates.read(text.as_bytes(), bytes, Family::CHAT, METADATA);
    let fitted = templates.known.len() < known;
    let facts = format!("{:?}", template.facts);
    templates.recycle(template);
    (facts, read, fitted)
}

/// Parses texts in sequence, compares with full parses, and returns which of them matched a template.
fn fitted(texts: &[&str]) -> Vec<bool> {
    let mut templates = Templates::default();
    let read = |text: &&str| {
        let (facts, read, fitted) = read_by(&mut templates, text);
        let (expected, as_expected) = walked(text);
        assert_eq!(read, as_expected, "{text}");
        if read.is_ok() {
            assert_eq!(facts, expected, "{text}");
        }
        fitted
    };
    texts.iter().map(read).collect()
}

fn answer(id: &str, text: &str, usage: &str) -> String {
    format!(
        r#"{{"id":{id},"object":"chat.completion","created":1,"model":"m","choices":[{{"index":0,"message":{{"role":"assistant","content":{text}}},"finish_reason":"stop"}}],"usage":{usage}}}"#
    )
}

#[test]
fn answers_that_differ_in_values_match_a_template_and_others_do_not() {
    let usage = r#"{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}"#;
    let first = answer("\"a\"", "\"b\"", usage);
    for (other, matches) in [
        (first.clone(), true),
        (answer("\"longer\"", "\"\\n\\u00e9 and é\"", usage), true),
        (answer("\"\"", "\"b\"", usage), true),
        (first.replace(":1,", ":170000,"), true),
        (first.replace(":5,", ":2.0e1,"), true),
        (first.replace(":5,", ":-2,"), true),
        (first.replace(":5,", ":0.5,"), true),
        // An empty text is not recorded, so it is another fact.
        (answer("\"a\"", "\"\"", usage), false),
        (answer("\"a\"", "null", usage), false),
        (answer("1", "\"b\"", usage), false),
        (first.replace(":5,", ":\"5\","), false),
        (first.replace(":5,", ":05,"), false),
        (first.replace(":5,", ": 5,"), false),
        (first.replace("stop", "length"), false),
        (first.replace("\"m\"", "\"n\""), false),
        (format!("{first} "), false),
        (format!("{first}}}"), false),
        (first[..first.len() - 1].to_owned(), false),
        (first.replace("\"b\"", "\"b\n\""), false),
        (first.replace("\"b\"", "\"b"), false),
        (first.replace("\"b\"", "\"\\x\""), false),
    ] {
        assert_eq!(fitted(&[&first, &other]), [false, matches], "{other}");
        assert!(fitted(&[&first, &other, &first])[2], "{other}");
    }
}

#[test]
fn the_details_of_a_usage_may_be_others() {
    let usage = |cached: u32, thoughts: &str| {
        format!(
            r#"{{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11,"prompt_tokens_details":{{"cached_tokens":{cached},"audio_tokens":0}},"completion_tokens_details":{{"reasoning_tokens":{thoughts},"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}}}"#
        )
    };
    let of = |cached, thoughts| answer("\"a\"", "\"b\"", &usage(cached, thoughts));
    let first = of(0, "0");
    for (other, matches) in [
        (of(1024, "17"), true),
        (of(0, "1e3"), true),
        (of(0, "null"), false),
        (of(0, "{}"), false),
    ] {
        assert_eq!(fitted(&[&first, &other]), [false, matches], "{other}");
    }
}

#[test]
fn an_answer_with_two_usages_is_not_a_template() {
    let both = r#""prompt_tokens":1,"completion_tokens":2"#;
    for (one, other) in [
        (both, r#""total_tokens":9"#),
        (both, r#""x":9"#),
        (both, both),
        (r#""total_tokens":9"#, both),
    ] {
        let text = format!(r#"{{"choices":[],"usage":{{{one}}},"usage":{{{other}}}}}"#);
        assert_eq!(fitted(&[&text, &text]), [false, false], "{text}");
    }
}

/// An answer of a model, whose template matches no other model's.
fn answer_of(model: usize) -> String {
    answer("\"a\"", "\"b\"", "{}").replace("\"m\"", &format!("\"m{model}\""))
}

#[test]
fn several_templates_are_kept_and_the_least_recently_used_is_evicted() {
    let all = 0..TEMPLATES_MAX;
    let others = [0, TEMPLATES_MAX, 0, 2, TEMPLATES_MAX, 1];
    let texts: Vec<String> = all
        .clone()
        .chain(all)
        .chain(others)
        .map(answer_of)
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let mut expected = vec![false; TEMPLATES_MAX];
    expected.extend([true; TEMPLATES_MAX]);
    // One more evicts the second.
    expected.extend([true, false, true, true, true, false]);
    assert_eq!(fitted(&texts), expected);
}

#[test]
fn more_models_than_templates_do_not_evict_each_other() {
    for (models, fit_min) in [
        (TEMPLATES_MAX, 990),
        (TEMPLATES_MAX + 1, 700),
        (2 * TEMPLATES_MAX, 300),
    ] {
        let mut templates = Templates::default();
        let matches = (0..1000)
            .filter(|n| read_by(&mut templates, &answer_of(n % models)).2)
            .count();
        assert!(
            matches >= fit_min,
            "{matches} of 1000 with {models} models in turn"
        );
    }
}

#[test]
fn a_template_with_another_metadata_name_does_not_match() {
    let text = r#"{"id":"a","y":1,"choices":[{"index":0}]}"#;
    let mut templates = Templates::default();
    let bytes = Bytes::of(text.as_bytes());
    for metadata in ["x", "y", "x"] {
        let (template, read) = templates.read(text.as_bytes(), bytes, Family::CHAT, metadata);
        read.expect("JSON");
        let mut facts = Completion::new();
        facts
            .read(Completion::walk, text.as_bytes(), metadata)
            .expect("JSON");
        assert_eq!(format!("{:?}", template.facts), format!("{facts:?}"));
        templates.recycle(template);
    }
    assert_eq!(templates.known.len(), 2);
}

#[test]
fn answers_without_common_bytes_rarely_become_templates() {
    let mut templates = Templates::default();
    let learns = |templates: &mut Templates, text: &str| {
        let (template, _) = templates.read(
            text.as_bytes(),
            Bytes::of(text.as_bytes()),
            Family::CHAT,
            METADATA,
        );
        let learned = !template.fixed.is_empty() && !template.used;
        templates.recycle(template);
        usize::from(learned)
    };
    let learned: usize = (0..1000)
        .map(|model| learns(&mut templates, &answer_of(model)))
        .sum();
    // While there is capacity, then after 1, 2, 4 and so on, and at last one in 64.
    assert_eq!(
        learned,
        TEMPLATES_MAX + 7 + (1000 - TEMPLATES_MAX - 127) / 64
    );
    // Then they match again.
    let learned: usize = (0..1000)
        .map(|_| learns(&mut templates, &answer_of(5000)))
        .sum();
    assert_eq!(learned, 1, "one is enough");
}

/// A value of a member, valid JSON or not.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "\"[a-zé\\\\\"\n ]{0,20}\"",
        2 => "\"[a-z]{0,20}\"",
        2 => (0u64..1 << 34).prop_map(|number| number.to_string()),
        1 => "-?[0-9]{1,3}(\\.[0-9]{0,2})?([eE][+-]?[0-9]{0,2})?",
        1 => prop::sample::select(vec!["null", "true", "{}", "[]", "{\"cached\":1}", "[{\"text\":\"t\"}]", ""]).prop_map(str::to_owned),
    ]
}

proptest! {
    #[test]
    fn facts_from_a_template_equal_facts_from_a_full_parse(
        values in prop::collection::vec(prop::collection::vec(value(), 9), 1..6),
        form in 0..5,
    ) {
        let of = |v: &Vec<String>| match form {
            0 => answer(&v[0], &v[1], &v[2]),
            1 => format!(r#"{{"choices":[{{"message":{{"content":{},"reasoning":{},"refusal":{}}},"index":{}}},{{"text":{}}}],"id":{},"x_svc":{},"usage":{{"prompt_tokens":{},"x":{}}}}}"#, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]),
            4 => format!(r#"{{"choices":[{{"text":{}}}],"usage":{{"details":{{"cached":{},"prompt_tokens":{}}},"prompt_tokens":{},"total_tokens":{{"x":{}}},"completion_tokens":{}}},"id":{},"created":{},"model":{}}}"#, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]),
            2 => format!(r#" {{ "id" : {}, "choices":[{{"delta":{{"content":[{{"text":{}}},{{"url":{}}}],"tool_calls":[{{"name":{},"arguments":{}}}]}}}}], "usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens":{}}} }} "#, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]),
            _ => format!(r#"{{"usage":{},"usage":{{"total_tokens":{}}},"id":{},"created":{},"id":{},"error":{},"choices":{},"model":{}}}"#, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]),
        };
        let texts: Vec<String> = values.iter().map(of).collect();
        // Each twice, and all in one order and the other, so that each meets templates of the others and its own.
        let texts: Vec<&str> = texts.iter().chain(texts.iter().rev()).map(String::as_str).collect();
        fitted(&texts);
    }

    #[test]
    fn a_damaged_answer_is_parsed_like_by_the_full_parser(at in any::<prop::sample::Index>(), with in "[\\[\\]{}\",:\\\\ 0-9e.é\n]{0,2}", cut in 0usize..3) {
        let text = answer("\"a\"", "\"the text\"", r#"{"prompt_tokens":5,"completion_tokens":6,"total_tokens":11}"#);
        let start = at.index(text.len());
        let end = (start + cut).min(text.len());
        let damaged = format!("{}{with}{}", &text[..start], &text[end..]);
        fitted(&[&text, &damaged, &text, &damaged]);
    }
}
