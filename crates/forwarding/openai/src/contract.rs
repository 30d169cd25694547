//! The contract of request bodies as a table: the API description is generated from it, and a test checks [`crate::CompletionRequest`]
//! against it.

use crate::request::Endpoint;

pub use crate::request::{ASSISTANT, CALLS, DEVELOPER, ROLES};

/// One member of a request object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRule {
    /// Its name.
    pub name: &'static str,
    /// The shape of its value.
    pub shape: Shape,
    /// Whether it is required. An optional one may also be null, which means the same.
    pub required: bool,
    /// Its description.
    pub meaning: &'static str,
}

/// The shape of a member's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A string.
    Text,
    /// One of these strings.
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
    /// A list of at least one object with the members of [`MESSAGE`].
    Messages,
}

const fn member(name: &'static str, shape: Shape, meaning: &'static str) -> MemberRule {
    MemberRule {
        name,
        shape,
        required: false,
        meaning,
    }
}

const fn required(name: &'static str, shape: Shape, meaning: &'static str) -> MemberRule {
    MemberRule {
        required: true,
        ..member(name, shape, meaning)
    }
}

/// The members of a message. One without `content` is valid if it is an assistant's and has one of [`CALLS`].
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

const MODEL: MemberRule = member(
    "model",
    Shape::Text,
    "The id of a model from the list of models; the service's default model when absent.",
);
const TEMPERATURE: MemberRule = member(
    "temperature",
    Shape::Number,
    "How freely the model chooses.",
);
const MAX_TOKENS: MemberRule = member(
    "max_tokens",
    Shape::Count,
    "The most tokens that the model may write. Credit for as many is held while it writes.",
);
const STREAM: MemberRule = member(
    "stream",
    Shape::Flag(false),
    "Answers with an event stream that ends with the line `data: [DONE]`.",
);
const CACHE: MemberRule = member(
    "cache",
    Shape::Flag(true),
    "False neither reads nor stores shared answers.",
);

/// The members of a chat request.
pub const CHAT: &[MemberRule] = &[
    MODEL,
    required("messages", Shape::Messages, "The conversation so far."),
    TEMPERATURE,
    MAX_TOKENS,
    member(
        "max_completion_tokens",
        Shape::Count,
        "As `max_tokens`, which it goes before where both are known; the larger of the two is held.",
    ),
    STREAM,
    CACHE,
    member("tools", Shape::Objects, "Tools that the model may call."),
    member(
        "tool_choice",
        Shape::TextOrObject,
        "Whether and which tool is called.",
    ),
    member(
        "plugins",
        Shape::Objects,
        "Plugins of the provider. Answers made with them are never shared.",
    ),
    member(
        "modalities",
        Shape::Texts,
        "What the answer may consist of.",
    ),
    member("image_config", Shape::Object, "How pictures are made."),
    member("reasoning", Shape::Object, "How the model reasons."),
];

/// The members of a text request.
pub const TEXT: &[MemberRule] = &[
    MODEL,
    required(
        "prompt",
        Shape::TextOrTexts,
        "The text to go on from, or several.",
    ),
    member("system", Shape::Text, "What stands before every prompt."),
    TEMPERATURE,
    MAX_TOKENS,
    STREAM,
    CACHE,
];

/// The members of a request to an operation.
pub const fn members(endpoint: Endpoint) -> &'static [MemberRule] {
    match endpoint {
        Endpoint::Chat => CHAT,
        Endpoint::Text => TEXT,
    }
}
