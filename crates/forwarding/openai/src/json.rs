//! A strict JSON reader that parses a text in a single pass and reports byte ranges.
//!
//! The gateway changes single members of texts that are otherwise relayed to the byte: positions matter more than values. A deserialiser
//! into structures hides positions, and a tree of values costs an allocation per node. This reader allocates nothing, never recurses, and
//! refuses every text that RFC 8259 refuses; the callers check that the text is UTF-8.

pub(crate) mod scan;
#[cfg(test)]
mod tests;

use self::scan::Specials;
use crate::string::Text;
use crate::word::{WINDOW, Word};

/// The nesting limit, the outermost value being level 1.
pub(crate) const DEPTH_MAX: u32 = 64;

/// A half-open byte range of the parsed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }

    pub(crate) fn has(self, at: usize) -> bool {
        (self.start..self.end).contains(&at)
    }

    pub(crate) fn of(self, text: &[u8]) -> &[u8] {
        &text[self.start..self.end]
    }
}

/// A syntax error and its position: JSON by RFC 8259, at most 64 levels deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem} at byte {at}")]
pub struct SyntaxError {
    /// Offset of the first invalid byte.
    pub at: usize,
    /// The expected or found token.
    pub problem: &'static str,
}

/// The six kinds of JSON values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    String,
    Number,
    Bool,
    Null,
}

impl Kind {
    /// The kind with its article, for messages.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Self::Object => "an object",
            Self::Array => "an array",
            Self::String => "a string",
            Self::Number => "a number",
            Self::Bool => "a boolean",
            Self::Null => "null",
        }
    }
}

/// A member of an object, before its value is read.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) text: Text<'a>,
    /// The word of the member's name.
    pub(crate) word: Option<Word>,
    /// The position of the key's opening quote.
    pub(crate) at: usize,
}

