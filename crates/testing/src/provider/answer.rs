//! The content of a valid response, computable by the test.
//!
//! - **Text**: the words of one fixed sentence, over and over, 16 of them unless a script says otherwise, at most as many as `max_tokens`
//!   or `max_completion_tokens` (the smaller one) allows; when that limit ends the text, `finish_reason` is `length`. All choices have the
//!   same text.
//! - **Tokens**: one word is one token; words are separated by white space. `prompt_tokens` counts the words of the `content` of all
//!   messages (a string, or the `text` of its parts), or of `prompt` and `system`. `completion_tokens` counts the words of all choices. See
//!   [`prompt_tokens`] and [`tokens`].
//! - **Tool calls**: when `tool_choice` is `required` or names a function, or a script says so, each choice calls the named
//!   (or first) function with the arguments [`TOOL_ARGUMENTS`], which count by their words.
//! - **Choices**: `n` of them; on text completions `n` for each prompt.
//! - **Log probabilities**: with `logprobs` (true in a chat, a number in a text) every word is a token of [`LOGPROB`], with one likeliest
//!   token, the word itself, on request.
//! - **Streams**: role chunk, one chunk a word, finish chunk, each for every choice in turn; the usage chunk if
//!   `stream_options.include_usage`; `[DONE]`. A response of one choice with `w` words has `w + 3` events, or `w + 4` with usage.

use serde_json::{Value, json};

use super::script::{Script, UsageReport};

/// Default number of words in a response.
pub const WORDS_DEFAULT: u64 = 16;

/// The arguments of every tool call, a JSON text.
pub const TOOL_ARGUMENTS: &str = r#"{"place": "the north gate", "lanes": 2}"#;

/// The log probability of every token.
pub const LOGPROB: f64 = -0.25;

/// `created` of every response: the first second of 2026 (UTC).
pub const CREATED: u64 = 1_767_225_600;

const SENTENCE: [&str; 16] = [
    "The", "toll", "is", "paid", "and", "the", "gate", "stands", "open,", "so", "drive", "on",
    "while", "the", "light", "lasts.",
];

/// The text of a response with `words` words.
pub fn text(words: u64) -> String {
    let words: Vec<&str> = SENTENCE.iter().copied().cycle().take(size(words)).collect();
    words.join(" ")
}

/// The number of tokens in `text`: its words.
pub fn tokens(text: &str) -> u64 {
    text.split_whitespace().count() as u64
}

/// The number of tokens in the prompt of the request `body`.
pub fn prompt_tokens(body: &Value) -> u64 {
    let messages = body["messages"].as_array().into_iter().flatten();
    let content: u64 = messages.map(|message| words_in(&message["content"])).sum();
    content + words_in(&body["prompt"]) + words_in(&body["system"])
}

fn words_in(value: &Value) -> u64 {
    match value {
        Value::String(text) => tokens(text),
        Value::Array(parts) => parts.iter().map(words_in).sum(),
        Value::Object(part) => part.get("text").map_or(0, words_in),
        _ => 0,
    }
}

