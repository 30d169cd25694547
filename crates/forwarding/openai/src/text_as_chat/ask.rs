//! Translation of a text request into chats.

use bytes::{Bytes, BytesMut};

use crate::json::{Kind, Reader, Span};
use crate::number::{self, Whole};
use crate::request::{CompletionRequest, RequestError, RequestErrorCode};

use super::{PROMPTS_MAX, TextAsChat};

/// Members of a text request that a chat encodes differently or lacks. Tools are among the members: calls of tools cannot be represented in
/// a text.
const LEFT_OUT: [&str; 14] = [
    "prompt",
    "system",
    "messages",
    "echo",
    "suffix",
    "best_of",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "modalities",
];

/// The chats for a text request, before they are written.
pub struct ChatPlan<'b> {
    asked: Asked,
    answers_each: u64,
    body: &'b [u8],
}

/// The parsed members of a text request.
#[derive(Default)]
struct Asked {
    prompts: Vec<Span>,
    system: Option<Span>,
    echo: bool,
    logprobs: Option<u64>,
    /// Members that are unchanged.
    kept: Vec<Span>,
}

impl TextAsChat {
    /// The chats that are equivalent to a text request. `body` is the body of `request`.
    ///
    /// # Errors
    ///
    /// The request needs a feature that a chat does not have: always a 400.
    pub fn read(request: &CompletionRequest, body: &[u8]) -> Result<Self, RequestError> {
        Ok(ChatPlan::read(request, body)?.write())
    }
}

impl<'b> ChatPlan<'b> {
    /// The chats that are equivalent to a text request. `body` is the body of `request`.
    ///
    /// # Errors
    ///
    /// The request needs a feature that a chat does not have: always a 400.
    pub fn read(request: &CompletionRequest, body: &'b [u8]) -> Result<Self, RequestError> {
        let asked = Asked::read(body)?;
        if asked.prompts.is_empty() {
            return Err(refused("prompt", "needs at least one item"));
        }
        if asked.prompts.len() > PROMPTS_MAX {
            let problem = format!(
                "has {} items; this model is served through chat, send at most {PROMPTS_MAX} in one request",
                asked.prompts.len()
            );
            return Err(refused("prompt", &problem));
        }
        if request.best_of > request.n {
            return Err(refused(
                "best_of",
                "is above `n`, and this model is served through chat, which cannot choose; leave it out",
            ));
        }
        if asked.echo && asked.logprobs.is_some() {
            return Err(refused(
                "echo",
                "is true beside `logprobs`, and this model is served through chat, which has none for the prompt; send one of them",
            ));
        }
        Ok(Self {
            asked,
            answers_each: request.n,
            body,
        })
    }

    /// The most bytes written: `system` and the kept members are in each chat.
    pub fn bytes_max(&self) -> usize {
        let prompts = self.asked.prompts.iter();
        prompts
            .map(|prompt| self.asked.chat_bytes_max(*prompt))
            .sum()
    }

    /// Writes the chats.
    pub fn write(self) -> TextAsChat {
        let (asked, body) = (self.asked, self.body);
        let chat = |prompt: &Span| asked.chat(*prompt, body);
        let echoed = |prompt: &Span| {
            let inner = &body[prompt.start + 1..prompt.end - 1];
            asked.echo.then(|| Bytes::copy_from_slice(inner))
        };
        TextAsChat {
            chats: asked.prompts.iter().map(chat).collect(),
            answers_each: self.answers_each,
            echoed: asked.prompts.iter().filter_map(echoed).collect(),
            logprobs: asked.logprobs,
        }
    }
}

impl Asked {
    fn read(body: &[u8]) -> Result<Self, RequestError> {
        let mut asked = Self::default();
        let mut reader = Reader::new(body);
        let mut first = true;
        reader.kind()?;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let kind = reader.kind()?;
            let left_out = LEFT_OUT.iter().find(|name| key.text.is(name));
            match left_out.copied() {
                Some("prompt") if kind == Kind::Array => {
                    let mut first = true;
                    reader.enter()?;
                    while reader.item(&mut first)? {
                        asked.prompts.push(reader.skip()?);
                    }
                    continue;
                }
                Some("echo") if kind == Kind::Bool => {
                    asked.echo = reader.bool()?;
                    continue;
                }
                Some("logprobs") => {
                    asked.logprobs = logprobs(&mut reader, kind)?;
                    continue;
                }
                _ => {}
            }
            let value = reader.skip()?;
            match left_out.copied() {
                Some("prompt") => asked.prompts.push(value),
                Some("system") if kind == Kind::String => asked.system = Some(value),
                Some("suffix") if kind != Kind::Null && value.of(body) != b"\"\"" => {
                    return Err(refused(
                        "suffix",
                        "is there, and this model is served through chat, which cannot insert; leave it out",
                    ));
                }
                Some(_) => {}
                None => asked.kept.push(Span {
                    start: key.at,
                    end: value.end,
                }),
            }
        }
        Ok(asked)
    }

    fn chat_bytes_max(&self, prompt: Span) -> usize {
        let kept: usize = self.kept.iter().map(|member| member.len() + 1).sum();
        kept + prompt.len() + self.system.map_or(0, Span::len) + 160
    }

    /// The chat for a prompt. Kept members are in the client's spelling.
    fn chat(&self, prompt: Span, body: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(self.chat_bytes_max(prompt));
        out.extend_from_slice(b"{");
        for member in &self.kept {
            out.extend_from_slice(member.of(body));
            out.extend_from_slice(b",");
        }
        if let Some(top) = self.logprobs {
            out.extend_from_slice(br#""logprobs":true,"top_logprobs":"#);
            out.extend_from_slice(itoa::Buffer::new().format(top).as_bytes());
            out.extend_from_slice(b",");
        }
        out.extend_from_slice(br#""messages":["#);
        if let Some(system) = self.system {
            out.extend_from_slice(br#"{"role":"system","content":"#);
            out.extend_from_slice(system.of(body));
            out.extend_from_slice(b"},");
        }
        out.extend_from_slice(br#"{"role":"user","content":"#);
        out.extend_from_slice(prompt.of(body));
        out.extend_from_slice(b"}]}");
        out.freeze()
    }
}

/// `logprobs` of a text request: the number of likeliest tokens at each position.
fn logprobs(reader: &mut Reader<'_>, kind: Kind) -> Result<Option<u64>, RequestError> {
    const WANTED: &str = "is no number of tokens; send an integer of at least 0";
    match kind {
        Kind::Null => {
            reader.null()?;
            Ok(None)
        }
        // The chat form, which some clients send.
        Kind::Bool => Ok(reader.bool()?.then_some(0)),
        Kind::Number => match number::whole(reader.number()?) {
            Whole::Value(count) => Ok(Some(count)),
            Whole::Negative | Whole::Fraction => Err(refused("logprobs", WANTED)),
        },
        _ => Err(refused("logprobs", WANTED)),
    }
}

fn refused(member: &str, problem: &str) -> RequestError {
    RequestError {
        code: RequestErrorCode::OutOfRange,
        param: Some(member.to_owned()),
        message: format!("{member} {problem}."),
    }
}
