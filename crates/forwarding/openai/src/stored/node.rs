//! The accumulated content of a stream, as a small tree whose leaves are JSON as written.

use std::borrow::Cow;

use bytes::BytesMut;
use smallvec::SmallVec;

use crate::json::{Key, Kind, Reader, SyntaxError};
use crate::number::{self, Whole};
use crate::string;

use super::StoredError;
use super::item::Item;
use super::join::Join;

/// The most members of an object, and the most calls, parts or details of a message. A new item is searched in the list of earlier items.
const PLACES_MAX: usize = 512;

/// An accumulated value.
#[derive(Clone, Debug, Default)]
pub(super) enum Node {
    /// No value yet.
    #[default]
    Nothing,
    /// Any value, as written.
    Plain(Vec<u8>),
    /// The text between the quotes of a string that further events continue, as written.
    Text(Vec<u8>),
    /// Items, with the index by which an event continues an item.
    List(Vec<(Option<u64>, Node)>),
    Map(Vec<(Box<[u8]>, Node)>),
}

/// The effect of an event on the tree.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Bytes by which the tree grew, less the replaced bytes.
    pub(super) grown: isize,
    /// The number of appended strings. `last`: the position of the last string in the event, as offset of the first byte, and length.
    pub(super) appended: usize,
    pub(super) last: (usize, usize),
    /// The path of the last string, within the message or within the choice.
    pub(super) path: Vec<usize>,
    pub(super) of_message: bool,
    /// The walk is within a message.
    pub(super) in_message: bool,
    /// A list has grown: an equal event would grow the list again, or continue another item.
    pub(super) listed: bool,
    /// The current path of the walk.
    here: Vec<usize>,
}

impl Touched {
    pub(super) fn enter(&mut self, at: usize) {
        self.here.push(at);
    }

    pub(super) fn leave(&mut self) {
        self.here.pop();
    }
}

/// The members of an entered object. No member may occur twice.
#[derive(Debug, Default)]
pub(super) struct Members(SmallVec<[usize; 16]>);

impl Members {
    /// The position of the member in `map`, where it is inserted if absent.
    pub(super) fn place(
        &mut self,
        map: &mut Vec<(Box<[u8]>, Node)>,
        name: &[u8],
        touched: &mut Touched,
    ) -> Result<usize, StoredError> {
        let known = map.iter().position(|(known, _)| **known == *name);
        let at = known.unwrap_or(map.len());
        if self.0.contains(&at) || at == PLACES_MAX {
            return Err(StoredError::NotJoinable);
        }
        if known.is_none() {
            map.push((name.into(), Node::Nothing));
            touched.grown += name.len() as isize + 8;
        }
        self.0.push(at);
        Ok(at)
    }
}

/// The name of a member in this crate's spelling: of two spellings of a name, only this spelling is left.
pub(super) fn name_of<'a>(key: &Key<'a>) -> Cow<'a, [u8]> {
    if !key.text.escaped {
        return Cow::Borrowed(key.text.raw);
    }
    let Some(name) = key.text.decode() else {
        return Cow::Borrowed(key.text.raw);
    };
    let mut quoted = BytesMut::new();
    string::write(&name, &mut quoted);
    Cow::Owned(quoted[1..quoted.len() - 1].to_vec())
}

