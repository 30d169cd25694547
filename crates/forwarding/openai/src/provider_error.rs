//! Provider errors, sanitised for clients and logs.

use std::borrow::Cow;
use std::time::Duration;

use crate::json::{Kind, Reader, SyntaxError};

/// The most characters of a message.
const MESSAGE_CHARS_MAX: usize = 400;

/// A provider's error, as far as the error can be parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderError {
    /// The message on a line, without control characters, at most 400 characters; `None` without a readable message.
    pub message: Option<String>,
    /// The provider's `type`, cleaned like the message.
    pub kind: Option<String>,
    /// The provider's `code`, as text even for a number.
    pub code: Option<String>,
    /// The provider's `param`.
    pub param: Option<String>,
    /// The requested wait: `retryDelay` in an item of the error's `details`, as Google sends the wait (`google.rpc.RetryInfo`).
    pub retry_delay: Option<Duration>,
}

impl ProviderError {
    /// Parses the body of a response, or the data of an error event, in any format.
    ///
    /// Supported are the envelope `{"error":{"message",...}}`, `{"error":"..."}`, `{"message":"..."}`, `{"detail":"..."}` or a list of
    /// details, an array around any of these forms, a JSON string, and plain text. An HTML page yields its title. Anything else yields no
    /// message.
    pub fn read(body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let text = text.trim_start_matches('\u{feff}').trim();
        let mut error = Self::default();
        match error.json(text.as_bytes()) {
            Ok(()) => {}
            Err(_) if text.starts_with(['{', '[']) => error = Self::default(),
            Err(_) if text.starts_with('<') => {
                error = Self::default();
                error.message = title(text).and_then(|title| clean(&title));
            }
            Err(_) => {
                error = Self::default();
                error.message = clean(text);
            }
        }
        error
    }

    fn json(&mut self, text: &[u8]) -> Result<(), SyntaxError> {
        let mut reader = Reader::new(text);
        self.value(&mut reader, 0)?;
        reader.end()
    }

    /// Parses a value that may contain an error, down to the fourth level.
    fn value(&mut self, reader: &mut Reader<'_>, level: u32) -> Result<(), SyntaxError> {
        match reader.kind()? {
            Kind::String => {
                let text = clean(&reader.string()?.decode_lossy());
                self.message = self.message.take().or(text);
            }
            Kind::Object if level < 4 => self.object(reader, level)?,
            Kind::Array if level < 4 => {
                let mut first = true;
                reader.enter()?;
                while reader.item(&mut first)? {
                    self.value(reader, level + 1)?;
                }
            }
            _ => {
                reader.skip()?;
            }
        }
        Ok(())
    }

    /// Reads the wait in a list of details. The first wait counts.
    fn details(&mut self, reader: &mut Reader<'_>) -> Result<(), SyntaxError> {
        let mut first = true;
        reader.enter()?;
        while reader.item(&mut first)? {
            if reader.kind()? != Kind::Object {
                reader.skip()?;
                continue;
            }
            let mut first = true;
            reader.enter()?;
            while let Some(key) = reader.key(&mut first)? {
                let is_text = reader.kind()? == Kind::String;
                if key.text.raw == b"retryDelay" && is_text && self.retry_delay.is_none() {
                    self.retry_delay = seconds(&reader.string()?.decode_lossy());
                } else {
                    reader.skip()?;
                }
            }
        }
        Ok(())
    }

    fn object(&mut self, reader: &mut Reader<'_>, level: u32) -> Result<(), SyntaxError> {
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let kind = reader.kind()?;
            let slot = match key.text.raw {
                b"error" | b"message" | b"detail" | b"msg" => {
                    self.value(reader, level + 1)?;
                    continue;
                }
                b"details" if kind == Kind::Array => {
                    self.details(reader)?;
                    continue;
                }
                b"type" => &mut self.kind,
                b"code" => &mut self.code,
                b"param" => &mut self.param,
                _ => {
                    reader.skip()?;
                    continue;
                }
            };
            match kind {
                Kind::String => *slot = clean(&reader.string()?.decode_lossy()),
                Kind::Number => *slot = clean(&String::from_utf8_lossy(reader.number()?)),
                _ => {
                    reader.skip()?;
                }
            }
        }
        Ok(())
    }
}

/// A duration in Protocol Buffers' JSON form: seconds, perhaps with a fraction, and `s`.
fn seconds(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s')?;
    let is_plain = number
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let seconds = number.parse::<f64>().ok().filter(|_| is_plain)?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// A line of at most 400 characters: consecutive white space and control characters become a single space.
fn clean(text: &str) -> Option<String> {
    let mut line = String::with_capacity(text.len().min(MESSAGE_CHARS_MAX));
    let mut chars = 0;
    let mut gap = false;
    for character in text.chars() {
        if is_unprintable(character) {
            gap = chars > 0;
            continue;
        }
        if chars + usize::from(gap) >= MESSAGE_CHARS_MAX - 1 {
            line.push('…');
            break;
        }
        if gap {
            line.push(' ');
            chars += 1;
            gap = false;
        }
        line.push(character);
        chars += 1;
    }
    (!line.is_empty()).then_some(line)
}

/// White space, control characters, and characters that change the display of the surrounding text.
fn is_unprintable(character: char) -> bool {
    character.is_whitespace()
        || character.is_control()
        || matches!(character, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The title of an HTML page.
fn title(page: &str) -> Option<Cow<'_, str>> {
    let lower = page.to_ascii_lowercase();
    let start = lower.find("<title")?;
    let open = start + lower[start..].find('>')? + 1;
    let close = open + lower[open..].find('<')?;
    Some(Cow::Borrowed(&page[open..close]))
}
