//! Translation of streamed chats into a single text stream.

use std::sync::Arc;

use bytes::BytesMut;

use crate::event;
use crate::usage::Usage;

use super::choice::{ChatOutput, Identity};
use super::{TextAsChat, TurnError};

/// A text stream in progress, made of the streams of the chats.
#[derive(Debug)]
pub struct TextStream {
    turn: Arc<TextAsChat>,
    /// Set by the first event: every event of a stream has an equal identity.
    identity: Option<Identity>,
    chats: Vec<Chat>,
    /// The sum that was written for several chats.
    written: Option<Usage>,
    scratch: BytesMut,
}

/// The state of a chat.
#[derive(Debug, Default)]
struct Chat {
    choices: Vec<Choice>,
    usage: Option<Usage>,
}

/// The state of a choice.
#[derive(Debug)]
struct Choice {
    index: u64,
    /// Characters whose tokens have been written.
    at: u64,
    over: bool,
}

impl Chat {
    fn choice(&mut self, index: u64) -> (&mut Choice, bool) {
        let known = self.choices.iter().position(|choice| choice.index == index);
        let at = known.unwrap_or(self.choices.len());
        if known.is_none() {
            self.choices.push(Choice {
                index,
                at: 0,
                over: false,
            });
        }
        (&mut self.choices[at], known.is_none())
    }
}

impl TextStream {
    /// A stream for this request.
    pub fn new(turn: Arc<TextAsChat>) -> Self {
        let chats = turn.chats().iter().map(|_| Chat::default()).collect();
        Self {
            turn,
            identity: None,
            chats,
            written: None,
            scratch: BytesMut::new(),
        }
    }

    /// Appends the event of the text stream for the data of an event of the chat for prompt `prompt`, except for `[DONE]`. Appends nothing
    /// for an event without content for a text stream.
    ///
    /// # Errors
    ///
    /// The data is not an event of a chat.
    pub fn turn(
        &mut self,
        prompt: usize,
        data: &[u8],
        out: &mut BytesMut,
    ) -> Result<(), TurnError> {
        let mut output = ChatOutput::read(data)?;
        let alone = self.chats.len() == 1;
        if let Some(usage) = output.usage {
            self.chats[prompt].usage = Usage::read(usage.of(data)).or(self.chats[prompt].usage);
        }
        let identity = self
            .identity
            .get_or_insert_with(|| Identity::of(&output, data));
        let text = &mut self.scratch;
        text.clear();
        output.write_head(data, identity, text);
        if let Some(error) = output.error {
            text.extend_from_slice(br#""error":"#);
            text.extend_from_slice(error.of(data));
            text.extend_from_slice(b",");
        }
        text.extend_from_slice(br#""choices":["#);
        let mut some = false;
        for choice in &mut output.choices {
            let (standing, new) = self.chats[prompt].choice(choice.index);
            choice.take_message(!new);
            standing.over |= choice.finish.is_some();
            let echo = if new { self.turn.echo(prompt) } else { &[] };
            if choice.is_silent() && echo.is_empty() {
                continue;
            }
            if some {
                text.extend_from_slice(b",");
            }
            some = true;
            let number = self.turn.number(prompt, choice.index)?;
            let logprobs = self.turn.logprobs.map(|top| (top, &mut standing.at));
            choice.write(data, number, echo, logprobs, text)?;
        }
        text.extend_from_slice(b"]");
        // The usage of a single chat is relayed. The sum of several usages is written as soon as every chat is complete.
        let usage = output.usage.filter(|_| alone);
        if let Some(usage) = usage {
            text.extend_from_slice(br#","usage":"#);
            text.extend_from_slice(usage.of(data));
        }
        text.extend_from_slice(b"}");
        if some || usage.is_some() || output.error.is_some() {
            event::write(text, out);
        }
        let may_complete =
            output.usage.is_some() || output.choices.iter().any(|choice| choice.finish.is_some());
        if !alone && may_complete && (0..self.chats.len()).all(|prompt| self.is_complete(prompt)) {
            self.write_usage(out);
        }
        Ok(())
    }

    /// Whether every requested choice of the chat for prompt `prompt` has ended, and the chat's usage is known.
    pub fn is_complete(&self, prompt: usize) -> bool {
        self.is_over(prompt) && self.chats[prompt].usage.is_some()
    }

    /// Whether every requested choice of the chat for prompt `prompt` has ended.
    pub fn is_over(&self, prompt: usize) -> bool {
        let begun = self.chats[prompt].choices.len();
        begun as u64 >= self.turn.answers_each && self.has_ended(prompt)
    }

    /// Whether a choice of the chat has begun, and every begun choice has ended: enough with `[DONE]`.
    pub fn has_ended(&self, prompt: usize) -> bool {
        let choices = &self.chats[prompt].choices;
        !choices.is_empty() && choices.iter().all(|choice| choice.over)
    }

    /// Appends the end of a stream whose chats are over: the usage, if every chat of several has reported its usage, and `[DONE]`.
    pub fn end(&mut self, out: &mut BytesMut) {
        if self.chats.len() > 1 {
            self.write_usage(out);
        }
        event::write(event::DONE, out);
    }

    /// Appends the usage event of several chats, if every chat has reported its usage and the sum has not been written.
    fn write_usage(&mut self, out: &mut BytesMut) {
        let sum = Usage::sum(self.chats.iter().map(|chat| chat.usage));
        let Some(usage) = sum.filter(|sum| self.written != Some(*sum)) else {
            return;
        };
        self.written = Some(usage);
        let text = &mut self.scratch;
        text.clear();
        let identity = self.identity.get_or_insert_default();
        ChatOutput::default().write_head(b"", identity, text);
        text.extend_from_slice(br#""choices":[],"usage":"#);
        usage.write(text);
        text.extend_from_slice(b"}");
        event::write(text, out);
    }
}
