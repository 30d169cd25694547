//! The messages of a chat request: roles, text, and parts that are not text.

use smallvec::SmallVec;

use crate::contract::{ASSISTANT, DEVELOPER, ROLES};
use crate::json::{Kind, Span};
use crate::string::Text;
use crate::word::Word;

use super::error::{Path, brief, expect};
use super::members::{array_of, item_of};
use super::{CompletionRequest, Parts, Reader, RequestError, case};

/// Parses `messages` into the counts of `request`.
pub(super) fn read_all(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    kind: Kind,
) -> Result<(), RequestError> {
    let path = Path::Top(b"messages");
    expect(path, "an array of messages", kind, Kind::Array)?;
    let mut first = true;
    reader.enter()?;
    while reader.item(&mut first)? {
        read_one(request, reader)?;
        request.messages += 1;
    }
    if request.messages == 0 {
        return Err(RequestError::out_of_range(path, "needs at least one item"));
    }
    Ok(())
}

fn read_one(request: &mut CompletionRequest, reader: &mut Reader<'_>) -> Result<(), RequestError> {
    let index = request.messages;
    expect(
        Path::Message(index),
        "an object",
        reader.kind()?,
        Kind::Object,
    )?;
    let (mut has_content, mut has_calls) = (false, false);
    let mut found_role = None;
    let mut first = true;
    reader.enter()?;
    while let Some(key) = reader.key(&mut first)? {
        if key.word.is_none() {
            case::check(key.text, case::MESSAGE, |name| Path::InMessage(index, name))?;
        }
        let kind = reader.kind()?;
        let start = reader.at();
        match key.word {
            Some(Word::Role) => {
                let known = role(reader, Path::InMessage(index, "role"), kind)?;
                found_role = Some(known);
                if known == DEVELOPER {
                    let end = reader.at();
                    request.developer_roles.push(Span { start, end });
                }
                continue;
            }
            Some(Word::Content) => {
                content(request, reader, Path::InMessage(index, "content"), kind)?;
                has_content = true;
                continue;
            }
            _ if kind == Kind::Null => {
                reader.null()?;
                continue;
            }
            Some(Word::ToolCalls) => {
                let path = Path::InMessage(index, "tool_calls");
                has_calls |= array_of(reader, path, kind, Kind::Object)?;
            }
            Some(Word::FunctionCall) => {
                has_calls |= kind == Kind::Object;
                reader.skip()?;
            }
            Some(word @ (Word::Name | Word::ToolCallId)) => {
                let name = if word == Word::Name {
                    "name"
                } else {
                    "tool_call_id"
                };
                expect(Path::InMessage(index, name), "a string", kind, Kind::String)?;
                reader.string()?;
            }
            _ => {
                reader.skip()?;
            }
        }
        request.text_bytes += (reader.at() - start) as u64;
    }
    let Some(role) = found_role else {
        return Err(RequestError::missing(Path::InMessage(index, "role")));
    };
    // Encoders that omit empty members write no `content` beside the calls of an assistant.
    let may_omit_content = has_calls && role == ASSISTANT;
    if !has_content && !may_omit_content {
        return Err(RequestError::at(
            super::RequestErrorCode::MissingField,
            Path::InMessage(index, "content"),
            "is missing; only an assistant message with `tool_calls` or `function_call` may omit it. Send null when there is no text",
        ));
    }
    Ok(())
}

/// The role of a message, from [`ROLES`].
fn role(reader: &mut Reader<'_>, path: Path<'_>, kind: Kind) -> Result<&'static str, RequestError> {
    expect(path, "a string", kind, Kind::String)?;
    let role = reader.string()?;
    if let Some(known) = ROLES.iter().find(|known| role.is(known)) {
        return Ok(known);
    }
    let role = role.decode_lossy();
    let problem = format!("is `{}`; use one of {}", brief(&role), ROLES.join(", "));
    Err(RequestError::out_of_range(path, &problem))
}

fn content(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    path: Path<'_>,
    kind: Kind,
) -> Result<(), RequestError> {
    const WANTED: &str = "a string, an array of objects, or null";
    match kind {
        Kind::Null => reader.null()?,
        Kind::String => request.text_bytes += reader.string()?.raw.len() as u64,
        Kind::Array => {
            let mut index = 0u64;
            let mut first = true;
            reader.enter()?;
            while reader.item(&mut first)? {
                item_of(reader, path, WANTED, index, Kind::Object)?;
                let part = Part::read(reader, request.messages, index)?;
                request.text_bytes += part.text_bytes();
                request.external |= part.external && part.kind != PartKind::Text;
                part.count(&mut request.parts);
                index += 1;
            }
        }
        _ => return Err(RequestError::invalid_type(path, WANTED, kind.noun())),
    }
    Ok(())
}

