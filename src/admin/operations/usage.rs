//! Usage of an account.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_filter::ApiError;

use crate::admin::api::call::{Call, invalid};
use crate::admin::api::endpoint::{Endpoint, Route};
use crate::admin::api::state::ApiState;
use crate::admin::views::{UsageView, day as day_of, read_day};

/// The usage shown by default.
const USAGE: Duration = Duration::from_hours(30 * 24);

/// Shows the usage of an account.
pub(in crate::admin) struct Show;

/// Usage by day and model.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct UsageList {
    data: Vec<UsageView>,
}

impl Endpoint for Show {
    type Answer = UsageList;
    const ROUTE: Route = Route::read(
        "getUsage",
        "/accounts/{account}/usage",
        "Show the usage of an account by day (UTC) and model; of the last 30 days by default.",
    )
    .query(&[
        ("from", "The first day, such as 2026-01-31."),
        ("to", "The last day."),
    ]);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<UsageList, ApiError> {
        let day = |name: &'static str| {
            let text = call.parameter(name)?;
            let message = format!("`{name}` is not a day; write it like 2026-01-31.");
            Some(read_day(text).ok_or_else(|| invalid(message).param(name)))
        };
        let (first, last) = (day("from").transpose()?, day("to").transpose()?);
        let now = api.deps.clock.now();
        let today = || read_day(&day_of(now)).map_or(now, |(_, end)| end);
        let to = last.map_or_else(today, |(_, end)| end);
        let from = first.map_or(to - USAGE, |(start, _)| start);
        let id = api.find(call.name()).await?.id;
        let totals = api
            .read(move |store| store.usage_totals(id, from, to))
            .await?;
        let data = totals.iter().map(UsageView::of).collect();
        Ok(UsageList { data })
    }
}
