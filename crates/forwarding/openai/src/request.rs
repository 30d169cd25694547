//! Completion requests: parsing, validation and the facts that the gateway needs.

mod case;
mod error;
mod members;
mod message;

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::deciding::decides;
use crate::family::Family;
use crate::json::scan::Bytes;
use crate::json::{Kind, Reader, Span};
use crate::splice::{Layout, Member};
use crate::string::Text;

pub use case::is_same as is_same_but_for_case;
pub use error::{RequestError, RequestErrorCode};

use error::{Path, brief};

/// The most top-level members. Real requests have about twenty; the limit bounds the check for duplicate members.
const MEMBERS_MAX: usize = 1024;

/// Parts of messages that are not text, counted by their `type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// `image_url`, `input_image`, `image`.
    pub images: u32,
    /// `input_audio`, `audio`, `audio_url`.
    pub audios: u32,
    /// `file`, `input_file`.
    pub files: u32,
    /// Parts of any type besides text and the types above, or without a type. The content of these parts counts in `text_bytes` as well.
    pub others: u32,
    /// Bytes of the pictures, sounds and files themselves (or of their URLs), as encoded in the body.
    pub media_bytes: u64,
}

/// The facts of a request body, owned; the body itself is not kept.
///
/// A value of this type guarantees that the body is strict JSON without duplicate top-level members, and that every documented member has
/// its type and range. For a case-insensitive parser, no other name equals a documented name. Other members were skipped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompletionRequest {
    /// The family of the request.
    pub family: &'static Family,
    /// `model`; `None` when absent or null. `None` selects the default model.
    pub model: Option<String>,
    /// `stream`, default false.
    pub stream: bool,
    /// `cache`, default true.
    pub cache: bool,
    /// `stream_options.include_usage` of a stream: the client requests the usage event.
    pub include_usage: bool,
    /// `max_tokens`, at least 1.
    pub max_tokens: Option<u64>,
    /// `max_completion_tokens`, at least 1.
    pub max_completion_tokens: Option<u64>,
    /// `n`, the answers requested for a prompt, default 1.
    pub n: u64,
    /// `best_of`, the answers generated for a prompt, default 1.
    pub best_of: u64,
    /// Prompts in the body: 1 for a chat, else the items of `prompt`, at least 1.
    pub prompts: u64,
    /// Bytes of a text request's `system`, as encoded in the body. The `system` text precedes every prompt.
    pub system_bytes: u64,
    /// Items of `messages`; 0 for a text request.
    pub messages: u64,
    /// Bytes that may become prompt tokens, as encoded in the body: never fewer than the text has in UTF-8. Pictures, sounds and files are
    /// not included.
    pub text_bytes: u64,
    /// Parts of messages that are not text.
    pub parts: Parts,
    /// Whether `tools` has at least an item.
    pub tools: bool,
    /// Whether `plugins` has at least an item.
    pub plugins: bool,
    /// Whether the provider is asked to read something outside the request that may change. The request has a member or a tool for a
    /// search, a tool that the provider runs, or a picture, sound or file by its URL.
    pub external: bool,
    /// The values of `role` equal to `developer`, in the order of the text.
    pub(crate) developer_roles: SmallVec<[Span; 1]>,
    pub(crate) layout: Layout<Owned>,
    pub(crate) stream_options: StreamOptions,
    pub(crate) body_bytes: usize,
    /// The members that decide the answer, in the order of the text.
    pub(crate) deciding: SmallVec<[Member; 8]>,
}

/// Top-level members that the gateway may change before the body is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owned {
    Model,
    /// Of a chat with the role `developer`.
    Messages,
    Cache,
    StreamOptions,
    MaxTokens,
    MaxCompletionTokens,
    /// Of a text request.
    Prompt,
    /// `system` of a text request, when not null.
    System,
    /// A member that some provider does not get, with the member's bytes that may become prompt tokens.
    Listed(u32),
}

/// The content of `stream_options`, if the value is an object.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamOptions {
    pub(crate) object: bool,
    pub(crate) empty: bool,
    pub(crate) include_usage: Option<Span>,
}

