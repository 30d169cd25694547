//! Usage.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_store::UsageTotal;

use super::{Credits, day};

/// The usage of one model on one day.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
pub(crate) struct UsageView {
    /// The day, UTC: `2026-01-31`.
    pub(crate) day: String,
    /// The model.
    pub(crate) model: String,
    /// Number of requests.
    pub(crate) requests: u64,
    /// Input tokens.
    pub(crate) prompt_tokens: u64,
    /// Output tokens.
    pub(crate) completion_tokens: u64,
    /// The credits charged.
    pub(crate) credits: Credits,
    /// The credits that could not be charged.
    pub(crate) written_off: Credits,
}

impl UsageView {
    /// The view of a total.
    pub(crate) fn of(total: &UsageTotal) -> UsageView {
        UsageView {
            day: day(total.day_at),
            model: total.model.to_string(),
            requests: total.requests,
            prompt_tokens: total.prompt_tokens,
            completion_tokens: total.completion_tokens,
            credits: total.cost.into(),
            written_off: total.written_off.into(),
        }
    }
}