impl Node {
    /// Adds the next value.
    ///
    /// Recurses once for each level; the reader stops at 64.
    pub(super) fn take(
        &mut self,
        reader: &mut Reader<'_>,
        text: &[u8],
        join: Join,
        touched: &mut Touched,
    ) -> Result<(), StoredError> {
        let kind = reader.kind()?;
        match (join, kind) {
            (_, Kind::Null) => {
                reader.null()?;
                if matches!(self, Node::Nothing) {
                    self.put(Node::Plain(b"null".to_vec()), touched);
                }
                Ok(())
            }
            (Join::Last, _) => {
                let value = reader.skip()?.of(text);
                // Some providers say with these values in each event that the choice continues.
                if self.is_nothing() || !matches!(value, b"\"\"" | b"\"null\"") {
                    self.put(Node::Plain(value.to_vec()), touched);
                }
                Ok(())
            }
            (Join::Text | Join::Base64 | Join::Content, Kind::String) => {
                let raw = reader.string()?.raw;
                let start = reader.at() - 1 - raw.len();
                self.say(raw, start, join, touched)
            }
            (Join::Lists, Kind::Array) => self.append_items(reader, text, touched),
            (Join::Content | Join::Calls | Join::Details, Kind::Array) => {
                self.join_items(reader, text, join, touched)
            }
            (Join::Lists | Join::Once, Kind::Object) => {
                self.join_members(reader, text, join, touched)
            }
            (_, Kind::Object) if join.is_object() => self.join_members(reader, text, join, touched),
            (Join::Lists, _) if matches!(self, Node::List(_) | Node::Map(_)) => {
                Err(StoredError::NotJoinable)
            }
            (Join::Lists, _) => {
                let value = reader.skip()?.of(text);
                self.put(Node::Plain(value.to_vec()), touched);
                Ok(())
            }
            // Arguments as an object, for example.
            (Join::Text | Join::Content, Kind::Object) => {
                self.join_members(reader, text, Join::Once, touched)
            }
            _ => {
                let value = reader.skip()?.of(text);
                self.set(value, kind, touched)
            }
        }
    }

    /// Sets a fact of a message, or compares the fact with the fact set before.
    fn set(&mut self, value: &[u8], kind: Kind, touched: &mut Touched) -> Result<(), StoredError> {
        let is_empty = matches!(value, b"\"\"" | b"[]");
        match self {
            _ if self.is_nothing() => {}
            _ if is_empty => return Ok(()),
            Node::Plain(known) => {
                let is_scalar = |value: &[u8]| !matches!(value.first(), Some(b'"' | b'[' | b'{'));
                let changes = match kind {
                    Kind::Number | Kind::Bool => is_scalar(known),
                    Kind::Array => grows(known, value),
                    _ => false,
                };
                if **known == *value {
                    return Ok(());
                }
                if !changes && !matches!(&known[..], b"\"\"" | b"[]") {
                    return Err(StoredError::NotJoinable);
                }
            }
            _ => return Err(StoredError::NotJoinable),
        }
        self.put(Node::Plain(value.to_vec()), touched);
        Ok(())
    }

    fn is_nothing(&self) -> bool {
        match self {
            Node::Nothing => true,
            Node::Plain(value) => value == b"null",
            _ => false,
        }
    }

    fn put(&mut self, node: Node, touched: &mut Touched) {
        touched.grown += node.len() - self.len();
        *self = node;
    }

    /// Bytes of a leaf.
    fn len(&self) -> isize {
        match self {
            Node::Plain(text) | Node::Text(text) => text.len() as isize,
            _ => 0,
        }
    }

    /// Appends a piece of generated text. The piece begins at `start` in the event.
    fn say(
        &mut self,
        raw: &[u8],
        start: usize,
        join: Join,
        touched: &mut Touched,
    ) -> Result<(), StoredError> {
        if join == Join::Content
            && let Node::List(parts) = self
        {
            return say_in_part(parts, raw, start, touched);
        }
        if self.is_nothing() {
            self.put(Node::Text(Vec::new()), touched);
        }
        let Node::Text(text) = self else {
            return match raw {
                b"" => Ok(()),
                _ => Err(StoredError::NotJoinable),
            };
        };
        if raw.is_empty() {
            return Ok(());
        }
        if join == Join::Base64 {
            // A padded text is complete.
            if text.ends_with(b"=") {
                return Err(StoredError::NotJoinable);
            }
            touched.listed = true;
        }
        text.extend_from_slice(raw);
        touched.grown += raw.len() as isize;
        touched.appended += 1;
        touched.last = (start, raw.len());
        touched.path.clone_from(&touched.here);
        touched.of_message = touched.in_message;
        Ok(())
    }

