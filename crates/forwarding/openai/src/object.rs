//! Byte-preserving edits of any JSON object: members set and removed by name, for filters with members unknown to this crate.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};

use crate::json::{Kind, Reader, SyntaxError};
use crate::splice::{Layout, Member, Splice};
use crate::string;

/// The largest number of members of an object.
const MEMBERS_MAX: u32 = 1_024;

/// A list of edits of a JSON object, applied together by [`ObjectEdit::apply`].
///
/// Every byte outside the edited members is unchanged: the digits of numbers, the order of members, unknown members and white space. A text
/// that is parsed and written again, by `serde_json` for example, loses these properties: a `seed` above 2^64 becomes a float.
///
/// ```
/// use bytes::Bytes;
/// use tollgate_openai::ObjectEdit;
///
/// # fn main() -> Result<(), tollgate_openai::ObjectError> {
/// let body = Bytes::from_static(br#"{ "seed": 123456789012345678901234567890, "user": "me" }"#);
/// let edited = ObjectEdit::read(&body)?.set_text("user", "acct_42").set("top_k", "3")?.apply();
/// assert_eq!(&edited[..], br#"{ "seed": 123456789012345678901234567890, "user": "acct_42" ,"top_k":3}"#);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct ObjectEdit<'a> {
    body: &'a Bytes,
    /// Names in the order of the text.
    names: Vec<Cow<'a, [u8]>>,
    layout: Layout<u32>,
    /// The last edit of each name: the new value, or `None` for a removed member.
    edits: Vec<(Cow<'a, str>, Option<BytesMut>)>,
}

/// Why a text is no object that can be edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The text is not UTF-8.
    #[error("the text is not UTF-8")]
    NotUtf8,
    /// The text is not JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The text is JSON, and no object.
    #[error("the text is not an object")]
    NotAnObject,
    /// Two members have equal names, so that two readers could read two values.
    #[error("the member `{name}` is there twice")]
    Repeated {
        /// The name.
        name: String,
    },
    /// The object has too many members, or is larger than four gigabytes.
    #[error("the object has more than {MEMBERS_MAX} members")]
    TooLarge,
}

impl<'a> ObjectEdit<'a> {
    /// Reads an object, without edits. Takes a single pass and allocates only the list of members.
    ///
    /// # Errors
    ///
    /// The text is no unambiguous JSON object.
    pub fn read(body: &'a Bytes) -> Result<ObjectEdit<'a>, ObjectError> {
        std::str::from_utf8(body).map_err(|_| ObjectError::NotUtf8)?;
        let mut reader = Reader::new(body);
        if reader.kind()? != Kind::Object {
            return Err(ObjectError::NotAnObject);
        }
        let mut edit = ObjectEdit {
            body,
            names: Vec::new(),
            layout: Layout::new(),
            edits: Vec::new(),
        };
        reader.enter()?;
        let mut first = true;
        while let Some(key) = reader.key(&mut first)? {
            let ordinal = edit.layout.count;
            let value = reader.skip()?;
            let member = Member::new(ordinal, key.at, value).ok_or(ObjectError::TooLarge)?;
            if ordinal == MEMBERS_MAX {
                return Err(ObjectError::TooLarge);
            }
            // Half a surrogate pair is no name for an edit.
            edit.names
                .push(key.text.bytes().unwrap_or(Cow::Borrowed(key.text.raw)));
            edit.layout.members.push((ordinal, member));
            edit.layout.count += 1;
        }
        edit.layout.close = reader.at() - 1;
        reader.end()?;
        let mut sorted: Vec<&[u8]> = edit.names.iter().map(|name| &**name).collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            let name = String::from_utf8_lossy(pair[0]).into_owned();
            return Err(ObjectError::Repeated { name });
        }
        Ok(edit)
    }

