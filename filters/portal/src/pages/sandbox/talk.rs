//! A conversation, as it travels in the form of the sandbox, and what an answer was like.

use serde_json::Value;
use tollgate_money::Micros;

use crate::form::Form;

/// Messages that a conversation has at most.
const MESSAGES_MAX: usize = 100;

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    User,
    Assistant,
}

impl Role {
    pub(super) fn word(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) role: Role,
    pub(super) content: String,
    /// What is known of an answer.
    pub(super) facts: Option<Facts>,
}

/// What an answer cost and how it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) cost: Micros,
    pub(super) tokens_in: u64,
    pub(super) tokens_out: u64,
    pub(super) cached: bool,
    pub(super) took_ms: u64,
}

impl Facts {
    /// As the form carries them.
    pub(super) fn write(&self) -> String {
        let Facts {
            cost,
            tokens_in,
            tokens_out,
            cached,
            took_ms,
        } = self;
        format!(
            "{cost} {tokens_in} {tokens_out} {} {took_ms}",
            u8::from(*cached)
        )
    }

    fn read(text: &str) -> Option<Facts> {
        let mut words = text.split(' ');
        let facts = Facts {
            cost: words.next()?.parse().ok()?,
            tokens_in: words.next()?.parse().ok()?,
            tokens_out: words.next()?.parse().ok()?,
            cached: words.next()? == "1",
            took_ms: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(facts)
    }
}

/// The messages that a form carries: `user` and `assistant` fields in their order, and after an answer what is known of it.
pub(super) fn read(form: &Form) -> Vec<Said> {
    let mut talk: Vec<Said> = Vec::new();
    for (name, value) in form.iter() {
        let role = match name {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "facts" => {
                if let Some(last) = talk.last_mut().filter(|last| last.role == Role::Assistant) {
                    last.facts = Facts::read(value);
                }
                continue;
            }
            _ => continue,
        };
        talk.push(Said {
            role,
            content: value.to_owned(),
            facts: None,
        });
    }
    let many = talk.len().saturating_sub(MESSAGES_MAX);
    talk.drain(..many);
    talk
}

/// What the API answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// An answer of a model.
    Said(Said),
    /// A refusal, with its code and its message.
    Refused { code: String, message: String },
}

/// Reads an answer of the API. `metadata` names the member with what it cost.
pub(super) fn answered(body: &[u8], metadata: &str, took_ms: u64) -> Answered {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let error = &body["error"];
    if error.is_object() || !body["choices"].is_array() {
        let text =
            |member: &str, otherwise: &str| error[member].as_str().unwrap_or(otherwise).to_owned();
        return Answered::Refused {
            code: text("code", "internal_error"),
            message: text("message", "The answer could not be understood."),
        };
    }
    let message = &body["choices"][0]["message"];
    let count = |member: &str| body["usage"][member].as_u64().unwrap_or(0);
    let told = &body[metadata];
    Answered::Said(Said {
        role: Role::Assistant,
        content: message["content"].as_str().unwrap_or_default().to_owned(),
        facts: Some(Facts {
            // The number is written as a decimal, and read as one.
            cost: told["credits_used"]
                .to_string()
                .parse()
                .unwrap_or(Micros::ZERO),
            tokens_in: count("prompt_tokens"),
            tokens_out: count("completion_tokens"),
            cached: told["cache_hit"].as_bool().unwrap_or(false),
            took_ms,
        }),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_answer_is_read_with_what_it_cost() {
        let body = br#"{"choices":[{"message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":4},
            "x_svc":{"credits_used":0.0056,"cache_hit":true}}"#;
        let Answered::Said(said) = answered(body, "x_svc", 7) else {
            panic!("an answer");
        };
        let facts = said.facts.expect("facts");
        assert_eq!((said.content.as_str(), facts.cost.get()), ("Hi", 5_600));
        assert_eq!(facts.write(), "0.0056 3 4 1 7");
    }

    #[test]
    fn a_refusal_keeps_its_code_and_its_message() {
        let body = br#"{"error":{"message":"Add credits.","type":"x","param":null,"code":"insufficient_credits"}}"#;
        let refused = Answered::Refused {
            code: "insufficient_credits".into(),
            message: "Add credits.".into(),
        };
        assert_eq!(answered(body, "x_svc", 7), refused);
        assert!(matches!(
            answered(b"<html>", "x_svc", 7),
            Answered::Refused { .. }
        ));
    }

    proptest! {
        #[test]
        fn a_conversation_survives_its_form(talk in prop::collection::vec((any::<bool>(), "[^\r]{0,20}", 0i64..1 << 40), 0..8)) {
            let talk: Vec<Said> = talk
                .into_iter()
                .map(|(user, content, cost)| Said {
                    role: if user { Role::User } else { Role::Assistant },
                    content,
                    facts: (!user).then_some(Facts {
                        cost: Micros::new(cost),
                        tokens_in: 1,
                        tokens_out: 2,
                        cached: cost % 2 == 0,
                        took_ms: 3,
                    }),
                })
                .collect();
            let mut form = form_urlencoded::Serializer::new(String::new());
            for said in &talk {
                form.append_pair(said.role.word(), &said.content);
                if let Some(facts) = &said.facts {
                    form.append_pair("facts", &facts.write());
                }
            }
            prop_assert_eq!(read(&Form::read(form.finish().as_bytes())), talk);
        }
    }
}
