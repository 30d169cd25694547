//! Byte-preserving patches of a provider's output for the client: model, id, usage, metadata.

use bytes::BytesMut;

use crate::completion::Tracked;
use crate::family::Family;
use crate::splice::{Layout, Member, Splice};
use crate::string;
use crate::usage::Usage;

/// The common part of every answer and event for a client: built once.
#[derive(Clone, Debug)]
pub struct Patch {
    /// The model's name for the client as a JSON string.
    model: Option<Box<[u8]>>,
    family: &'static Family,
    metadata_name: Box<str>,
}

impl Patch {
    /// Gives every `id` the prefix of the family's ids (`chatcmpl-`, `cmpl-`), unless the id has the prefix. Writes metadata objects as a
    /// member called `metadata_name`. A provider's member with this name never reaches the client.
    pub fn new(family: &'static Family, metadata_name: &str) -> Self {
        Self {
            model: None,
            family,
            metadata_name: metadata_name.into(),
        }
    }

    /// The family of the answers.
    pub fn family(&self) -> &'static Family {
        self.family
    }

    /// Sets `model` to the client's name of the model.
    #[must_use]
    pub fn model(mut self, name: &str) -> Self {
        let mut quoted = BytesMut::new();
        string::write(name, &mut quoted);
        self.model = Some(quoted.as_ref().into());
        self
    }

    pub(crate) fn metadata_name(&self) -> &str {
        &self.metadata_name
    }

    /// Appends `text` up to its closing brace, with `metadata` added. `text` is an object with at least a member and no metadata.
    pub fn append_metadata(&self, text: &[u8], metadata: &[u8], out: &mut BytesMut) {
        let open = text.strip_suffix(b"}").unwrap_or(text);
        out.extend_from_slice(open);
        out.extend_from_slice(b",");
        string::write(&self.metadata_name, out);
        out.extend_from_slice(b":");
        out.extend_from_slice(metadata);
        out.extend_from_slice(b"}");
    }

    /// Writes `text` of this `layout`, with this patch and the changes for this text.
    ///
    /// Returns the offset in `out` of the text's byte `mark`, if the byte lies in `choices`.
    pub(crate) fn write(
        &self,
        text: &[u8],
        layout: &Layout<Tracked>,
        change: &Change<'_>,
        mark: Option<usize>,
        out: &mut BytesMut,
    ) -> Option<usize> {
        let mut marked = None;
        let (mut has_model, mut has_usage) = (false, false);
        let mut splice = Splice::new(text, out);
        for (name, member) in &layout.members {
            match name {
                Tracked::Id => {
                    let value = member.value().of(text);
                    let prefix = self.family.answer.id_prefix.as_bytes();
                    if value[0] == b'"' && !value[1..].starts_with(prefix) {
                        let out = splice.up_to(member.value().start + 1);
                        out.extend_from_slice(prefix);
                    }
                }
                Tracked::Model => {
                    has_model = true;
                    if let Some(model) = &self.model {
                        splice.instead_of(member.value()).extend_from_slice(model);
                    }
                }
                Tracked::Choices => {
                    if let Some(choices) = change.choices {
                        splice.instead_of(member.value()).extend_from_slice(choices);
                    } else if let Some(mark) = mark.filter(|mark| member.value().has(*mark)) {
                        // A provider may send the member twice.
                        marked = Some(splice.up_to(mark).len());
                    }
                }
                Tracked::Usage => {
                    has_usage = true;
                    change.usage.apply(text, &mut splice, member);
                }
                Tracked::Metadata => splice.remove(member),
            }
        }
        if let (false, Some(model)) = (has_model, &self.model) {
            let out = splice.append(layout);
            out.extend_from_slice(br#""model":"#);
            out.extend_from_slice(model);
        }
        if let (false, UsageChange::Set(usage)) = (has_usage, change.usage) {
            let out = splice.append(layout);
            out.extend_from_slice(br#""usage":"#);
            usage.write(out);
        }
        if let Some(metadata) = change.metadata {
            let out = splice.append(layout);
            string::write(&self.metadata_name, out);
            out.extend_from_slice(b":");
            out.extend_from_slice(metadata);
        }
        splice.finish();
        marked
    }
}

/// The change of a `usage` member.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UsageChange {
    Keep,
    Remove,
    Null,
    /// Sets the counts.
    Set(Usage),
}

impl UsageChange {
    /// The change by which a client finds the `charged` usage in place of the `shown` usage. No change without a charged usage.
    pub(crate) fn to(charged: Option<Usage>, shown: Option<Usage>) -> Self {
        match charged {
            Some(charged) if shown != Some(charged) => Self::Set(charged),
            _ => Self::Keep,
        }
    }

    fn apply(self, text: &[u8], splice: &mut Splice<'_, '_>, member: &Member) {
        match self {
            Self::Keep => {}
            Self::Remove => splice.remove(member),
            Self::Null => splice.instead_of(member.value()).extend_from_slice(b"null"),
            Self::Set(usage) => {
                let value = member.value();
                usage.write_over(value.of(text), splice.instead_of(value));
            }
        }
    }
}

/// The changes to a text in addition to the patch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) usage: UsageChange,
    /// Replaces the value of `choices`.
    pub(crate) choices: Option<&'a [u8]>,
    /// The metadata object, as JSON.
    pub(crate) metadata: Option<&'a [u8]>,
}