/// Whether a string, with its quotes, begins with a scheme and two slashes (RFC 3986 section 3). Some encoders escape slashes.
fn is_url(string: &[u8]) -> bool {
    const SCHEME_MAX: usize = 16;
    let beginning = &string[1..string.len().min(SCHEME_MAX + 2)];
    let Some(colon) = memchr::memchr(b':', beginning) else {
        return false;
    };
    let is_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let rest = &string[colon + 2..];
    colon > 0
        && beginning[..colon].iter().all(is_scheme)
        && (rest.starts_with(b"//") || rest.starts_with(br"\/"))
}

/// The kind of a message part by its `type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PartKind {
    Text,
    Image,
    Audio,
    File,
    Other,
}

/// Names of part kinds. A name occurs as the `type` and as the member with the content.
const KINDS: [(&str, PartKind); 9] = [
    ("text", PartKind::Text),
    ("image_url", PartKind::Image),
    ("input_image", PartKind::Image),
    ("image", PartKind::Image),
    ("input_audio", PartKind::Audio),
    ("audio", PartKind::Audio),
    ("audio_url", PartKind::Audio),
    ("file", PartKind::File),
    ("input_file", PartKind::File),
];

/// The kind of a name.
fn kind_of(name: Text<'_>) -> Option<PartKind> {
    let found = KINDS.iter().find(|(known, _)| name.is(known));
    found.map(|(_, kind)| *kind)
}

/// A part of a message. The `type` may come after the rest, so that the bytes are classified at the end.
struct Part {
    kind: PartKind,
    /// Bytes of members named like a picture, a sound or a file, by kind.
    media: [(PartKind, u64); 3],
    /// Bytes of every other member.
    rest: u64,
    /// A string in the part begins like a URL, except a `data:` URL.
    external: bool,
}

impl Part {
    /// Parses part `index` of a message.
    fn read(reader: &mut Reader<'_>, message: u64, index: u64) -> Result<Self, RequestError> {
        let mut part = Self {
            kind: PartKind::Other,
            media: [PartKind::Image, PartKind::Audio, PartKind::File].map(|kind| (kind, 0)),
            rest: 0,
            external: false,
        };
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            if key.word.is_none() {
                case::check(key.text, case::PART, |name| {
                    Path::InPart(message, index, name)
                })?;
            }
            let kind = reader.kind()?;
            if key.word == Some(Word::Type) && kind == Kind::String {
                part.kind = kind_of(reader.string()?).unwrap_or(PartKind::Other);
                continue;
            }
            let mut strings: SmallVec<[Span; 4]> = SmallVec::new();
            let value = reader.walk(|_, string| strings.push(string))?;
            part.external |= strings.iter().any(|string| is_url(reader.of(*string)));
            let bytes = match kind {
                // Without the quotes.
                Kind::String => value.len() - 2,
                _ => value.len(),
            } as u64;
            let named = kind_of(key.text);
            match part.media.iter_mut().find(|(kind, _)| Some(*kind) == named) {
                Some((_, media)) => *media += bytes,
                None => part.rest += bytes,
            }
        }
        Ok(part)
    }

    /// Bytes that the part's type makes a picture, a sound or a file.
    fn media_bytes(&self) -> u64 {
        let own = self.media.iter().find(|(kind, _)| *kind == self.kind);
        own.map_or(0, |(_, bytes)| *bytes)
    }

    /// Bytes of every other member: a text hidden in a part of another type is still a text.
    fn text_bytes(&self) -> u64 {
        let media: u64 = self.media.iter().map(|(_, bytes)| bytes).sum();
        self.rest + media - self.media_bytes()
    }

    fn count(&self, parts: &mut Parts) {
        parts.media_bytes += self.media_bytes();
        let count = match self.kind {
            PartKind::Text => return,
            PartKind::Image => &mut parts.images,
            PartKind::Audio => &mut parts.audios,
            PartKind::File => &mut parts.files,
            PartKind::Other => &mut parts.others,
        };
        *count = count.saturating_add(1);
    }
}
