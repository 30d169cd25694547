//! The contract of request bodies as tables, a table per family ([`crate::family::RequestForm::contract`]). The API description is
//! generated from the tables, and a test checks [`crate::CompletionRequest`] against the tables.

/// The role of the model's own messages.
pub const ASSISTANT: &str = "assistant";

/// The role that replaces `system` for newer models. Providers that do not know the role get `system`.
pub const DEVELOPER: &str = "developer";

/// The roles of messages.
pub const ROLES: &[&str] = &["system", DEVELOPER, "user", ASSISTANT, "tool"];

/// An assistant message without `content` has at least a non-empty member of this list.
pub const CALLS: [&str; 2] = ["tool_calls", "function_call"];

/// A member of a request object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRule {
    /// The name of the member.
    pub name: &'static str,
    /// The shape of the member's value.
    pub shape: Shape,
    /// Whether the member is required. An optional member may also be null, which means absent.
    pub required: bool,
    /// The description of the member.
    pub meaning: &'static str,
}

/// The shape of a member's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A string.
    Text,
    /// A string of this list.
    Word(&'static [&'static str]),
    /// A number of 0 or more.
    Number,
    /// A whole number of at least 1.
    Count,
    /// True or false, with the default.
    Flag(bool),
    /// An object with any members.
    Object,
    /// A list of strings.
    Texts,
    /// A list of objects with any members.
    Objects,
    /// A string, or an object with any members.
    TextOrObject,
    /// A string, or a list of strings.
    TextOrTexts,
    /// A string, a list of objects with any members, or null.
    Content,
    /// A list of at least an object with the members of [`MESSAGE`].
    Messages,
}

pub(crate) const fn member(name: &'static str, shape: Shape, meaning: &'static str) -> MemberRule {
    MemberRule {
        name,
        shape,
        required: false,
        meaning,
    }
}

pub(crate) const fn required(
    name: &'static str,
    shape: Shape,
    meaning: &'static str,
) -> MemberRule {
    MemberRule {
        required: true,
        ..member(name, shape, meaning)
    }
}

/// The members of a message. A message without `content` is valid if its role is assistant and a member of [`CALLS`] is present.
pub const MESSAGE: &[MemberRule] = &[
    required(
        "role",
        Shape::Word(ROLES),
        "Who speaks. `developer` is `system` to a provider that does not know it.",
    ),
    required(
        "content",
        Shape::Content,
        "What is said. May be null, and is optional on an assistant message with `tool_calls` or `function_call`.",
    ),
    member(
        "name",
        Shape::Text,
        "A name that tells speakers of one role apart.",
    ),
    member(
        "tool_call_id",
        Shape::Text,
        "The tool call that this message answers.",
    ),
    member(
        "tool_calls",
        Shape::Objects,
        "Tool calls that the model made.",
    ),
];

pub(crate) const MODEL: MemberRule = member(
    "model",
    Shape::Text,
    "The id of a model from the list of models; the service's default model when absent.",
);
pub(crate) const TEMPERATURE: MemberRule = member(
    "temperature",
    Shape::Number,
    "How freely the model chooses.",
);
pub(crate) const MAX_TOKENS: MemberRule = member(
    "max_tokens",
    Shape::Count,
    "The most tokens that the model may write. Credit for as many is held while it writes.",
);
pub(crate) const STREAM: MemberRule = member(
    "stream",
    Shape::Flag(false),
    "Answers with an event stream that ends with the line `data: [DONE]`.",
);
pub(crate) const CACHE: MemberRule = member(
    "cache",
    Shape::Flag(true),
    "False neither reads nor stores shared answers.",
);
