//! The top-level members of a request body, and the validation of each member.

use std::borrow::Cow;

use crate::family::Role;
use crate::json::{Kind, Span};
use crate::number::{self, Whole};
use crate::word::Word;

use super::error::{Path, RequestErrorCode, expect};
use super::{CompletionRequest, Owned, Reader, RequestError, StreamOptions, case, message};

/// Parses a member into `request` by the member's role in the family. Returns whether the member's position has to be recorded.
pub(super) fn read(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    name: &[u8],
    word: Option<Word>,
    kind: Kind,
) -> Result<Option<Owned>, RequestError> {
    let absent = kind == Kind::Null;
    let path = Path::Top(name);
    let mut owned = None;
    let form = &request.family.request;
    let role = match word {
        Some(word) => form.roles[word as usize],
        None => form.role_of_other(name),
    };
    match role {
        Role::Messages => {
            message::read_all(request, reader, kind)?;
            if !request.developer_roles.is_empty() {
                owned = Some(Owned::Messages);
            }
        }
        Role::Prompt => {
            owned = Some(Owned::Prompt);
            prompt(request, reader, kind)?;
        }
        Role::Model => {
            owned = Some(Owned::Model);
            request.model = string(reader, path, kind)?.map(Cow::into_owned);
        }
        Role::Stream => request.stream = boolean(reader, path, kind)?.unwrap_or(false),
        Role::Cache => {
            owned = Some(Owned::Cache);
            request.cache = boolean(reader, path, kind)?.unwrap_or(true);
        }
        Role::Cap => {
            owned = Some(Owned::MaxTokens);
            request.max_tokens = count(reader, path, kind)?;
        }
        Role::NewerCap => {
            owned = Some(Owned::MaxCompletionTokens);
            request.max_completion_tokens = count(reader, path, kind)?;
        }
        Role::Answers => request.n = count(reader, path, kind)?.unwrap_or(1),
        Role::Drafts => request.best_of = count(reader, path, kind)?.unwrap_or(1),
        Role::StreamOptions => {
            owned = Some(Owned::StreamOptions);
            stream_options(request, reader, kind)?;
        }
        Role::System => owned = system(request, reader, path, kind)?,
        Role::Tools if !absent => {
            let start = reader.at();
            tools(request, reader, path, kind)?;
            request.text_bytes += (reader.at() - start) as u64;
        }
        Role::Plugins if !absent => {
            request.plugins = array_of(reader, path, kind, Kind::Object)?;
        }
        Role::Refused if !absent => return Err(RequestError::refused(path)),
        Role::Aside => {
            reader.skip()?;
        }
        Role::UndocumentedReasoning if kind == Kind::Object => {
            let start = reader.at();
            reasoning(reader)?;
            request.text_bytes += (reader.at() - start) as u64;
        }
        role if !absent && is_checked(role, reader, path, kind)? => {}
        _ => {
            if word.is_none() && is_search(name) {
                request.external |= enables_search(reader, kind)?;
            }
            other(request, reader, kind)?;
        }
    }
    Ok(owned)
}