/// An error in OpenAI's format, with the type and the code that match `status`.
pub fn error_body(status: u16) -> Value {
    let (kind, code, message) = match status {
        400 => (
            "invalid_request_error",
            "invalid_value",
            "This prompt is longer than the model can read.",
        ),
        401 => (
            "invalid_request_error",
            "invalid_api_key",
            "Incorrect API key provided.",
        ),
        403 => (
            "permission_error",
            "model_not_allowed",
            "This project has no access to the model.",
        ),
        404 => (
            "invalid_request_error",
            "model_not_found",
            "The model does not exist.",
        ),
        429 => (
            "rate_limit_error",
            "rate_limit_exceeded",
            "Too many requests for this provider.",
        ),
        503 => (
            "server_error",
            "overloaded",
            "The engine is overloaded, try again later.",
        ),
        _ => (
            "server_error",
            "server_error",
            "The server had an error while processing the request.",
        ),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

/// The content of one response, before it is serialised as a body or as events.
#[derive(Clone, Debug)]
pub(super) struct GeneratedAnswer {
    chat: bool,
    id: String,
    model: String,
    choices: usize,
    words: u64,
    /// The name of the function that is called instead of returning text.
    tool: Option<String>,
    finish_reason: &'static str,
    prompt_tokens: u64,
    usage_asked: bool,
    /// Number of likeliest tokens requested at each position, where log probabilities are.
    logprobs: Option<u64>,
}

impl GeneratedAnswer {
    /// The response to `body`, number `number` of this stand-in.
    pub(super) fn to(body: &Value, chat: bool, number: u64, script: &Script) -> Self {
        let limit = ["max_tokens", "max_completion_tokens"]
            .iter()
            .filter_map(|name| body[*name].as_u64())
            .min()
            .unwrap_or(u64::MAX);
        let wanted = script.words.unwrap_or(WORDS_DEFAULT);
        let tool = chat.then(|| tool_called(body, script)).flatten();
        let prompts = match &body["prompt"] {
            Value::Array(prompts) if !chat => prompts.len().max(1),
            _ => 1,
        };
        let asked = body["model"].as_str().unwrap_or_default();
        Self {
            chat,
            id: format!("{}-standin{number}", if chat { "chatcmpl" } else { "cmpl" }),
            model: script
                .answer_model
                .clone()
                .unwrap_or_else(|| asked.to_owned()),
            choices: prompts * size(body["n"].as_u64().unwrap_or(1).clamp(1, 128)),
            words: wanted.min(limit),
            finish_reason: match (&tool, wanted > limit) {
                (Some(_), _) => "tool_calls",
                (None, true) => "length",
                (None, false) => "stop",
            },
            tool,
            prompt_tokens: prompt_tokens(body),
            usage_asked: body["stream_options"]["include_usage"] == true,
            logprobs: match chat {
                true => {
                    (body["logprobs"] == true).then(|| body["top_logprobs"].as_u64().unwrap_or(0))
                }
                false => body["logprobs"].as_u64(),
            },
        }
    }

    /// The whole response.
    pub(super) fn body(&self, script: &Script) -> Value {
        let choices: Vec<Value> = (0..self.choices).map(|index| self.choice(index)).collect();
        let object = if self.chat {
            "chat.completion"
        } else {
            "text_completion"
        };
        let mut body = json!({"id": self.id, "object": object, "created": CREATED, "model": self.model, "choices": choices});
        if script.usage != UsageReport::Forgotten {
            body["usage"] = self.usage(script, self.choices as u64 * self.words_each());
        }
        body
    }

    fn choice(&self, index: usize) -> Value {
        let mut choice =
            json!({"index": index, "logprobs": null, "finish_reason": self.finish_reason});
        match (&self.tool, self.chat) {
            (Some(name), _) => {
                let call = json!({"id": format!("call_{index}"), "type": "function",
                    "function": {"name": name, "arguments": TOOL_ARGUMENTS}});
                choice["message"] =
                    json!({"role": "assistant", "content": null, "tool_calls": [call]});
            }
            (None, true) => {
                choice["message"] = json!({"role": "assistant", "content": text(self.words)})
            }
            (None, false) => choice["text"] = text(self.words).into(),
        }
        if self.tool.is_none() {
            choice["logprobs"] = self.logprobs(&text(self.words), 0);
        }
        choice
    }

    /// The log probabilities of `text`, whose first character is number `offset` of the text.
    fn logprobs(&self, text: &str, offset: usize) -> Value {
        let Some(top) = self.logprobs else {
            return Value::Null;
        };
        let words: Vec<&str> = pieces(text).collect();
        if self.chat {
            let content = words.iter().map(|word| {
                let top: Vec<Value> = (0..top.min(1))
                    .map(|_| json!({"token": word, "logprob": LOGPROB, "bytes": null}))
                    .collect();
                json!({"token": word, "logprob": LOGPROB, "bytes": null, "top_logprobs": top})
            });
            return json!({"content": content.collect::<Vec<_>>(), "refusal": null});
        }
        let mut at = offset;
        let offsets = words.iter().map(|word| {
            let start = at;
            at += word.chars().count();
            start
        });
        let offsets: Vec<usize> = offsets.collect();
        let top = match top {
            0 => Value::Null,
            _ => words.iter().map(|word| json!({*word: LOGPROB})).collect(),
        };
        json!({"tokens": words, "token_logprobs": vec![LOGPROB; words.len()], "top_logprobs": top, "text_offset": offsets})
    }

    /// The JSON objects of a streamed response, without `[DONE]`.
    pub(super) fn chunks(&self, script: &Script) -> Vec<Value> {
        let every_choice =
            |make: &dyn Fn(usize) -> Value| (0..self.choices).map(make).collect::<Vec<_>>();
        let mut chunks = Vec::new();
        if self.chat {
            chunks.extend(every_choice(&|index| {
                self.chunk(index, json!({"role": "assistant", "content": ""}), None)
            }));
        }
        let mut offset = 0;
        for delta in self.deltas(script) {
            let content = delta["content"].as_str().or(delta.as_str());
            let content = content.unwrap_or_default().to_owned();
            chunks.extend(every_choice(&|index| {
                let mut chunk = self.chunk(index, delta.clone(), None);
                if !content.is_empty() {
                    chunk["choices"][0]["logprobs"] = self.logprobs(&content, offset);
                }
                chunk
            }));
            offset += content.chars().count();
        }
        let last = if self.chat { json!({}) } else { json!("") };
        chunks.extend(every_choice(&|index| {
            self.chunk(index, last.clone(), Some(self.finish_reason))
        }));
        self.put_usage(&mut chunks, script);
        chunks
    }

    /// The increment of each word: a chat delta, or the text of a text completion.
    fn deltas(&self, script: &Script) -> Vec<Value> {
        if let Some(name) = &self.tool {
            let first = json!({"tool_calls": [{"index": 0, "id": "call_0", "type": "function",
                "function": {"name": name, "arguments": ""}}]});
            let rest = pieces(TOOL_ARGUMENTS).map(
                |piece| json!({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}),
            );
            return std::iter::once(first).chain(rest).collect();
        }
        let text = text(self.words);
        let mut words: Vec<String> = pieces(&text).map(str::to_owned).collect();
        if let (Some(bytes), Some(first)) = (script.event_bytes, words.first_mut()) {
            // Padding without white space keeps it one word, so the charge stays computable.
            first.push_str(&"x".repeat(bytes));
        }
        words
            .into_iter()
            .map(|word| {
                if self.chat {
                    json!({"content": word})
                } else {
                    word.into()
                }
            })
            .collect()
    }

    fn chunk(&self, index: usize, delta: Value, finish: Option<&str>) -> Value {
        let mut choice = json!({"index": index, "logprobs": null, "finish_reason": finish});
        choice[if self.chat { "delta" } else { "text" }] = delta;
        let mut chunk = self.empty_chunk();
        chunk["choices"] = json!([choice]);
        chunk
    }

    fn empty_chunk(&self) -> Value {
        let object = if self.chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        json!({"id": self.id, "object": object, "created": CREATED, "model": self.model, "choices": []})
    }

    fn put_usage(&self, chunks: &mut Vec<Value>, script: &Script) {
        let total = self.choices as u64 * self.words_each();
        match script.usage {
            UsageReport::Forgotten => return,
            UsageReport::EveryChunk => {
                for chunk in chunks.iter_mut() {
                    chunk["usage"] = self.usage(script, total);
                }
            }
            UsageReport::Cumulative => {
                let mut so_far = 0;
                for chunk in chunks.iter_mut() {
                    so_far += words_added(chunk);
                    chunk["usage"] = self.usage(script, so_far);
                }
            }
            _ if self.usage_asked => chunks
                .iter_mut()
                .for_each(|chunk| chunk["usage"] = Value::Null),
            _ => {}
        }
        if self.usage_asked || script.usage == UsageReport::Unasked {
            let mut last = self.empty_chunk();
            last["usage"] = self.usage(script, total);
            chunks.push(last);
        }
    }

    fn words_each(&self) -> u64 {
        match self.tool {
            Some(_) => tokens(TOOL_ARGUMENTS),
            None => self.words,
        }
    }

    fn usage(&self, script: &Script, completion: u64) -> Value {
        let (prompt, completion) = match &script.usage {
            UsageReport::Json(value) => return value.clone(),
            UsageReport::Absurd => (1_000_000_000_000, 1_000_000_000_000),
            UsageReport::Negative => {
                return json!({"prompt_tokens": -5, "completion_tokens": -7, "total_tokens": -12});
            }
            UsageReport::Words => {
                return json!({"prompt_tokens": "five", "completion_tokens": "seven", "total_tokens": "twelve"});
            }
            UsageReport::Exactly {
                prompt_tokens,
                completion_tokens,
            } => (*prompt_tokens, *completion_tokens),
            _ => (self.prompt_tokens, completion),
        };
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt.saturating_add(completion)})
    }
}

