//! The reader against the grammar, and against another parser.

use proptest::prelude::*;
use serde::de::IgnoredAny;

use super::*;

fn accepts(text: &str) -> bool {
    let mut reader = Reader::new(text.as_bytes());
    reader.skip().is_ok() && reader.end().is_ok()
}

/// The result of an independent parser. Its depth limit is 128 where ours is 64.
fn reference_accepts(text: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(text).is_ok()
}

#[test]
fn the_grammar_of_rfc_8259_is_kept() {
    let good = [
        "{}",
        "[]",
        " [ ] ",
        "0",
        "-0",
        "1e5",
        "-1.50E+07",
        "\"\"",
        "null",
        "true",
        "false",
        "{\"a\":{\"b\":[1,2,{}]},\"\":[]}",
        "\"\\u00e9\\ud83d\"",
        "\t{\r\n\"a\" : 1 }\n",
        "[[[]],{}]",
    ];
    let bad = [
        "",
        " ",
        "{",
        "}",
        "[1,]",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "{,}",
        "[1 2]",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "1e+",
        "--1",
        "0x1",
        "NaN",
        "Infinity",
        "tru",
        "truee",
        "nul",
        "'a'",
        "\"",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\u{1f}\"",
        "{} {}",
        "[]]",
        "{]",
        "[}",
        "[1}",
        "{\"a\":1]",
        "1,2",
        "/**/1",
        "\u{feff}{}",
        "{\"a\" 1}",
        "{\"a\",1}",
        "[\"a\":1]",
        "\u{b}1",
        "-",
    ];
    for text in good {
        assert!(accepts(text), "{text:?} is JSON and was refused");
    }
    for text in bad {
        assert!(!accepts(text), "{text:?} is not JSON and was accepted");
    }
}

#[test]
fn sixty_four_levels_are_read_and_one_more_is_refused() {
    for (open, close, levels) in [("[", "]", 1), ("{\"a\":[", "]}", 2)] {
        let nested = |times: usize| open.repeat(times) + "1" + &close.repeat(times);
        assert!(accepts(&nested(64 / levels)), "64 levels of {open}");
        assert!(
            !accepts(&nested(64 / levels + 1)),
            "more than 64 levels of {open}"
        );
    }
    assert!(!accepts(&"[".repeat(1_000_000)), "a million open levels");
}

type Next<'a> = fn(&mut Reader<'a>, &mut bool) -> Result<Option<Key<'a>>, SyntaxError>;

/// Name, word and position of each member.
type Members<'a> = Vec<(&'a [u8], Option<Word>, usize)>;

/// The members of the object at the start of a text, and the error after them.
fn members<'a>(text: &'a str, next: Next<'a>) -> (Members<'a>, Option<SyntaxError>) {
    let mut members = Vec::new();
    let mut reader = Reader::new(text.as_bytes());
    let mut read = || {
        reader.kind()?;
        reader.enter()?;
        let mut first = true;
        while let Some(key) = next(&mut reader, &mut first)? {
            members.push((key.text.raw, key.word, key.at));
            reader.skip()?;
        }
        reader.end()
    };
    let wrong = read().err();
    (members, wrong)
}

type Number<'a> = fn(&mut Reader<'a>) -> Result<&'a [u8], SyntaxError>;

/// The number at the start of a text, and the reader's position after it.
fn number<'a>(text: &'a str, read: Number<'a>) -> (Result<&'a [u8], SyntaxError>, usize) {
    let mut reader = Reader::new(text.as_bytes());
    (read(&mut reader), reader.at())
}

#[test]
fn names_are_found_the_short_way_as_the_long_way() {
    for name in [
        "id",
        "model",
        "finish_reason",
        "response_format",
        "completion_tokens",
        "another",
        "r\\u006fle",
        "",
        "id\0",
    ] {
        for between in [":", " :", "", ";", ",", "\":", "::"] {
            for before in [
                "",
                " ",
                ",",
                "}",
                "x",
                "\"id\":1,",
                "\"id\":1 ",
                "\"id\":1x",
                "\"id\":1",
                "\"id\":{},",
                "\"id\":1,,",
            ] {
                for behind in [
                    "1}",
                    "1}                     ",
                    "\"a\",\"user\":2,\"model\":3}",
                ] {
                    let text = format!("{{{before}\"{name}\"{between}{behind}");
                    assert_eq!(
                        members(&text, Reader::key),
                        members(&text, Reader::any_key),
                        "{text:?}"
                    );
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn numbers_are_read_the_short_way_as_the_long_way(text in "-?[0-9.eE+-]{0,12}[,} ]?[0-9]{0,10}") {
        let short = number(&text, Reader::number);
        prop_assert_eq!(short, number(&text, Reader::any_number), "{:?}", text);
    }

    #[test]
    fn damaged_members_are_read_the_short_way_as_the_long_way(at in any::<prop::sample::Index>(), with in "[{}\",:\\\\ x1\\x00]{0,2}", cut in 0usize..3) {
        let text = r#"{"id":1,"model":"m","choices":[],"r\u006fle":2,"content":"c","completion_tokens":3,"n":{},"user":null}"#;
        let start = at.index(text.len());
        let end = (start + cut).min(text.len());
        let damaged = format!("{}{with}{}", &text[..start], &text[end..]);
        prop_assert_eq!(members(&damaged, Reader::key), members(&damaged, Reader::any_key), "{:?}", damaged);
    }

    #[test]
    fn texts_of_json_characters_are_judged_as_by_another_reader(
        text in "[\\[\\]{}\",:\\\\u0-9eE+.\\-truefalsn \n]{0,24}",
    ) {
        prop_assert_eq!(accepts(&text), reference_accepts(&text), "{:?}", text);
    }

    #[test]
    fn damaged_json_is_refused_like_by_another_parser(at in any::<prop::sample::Index>(), with in "[\\[\\]{}\",:\\\\ x1é\n]{0,2}", cut in 0usize..3) {
        let text = r#"{"a":[1,-2.5e3,{"b":"c\n\u00e9"}],"é":null,"d":[true,false,[],{}],"e":""}"#;
        let mut start = at.index(text.len());
        while !text.is_char_boundary(start) {
            start -= 1;
        }
        let mut end = (start + cut).min(text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        let damaged = format!("{}{with}{}", &text[..start], &text[end..]);
        prop_assert_eq!(accepts(&damaged), reference_accepts(&damaged), "{:?}", damaged);
    }
}