    /// The value of a member as it is written, before the edits.
    pub fn value(&self, name: &str) -> Option<&'a [u8]> {
        let at = self
            .names
            .iter()
            .position(|known| **known == *name.as_bytes())?;
        let (_, member) = self.layout.members[at];
        Some(member.value().of(self.body))
    }

    /// Sets a member to a JSON text: in the member's place, or as the last member of an object without the member.
    ///
    /// # Errors
    ///
    /// `json` is not a single JSON value.
    pub fn set(self, name: impl Into<Cow<'a, str>>, json: &str) -> Result<Self, SyntaxError> {
        let mut reader = Reader::new(json.as_bytes());
        reader.skip()?;
        reader.end()?;
        Ok(self.edit(name.into(), Some(BytesMut::from(json.as_bytes()))))
    }

    /// Sets a member to a string: in the member's place, or as the last member of an object without the member.
    pub fn set_text(self, name: impl Into<Cow<'a, str>>, text: &str) -> Self {
        let mut value = BytesMut::new();
        string::write(text, &mut value);
        self.edit(name.into(), Some(value))
    }

    /// Removes a member, if present.
    pub fn remove(self, name: impl Into<Cow<'a, str>>) -> Self {
        self.edit(name.into(), None)
    }

    /// The edited text. Without edits, the unchanged buffer, not copied.
    pub fn apply(&self) -> Bytes {
        if self.edits.is_empty() {
            return self.body.clone();
        }
        let mut out = BytesMut::new();
        let mut splice = Splice::new(self.body, &mut out);
        for ((_, member), name) in self.layout.members.iter().zip(&self.names) {
            match self
                .edits
                .iter()
                .find(|(edited, _)| *edited.as_bytes() == **name)
            {
                None => {}
                Some((_, None)) => splice.remove(member),
                Some((_, Some(value))) => {
                    splice.instead_of(member.value()).extend_from_slice(value)
                }
            }
        }
        for (name, value) in &self.edits {
            if let Some(value) = value
                && self.value(name).is_none()
            {
                let out = splice.append(&self.layout);
                string::write(name, out);
                out.extend_from_slice(b":");
                out.extend_from_slice(value);
            }
        }
        splice.finish();
        out.freeze()
    }

    fn edit(mut self, name: Cow<'a, str>, value: Option<BytesMut>) -> Self {
        self.edits.retain(|(edited, _)| *edited != name);
        self.edits.push((name, value));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Edit = fn(ObjectEdit<'_>) -> ObjectEdit<'_>;

    fn check(body: &'static str, edit: Edit, wanted: &str) {
        let body = Bytes::from_static(body.as_bytes());
        let read = ObjectEdit::read(&body).expect("an object");
        let edited = edit(read).apply();
        assert_eq!(std::str::from_utf8(&edited), Ok(wanted));
        let again = edit(ObjectEdit::read(&edited).expect("an object")).apply();
        assert_eq!(again, edited, "a second time it changes nothing");
    }

    const BODY: &str = "{ \"z\" : 1e400,\n\t\"seed\":18446744073709551616123, \"a\":[ 1.50 , -0 ],\"unknown\":{\"b\":2,\"a\":1} }";

    #[test]
    fn everything_but_the_edited_member_stays_to_the_byte() {
        check(BODY, |edit| edit, BODY);
        check(
            BODY,
            |edit| edit.set_text("user", "a \"b\""),
            "{ \"z\" : 1e400,\n\t\"seed\":18446744073709551616123, \"a\":[ 1.50 , -0 ],\"unknown\":{\"b\":2,\"a\":1} ,\"user\":\"a \\\"b\\\"\"}",
        );
        check(
            BODY,
            |edit| edit.set("a", "[]").expect("JSON").remove("z"),
            "{ \n\t\"seed\":18446744073709551616123, \"a\":[],\"unknown\":{\"b\":2,\"a\":1} }",
        );
        check(
            BODY,
            |edit| edit.remove("unknown").remove("absent"),
            "{ \"z\" : 1e400,\n\t\"seed\":18446744073709551616123, \"a\":[ 1.50 , -0 ] }",
        );
        check("{}", |edit| edit.set_text("a", ""), "{\"a\":\"\"}");
        check(
            "{\"a\":1}",
            |edit| edit.remove("a").set_text("b", "c"),
            "{\"b\":\"c\"}",
        );
        check(
            "{\"\\u0061\":1}",
            |edit| {
                edit.set("a", "1")
                    .expect("JSON")
                    .set("a", "2")
                    .expect("JSON")
            },
            "{\"\\u0061\":2}",
        );
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        let refused = |body: &'static [u8]| {
            let body = Bytes::from_static(body);
            ObjectEdit::read(&body).map(|_| ()).expect_err("no object")
        };
        let name = "a".to_owned();
        assert_eq!(
            refused(br#"{"a":1,"\u0061":2}"#),
            ObjectError::Repeated { name }
        );
        assert_eq!(refused(b"[]"), ObjectError::NotAnObject);
        assert_eq!(refused(b"{\"a\":\"\xff\"}"), ObjectError::NotUtf8);
        assert!(matches!(refused(b"{\"a\":1} 2"), ObjectError::Syntax(_)));
        let body = Bytes::from_static(b"{}");
        let edit = ObjectEdit::read(&body).expect("an object");
        assert!(edit.set("a", "1,\"b\":2").is_err(), "one value");
    }
}
