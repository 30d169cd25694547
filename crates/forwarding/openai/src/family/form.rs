//! The form of an endpoint family: every fact that the chain reads in place of the family's name.

use std::fmt;

use crate::completion::Walk;
use crate::contract::MemberRule;
use crate::word;

/// An endpoint family: an operation that clients call, with the places of its facts in a request and in an answer.
///
/// Plain data. Two families are equal if their [`index`](Self::index) is equal: a comparison of a byte.
#[derive(Clone, Copy)]
pub struct Family {
    /// The family's place in [`Family::ALL`], for tables with an entry per family.
    pub index: u8,
    /// The family's name in this program.
    pub name: &'static str,
    /// The family's name for people.
    pub title: &'static str,
    /// The family's name in an export of usage.
    pub usage_label: &'static str,
    /// The family's name in traces: `gen_ai.operation.name`.
    pub operation: &'static str,
    /// The family's path below `/v1`, and below a provider's base address.
    pub path: &'static str,
    /// The scope of a credential that may call the family.
    pub scope: &'static str,
    /// The family's number in the store, for usage and idempotency keys. Permanent: old rows contain the number.
    pub stored: i64,
    /// Whether answers may be kept for other requests.
    pub cacheable: bool,
    /// The family's number in cache keys and in entries of the second level. Permanent for a version of cache keys or entries.
    pub cache_code: u8,
    /// The family's requests.
    pub request: RequestForm,
    /// The family's answers.
    pub answer: AnswerForm,
}

/// The request body of a family.
#[derive(Clone, Copy)]
pub struct RequestForm {
    /// The name of the request's schema in the API description.
    pub schema: &'static str,
    /// The documented members.
    pub contract: &'static [MemberRule],
    /// The required member: the input of the model.
    pub input: &'static str,
    /// The member with the cap of an answer.
    pub cap: &'static str,
    /// A newer name of the cap, for models that refuse the older name.
    pub newer_cap: Option<&'static str>,
    /// Whether a client's cap may be lowered to the cap that the balance pays for: true where the cap is mandatory, and therefore not the
    /// client's choice.
    pub clamp_cap: bool,
    /// The member, as JSON, that asks for the usage of a stream.
    pub usage_option: Option<&'static str>,
    /// Lower-case ASCII names of members that change the price or the access. No member may differ from these names in case alone.
    pub(crate) names: &'static [&'static str],
    /// The role of each interned name.
    pub(crate) roles: Roles,
    /// The roles of names that are not interned.
    pub(crate) others: &'static [(&'static str, Role)],
}

/// The answers of a family, whole and as a stream.
#[derive(Clone, Copy)]
pub struct AnswerForm {
    /// `object` of a whole answer.
    pub object: &'static str,
    /// `object` of an event.
    pub event_object: &'static str,
    /// The prefix of ids.
    pub id_prefix: &'static str,
    /// The place of the generated text in a choice.
    pub content: Content,
    /// The choices of an event without text, as JSON.
    pub silent_choices: &'static str,
    /// The data of the event that ends a stream.
    pub done: &'static [u8],
    /// The parser of an answer or event: usage, choices, errors, and the generated text for estimates.
    pub(crate) read: Walk,
}

/// The place of the generated text in a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// In a `message`; in pieces in the `delta` of each event.
    Message,
    /// In `text`.
    Text,
}

/// The role of a top-level member of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Unknown: a structure or text may become a part of the prompt.
    Unknown,
    /// No part of the model's text.
    Aside,
    /// Refused, unless it is null.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "neither chat nor text refuses a member")
    )]
    Refused,
    /// The model's name.
    Model,
    /// Whether the answer is a stream.
    Stream,
    /// The options of a stream.
    StreamOptions,
    /// Whether a stored answer may be returned.
    Cache,
    /// The cap of an answer.
    Cap,
    /// The cap of an answer, under its newer name.
    NewerCap,
    /// The number of answers.
    Answers,
    /// The number of generated answers, of which the best are returned.
    Drafts,
    /// Input: a list of messages.
    Messages,
    /// Input: a text, or several.
    Prompt,
    /// Input: the text before each prompt.
    System,
    /// Input: the tools.
    Tools,
    /// The provider's plugins.
    Plugins,
    /// A number of 0 or more.
    Number,
    /// A list of strings.
    Texts,
    /// A string or an object.
    TextOrObject,
    /// An object.
    Object,
    /// `reasoning`, an object.
    Reasoning,
    /// `reasoning` where the member is not documented: a value that is no object is unknown.
    UndocumentedReasoning,
}

/// The role of each word, at the word's number.
pub(crate) type Roles = [Role; word::ALL.len()];

/// The table of the named roles; every other word is unknown. A later list replaces an earlier list.
///
/// Evaluated at compile time only. A name that is no word is a compile error: the name stands in `others`.
pub(crate) const fn roles(lists: &[&[(&str, Role)]]) -> Roles {
    let mut roles = [Role::Unknown; word::ALL.len()];
    let mut list = 0;
    while list < lists.len() {
        let mut at = 0;
        while at < lists[list].len() {
            let (name, role) = lists[list][at];
            roles[number(name)] = role;
            at += 1;
        }
        list += 1;
    }
    roles
}

const fn number(name: &str) -> usize {
    let mut at = 0;
    while at < word::ALL.len() {
        if is_same(word::ALL[at].1.as_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("the name is no word of `word.rs`: put it into `others`")
}

const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

impl RequestForm {
    /// The role of a name that is not interned.
    pub(crate) fn role_of_other(&self, name: &[u8]) -> Role {
        let mut others = self.others.iter();
        let found = others.find(|(other, _)| other.as_bytes() == name);
        found.map_or(Role::Unknown, |(_, role)| *role)
    }
}

impl Family {
    /// [`index`](Self::index) as the index of a table.
    pub const fn place(&self) -> usize {
        self.index as usize
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

impl Eq for Family {}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
