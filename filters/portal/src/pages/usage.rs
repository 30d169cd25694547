//! `/usage`: usage by day, model and key; the same as a CSV file.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_filter::Reply;
use tollgate_identity::{Key, KeyId, list_keys};
use tollgate_money::{AccountId, OperationId};
use tollgate_pages::format::{self, costs_2, count, credits_2};
use tollgate_pages::parts::{self, BarChart, Field, FieldKind, Problem, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_store::{
    PageCursor, REFUSALS_MAX, ReadError, Reader, RequestPosition, RequestsQuery, UsageDay, reading,
};

use crate::context::PortalContext;
use crate::credential_names::CredentialNames;
use crate::form::Form;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::pages::requests::{ListedRequest, requests};
use crate::usage::{Period, Ranking, Totals, csv};

/// Requests per page.
const PAGE_ROWS: usize = 25;
/// Maximum rows of a CSV file: a few megabytes.
const FILE_ROWS_MAX: usize = 50_000;
/// Days over which models are ranked.
const RANKING_DAYS: i64 = 90;

/// The usage filter: period, model and key.
#[derive(Clone, Debug)]
struct UsageFilter {
    period: Period,
    model: Option<Arc<str>>,
    key: Option<KeyId>,
}

impl UsageFilter {
    fn read(query: &Form, now: Timestamp) -> Result<UsageFilter, Vec<Problem>> {
        let period = Period::read(query.text("from"), query.text("to"), now)?;
        let model = Some(query.text("model")).filter(|model| !model.is_empty());
        Ok(UsageFilter {
            period,
            model: model.map(Arc::from),
            // An unknown key is ignored: the form shows all keys selected.
            key: query.text("key").parse().ok(),
        })
    }

    fn matches(&self, day: &UsageDay) -> bool {
        self.period.has(day.day_at)
            && self.model.as_ref().is_none_or(|model| *model == day.model)
            && self.key.is_none_or(|key| day.credential == Some(key.0))
    }

    fn requests(&self, account: AccountId, cursor: PageCursor, limit: usize) -> RequestsQuery {
        RequestsQuery {
            account,
            from: self.period.from(),
            to: self.period.to(),
            model: self.model.clone(),
            credential: self.key.map(|key| key.0),
            cursor,
            limit,
        }
    }

    /// The query string of this filter, with the `more` fields appended.
    fn query(&self, more: &[(&str, &str)]) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("from", &self.period.first_day());
        query.append_pair("to", &self.period.last_day());
        if let Some(model) = &self.model {
            query.append_pair("model", model);
        }
        if let Some(key) = self.key {
            query.append_pair("key", &key.to_string());
        }
        for (name, value) in more {
            query.append_pair(name, value);
        }
        query.finish()
    }
}

/// Pagination cursor: the time and id of a request, from the query.
fn cursor(query: &Form) -> PageCursor {
    let cursor_text = |text: &str| {
        let (at, operation) = text.split_once('.')?;
        let (at, operation): (i64, OperationId) = (at.parse().ok()?, operation.parse().ok()?);
        Some(RequestPosition {
            at: Timestamp::from_micros(at),
            operation,
        })
    };
    match (
        cursor_text(query.text("before")),
        cursor_text(query.text("after")),
    ) {
        (Some(cursor_text), _) => PageCursor::OlderThan(cursor_text),
        (None, Some(cursor_text)) => PageCursor::NewerThan(cursor_text),
        (None, None) => PageCursor::Newest,
    }
}

fn cursor_text(row: &ListedRequest) -> String {
    let RequestPosition { at, operation } = row.position();
    format!("{}.{operation}", at.as_micros())
}

/// Data of the page.
struct UsageData {
    days: Vec<UsageDay>,
    ranking: Ranking,
    rows: Vec<ListedRequest>,
    /// Requests that were refused or failed.
    refused: u64,
    /// Whether newer requests exist, and older requests.
    has_more: (bool, bool),
    names: CredentialNames,
    keys: Vec<Key>,
}

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let (account, now) = (request.require_session()?.account, request.now);
    let (filter, problems) = match UsageFilter::read(&request.query, now) {
        Ok(filter) => (Some(filter), Vec::new()),
        Err(problems) => (None, problems),
    };
    let query = filter.clone();
    let cursor = cursor(&request.query);
    let read = move |read: &Reader| load(read, account, query.as_ref(), cursor, now);
    let data = reading(&context.store, read).await?;
    let content = html! {
        (parts::problems(&problems))
        (parts::heading("Usage", None))
        (filter_form(context, request, filter.as_ref(), &data, &problems))
        @if let Some(filter) = &filter {
            (filters_on(filter, &data.names))
            (results(&data, filter, now))
        }
    };
    let page = Page::dashboard("Usage", NavItem::Usage, viewer, content);
    Ok(match problems.is_empty() {
        true => request.page(context, &page),
        false => request.refused(context, page),
    })
}