/// Checks the value of a member where only the type or the range matters. False, with the value unread, for every other role.
fn is_checked(
    role: Role,
    reader: &mut Reader<'_>,
    path: Path<'_>,
    kind: Kind,
) -> Result<bool, RequestError> {
    match role {
        Role::Number => not_negative(reader, path, kind)?,
        Role::Texts => {
            array_of(reader, path, kind, Kind::String)?;
        }
        Role::TextOrObject => {
            if !matches!(kind, Kind::String | Kind::Object) {
                let wanted = "a string or an object";
                return Err(RequestError::invalid_type(path, wanted, kind.noun()));
            }
            reader.skip()?;
        }
        Role::Object => {
            expect(path, "an object", kind, Kind::Object)?;
            reader.skip()?;
        }
        Role::Reasoning => {
            expect(path, "an object", kind, Kind::Object)?;
            reasoning(reader)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Whether a member makes the provider search: `web_search_options` (OpenAI, Perplexity), `search_parameters` (xAI), `enable_search`
/// (DashScope), `search_settings` (Groq), and similar names.
fn is_search(name: &[u8]) -> bool {
    name == b"enable_search"
        || name.starts_with(b"search_")
        || memchr::memmem::find(name, b"web_search").is_some()
}

/// Whether the value of a search member enables the search. The value stays unread.
fn enables_search(reader: &Reader<'_>, kind: Kind) -> Result<bool, RequestError> {
    Ok(match kind {
        Kind::Null => false,
        Kind::Bool => reader.ahead().bool()?,
        _ => true,
    })
}

/// The text before each prompt. `None` for null.
fn system(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    path: Path<'_>,
    kind: Kind,
) -> Result<Option<Owned>, RequestError> {
    let start = reader.at();
    if string(reader, path, kind)?.is_none() {
        return Ok(None);
    }
    request.system_bytes = (reader.at() - start - 2) as u64;
    Ok(Some(Owned::System))
}

/// The tools of a chat. The client runs tools of the types `function` and `custom`; the provider runs any other tool.
fn tools(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    path: Path<'_>,
    kind: Kind,
) -> Result<(), RequestError> {
    expect(path, "an array of objects", kind, Kind::Array)?;
    let mut index = 0u64;
    let mut first = true;
    reader.enter()?;
    while reader.item(&mut first)? {
        item_of(reader, path, "an array of objects", index, Kind::Object)?;
        // Some programs omit the type of a function.
        let (mut is_function, mut runs_elsewhere) = (false, false);
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            match (key.word, reader.kind()?) {
                (Some(Word::Type), Kind::String) => {
                    let of = reader.string()?;
                    let by_client = of.is("function") || of.is("custom");
                    is_function |= by_client;
                    runs_elsewhere |= !by_client;
                }
                (word, _) => {
                    is_function |= word == Some(Word::Function);
                    reader.skip()?;
                }
            }
        }
        request.external |= runs_elsewhere || !is_function;
        request.tools = true;
        index += 1;
    }
    Ok(())
}

/// A `reasoning`, which is an object.
fn reasoning(reader: &mut Reader<'_>) -> Result<(), RequestError> {
    let mut first = true;
    reader.enter()?;
    while let Some(key) = reader.key(&mut first)? {
        case::check(key.text, case::REASONING, |name| {
            Path::Inside("reasoning", name)
        })?;
        reader.skip()?;
    }
    Ok(())
}

/// An unknown member, or a null member.
fn other(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    kind: Kind,
) -> Result<(), RequestError> {
    let value = reader.skip()?;
    // A structure or text may become a part of the prompt: schemas, documents.
    if matches!(kind, Kind::Object | Kind::Array | Kind::String) {
        request.text_bytes += value.len() as u64;
    }
    Ok(())
}

fn prompt(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    kind: Kind,
) -> Result<(), RequestError> {
    const WANTED: &str = "a string or an array of strings";
    let path = Path::Top(b"prompt");
    match kind {
        Kind::String => {
            request.prompts = 1;
            request.text_bytes += reader.string()?.raw.len() as u64;
        }
        Kind::Array => {
            let mut first = true;
            reader.enter()?;
            while reader.item(&mut first)? {
                item_of(reader, path, WANTED, request.prompts, Kind::String)?;
                request.prompts += 1;
                request.text_bytes += reader.string()?.raw.len() as u64;
            }
            // The provider's answer to an empty list is undefined; the hold is the hold for a single prompt.
            request.prompts = request.prompts.max(1);
        }
        _ => return Err(RequestError::invalid_type(path, WANTED, kind.noun())),
    }
    Ok(())
}

fn stream_options(
    request: &mut CompletionRequest,
    reader: &mut Reader<'_>,
    kind: Kind,
) -> Result<(), RequestError> {
    if kind == Kind::Null {
        reader.null()?;
        return Ok(());
    }
    expect(
        Path::Top(b"stream_options"),
        "an object",
        kind,
        Kind::Object,
    )?;
    let path = Path::Inside("stream_options", "include_usage");
    let mut options = StreamOptions {
        object: true,
        empty: true,
        include_usage: None,
    };
    let mut first = true;
    reader.enter()?;
    while let Some(key) = reader.key(&mut first)? {
        options.empty = false;
        if key.word.is_none() {
            case::check(key.text, case::STREAM_OPTIONS, |name| {
                Path::Inside("stream_options", name)
            })?;
        }
        let kind = reader.kind()?;
        if key.word != Some(Word::IncludeUsage) {
            reader.skip()?;
            continue;
        }
        if options.include_usage.is_some() {
            let problem = "is given twice; send it once";
            return Err(RequestError::out_of_range(path, problem));
        }
        let start = reader.at();
        request.include_usage = match kind {
            Kind::Bool => reader.bool()?,
            Kind::Null => {
                reader.null()?;
                false
            }
            _ => {
                return Err(RequestError::invalid_type(
                    path,
                    "true or false",
                    kind.noun(),
                ));
            }
        };
        let end = reader.at();
        options.include_usage = Some(Span { start, end });
    }
    request.stream_options = options;
    Ok(())
}

fn not_negative(reader: &mut Reader<'_>, path: Path<'_>, kind: Kind) -> Result<(), RequestError> {
    expect(path, "a number", kind, Kind::Number)?;
    if number::negative(reader.number()?) {
        let problem = "is negative; send 0 or more";
        return Err(RequestError::out_of_range(path, problem));
    }
    Ok(())
}

/// An integer of at least 1, or `None` for null.
fn count(reader: &mut Reader<'_>, path: Path<'_>, kind: Kind) -> Result<Option<u64>, RequestError> {
    const WANTED: &str = "an integer of at least 1";
    if kind == Kind::Null {
        reader.null()?;
        return Ok(None);
    }
    expect(path, WANTED, kind, Kind::Number)?;
    match number::whole(reader.number()?) {
        Whole::Value(0) | Whole::Negative => Err(RequestError::out_of_range(
            path,
            "is below 1; send 1 or more",
        )),
        Whole::Value(value) => Ok(Some(value)),
        Whole::Fraction => Err(RequestError::invalid_type(
            path,
            WANTED,
            "not a whole number",
        )),
    }
}

fn boolean(
    reader: &mut Reader<'_>,
    path: Path<'_>,
    kind: Kind,
) -> Result<Option<bool>, RequestError> {
    if kind == Kind::Null {
        reader.null()?;
        return Ok(None);
    }
    expect(path, "true or false", kind, Kind::Bool)?;
    Ok(Some(reader.bool()?))
}

fn string<'a>(
    reader: &mut Reader<'a>,
    path: Path<'_>,
    kind: Kind,
) -> Result<Option<Cow<'a, str>>, RequestError> {
    if kind == Kind::Null {
        reader.null()?;
        return Ok(None);
    }
    expect(path, "a string", kind, Kind::String)?;
    match reader.string()?.decode() {
        Some(text) => Ok(Some(text)),
        None => Err(RequestError::at(
            RequestErrorCode::InvalidJson,
            path,
            "holds half a surrogate pair; write it as UTF-8",
        )),
    }
}

/// Checks an array whose items have a single kind, and returns whether the array has items.
pub(super) fn array_of(
    reader: &mut Reader<'_>,
    path: Path<'_>,
    found: Kind,
    items: Kind,
) -> Result<bool, RequestError> {
    let wanted = match items {
        Kind::Object => "an array of objects",
        _ => "an array of strings",
    };
    expect(path, wanted, found, Kind::Array)?;
    let mut index = 0u64;
    let mut first = true;
    reader.enter()?;
    while reader.item(&mut first)? {
        item_of(reader, path, wanted, index, items)?;
        reader.skip()?;
        index += 1;
    }
    Ok(index > 0)
}

/// Checks the kind of an item of an array.
pub(super) fn item_of(
    reader: &mut Reader<'_>,
    path: Path<'_>,
    wanted: &str,
    index: u64,
    kind: Kind,
) -> Result<(), RequestError> {
    let found = reader.kind()?;
    if found == kind {
        return Ok(());
    }
    let found = format!("an array whose item {index} is {}", found.noun());
    Err(RequestError::invalid_type(path, wanted, &found))
}