/// The parser of a text.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
    /// Whether the text may contain control characters: true unless the text has been scanned.
    controls: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self::starting_at(text, 0)
    }

    /// A reader that starts at `at`, for a string in a text with known surroundings.
    pub(crate) fn starting_at(text: &'a [u8], at: usize) -> Self {
        Self {
            text,
            at,
            depth: 0,
            controls: true,
        }
    }

    /// A reader at the same position, for lookahead.
    pub(crate) fn ahead(&self) -> Reader<'a> {
        self.clone()
    }

    /// The bytes of a value that has been read.
    pub(crate) fn of(&self, span: Span) -> &'a [u8] {
        span.of(self.text)
    }

    /// This reader for a scanned text.
    pub(crate) fn knowing(mut self, bytes: scan::Bytes) -> Self {
        self.controls = bytes.controls;
        self
    }

    /// Offset of the next unread byte.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Skips `bytes` if they are next, whatever their content.
    #[inline]
    pub(crate) fn passes(&mut self, bytes: &[u8]) -> bool {
        let passes = self.text[self.at..].starts_with(bytes);
        if passes {
            self.at += bytes.len();
        }
        passes
    }

    /// Whether the next byte is `byte`.
    #[inline]
    pub(crate) fn stands_at(&self, byte: u8) -> bool {
        self.text.get(self.at) == Some(&byte)
    }

    /// Whether the next byte starts a number.
    #[inline]
    pub(crate) fn stands_at_number(&self) -> bool {
        matches!(self.text.get(self.at), Some(b'-' | b'0'..=b'9'))
    }

    /// The kind of the next value, by its first byte.
    #[inline]
    pub(crate) fn kind(&mut self) -> Result<Kind, SyntaxError> {
        self.space();
        Ok(match self.text.get(self.at) {
            Some(b'{') => Kind::Object,
            Some(b'[') => Kind::Array,
            Some(b'"') => Kind::String,
            Some(b'-' | b'0'..=b'9') => Kind::Number,
            Some(b't' | b'f') => Kind::Bool,
            Some(b'n') => Kind::Null,
            Some(_) => return self.fail("a value was expected"),
            None => return self.fail("the text ends where a value was expected"),
        })
    }

    /// Enters the next object or array; the caller has checked its kind.
    #[inline]
    pub(crate) fn enter(&mut self) -> Result<(), SyntaxError> {
        if self.depth == DEPTH_MAX {
            return self.fail("more than 64 levels of nesting");
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// The next key of the entered object, or `None` after the closing brace. `first` is initially true.
    #[inline]
    pub(crate) fn key(&mut self, first: &mut bool) -> Result<Option<Key<'a>>, SyntaxError> {
        match self.plain_key(*first) {
            Some(key) => {
                *first = false;
                Ok(Some(key))
            }
            None => self.any_key(first),
        }
    }

    /// The next key in its common form: after a comma or brace, a word, a colon, and no white space. `None` for any other form; the reader
    /// stays at its position.
    #[inline]
    fn plain_key(&mut self, first: bool) -> Option<Key<'a>> {
        // The skipped byte replaces the comma.
        let before = self.at - usize::from(first);
        let [comma, quote, rest @ ..] = self.text.get(before..)?.first_chunk::<{ WINDOW + 3 }>()?;
        if *quote != b'"' || !(first || *comma == b',') {
            return None;
        }
        let (word, length) = Word::quoted(*rest.first_chunk()?)?;
        if rest[length + 1] != b':' {
            return None;
        }
        let at = before + 1;
        let text = Text {
            raw: &self.text[at + 1..][..length],
            escaped: false,
        };
        let word = Some(word);
        self.at = at + length + 3;
        Some(Key { text, word, at })
    }

    /// The next key in any form.
    #[inline(never)]
    fn any_key(&mut self, first: &mut bool) -> Result<Option<Key<'a>>, SyntaxError> {
        self.space();
        match self.text.get(self.at) {
            Some(b'}') => {
                self.leave();
                return Ok(None);
            }
            Some(b',') if !*first => {
                self.at += 1;
                self.space();
            }
            _ if *first => {}
            _ => return self.fail("`,` or `}` was expected"),
        }
        *first = false;
        let at = self.at;
        let (text, word) = self.key_and_colon()?;
        Ok(Some(Key { text, word, at }))
    }

    /// Whether the entered array has another item; false after its closing bracket.
    #[inline]
    pub(crate) fn item(&mut self, first: &mut bool) -> Result<bool, SyntaxError> {
        self.space();
        match self.text.get(self.at) {
            Some(b']') => {}
            Some(b',') if !*first => {
                self.at += 1;
                return Ok(true);
            }
            _ if *first => {
                *first = false;
                return Ok(true);
            }
            _ => return self.fail("`,` or `]` was expected"),
        }
        self.leave();
        Ok(false)
    }

    /// Skips the brace or bracket that ends the entered value.
    #[inline]
    fn leave(&mut self) {
        self.at += 1;
        self.depth -= 1;
    }

    /// The next string, a name or a value.
    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<Text<'a>, SyntaxError> {
        self.space();
        if self.text.get(self.at) != Some(&b'"') {
            return self.fail("a string was expected");
        }
        self.quoted()
    }

    /// The string whose opening quote is next.
    ///
    /// Inlined, because the result does not fit into registers.
    #[inline(always)]
    fn quoted(&mut self) -> Result<Text<'a>, SyntaxError> {
        let start = self.at + 1;
        self.at = self.special(start);
        if self.text.get(self.at) != Some(&b'"') {
            return self.rest_of_string(start);
        }
        let raw = &self.text[start..self.at];
        self.at += 1;
        let escaped = false;
        Ok(Text { raw, escaped })
    }

    /// Offset of the first byte from `from` on that is not plain.
    #[inline]
    fn special(&self, from: usize) -> usize {
        match scan::near(self.text, from) {
            Some(found) => found,
            None => self.far_special(from),
        }
    }

    #[inline(never)]
    fn far_special(&self, from: usize) -> usize {
        match self.controls {
            true => Specials::of(self.text, from).next(from),
            false => scan::far_but_controls(self.text, from),
        }
    }

    /// Continues in a string from `start`, at the string's first byte that is not plain. Source code has an escape every few words.
    #[inline(never)]
    fn rest_of_string(&mut self, start: usize) -> Result<Text<'a>, SyntaxError> {
        let text = self.text;
        let mut specials = Specials::of(text, self.at);
        let mut at = self.at;
        while text.get(at) == Some(&b'\\') {
            at += match text.get(at + 1) {
                Some(byte) if scan::is_short_escape(*byte) => 2,
                _ => self.unicode_escape(at)?,
            };
            at = specials.next(at);
        }
        self.at = at;
        match text.get(at) {
            Some(b'"') => {}
            Some(_) => return self.fail("an unescaped control character stands in a string"),
            None => return self.fail("the text ends inside a string"),
        }
        self.at += 1;
        Ok(Text {
            raw: &text[start..at],
            // Only an escape leads here.
            escaped: true,
        })
    }

    /// The next number, as written.
    #[inline]
    pub(crate) fn number(&mut self) -> Result<&'a [u8], SyntaxError> {
        match self.short_number() {
            Some(number) => Ok(number),
            None => self.any_number(),
        }
    }

    /// The next number in its common form: only digits, at most seven. `None` for any other form; the reader stays at its position.
    #[inline]
    fn short_number(&mut self) -> Option<&'a [u8]> {
        let rest = self.text.get(self.at..)?;
        let near = rest.first_chunk::<8>()?;
        let digits = scan::digits(u64::from_le_bytes(*near));
        // A zero is a number by itself; followed by digits, it is invalid.
        let is_whole = match near[0] {
            b'0' => digits == 1,
            _ => digits > 0,
        };
        if !is_whole || matches!(near.get(digits), None | Some(b'.' | b'e' | b'E')) {
            return None;
        }
        let number = &rest[..digits];
        self.at += digits;
        Some(number)
    }

    /// The next number in any form.
    #[inline(never)]
    fn any_number(&mut self) -> Result<&'a [u8], SyntaxError> {
        self.space();
        let start = self.at;
        self.take(b'-');
        let whole = self.at;
        if self.digits() == 0 {
            return self.fail("a digit was expected");
        }
        if self.text[whole] == b'0' {
            // No digit may follow a leading zero.
            self.at = whole + 1;
        }
        if let Some(b'.' | b'e' | b'E') = self.text.get(self.at) {
            self.fraction_and_exponent()?;
        }
        let number = &self.text[start..self.at];
        Ok(number)
    }

    /// The part of a number after its integer digits.
    #[inline(never)]
    fn fraction_and_exponent(&mut self) -> Result<(), SyntaxError> {
        if self.take(b'.') && self.digits() == 0 {
            return self.fail("a digit was expected after the point");
        }
        if self.take(b'e') || self.take(b'E') {
            if !self.take(b'+') {
                self.take(b'-');
            }
            if self.digits() == 0 {
                return self.fail("a digit was expected in the exponent");
            }
        }
        Ok(())
    }

    /// The next boolean.
    pub(crate) fn bool(&mut self) -> Result<bool, SyntaxError> {
        self.space();
        let value = self.text.get(self.at) == Some(&b't');
        self.literal(if value { b"true" } else { b"false" })?;
        Ok(value)
    }

    /// Skips the next `null`.
    pub(crate) fn null(&mut self) -> Result<(), SyntaxError> {
        self.space();
        self.literal(b"null")?;
        Ok(())
    }

    /// Skips a whole value of any kind, validates the value, and returns its range.
    #[inline]
    pub(crate) fn skip(&mut self) -> Result<Span, SyntaxError> {
        let kind = self.kind()?;
        let start = self.at;
        match kind {
            Kind::Object | Kind::Array => return self.walk(|_, _| {}),
            Kind::String => {
                self.string()?;
            }
            Kind::Number => {
                self.number()?;
            }
            Kind::Bool => {
                self.bool()?;
            }
            Kind::Null => self.null()?,
        }
        let end = self.at;
        Ok(Span { start, end })
    }

    /// Skips a whole value and calls back for every string in the value with the name of its member: the last name before the string, if
    /// any.
    ///
    /// A bit for each open level marks objects, so that nesting costs no stack.
    pub(crate) fn walk(
        &mut self,
        mut on_string: impl FnMut(&'a [u8], Span),
    ) -> Result<Span, SyntaxError> {
        self.space();
        let start = self.at;
        let floor = self.depth;
        let mut objects = 0u64;
        let mut name: &[u8] = b"";
        loop {
            match self.kind()? {
                Kind::Object => {
                    self.enter()?;
                    objects = objects << 1 | 1;
                    self.space();
                    if self.text.get(self.at) != Some(&b'}') {
                        name = self.any_name()?;
                        continue;
                    }
                }
                Kind::Array => {
                    self.enter()?;
                    objects <<= 1;
                    self.space();
                    if self.text.get(self.at) != Some(&b']') {
                        continue;
                    }
                }
                Kind::String => {
                    let start = self.at;
                    self.quoted()?;
                    on_string(
                        name,
                        Span {
                            start,
                            end: self.at,
                        },
                    );
                }
                Kind::Number => {
                    self.number()?;
                }
                Kind::Bool => {
                    self.bool()?;
                }
                Kind::Null => self.null()?,
            }
            loop {
                if self.depth == floor {
                    return Ok(Span {
                        start,
                        end: self.at,
                    });
                }
                self.space();
                let in_object = objects & 1 == 1;
                match self.text.get(self.at) {
                    Some(b'}') if in_object => {}
                    Some(b']') if !in_object => {}
                    Some(b',') => {
                        self.at += 1;
                        if in_object {
                            self.space();
                            name = self.any_name()?;
                        }
                        break;
                    }
                    _ if in_object => return self.fail("`,` or `}` was expected"),
                    _ => return self.fail("`,` or `]` was expected"),
                }
                self.leave();
                objects >>= 1;
            }
        }
    }

    /// Checks that only white space is left.
    pub(crate) fn end(&mut self) -> Result<(), SyntaxError> {
        self.space();
        if self.at == self.text.len() {
            Ok(())
        } else {
            self.fail("nothing was expected after the value")
        }
    }

    #[inline]
    fn key_and_colon(&mut self) -> Result<(Text<'a>, Option<Word>), SyntaxError> {
        let start = self.at + 1;
        let text = self.name_and_colon()?;
        let word = match text.escaped {
            false => Word::at(self.text, start, start + text.raw.len()),
            true => Word::of(text),
        };
        Ok((text, word))
    }

    /// The next name of a walk, as written.
    #[inline(always)]
    fn any_name(&mut self) -> Result<&'a [u8], SyntaxError> {
        match self.short_name() {
            Some(name) => Ok(name),
            None => Ok(self.name_and_colon()?.raw),
        }
    }

    /// The next name in its common form: at most fifteen bytes without escapes, and a colon at once. `None` for any other form; the reader
    /// stays at its position.
    #[inline(always)]
    fn short_name(&mut self) -> Option<&'a [u8]> {
        let rest = self.text.get(self.at..)?;
        let end = scan::near(rest, 1)?;
        if rest[0] != b'"' || rest.get(end..end + 2) != Some(b"\":") {
            return None;
        }
        self.at += end + 2;
        Some(&rest[1..end])
    }

    #[inline]
    fn name_and_colon(&mut self) -> Result<Text<'a>, SyntaxError> {
        if self.text.get(self.at) != Some(&b'"') {
            return self.fail("a member name in quotes was expected");
        }
        let text = self.quoted()?;
        self.space();
        if !self.take(b':') {
            return self.fail("`:` was expected");
        }
        Ok(text)
    }

    /// The length of the escape `\uXXXX` at `at`.
    #[cold]
    fn unicode_escape(&mut self, at: usize) -> Result<usize, SyntaxError> {
        self.at = at;
        if self.text.get(at + 1) != Some(&b'u') {
            return self.fail("an escape that JSON does not have");
        }
        let hex = self.text.get(at + 2..at + 6);
        if !hex.is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit)) {
            return self.fail("four hexadecimal digits were expected after `\\u`");
        }
        Ok(6)
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), SyntaxError> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            self.fail("a value was expected")
        }
    }

    #[inline]
    fn digits(&mut self) -> usize {
        let start = self.at;
        while let Some(word) = self.text[self.at..].first_chunk() {
            let digits = scan::digits(u64::from_le_bytes(*word));
            self.at += digits;
            if digits < word.len() {
                return self.at - start;
            }
        }
        while let Some(b'0'..=b'9') = self.text.get(self.at) {
            self.at += 1;
        }
        self.at - start
    }

    #[inline]
    fn take(&mut self, byte: u8) -> bool {
        let found = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    #[inline]
    fn space(&mut self) {
        // White space is rare, and every other valid byte here is above white space.
        if self.text.get(self.at).is_some_and(|&byte| byte <= b' ') {
            self.spaces();
        }
    }

    #[cold]
    #[inline(never)]
    fn spaces(&mut self) {
        while let Some(b' ' | b'\n' | b'\t' | b'\r') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    #[cold]
    pub(crate) fn fail<T>(&self, problem: &'static str) -> Result<T, SyntaxError> {
        Err(SyntaxError {
            at: self.at,
            problem,
        })
    }
}

/// Whether a text is exactly a JSON number.
pub(crate) fn is_number(text: &[u8]) -> bool {
    let mut reader = Reader::new(text);
    reader.number().is_ok_and(|number| number == text)
}
