//! Text completions, the older operation: `POST /v1/completions`.

use crate::completion::Completion;
use crate::contract::{
    CACHE, MAX_TOKENS, MODEL, MemberRule, STREAM, Shape, TEMPERATURE, member, required,
};
use crate::event::DONE;

use super::form::{AnswerForm, Content, Family, RequestForm, Role, roles};
use super::shared::{NAMES, OTHERS, ROLES, USAGE_OPTION};

pub(super) static TEXT: Family = Family {
    index: 1,
    name: "text",
    title: "Text completions",
    usage_label: "completions",
    operation: "text_completion",
    path: "/completions",
    scope: "api:completions",
    stored: 2,
    cacheable: true,
    cache_code: 1,
    request: RequestForm {
        schema: "CompletionRequest",
        contract: CONTRACT,
        input: "prompt",
        cap: "max_tokens",
        newer_cap: None,
        clamp_cap: false,
        usage_option: Some(USAGE_OPTION),
        names: NAMES,
        roles: roles(&[ROLES, OWN_ROLES]),
        others: OTHERS,
    },
    answer: AnswerForm {
        object: "text_completion",
        event_object: "text_completion",
        id_prefix: "cmpl-",
        content: Content::Text,
        silent_choices: r#"[{"index":0,"text":"","logprobs":null,"finish_reason":null}]"#,
        done: DONE,
        read: Completion::walk,
    },
};

const OWN_ROLES: &[(&str, Role)] = &[
    ("prompt", Role::Prompt),
    ("system", Role::System),
    ("reasoning", Role::UndocumentedReasoning),
];

const CONTRACT: &[MemberRule] = &[
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
