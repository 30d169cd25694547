//! Chat completions: `POST /v1/chat/completions`.

use crate::completion::Completion;
use crate::contract::{
    CACHE, MAX_TOKENS, MODEL, MemberRule, STREAM, Shape, TEMPERATURE, member, required,
};
use crate::event::DONE;

use super::form::{AnswerForm, Content, Family, RequestForm, Role, roles};
use super::shared::{NAMES, OTHERS, ROLES, USAGE_OPTION};

pub(super) static CHAT: Family = Family {
    index: 0,
    name: "chat",
    title: "Chat completions",
    usage_label: "chat",
    operation: "chat",
    path: "/chat/completions",
    scope: "api:chat",
    stored: 1,
    cacheable: true,
    cache_code: 0,
    request: RequestForm {
        schema: "ChatCompletionRequest",
        contract: CONTRACT,
        input: "messages",
        cap: "max_tokens",
        newer_cap: Some("max_completion_tokens"),
        clamp_cap: false,
        usage_option: Some(USAGE_OPTION),
        names: NAMES,
        roles: roles(&[ROLES, OWN_ROLES]),
        others: OTHERS,
    },
    answer: AnswerForm {
        object: "chat.completion",
        event_object: "chat.completion.chunk",
        id_prefix: "chatcmpl-",
        content: Content::Message,
        silent_choices: r#"[{"index":0,"delta":{},"logprobs":null,"finish_reason":null}]"#,
        done: DONE,
        read: Completion::walk,
    },
};

const OWN_ROLES: &[(&str, Role)] = &[
    ("messages", Role::Messages),
    ("tools", Role::Tools),
    ("plugins", Role::Plugins),
    ("modalities", Role::Texts),
    ("tool_choice", Role::TextOrObject),
    ("image_config", Role::Object),
    ("reasoning", Role::Reasoning),
];

const CONTRACT: &[MemberRule] = &[
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
