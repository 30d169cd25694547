//! The accumulated content of a stream, as a small tree whose leaves are JSON as written.

use crate::json::{Kind, Reader, SyntaxError};
use crate::number::{self, Whole};

/// How strings of one name in several events are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// The last one that is not null replaces the others: facts about the choice.
    Replace,
    /// They are concatenated: generated text.
    Append,
}

/// One accumulated value.
#[derive(Clone, Debug, Default)]
pub(super) enum Node {
    /// No value yet.
    #[default]
    Nothing,
    /// A number, a boolean or null, as written.
    Plain(Vec<u8>),
    /// The text between the quotes of a string, as written.
    Text(Vec<u8>),
    /// Items, with the index by which an event continues one of them.
    List(Vec<(Option<u64>, Node)>),
    Map(Vec<(Box<[u8]>, Node)>),
}

/// The effect of an event on the tree.
#[derive(Debug, Default)]
pub(super) struct Touched {
    /// Bytes that the tree grew by, less the replaced bytes.
    pub(super) grown: isize,
    /// Appended strings, with the position of the last of them in the event: the offset of its first byte, and its length.
    pub(super) appended: usize,
    pub(super) last: (usize, usize),
    /// The path of the last of them.
    pub(super) path: Vec<usize>,
    /// A part other than that string would be duplicated if the event were repeated.
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

impl Node {
    /// Adds the next value. `name` is that of its member.
    ///
    /// Recurses once for each level; the reader stops at 64.
    pub(super) fn take(
        &mut self,
        reader: &mut Reader<'_>,
        text: &[u8],
        name: &[u8],
        join: Join,
        touched: &mut Touched,
    ) -> Result<(), SyntaxError> {
        match reader.kind()? {
            Kind::Null => {
                reader.null()?;
                if matches!(self, Node::Nothing) {
                    self.put(Node::Plain(b"null".to_vec()), touched);
                }
            }
            Kind::Number | Kind::Bool => {
                let value = reader.skip()?.of(text);
                self.put(Node::Plain(value.to_vec()), touched);
            }
            Kind::String => {
                let raw = reader.string()?.raw;
                let start = reader.at() - 1 - raw.len();
                self.say(raw, start, name, join, touched);
            }
            Kind::Object => {
                if !matches!(self, Node::Map(_)) {
                    *self = Node::Map(Vec::new());
                }
                let Node::Map(map) = self else { return Ok(()) };
                let mut first = true;
                reader.enter()?;
                while let Some(key) = reader.key(&mut first)? {
                    let at = place(map, key.text.raw, touched);
                    touched.here.push(at);
                    map[at].1.take(reader, text, key.text.raw, join, touched)?;
                    touched.here.pop();
                }
            }
            Kind::Array => {
                if !matches!(self, Node::List(_)) {
                    *self = Node::List(Vec::new());
                }
                let Node::List(list) = self else {
                    return Ok(());
                };
                let mut first = true;
                reader.enter()?;
                while reader.item(&mut first)? {
                    let index = match name {
                        b"tool_calls" => index_of(reader)?,
                        _ => None,
                    };
                    let known = list
                        .iter()
                        .position(|(known, _)| index.is_some() && *known == index);
                    let at = known.unwrap_or_else(|| {
                        list.push((index, Node::Nothing));
                        touched.listed = true;
                        touched.grown += 8;
                        list.len() - 1
                    });
                    touched.here.push(at);
                    list[at].1.take(reader, text, b"", join, touched)?;
                    touched.here.pop();
                }
            }
        }
        Ok(())
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

    fn say(&mut self, raw: &[u8], start: usize, name: &[u8], join: Join, touched: &mut Touched) {
        // Some providers repeat these in every event.
        let fact = matches!(name, b"role" | b"id" | b"type");
        match self {
            Node::Text(text) if join == Join::Append && !fact => {
                text.extend_from_slice(raw);
                touched.grown += raw.len() as isize;
            }
            Node::Text(text) if fact && !text.is_empty() => return,
            _ => self.put(Node::Text(raw.to_vec()), touched),
        }
        if join == Join::Append && !fact && !raw.is_empty() {
            touched.appended += 1;
            touched.last = (start, raw.len());
            touched.path.clone_from(&touched.here);
        }
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

    /// Appends it as JSON.
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
                        // The index identified the continued item; in a whole answer its position does.
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

/// The position of the member of this name in a map; it is inserted if absent.
pub(super) fn place(map: &mut Vec<(Box<[u8]>, Node)>, name: &[u8], touched: &mut Touched) -> usize {
    if let Some(at) = map.iter().position(|(known, _)| **known == *name) {
        return at;
    }
    map.push((name.into(), Node::Nothing));
    touched.grown += name.len() as isize + 8;
    map.len() - 1
}

/// The `index` of the next object, which is parsed again afterwards.
pub(super) fn index_of(reader: &Reader<'_>) -> Result<Option<u64>, SyntaxError> {
    let mut ahead = reader.ahead();
    if ahead.kind()? != Kind::Object {
        return Ok(None);
    }
    let mut first = true;
    ahead.enter()?;
    while let Some(key) = ahead.key(&mut first)? {
        if key.text.raw == b"index" && ahead.kind()? == Kind::Number {
            return Ok(match number::whole(ahead.number()?) {
                Whole::Value(index) => Some(index),
                _ => None,
            });
        }
        ahead.skip()?;
    }
    Ok(None)
}
