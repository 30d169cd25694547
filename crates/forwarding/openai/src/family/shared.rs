//! Roles and names that chat and text completions have in common.

use super::form::Role;

/// Members of chat and text completions. `n`, `best_of` and `stream_options` are not documented, but validated. `n` and `best_of` size the
/// hold: a provider that reads `"5"` as five would be paid for answers without a hold. `stream_options` is edited.
pub(super) const ROLES: &[(&str, Role)] = &[
    ("model", Role::Model),
    ("stream", Role::Stream),
    ("stream_options", Role::StreamOptions),
    ("cache", Role::Cache),
    ("max_tokens", Role::Cap),
    ("n", Role::Answers),
    ("best_of", Role::Drafts),
    ("temperature", Role::Number),
    ("user", Role::Aside),
    ("metadata", Role::Aside),
];

/// The newer cap of a chat sizes the hold of a text request too: a provider may read the newer cap in a text request.
pub(super) const OTHERS: &[(&str, Role)] = &[("max_completion_tokens", Role::NewerCap)];

/// The request for the usage of a stream.
pub(super) const USAGE_OPTION: &str = r#""stream_options":{"include_usage":true}"#;

/// Members that the gateway reads, members that the contract documents, and members that change the cost of a request at a provider.
pub(super) const NAMES: &[&str] = &[
    "model",
    "messages",
    "prompt",
    "system",
    "suffix",
    "stream",
    "stream_options",
    "cache",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "best_of",
    "echo",
    "logprobs",
    "top_logprobs",
    "temperature",
    "tools",
    "tool_choice",
    "functions",
    "function_call",
    "parallel_tool_calls",
    "plugins",
    "modalities",
    "audio",
    "image_config",
    "reasoning",
    "reasoning_effort",
    "response_format",
    "service_tier",
    "store",
    "web_search_options",
];