/// One event of a stream with `data`, formatted according to `script`.
pub(super) fn event(data: &str, script: &Script) -> String {
    let end = script.line_end.text();
    let space = if script.no_space { "" } else { " " };
    let comment = if script.comments {
        format!(": keep-alive{end}")
    } else {
        String::new()
    };
    format!("{comment}data:{space}{data}{end}{end}")
}

fn tool_called(body: &Value, script: &Script) -> Option<String> {
    let choice = &body["tool_choice"];
    if let Some(name) = choice["function"]["name"].as_str() {
        return Some(name.to_owned());
    }
    let first = body["tools"][0]["function"]["name"]
        .as_str()
        .unwrap_or("look_up");
    (script.tool_call || choice == "required").then(|| first.to_owned())
}

/// `text` split before each space, so that the pieces join to it again.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let start = rest.chars().next()?.len_utf8();
        let end = rest[start..].find(' ').map_or(rest.len(), |at| start + at);
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

fn words_added(chunk: &Value) -> u64 {
    let choice = &chunk["choices"][0];
    let tool = &choice["delta"]["tool_calls"][0]["function"]["arguments"];
    [&choice["delta"]["content"], &choice["text"], tool]
        .iter()
        .filter_map(|added| added.as_str())
        .map(tokens)
        .sum()
}

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generated(body: Value) -> GeneratedAnswer {
        GeneratedAnswer::to(&body, body.get("messages").is_some(), 1, &Script::default())
    }

    #[test]
    fn tokens_are_words() {
        //     body                                                                prompt
        for (body, prompt) in [
            (
                json!({"messages": [{"role": "user", "content": "one two  three"}]}),
                3,
            ),
            (
                json!({"messages": [{"content": [{"type": "text", "text": "one two"}, {"type": "image_url"}]}]}),
                2,
            ),
            (
                json!({"messages": [{"content": null}, {"content": "one"}]}),
                1,
            ),
            (json!({"prompt": ["one two", "three"], "system": "four"}), 4),
        ] {
            assert_eq!(prompt_tokens(&body), prompt, "{body}");
        }
    }

    #[test]
    fn max_tokens_ends_the_text_with_the_reason_length() {
        //   max     words finish
        for (max, words, finish) in [(3, 3, "length"), (16, 16, "stop"), (100, 16, "stop")] {
            let body = json!({"model": "m", "messages": [{"content": "hi"}], "max_tokens": max});
            let answer = generated(body).body(&Script::default());
            assert_eq!(answer["usage"]["completion_tokens"], words);
            assert_eq!(answer["choices"][0]["finish_reason"], finish);
            assert_eq!(
                tokens(
                    answer["choices"][0]["message"]["content"]
                        .as_str()
                        .expect("text")
                ),
                words
            );
        }
    }

    #[test]
    fn a_stream_has_the_same_content_as_a_whole_answer() {
        for body in [
            json!({"model": "m", "messages": [{"content": "hi"}], "n": 2}),
            json!({"model": "m", "prompt": "hi"}),
        ] {
            let answer = generated(body);
            let whole = answer.body(&Script::default());
            let mut joined = vec![String::new(); answer.choices];
            for chunk in answer.chunks(&Script::default()) {
                let choice = &chunk["choices"][0];
                let added = choice["delta"]["content"]
                    .as_str()
                    .or(choice["text"].as_str());
                let index = choice["index"].as_u64().expect("an index");
                joined[size(index)].push_str(added.unwrap_or_default());
            }
            for (index, text) in joined.iter().enumerate() {
                let choice = &whole["choices"][index];
                let expected = choice["message"]["content"]
                    .as_str()
                    .or(choice["text"].as_str());
                assert_eq!(Some(text.as_str()), expected);
            }
        }
    }

    #[test]
    fn cumulative_usage_ends_at_the_total() {
        let script = Script::usage(UsageReport::Cumulative);
        let chunks = generated(json!({"model": "m", "messages": [{"content": "hi"}], "n": 2}))
            .chunks(&script);
        let counts: Vec<_> = chunks
            .iter()
            .map(|chunk| chunk["usage"]["completion_tokens"].as_u64())
            .collect();
        assert!(counts.is_sorted(), "{counts:?}");
        assert_eq!(counts.last(), Some(&Some(32)));
    }

    #[test]
    fn the_pieces_of_tool_arguments_join_to_the_arguments() {
        assert_eq!(pieces(TOOL_ARGUMENTS).collect::<String>(), TOOL_ARGUMENTS);
    }
}
