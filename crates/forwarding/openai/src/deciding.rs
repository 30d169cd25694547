//! The members of a request that decide the answer, as input of a digest.
//!
//! The input has the bytes of the body: nothing is decoded but member names, and a body is not parsed again. Two bodies with one input
//! have one answer. The reverse does not hold: white space, escapes and the order of inner members are part of the input, so programs that
//! serialise one conversation differently have different inputs.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::json::{Reader, Span};
use crate::request::CompletionRequest;
use crate::splice::Member;
use crate::string::Text;
use crate::word::Word;

/// Whether a top-level member decides the answer. Left out are the members that choose the delivery of an answer, or label the answer; and
/// `model`, whose name in the body may be missing or an alias. An unknown member decides.
pub(crate) fn decides(name: Option<Word>) -> bool {
    !matches!(
        name,
        Some(
            Word::Cache
                | Word::Stream
                | Word::StreamOptions
                | Word::User
                | Word::Metadata
                | Word::Store
                | Word::Model
        )
    )
}

impl CompletionRequest {
    /// Passes the members that decide the answer to `update`: in the order of their names, each name and each value after its length in
    /// eight bytes. `body` is the text that was read. The caller adds the model and the family.
    pub fn deciding_members(&self, body: &[u8], mut update: impl FnMut(&[u8])) {
        let named = |member: &Member| (name_of(member, body), member.value());
        let mut members: SmallVec<[(Cow<'_, [u8]>, Span); 16]> =
            self.deciding.iter().map(named).collect();
        members.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (name, value) in members {
            for bytes in [&*name, value.of(body)] {
                update(&(bytes.len() as u64).to_le_bytes());
                update(bytes);
            }
        }
    }
}

/// The name of a member, without escapes.
fn name_of<'b>(member: &Member, body: &'b [u8]) -> Cow<'b, [u8]> {
    // The name has been parsed before, and is valid text.
    let name = Reader::starting_at(body, member.key()).string();
    name.ok().and_then(Text::bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::family::Family;

    /// The input of the digest of a chat.
    fn input(body: &str) -> Vec<u8> {
        let request = CompletionRequest::read(Family::CHAT, body.as_bytes()).expect("a request");
        let mut input = Vec::new();
        request.deciding_members(body.as_bytes(), |bytes| input.extend_from_slice(bytes));
        input
    }

    /// A chat with further members.
    fn chat(members: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":"hi"}}]{members}}}"#)
    }

    fn part(bytes: &str) -> Vec<u8> {
        [&(bytes.len() as u64).to_le_bytes(), bytes.as_bytes()].concat()
    }

    #[test]
    fn the_input_has_names_and_values_in_the_order_of_the_names() {
        let body = r#"{ "top_p" : 0.90, "messages": [{"role":"user", "content":"\u0061"}] ,"\u0061":null, "stream":true}"#;
        let expected = [
            part("a"),
            part("null"),
            part("messages"),
            part(r#"[{"role":"user", "content":"\u0061"}]"#),
            part("top_p"),
            part("0.90"),
        ];
        assert_eq!(input(body), expected.concat());
    }

    #[test]
    fn delivery_and_labels_of_an_answer_are_left_out_and_only_at_the_top() {
        let labels = r#","user":"u","cache":true,"metadata":{"a":[1]},"store":false,"stream_options":null,"stream":false,"model":"m""#;
        assert_eq!(input(&chat(labels)), input(&chat("")));
        assert_eq!(input(&chat(r#","\u0075ser":"u""#)), input(&chat("")));
        for decides in [
            r#","service_tier":"flex""#,
            r#","top_p":null"#,
            r#","x":{"user":"a"}"#,
        ] {
            assert_ne!(input(&chat(decides)), input(&chat("")), "{decides}");
        }
    }

    #[test]
    fn requests_that_a_provider_may_distinguish_have_different_inputs() {
        for (one, other) in [
            (r#","seed":9007199254740993"#, r#","seed":9007199254740992"#),
            (r#","x":0.1"#, r#","x":0.1000000000000000055"#),
            (r#","x":1"#, r#","x":"1""#),
            (r#","max_tokens":5"#, r#","max_completion_tokens":5"#),
            (",\"x\":\"\u{e9}\"", ",\"x\":\"e\u{301}\""),
            // Parsers differ in the value of a duplicate name.
            (r#","x":{"b":1,"b":2}"#, r#","x":{"b":2,"b":1}"#),
            (r#","x":{"b":1,"b":2}"#, r#","x":{"b":2}"#),
            (r#","x":"\ud83d""#, r#","x":"\ufffd""#),
        ] {
            assert_ne!(input(&chat(one)), input(&chat(other)), "{one} {other}");
        }
    }

    /// Members that every family passes on, with any values.
    fn members() -> impl Strategy<Value = Map<String, Value>> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z0-9:,\"{}\\\\]{0,9}".prop_map(Value::from),
        ];
        let value = leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z]{1,2}", inner, 0..4)
                    .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
            ]
        });
        // A prefix prevents names of known members.
        prop::collection::btree_map("x[a-z\u{e000}\u{10000}é\"\\\\]{0,3}", value, 0..6)
            .prop_map(|map| map.into_iter().collect())
    }

    /// A chat of members in an order.
    fn body(members: &[(&String, &Value)], space: &str) -> String {
        let messages = json!([{"role": "user", "content": "hi"}]);
        let messages = (&String::from("messages"), &messages);
        let texts = members.iter().chain([&messages]).map(|(name, value)| {
            let name = Value::from(name.as_str());
            format!("{space}{name}{space}:{space}{value}{space}")
        });
        format!("{{{}}}", texts.collect::<Vec<_>>().join(","))
    }

    proptest! {
        #[test]
        fn order_and_white_space_of_top_level_members_change_nothing(members in members(), rotated in 0..6usize) {
            let mut members: Vec<_> = members.iter().collect();
            let before = input(&body(&members, ""));
            let turns = rotated % members.len().max(1);
            members.rotate_left(turns);
            prop_assert_eq!(input(&body(&members, " \n")), before);
        }

        #[test]
        fn any_change_of_any_member_changes_it(one in members(), other in members()) {
            let of = |members: &Map<String, Value>| input(&body(&members.iter().collect::<Vec<_>>(), ""));
            prop_assert_eq!(of(&one) == of(&other), one == other, "{:?} and {:?}", one, other);
        }
    }
}