impl CompletionRequest {
    /// Parses and validates the body of a completion request. Boxed, because the request is large and written in place.
    ///
    /// # Errors
    ///
    /// The first problem, with advice for correcting it: always a 400.
    pub fn read(family: &'static Family, body: &[u8]) -> Result<Box<Self>, RequestError> {
        Self::read_listing(family, body, &[])
    }

    /// As [`CompletionRequest::read`]. Also records the body's members whose names are `listed`, in any case: the members for later calls
    /// of [`find_member`](Self::find_member) and [`BodyEdit::without`](crate::BodyEdit::without).
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn read_listing(
        family: &'static Family,
        body: &[u8],
        listed: &[Box<str>],
    ) -> Result<Box<Self>, RequestError> {
        if body.starts_with(b"\xef\xbb\xbf") {
            return Err(RequestError::invalid_json(
                "the body starts with a byte order mark; send it without".into(),
            ));
        }
        let bytes = Bytes::of(body);
        let read = Self::walk(family, body, bytes, listed);
        // This error takes precedence over any other error. Checked afterwards, because most bodies are ASCII, and the check for ASCII is
        // faster.
        if !bytes.ascii
            && let Err(error) = std::str::from_utf8(body)
        {
            return Err(RequestError::invalid_json(format!(
                "the body is not UTF-8 from byte {} on; encode it as UTF-8",
                error.valid_up_to()
            )));
        }
        read
    }

    /// Parses a body of any bytes; the result for a body that is not UTF-8 is meaningless.
    fn walk(
        family: &'static Family,
        body: &[u8],
        bytes: Bytes,
        listed: &[Box<str>],
    ) -> Result<Box<Self>, RequestError> {
        let mut reader = Reader::new(body).knowing(bytes);
        let kind = reader.kind()?;
        if kind != Kind::Object {
            // The kind follows from the first byte: a text that is not JSON at all may begin like a value.
            reader.skip()?;
            reader.end()?;
            return Err(RequestError::invalid_json(format!(
                "the body is {}; send a JSON object",
                kind.noun()
            )));
        }
        let mut request = Box::new(Self::empty(family, body.len()));
        request.members(&mut reader, listed)?;
        reader.end()?;
        request.check_whole()?;
        Ok(request)
    }

    /// The most tokens of an answer: the larger of `max_tokens` and `max_completion_tokens`, if present.
    pub fn output_max(&self) -> Option<u64> {
        self.max_tokens.max(self.max_completion_tokens)
    }

    /// The most answers that the provider may generate: the larger of `n` and `best_of`, for every prompt.
    pub fn answers_max(&self) -> u64 {
        self.n.max(self.best_of).saturating_mul(self.prompts)
    }

    /// The name, as written in the parsed body, of the first member named in `names`, in any case. Every name was listed when the body was
    /// parsed.
    pub fn find_member(&self, body: &[u8], names: &[Box<str>]) -> Option<String> {
        let mut members = self.layout.members.iter();
        members.find_map(|(_, member)| {
            let name = name_of(member, body);
            is_any_of(&name, names).then(|| name.into_owned())
        })
    }

    /// Subtracts the members named in `names`, in any case, from [`text_bytes`](Self::text_bytes): for members that no provider of the
    /// model gets. Every name was listed when `body` was parsed.
    pub fn leave_out(&mut self, body: &[u8], names: &[Box<str>]) {
        for (owned, member) in &self.layout.members {
            if let Owned::Listed(bytes) = owned
                && is_any_of(&name_of(member, body), names)
            {
                self.text_bytes = self.text_bytes.saturating_sub(u64::from(*bytes));
            }
        }
    }

    fn empty(family: &'static Family, body_bytes: usize) -> Self {
        Self {
            family,
            model: None,
            stream: false,
            cache: true,
            include_usage: false,
            max_tokens: None,
            max_completion_tokens: None,
            n: 1,
            best_of: 1,
            prompts: 0,
            system_bytes: 0,
            messages: 0,
            text_bytes: 0,
            parts: Parts::default(),
            tools: false,
            plugins: false,
            external: false,
            developer_roles: SmallVec::new(),
            layout: Layout::new(),
            stream_options: StreamOptions::default(),
            body_bytes,
            deciding: SmallVec::new(),
        }
    }

