//! Chat messages of the sandbox: the conversation in the form, and parsing of API responses.

use serde_json::Value;
use tollgate_money::Micros;

use crate::form::Form;

/// Maximum number of messages of a conversation.
const MESSAGES_MAX: usize = 100;

/// Author of a message.
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
pub(super) struct ChatMessage {
    pub(super) role: Role,
    pub(super) content: String,
    /// Statistics of an answer.
    pub(super) stats: Option<AnswerStats>,
}

/// Cost, tokens, cache status and duration of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerStats {
    pub(super) cost: Micros,
    pub(super) tokens_in: u64,
    pub(super) tokens_out: u64,
    pub(super) cached: bool,
    pub(super) took_ms: u64,
}

impl AnswerStats {
    /// Serialised for the form.
    pub(super) fn write(&self) -> String {
        let AnswerStats {
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

    fn read(text: &str) -> Option<AnswerStats> {
        let mut fields = text.split(' ');
        let stats = AnswerStats {
            cost: fields.next()?.parse().ok()?,
            tokens_in: fields.next()?.parse().ok()?,
            tokens_out: fields.next()?.parse().ok()?,
            cached: fields.next()? == "1",
            took_ms: fields.next()?.parse().ok()?,
        };
        fields.next().is_none().then_some(stats)
    }
}

/// The messages in a form: `user` and `assistant` fields in order, each answer followed by its statistics.
pub(super) fn read_messages(form: &Form) -> Vec<ChatMessage> {
    let mut messages: Vec<ChatMessage> = Vec::new();
    for (name, value) in form.iter() {
        let role = match name {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "facts" => {
                if let Some(last) = messages
                    .last_mut()
                    .filter(|last| last.role == Role::Assistant)
                {
                    last.stats = AnswerStats::read(value);
                }
                continue;
            }
            _ => continue,
        };
        messages.push(ChatMessage {
            role,
            content: value.to_owned(),
            stats: None,
        });
    }
    let excess = messages.len().saturating_sub(MESSAGES_MAX);
    messages.drain(..excess);
    messages
}

/// The result of a chat request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatOutcome {
    /// An answer of a model.
    Answer(ChatMessage),
    /// An error, with code and message.
    Refused { code: String, message: String },
}

/// Parses an API response. `metadata` names the member that contains the cost.
pub(super) fn parse_response(body: &[u8], metadata: &str, took_ms: u64) -> ChatOutcome {
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let error = &body["error"];
    if error.is_object() || !body["choices"].is_array() {
        let text =
            |member: &str, otherwise: &str| error[member].as_str().unwrap_or(otherwise).to_owned();
        return ChatOutcome::Refused {
            code: text("code", "internal_error"),
            message: text("message", "The response could not be parsed."),
        };
    }
    let message = &body["choices"][0]["message"];
    let count = |member: &str| body["usage"][member].as_u64().unwrap_or(0);
    let service_metadata = &body[metadata];
    ChatOutcome::Answer(ChatMessage {
        role: Role::Assistant,
        content: message["content"].as_str().unwrap_or_default().to_owned(),
        stats: Some(AnswerStats {
            // Parsed from its decimal text, not as a float.
            cost: service_metadata["credits_used"]
                .to_string()
                .parse()
                .unwrap_or(Micros::ZERO),
            tokens_in: count("prompt_tokens"),
            tokens_out: count("completion_tokens"),
            cached: service_metadata["cache_hit"].as_bool().unwrap_or(false),
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
        let ChatOutcome::Answer(message) = parse_response(body, "x_svc", 7) else {
            panic!("an answer");
        };
        let stats = message.stats.expect("facts");
        assert_eq!((message.content.as_str(), stats.cost.get()), ("Hi", 5_600));
        assert_eq!(stats.write(), "0.0056 3 4 1 7");
    }

    #[test]
    fn a_refusal_keeps_its_code_and_its_message() {
        let body = br#"{"error":{"message":"Add credits.","type":"x","param":null,"code":"insufficient_credits"}}"#;
        let refused = ChatOutcome::Refused {
            code: "insufficient_credits".into(),
            message: "Add credits.".into(),
        };
        assert_eq!(parse_response(body, "x_svc", 7), refused);
        assert!(matches!(
            parse_response(b"<html>", "x_svc", 7),
            ChatOutcome::Refused { .. }
        ));
    }

    proptest! {
        #[test]
        fn a_conversation_round_trips_through_its_form(messages in prop::collection::vec((any::<bool>(), "[^\r]{0,20}", 0i64..1 << 40), 0..8)) {
            let messages: Vec<ChatMessage> = messages
                .into_iter()
                .map(|(user, content, cost)| ChatMessage {
                    role: if user { Role::User } else { Role::Assistant },
                    content,
                    stats: (!user).then_some(AnswerStats {
                        cost: Micros::new(cost),
                        tokens_in: 1,
                        tokens_out: 2,
                        cached: cost % 2 == 0,
                        took_ms: 3,
                    }),
                })
                .collect();
            let mut form = form_urlencoded::Serializer::new(String::new());
            for message in &messages {
                form.append_pair(message.role.word(), &message.content);
                if let Some(stats) = &message.stats {
                    form.append_pair("facts", &stats.write());
                }
            }
            prop_assert_eq!(read_messages(&Form::read(form.finish().as_bytes())), messages);
        }
    }
}
