//! Whole chat answers joined into a single text answer.

use bytes::{Bytes, BytesMut};

use crate::usage::Usage;

use super::choice::{ChatOutput, Identity};
use super::{TextAsChat, TurnError};

impl TextAsChat {
    /// The text answer of the chats' whole answers, an answer for each prompt, in order.
    ///
    /// The choices are renumbered, and the usages are summed. If a usage of several is missing, the text answer has no usage, because a
    /// partial sum is meaningless. An error of any chat answer becomes the text answer's error.
    ///
    /// # Errors
    ///
    /// An answer is not a chat answer.
    pub fn whole(&self, answers: &[Bytes]) -> Result<Bytes, TurnError> {
        let mut all = Vec::with_capacity(answers.len());
        for answer in answers {
            let mut output = ChatOutput::read(answer)?;
            output
                .choices
                .iter_mut()
                .for_each(|choice| choice.take_message(false));
            all.push((output, answer));
        }
        let bytes: usize = answers.iter().map(Bytes::len).sum();
        let mut out = BytesMut::with_capacity(bytes + 64);
        if let Some((output, answer)) = all.iter().find(|(output, _)| output.error.is_some()) {
            out.extend_from_slice(br#"{"error":"#);
            out.extend_from_slice(output.error.map_or(b"null", |error| error.of(answer)));
            out.extend_from_slice(b"}");
            return Ok(out.freeze());
        }
        if all.iter().any(|(output, _)| output.choices.is_empty()) {
            return Err(TurnError::NoChoices);
        }
        let Some((first, text)) = all.first() else {
            return Ok(Bytes::from_static(b"{}"));
        };
        first.write_head(text, &Identity::of(first, text), &mut out);
        out.extend_from_slice(br#""choices":["#);
        let mut some = false;
        for (prompt, (output, text)) in all.iter().enumerate() {
            for choice in &output.choices {
                if some {
                    out.extend_from_slice(b",");
                }
                some = true;
                let number = self.number(prompt, choice.index)?;
                let mut at = 0;
                let logprobs = self.logprobs.map(|top| (top, &mut at));
                choice.write(text, number, self.echo(prompt), logprobs, &mut out)?;
            }
        }
        out.extend_from_slice(b"]");
        write_usage(&all, &mut out);
        out.extend_from_slice(b"}");
        Ok(out.freeze())
    }
}

/// The usage of a single answer unchanged; of several answers, the sum.
fn write_usage(all: &[(ChatOutput, &Bytes)], out: &mut BytesMut) {
    const NAME: &[u8] = br#","usage":"#;
    let usages = || {
        let of = |(output, text): &(ChatOutput, &Bytes)| {
            output.usage.map(|usage| Usage::read(usage.of(text)))
        };
        all.iter().map(move |one| of(one).flatten())
    };
    if let [(output, text)] = all {
        if let Some(usage) = output.usage {
            out.extend_from_slice(NAME);
            out.extend_from_slice(usage.of(text));
        }
    } else if let Some(usage) = Usage::sum(usages()) {
        out.extend_from_slice(NAME);
        usage.write(out);
    }
}