    fn join_members(
        &mut self,
        reader: &mut Reader<'_>,
        text: &[u8],
        join: Join,
        touched: &mut Touched,
    ) -> Result<(), StoredError> {
        if self.is_nothing() {
            self.put(Node::Map(Vec::new()), touched);
        }
        let Node::Map(map) = self else {
            return Err(StoredError::NotJoinable);
        };
        let mut members = Members::default();
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let name = name_of(&key);
            let at = members.place(map, &name, touched)?;
            touched.enter(at);
            map[at].1.take(reader, text, join.member(&name), touched)?;
            touched.leave();
        }
        Ok(())
    }

    /// Appends the items of a list with an item for each token.
    fn append_items(
        &mut self,
        reader: &mut Reader<'_>,
        text: &[u8],
        touched: &mut Touched,
    ) -> Result<(), StoredError> {
        if self.is_nothing() {
            self.put(Node::List(Vec::new()), touched);
        }
        let Node::List(list) = self else {
            return Err(StoredError::NotJoinable);
        };
        let mut first = true;
        reader.enter()?;
        while reader.item(&mut first)? {
            let value = reader.skip()?.of(text);
            touched.listed = true;
            touched.grown += value.len() as isize + 8;
            list.push((None, Node::Plain(value.to_vec())));
        }
        Ok(())
    }

    /// Continues the items of a list, or adds new items.
    fn join_items(
        &mut self,
        reader: &mut Reader<'_>,
        text: &[u8],
        join: Join,
        touched: &mut Touched,
    ) -> Result<(), StoredError> {
        match self {
            Node::List(_) => {}
            // Text before the first part is a part itself.
            Node::Text(said) if join == Join::Content && !said.is_empty() => {
                let said = std::mem::take(said);
                *self = Node::List(vec![(None, text_part(said))]);
                touched.grown += 32;
                touched.listed = true;
            }
            Node::Text(said) if said.is_empty() => *self = Node::List(Vec::new()),
            _ if self.is_nothing() => self.put(Node::List(Vec::new()), touched),
            _ => return Err(StoredError::NotJoinable),
        }
        let (Node::List(list), Some(of_item)) = (self, join.item()) else {
            return Err(StoredError::NotJoinable);
        };
        let before = list.len();
        let mut first = true;
        reader.enter()?;
        while reader.item(&mut first)? {
            let item = Item::ahead(reader)?.ok_or(StoredError::NotJoinable)?;
            let known = match join {
                Join::Calls => item.call_in(list)?,
                Join::Details => item.detail_in(list, before)?,
                _ => item.part_in(list),
            };
            let at = known.unwrap_or(list.len());
            if known.is_none() {
                if at == PLACES_MAX {
                    return Err(StoredError::NotJoinable);
                }
                list.push((item.index, Node::Nothing));
                touched.listed = true;
                touched.grown += 8;
            }
            touched.enter(at);
            list[at].1.take(reader, text, of_item, touched)?;
            touched.leave();
        }
        Ok(())
    }

    /// The text at a path.
    pub(super) fn text_at(&mut self, path: &[usize]) -> Option<&mut Vec<u8>> {
        let mut node = self;
        for &at in path {
            node = match node {
                Node::Map(map) => &mut map.get_mut(at)?.1,
                Node::List(list) => &mut list.get_mut(at)?.1,
                _ => return None,
            };
        }
        match node {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The member of this name.
    pub(super) fn member(&self, name: &[u8]) -> Option<&Node> {
        let Node::Map(map) = self else { return None };
        map.iter()
            .find(|(known, _)| **known == *name)
            .map(|(_, node)| node)
    }

    /// The text of a member that is a string and not empty, as written.
    pub(super) fn fact(&self, name: &[u8]) -> Option<&[u8]> {
        let Node::Plain(value) = self.member(name)? else {
            return None;
        };
        let text = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        (!text.is_empty()).then_some(text)
    }

    /// Whether calls that shared an index are complete. Otherwise the calls are pieces of a single call with differing ids.
    pub(super) fn has_whole_calls(&self) -> bool {
        let Node::List(calls) = self else { return true };
        let shared = |index: &Option<u64>| {
            index.is_some() && calls.iter().filter(|(other, _)| other == index).count() > 1
        };
        calls.iter().all(|(index, call)| {
            let function = call.member(b"function");
            let arguments = function.and_then(|function| function.member(b"arguments"));
            match arguments {
                Some(Node::Text(text)) if !text.is_empty() && shared(index) => is_json(text),
                _ => true,
            }
        })
    }

    /// Appends the node as JSON; `name` is the name of the node's member.
    pub(super) fn write(&self, name: &[u8], out: &mut Vec<u8>) {
        match self {
            Node::Nothing => out.extend_from_slice(b"null"),
            Node::Plain(value) => out.extend_from_slice(value),
            Node::Text(text) => {
                out.push(b'"');
                out.extend_from_slice(text);
                out.push(b'"');
            }
            Node::Map(map) => {
                out.push(b'{');
                let all = map.iter();
                write_members(all.map(|(name, node)| (&**name, node)), false, out);
                out.push(b'}');
            }
            Node::List(list) => {
                let mut items: Vec<&(Option<u64>, Node)> = list.iter().collect();
                items.sort_by_key(|(index, _)| *index);
                out.push(b'[');
                for (at, (_, item)) in items.into_iter().enumerate() {
                    if at > 0 {
                        out.push(b',');
                    }
                    match item {
                        // The index identified the continued item; in a whole answer the item's position does.
                        Node::Map(map) if name == b"tool_calls" => {
                            let all = map.iter().map(|(name, node)| (&**name, node));
                            out.push(b'{');
                            write_members(all.filter(|(name, _)| *name != b"index"), false, out);
                            out.push(b'}');
                        }
                        item => item.write(b"", out),
                    }
                }
                out.push(b']');
            }
        }
    }
}

/// Whether `value` is the list `known` with more items.
fn grows(known: &[u8], value: &[u8]) -> bool {
    known.strip_suffix(b"]").is_some_and(|known| {
        let rest = value.strip_prefix(known);
        rest.is_some_and(|rest| rest.starts_with(b","))
    })
}

/// Whether the text of a string is JSON.
fn is_json(raw: &[u8]) -> bool {
    let mut text = String::new();
    string::unescape(raw, &mut text);
    let mut reader = Reader::new(text.as_bytes());
    reader.skip().is_ok() && reader.end().is_ok()
}

/// A part with this text.
fn text_part(raw: Vec<u8>) -> Node {
    Node::Map(vec![
        (b"type"[..].into(), Node::Plain(b"\"text\"".to_vec())),
        (b"text"[..].into(), Node::Text(raw)),
    ])
}

/// Appends a piece of text to a content in parts.
fn say_in_part(
    parts: &mut Vec<(Option<u64>, Node)>,
    raw: &[u8],
    start: usize,
    touched: &mut Touched,
) -> Result<(), StoredError> {
    if raw.is_empty() {
        return Ok(());
    }
    let last = parts.last();
    if last.is_none_or(|(_, part)| part.fact(b"type") != Some(b"text")) {
        if parts.len() == PLACES_MAX {
            return Err(StoredError::NotJoinable);
        }
        parts.push((None, text_part(Vec::new())));
        touched.grown += 32;
        touched.listed = true;
    }
    let at = parts.len() - 1;
    let Node::Map(part) = &mut parts[at].1 else {
        return Err(StoredError::NotJoinable);
    };
    let member = Members::default().place(part, b"text", touched)?;
    touched.enter(at);
    touched.enter(member);
    let said = part[member].1.say(raw, start, Join::Text, touched);
    touched.leave();
    touched.leave();
    said
}

/// Appends members with commas between them; `follows`: another member precedes the first.
pub(super) fn write_members<'n>(
    members: impl Iterator<Item = (&'n [u8], &'n Node)>,
    follows: bool,
    out: &mut Vec<u8>,
) {
    let mut follows = follows;
    for (name, node) in members {
        if follows {
            out.push(b',');
        }
        follows = true;
        out.push(b'"');
        out.extend_from_slice(name);
        out.extend_from_slice(b"\":");
        node.write(name, out);
    }
}

/// The `index` of the next object, which is parsed again afterwards.
pub(super) fn index_of(reader: &Reader<'_>) -> Result<Option<u64>, SyntaxError> {
    let mut ahead = reader.ahead();
    let mut first = true;
    ahead.enter()?;
    while let Some(key) = ahead.key(&mut first)? {
        if key.text.raw == b"index" && ahead.kind()? == Kind::Number {
            return Ok(match number::whole(ahead.number()?) {
                Whole::Value(index) => Some(index),
                _ => None,
            });
        }
        ahead.kind()?;
        ahead.skip()?;
    }
    Ok(None)
}