    fn members(
        &mut self,
        reader: &mut Reader<'_>,
        listed: &[Box<str>],
    ) -> Result<(), RequestError> {
        // A bit for each word that has occurred as a name. `names` has every other name, and duplicate words.
        let mut words = 0u128;
        let mut names: SmallVec<[Cow<'_, [u8]>; 4]> = SmallVec::new();
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            if self.layout.count as usize == MEMBERS_MAX {
                return Err(RequestError::invalid_json(format!(
                    "the body has more than {MEMBERS_MAX} members; send fewer"
                )));
            }
            let name = key.text.bytes().ok_or_else(|| {
                RequestError::invalid_json(
                    "a member name holds half a surrogate pair; write it as UTF-8".into(),
                )
            })?;
            if key.word.is_none() {
                let names = self.family.request.names;
                case::check(key.text, names, |name| Path::Top(name.as_bytes()))?;
            }
            let kind = reader.kind()?;
            let start = reader.at();
            let text_bytes = self.text_bytes;
            let mut owned = members::read(self, reader, &name, key.word, kind)?;
            if !listed.is_empty() && owned.is_none() && is_any_of(&key.text.decode_lossy(), listed)
            {
                let bytes = self.text_bytes - text_bytes;
                owned = Some(Owned::Listed(u32::try_from(bytes).unwrap_or(u32::MAX)));
            }
            let end = reader.at();
            let Some(member) = Member::new(self.layout.count, key.at, Span { start, end }) else {
                return Ok(reader.fail("the text goes on for four gigabytes")?);
            };
            if let Some(owned) = owned {
                self.layout.members.push((owned, member));
            }
            if decides(key.word) {
                self.deciding.push(member);
            }
            let bit = key.word.map_or(0, |word| 1 << word as u8);
            if words & bit != 0 {
                names.push(name.clone());
            }
            if words & bit != 0 || bit == 0 {
                names.push(name);
            }
            words |= bit;
            self.layout.count += 1;
        }
        self.layout.close = reader.at() - 1;
        refuse_duplicate_names(&mut names)
    }

    /// Checks that need every member.
    fn check_whole(&mut self) -> Result<(), RequestError> {
        if self.messages == 0 && self.prompts == 0 {
            let input = self.family.request.input;
            return Err(RequestError::missing(Path::Top(input.as_bytes())));
        }
        // A chat is a single prompt, with any number of messages.
        self.prompts = self.prompts.max(1);
        let system = self.system_bytes.saturating_mul(self.prompts);
        self.text_bytes = self.text_bytes.saturating_add(system);
        self.include_usage &= self.stream;
        Ok(())
    }
}

/// The name of a member of `body`.
pub(crate) fn name_of<'b>(member: &Member, body: &'b [u8]) -> Cow<'b, str> {
    let mut reader = Reader::starting_at(body, member.key());
    // The name has been parsed before.
    let name = reader.string().map(Text::decode_lossy);
    name.unwrap_or_default()
}

/// Whether a member's name is in `names`, in any case.
pub(crate) fn is_any_of(name: &str, names: &[Box<str>]) -> bool {
    names.iter().any(|one| case::is_same(name, one))
}

/// Refuses an object with a duplicate name: the gateway would charge for the first value, and the provider would use the second value.
fn refuse_duplicate_names(names: &mut [Cow<'_, [u8]>]) -> Result<(), RequestError> {
    // By length first, because most names differ in length and need no comparison.
    names.sort_unstable_by(|one, other| (one.len(), one).cmp(&(other.len(), other)));
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(RequestError::invalid_json(format!(
            "`{}` is in the body twice; send it once",
            brief(&String::from_utf8_lossy(&pair[0]))
        ))),
        None => Ok(()),
    }
}
