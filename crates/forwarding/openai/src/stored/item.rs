//! The item of a list that an item of a later event continues.

use crate::json::{Kind, Reader, SyntaxError};
use crate::number::{self, Whole};

use super::StoredError;
use super::node::Node;

/// The members by which an item of a list continues an item of an earlier event.
#[derive(Debug, Default)]
pub(super) struct Item<'a> {
    pub(super) index: Option<u64>,
    /// The item's `id`, if not empty.
    id: Option<&'a [u8]>,
    /// The item's `type`.
    kind: Option<&'a [u8]>,
    /// Whether the item has a function or a tool: a call may begin with the item.
    begins: bool,
}

impl<'a> Item<'a> {
    /// The next value, which is parsed again afterwards. `None` for a value that is no object.
    pub(super) fn ahead(reader: &Reader<'a>) -> Result<Option<Item<'a>>, SyntaxError> {
        let mut ahead = reader.ahead();
        if ahead.kind()? != Kind::Object {
            return Ok(None);
        }
        let mut item = Item::default();
        let mut first = true;
        ahead.enter()?;
        while let Some(key) = ahead.key(&mut first)? {
            match (key.text.raw, ahead.kind()?) {
                (b"index", Kind::Number) => {
                    if let Whole::Value(index) = number::whole(ahead.number()?) {
                        item.index = Some(index);
                    }
                }
                (b"id", Kind::String) => item.id = fact(&mut ahead)?,
                (b"type", Kind::String) => item.kind = fact(&mut ahead)?,
                (b"function" | b"custom", Kind::Object) => {
                    let mut first = true;
                    ahead.enter()?;
                    while let Some(key) = ahead.key(&mut first)? {
                        let kind = ahead.kind()?;
                        let length = ahead.skip()?.len();
                        item.begins |=
                            key.text.raw == b"name" && kind == Kind::String && length > 2;
                    }
                }
                _ => {
                    ahead.skip()?;
                }
            }
        }
        Ok(Some(item))
    }

    /// The call that the item continues. A new id at a known index is a new call.
    pub(super) fn call_in(
        &self,
        calls: &[(Option<u64>, Node)],
    ) -> Result<Option<usize>, StoredError> {
        let has_id = |call: &Node| self.id.is_some() && call.fact(b"id") == self.id;
        let at_index = |index: &Option<u64>| self.index.is_none() || *index == self.index;
        let known = calls
            .iter()
            .rposition(|(index, call)| at_index(index) && has_id(call));
        if known.is_some() {
            return Ok(known);
        }
        let last = match self.index {
            Some(_) => calls.iter().rposition(|(index, _)| *index == self.index),
            // Without an index the item is a whole call, if the item has an id or is the only call.
            None if self.id.is_some() || calls.is_empty() => return Ok(None),
            None => return Err(StoredError::NotJoinable),
        };
        match last {
            Some(at) if self.id.is_none() || calls[at].1.fact(b"id").is_none() => Ok(Some(at)),
            Some(_) if !self.begins => Err(StoredError::NotJoinable),
            _ => Ok(None),
        }
    }

    /// The detail that the item continues: the detail with the item's index, unless the two differ in kind. `before`: details of earlier
    /// events.
    pub(super) fn detail_in(
        &self,
        details: &[(Option<u64>, Node)],
        before: usize,
    ) -> Result<Option<usize>, StoredError> {
        if self.index.is_none() {
            // The item does not name the continued detail.
            return match before {
                0 => Ok(None),
                _ => Err(StoredError::NotJoinable),
            };
        }
        Ok(details
            .iter()
            .rposition(|(index, detail)| *index == self.index && self.may_continue(detail)))
    }

    /// The part that the item continues: the part with the item's index, or else the last part, if part and item are text or part and item
    /// are thinking.
    pub(super) fn part_in(&self, parts: &[(Option<u64>, Node)]) -> Option<usize> {
        if self.index.is_some() {
            return parts
                .iter()
                .rposition(|(index, part)| *index == self.index && self.may_continue(part));
        }
        let is_said = matches!(self.kind, Some(b"text" | b"thinking"));
        let (_, last) = parts.last()?;
        (is_said && last.fact(b"type") == self.kind).then(|| parts.len() - 1)
    }

    fn may_continue(&self, item: &Node) -> bool {
        let agree = |own: Option<&[u8]>, known: Option<&[u8]>| {
            own.is_none() || known.is_none() || own == known
        };
        agree(self.kind, item.fact(b"type")) && agree(self.id, item.fact(b"id"))
    }
}

/// The next string, if not empty.
fn fact<'a>(reader: &mut Reader<'a>) -> Result<Option<&'a [u8]>, SyntaxError> {
    Ok(Some(reader.string()?.raw).filter(|text| !text.is_empty()))
}