fn load(
    read: &Reader,
    account: AccountId,
    filter: Option<&UsageFilter>,
    cursor: PageCursor,
    now: Timestamp,
) -> Result<UsageData, ReadError> {
    let ranked = Period::last(RANKING_DAYS, now);
    let recent = read.usage_days(account, ranked.from(), ranked.to())?;
    let mut data = UsageData {
        days: Vec::new(),
        ranking: Ranking::of(&recent),
        rows: Vec::new(),
        refused: 0,
        has_more: (false, false),
        names: CredentialNames::read(read, account)?,
        keys: list_keys(read, account)?,
    };
    let Some(filter) = filter else {
        return Ok(data);
    };
    let period = filter.period;
    data.days = if ranked.has(period.from()) && ranked.to() >= period.to() {
        recent
    } else {
        read.usage_days(account, period.from(), period.to())?
    };
    data.days.retain(|day| filter.matches(day));
    // One row more than shown, to detect a further page.
    let wanted = filter.requests(account, cursor, PAGE_ROWS + 1);
    data.rows = ListedRequest::read(read, &wanted)?;
    data.refused = read.refused(&wanted)?;
    let is_more = data.rows.len() > PAGE_ROWS;
    data.has_more = match cursor {
        PageCursor::Newest => (false, is_more),
        PageCursor::OlderThan(_) => (true, is_more),
        PageCursor::NewerThan(_) => (is_more, true),
    };
    if is_more {
        match cursor {
            PageCursor::NewerThan(_) => drop(data.rows.remove(0)),
            _ => drop(data.rows.pop()),
        }
    }
    Ok(data)
}

fn filter_form(
    context: &PortalContext,
    request: &PageRequest,
    filter: Option<&UsageFilter>,
    data: &UsageData,
    problems: &[Problem],
) -> Markup {
    let day = |name: &str, of: fn(Period) -> String| match filter {
        Some(filter) => of(filter.period),
        None => request.query.text(name).to_owned(),
    };
    let (from, to) = (day("from", Period::first_day), day("to", Period::last_day));
    let field = |name, label, value| {
        let field = Field::new(name, label).kind(FieldKind::Date).value(value);
        field.narrow().problem(problems).show()
    };
    // Models no longer for sale may have usage.
    let chosen = filter.and_then(|filter| filter.model.as_deref());
    let mut models: Vec<&str> = context
        .settings
        .installation
        .catalog
        .models()
        .iter()
        .map(|model| &*model.id)
        .collect();
    models.extend(data.days.iter().map(|day| &*day.model).chain(chosen));
    models.sort_unstable();
    models.dedup();
    let models: Vec<_> = models
        .iter()
        .map(|model| (model.to_string(), format::single_line(model)))
        .collect();
    let keys: Vec<_> = data
        .keys
        .iter()
        .map(|key| (key.id.to_string(), data.names.of(Some(key.id.0)).to_owned()))
        .collect();
    let key = filter
        .and_then(|filter| filter.key)
        .map(|key| key.to_string());
    html! {
        form.panel.filter method="get" action="/usage" {
            (field("from", "From", &from))
            (field("to", "To", &to))
            (parts::select("model", "Model", ("", "All models"), &models, chosen))
            (parts::select("key", "Key", ("", "All keys and apps"), &keys, key.as_deref()))
            (parts::submit("Show", true))
        }
    }
}

/// The active filters, each with a link for removal.
fn filters_on(filter: &UsageFilter, names: &CredentialNames) -> Markup {
    let model = filter.model.as_deref().map(|model| {
        let without = UsageFilter {
            model: None,
            ..filter.clone()
        };
        let words = format!("Only model {}", format::single_line(model));
        (words, "Show all models", without)
    });
    let key = filter.key.map(|key| {
        let without = UsageFilter {
            key: None,
            ..filter.clone()
        };
        let words = format!("Only key {}", names.of(Some(key.0)));
        (words, "Show all keys", without)
    });
    html! {
        @for (words, off, without) in model.into_iter().chain(key) {
            (parts::notice(Tone::Info, &format!("{words}."), html! { a href={ "/usage?" (without.query(&[])) } { (off) } }))
        }
    }
}

