//! The cache of the running gateway.

use http::Method;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_cache::{Lookup, Removal, Storing};
use tollgate_filter::ApiError;
use tollgate_store::{Admission, UnitOfWork, commit};

use super::operation::{Operation, Recorded, Run};
use crate::admin::api::call::{Call, invalid};
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::changes::ChangeError;

/// Shows the contents and counters of the cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Show {}

/// The contents of the cache, and its counters since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub(crate) struct CacheState {
    /// Stored answers.
    pub(crate) entries: u64,
    /// Their size in memory in bytes.
    pub(crate) bytes: u64,
    /// The maximum size in bytes.
    pub(crate) bytes_max: u64,
    /// Requests that wait for the answer to an equal one (single flight).
    pub(crate) waiting: u64,
    /// Cache hits.
    pub(crate) hits: u64,
    /// Cache misses.
    pub(crate) misses: u64,
    /// Answers that were stored.
    pub(crate) stored: u64,
    /// Evicted entries.
    pub(crate) evicted: u64,
}

impl Operation for Show {
    type Output = CacheState;
    const NAME: &'static str = "cache_show";
    const RESULT: &'static str = "cache";
    const RECORDED: Recorded = Recorded::Never;

    async fn run(self, run: &Run<'_>) -> Result<CacheState, ChangeError> {
        let cache = run.service.cache()?;
        let totals = cache.totals();
        let counters = cache.counters();
        Ok(CacheState {
            entries: totals.entries,
            bytes: totals.bytes,
            bytes_max: totals.bytes_max,
            waiting: totals.waiting,
            hits: counters.lookups.get(Lookup::Hit),
            misses: counters.lookups.get(Lookup::Miss),
            stored: counters.stores.get(Storing::Stored),
            evicted: counters.removals.get(Removal::Evicted),
        })
    }
}

impl Endpoint for Show {
    type Answer = CacheState;
    const ROUTE: Route = Route::read(
        "getCache",
        "/cache",
        "Show the size of the response cache and its counters since the start.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<CacheState, ApiError> {
        api.perform(Show {}, call).await
    }
}

/// Removes stored answers: a single answer, or the answers of a model. Without `id` and `model`, the whole cache is emptied.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Purge {
    /// The `cache_entry_id` of an answer.
    pub(crate) id: Option<String>,
    /// The id of a model.
    pub(crate) model: Option<String>,
}

/// Removed responses.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Purged {
    /// The number of them.
    pub(crate) removed: u64,
}

impl Operation for Purge {
    type Output = Purged;
    const NAME: &'static str = "cache_purge";
    const RESULT: &'static str = "purged";

    async fn run(self, run: &Run<'_>) -> Result<Purged, ChangeError> {
        let service = run.service;
        let cache = service.cache()?;
        let what = match (self.id, self.model) {
            (Some(id), None) => tollgate_cache::Purge::Entry(id.parse()?),
            (None, Some(model)) => tollgate_cache::Purge::Model(service.model(&model)?),
            (None, None) => tollgate_cache::Purge::All,
            (Some(_), Some(_)) => {
                return Err(ChangeError::invalid("name an entry or a model, not both"));
            }
        };
        let removed = cache.purge(&what);
        tracing::info!(?what, removed, "purged cache entries");
        if service.store.has_allotments() {
            let part = what.part(service.clock.now());
            let unit = UnitOfWork::of(part, Admission::Normal);
            let announced = commit(&*service.store, unit).await;
            announced.map_err(|error| {
                ChangeError::unavailable(format!(
                    "{removed} removed here, and the other nodes do not know: {error}; try again"
                ))
            })?;
        }
        Ok(Purged { removed })
    }

    fn detail(output: &Purged) -> Value {
        serde_json::json!({ "removed": output.removed })
    }
}

impl Endpoint for Purge {
    type Answer = Purged;
    const ROUTE: Route = Route::change(
        "purgeCache",
        Method::DELETE,
        "/cache",
        "Remove cached responses. One parameter is required.",
    )
    .query(&[
        ("id", "Remove one response: its `cache_entry_id`."),
        ("model", "Remove the responses of a model."),
        ("all", "`true`: remove all responses."),
    ]);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<Purged, ApiError> {
        let (id, model) = (call.parameter("id"), call.parameter("model"));
        let is_all = call.parameter("all") == Some("true");
        let given = [id.is_some(), model.is_some(), is_all];
        if given.iter().filter(|one| **one).count() != 1 {
            return Err(invalid("Name one of `id`, `model` and `all=true`."));
        }
        let purge = Purge {
            id: id.map(str::to_owned),
            model: model.map(str::to_owned),
        };
        api.perform(purge, call).await
    }
}
