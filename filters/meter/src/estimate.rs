//! Token counting for an answer whose provider reported no usage.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Semaphore;
use tollgate_filter::Tokens;
use tollgate_openai::count::{self, Estimate, VocabularyFactor};

/// Tokens of a chat template for each message.
const TOKENS_PER_MESSAGE: u64 = 3;

/// Tokens that start the answer.
const TOKENS_PER_REQUEST: u64 = 3;

/// Bytes of base64 media for a token. Sound of 24,000 samples a second has about 3,200 bytes for each of its 20 tokens a second, a picture
/// rather fewer. The count is therefore never above the true count.
const MEDIA_BYTES_PER_TOKEN: u64 = 4_096;

/// Counts tokens on the blocking thread pool, a few answers concurrently.
pub(crate) struct Counter {
    permits: Arc<Semaphore>,
}

/// Token counting failed: its thread panicked, or the process is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the tokens of an answer could not be counted")]
pub(crate) struct CountError(#[source] Option<tokio::task::JoinError>);

/// The input of a count.
pub(crate) struct Texts {
    /// The request's body, validated JSON.
    pub(crate) request: bytes::Bytes,
    /// The generated text.
    pub(crate) answer: String,
    /// Bytes of pictures and sounds in the answer.
    pub(crate) media_bytes: u64,
    /// The model's tokens for a million o200k tokens.
    pub(crate) factor_ppm: u32,
}

impl Counter {
    pub(crate) fn new(parallel: usize) -> Counter {
        Counter {
            permits: Arc::new(Semaphore::new(parallel)),
        }
    }

    pub(crate) async fn count(&self, texts: Texts) -> Result<Tokens, CountError> {
        let permits = Arc::clone(&self.permits);
        let permit = permits
            .acquire_owned()
            .await
            .map_err(|_| CountError(None))?;
        tokio::task::spawn_blocking(move || {
            let tokens = texts.count();
            drop(permit);
            tokens
        })
        .await
        .map_err(|error| CountError(Some(error)))
    }
}

impl Texts {
    fn count(&self) -> Tokens {
        let factor = VocabularyFactor {
            ppm: self.factor_ppm,
        };
        let prompt = Prompt::of(&self.request);
        let Estimate(read) = count::tokens(&prompt.text, factor);
        let Estimate(completion) = count::tokens(&self.answer, factor);
        Tokens {
            prompt: read + prompt.messages * TOKENS_PER_MESSAGE + TOKENS_PER_REQUEST,
            completion: completion.saturating_add(self.media_bytes / MEDIA_BYTES_PER_TOKEN),
        }
    }
}

/// The text of a request that the model reads.
#[derive(Debug, Default, PartialEq, Eq)]
struct Prompt {
    text: String,
    messages: u64,
}

impl Prompt {
    /// The texts of a body: the texts of messages or prompts, and the tools. A full JSON tree is acceptable here: an answer in thousands is
    /// counted.
    fn of(body: &[u8]) -> Prompt {
        let mut prompt = Prompt::default();
        let Ok(body) = serde_json::from_slice::<Value>(body) else {
            return prompt;
        };
        // The system text is read before every prompt.
        match &body["prompt"] {
            Value::Array(prompts) => {
                for one in prompts {
                    prompt.add(&body["system"]);
                    prompt.add(one);
                }
            }
            one => {
                prompt.add(&body["system"]);
                prompt.add(one);
            }
        }
        for message in body["messages"].as_array().into_iter().flatten() {
            prompt.messages += 1;
            prompt.add(&message["name"]);
            prompt.add(&message["content"]);
            prompt.add_json(&message["tool_calls"]);
        }
        prompt.add_json(&body["tools"]);
        prompt
    }

    /// Adds a text, or the texts of a list: strings, and parts with a `text`.
    fn add(&mut self, value: &Value) {
        match value {
            Value::String(text) => {
                self.text.push_str(text);
                self.text.push('\n');
            }
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(part) => {
                if let Some(text) = part.get("text") {
                    self.add(text);
                }
            }
            _ => {}
        }
    }

    /// Adds a value that the model reads as JSON or in a similar form.
    fn add_json(&mut self, value: &Value) {
        if !value.is_null() {
            self.text.push_str(&value.to_string());
            self.text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prompt_is_what_the_model_reads_and_nothing_else() {
        check(
            r#"{"model":"m","messages":[{"role":"user","content":"a"},{"role":"user","name":"n","content":[
                {"type":"text","text":"b"},{"type":"image_url","image_url":{"url":"data:..."}}]},
                {"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}],"tools":[{"type":"function"}],"user":"x"}"#,
            "a\nn\nb\n[{\"id\":\"1\"}]\n[{\"type\":\"function\"}]\n",
            3,
        );
        check(r#"{"system":"s","prompt":["a","b"]}"#, "s\na\ns\nb\n", 0);
        check(r#"{"prompt":"a"}"#, "a\n", 0);
    }

    fn check(body: &str, text: &str, messages: u64) {
        let expected = Prompt {
            text: text.into(),
            messages,
        };
        assert_eq!(Prompt::of(body.as_bytes()), expected, "{body}");
    }

    #[tokio::test]
    async fn both_sides_are_counted_in_the_models_own_tokens() {
        let counter = Counter::new(1);
        for (factor_ppm, expected) in [(1_000_000, 2), (1_500_000, 3)] {
            let texts = Texts {
                request: bytes::Bytes::from_static(br#"{"prompt":"hello"}"#),
                answer: "hello world".into(),
                media_bytes: 0,
                factor_ppm,
            };
            let tokens = counter.count(texts).await.expect("a count");
            assert_eq!(tokens.completion, expected, "by {factor_ppm} ppm");
        }
    }
}