fn results(data: &UsageData, filter: &UsageFilter, now: Timestamp) -> Markup {
    if data.days.is_empty() && data.rows.is_empty() {
        let words = filter.period.words(now);
        let of_some = filter.model.is_some() || filter.key.is_some();
        let advice = if of_some {
            "Choose another model or key, or a longer period."
        } else {
            "Choose a longer period."
        };
        return parts::empty(&format!("No requests {words}. {advice}"), None);
    }
    let totals = Totals::of(&data.days);
    let series = data.ranking.series(&data.days);
    let days = data
        .ranking
        .bars(&data.days, filter.period, series.len(), |at| {
            let day = format::day(at);
            let period = Period::read(&day, &day, now).unwrap_or(filter.period);
            let one = UsageFilter {
                period,
                ..filter.clone()
            };
            format!("/usage?{}", one.query(&[]))
        });
    let bars = BarChart {
        title: "Credits spent per day by model",
        series: &series,
        days: &days,
    };
    let (newer, older) = data.has_more;
    let link = |on: bool, name: &str, row: Option<&ListedRequest>| {
        let row = row.filter(|_| on)?;
        Some(format!(
            "/usage?{}#requests",
            filter.query(&[(name, &cursor_text(row))])
        ))
    };
    html! {
        (parts::figures("In this period", &[
            ("Spent", html! { (costs_2(totals.cost)) " " small { "credits" } }, html! { p { (capitalise(&filter.period.words(now))) } }),
            ("Requests", html! { (count(totals.requests)) }, html! {
                @if totals.incomplete > 0 { p { (count(totals.incomplete)) " cut off before their end" } }
                @if data.refused > 0 { p { (count(data.refused)) " more refused or failed" } }
            }),
            ("Tokens", html! { (count(totals.prompt_tokens.saturating_add(totals.completion_tokens))) }, html! {
                p { (count(totals.prompt_tokens)) " in, " (count(totals.completion_tokens)) " out" }
            }),
            ("Saved by cache", html! { (credits_2(totals.saved)) }, html! { p { (count(totals.cache_hits)) " answers came from the cache" } }),
        ]))
        (parts::panel("Credits spent per day", bars.show(now)))
        section.panel #requests {
            div.panel-head {
                h2 { "Requests" }
                a href={ "/usage.csv?" (filter.query(&[])) } download { "Download CSV" }
            }
            @if data.rows.is_empty() {
                p.second { "There are no more requests." }
            } @else {
                (requests("Requests", &data.rows, &data.names, now, true))
            }
            (parts::pager(
                link(newer, "after", data.rows.first()).as_deref(),
                link(older, "before", data.rows.last()).as_deref(),
            ))
            p.fine {
                "Requests that were refused or failed before an answer began cost nothing and are not in the file. Of many in an hour, "
                "equal ones are one line; an account keeps the newest " (count(REFUSALS_MAX.into())) " lines of them."
            }
        }
    }
}

/// The listed requests as a CSV file.
pub(crate) async fn file(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let (account, now) = (request.require_session()?.account, request.now);
    let Ok(filter) = UsageFilter::read(&request.query, now) else {
        // The page shows the problem.
        let query = request.query.write_without("");
        return Ok(request.redirect(context, &format!("/usage?{query}")));
    };
    let query = filter.requests(account, PageCursor::Newest, FILE_ROWS_MAX + 1);
    let text = reading(&context.store, move |read| {
        let rows = read.requests(&query)?;
        let names = CredentialNames::read(read, account)?;
        Ok((rows.len() <= FILE_ROWS_MAX).then(|| csv(&rows, |row| names.of(row.usage.credential))))
    });
    let Some(text) = text.await? else {
        let viewer = request.viewer(context)?;
        let content = html! {
            (parts::heading("Usage", None))
            (parts::notice(Tone::Bad, "There are too many requests for one file.", html! {
                "A file holds " (count(FILE_ROWS_MAX as u64)) ". Choose a shorter period, a model or a key. "
                a href={ "/usage?" (filter.query(&[])) } { "Back to usage" }
            }))
        };
        let page = Page::dashboard("Usage", NavItem::Usage, viewer, content);
        return Ok(request.refused(context, page));
    };
    let mut reply = Reply::of(StatusCode::OK, "text/csv; charset=utf-8", Bytes::from(text));
    let name = format!(
        "usage-{}-{}.csv",
        filter.period.first_day(),
        filter.period.last_day()
    );
    let named = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
    for (field, value) in [
        (
            header::CONTENT_DISPOSITION,
            named.expect("digits and hyphens"),
        ),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        ),
    ] {
        reply.headers.insert(field, value);
    }
    Ok(reply)
}

fn capitalise(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}
