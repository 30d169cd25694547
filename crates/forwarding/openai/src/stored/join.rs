//! The rules by which the values of several events join to a single value.
//!
//! Only generated text is concatenated. The accumulators of client libraries agree only on the text. For a repeated `name`, a library makes
//! `read_fileread_file`, another library `read_file`. For two lists, a library keeps the last list, another library keeps the two lists. A
//! stream whose meaning depends on the library is not joined at all.

/// The rule for a value, by its place in an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Join {
    /// A fact about the answer or a choice: the last value that is neither null nor empty.
    Last,
    /// A fact in a message: set once. The fact may be repeated, a number may change, and a list may grow.
    Once,
    /// Generated text: the strings in sequence.
    Text,
    /// Base64: the strings in sequence, as long as no padding is in the middle.
    Base64,
    /// An item for each generated token: lists at any depth are appended.
    Lists,
    /// A `delta`.
    Message,
    /// Text, or parts with text.
    Content,
    /// A part of a content.
    Part,
    /// `tool_calls`.
    Calls,
    /// A call of a tool.
    Call,
    /// `function_call`, and `function` or `custom` of a call.
    Function,
    Audio,
    /// `reasoning_details`.
    Details,
    /// An item of the details.
    Detail,
}

impl Join {
    /// The rule for a member of a choice, except for the message.
    pub(super) fn of_choice(name: &[u8]) -> Join {
        match name {
            b"text" | b"reasoning" | b"reasoning_content" => Join::Text,
            b"logprobs" | b"token_ids" => Join::Lists,
            _ => Join::Last,
        }
    }

    /// The rule for a member of an object with this rule.
    pub(super) fn member(self, name: &[u8]) -> Join {
        match (self, name) {
            (Join::Lists, _) => Join::Lists,
            (Join::Message, b"content") => Join::Content,
            (
                Join::Message,
                b"refusal" | b"reasoning" | b"reasoning_content" | b"reasoning_text" | b"thinking",
            ) => Join::Text,
            (Join::Message, b"tool_calls") => Join::Calls,
            (Join::Message, b"function_call") | (Join::Call, b"function" | b"custom") => {
                Join::Function
            }
            (Join::Message, b"audio") => Join::Audio,
            (Join::Message, b"reasoning_details") => Join::Details,
            (Join::Message, b"token_ids" | b"logprobs") => Join::Lists,
            (Join::Function, b"arguments" | b"input") => Join::Text,
            (Join::Audio, b"data") => Join::Base64,
            (Join::Audio, b"transcript") => Join::Text,
            (Join::Part, b"text" | b"refusal") => Join::Text,
            (Join::Part, b"thinking") => Join::Content,
            (Join::Detail, b"text" | b"summary") => Join::Text,
            _ => Join::Once,
        }
    }

    /// The rule for the items of a list that are continued.
    pub(super) fn item(self) -> Option<Join> {
        Some(match self {
            Join::Content => Join::Part,
            Join::Calls => Join::Call,
            Join::Details => Join::Detail,
            _ => return None,
        })
    }

    /// Whether a value is an object whose members have rules of their own.
    pub(super) fn is_object(self) -> bool {
        use Join::{Audio, Call, Detail, Function, Message, Part};
        matches!(self, Message | Part | Call | Function | Audio | Detail)
    }
}
