//! `/usage`: what it cost, and which model or key did it; and the same as a file.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_identity::{Key, KeyId, list_keys};
use tollgate_money::{AccountId, OperationId};
use tollgate_pages::format::{self, costs_2, count};
use tollgate_pages::parts::{self, Bars, Field, FieldKind, Problem};
use tollgate_pages::{Page, Place};
use tollgate_store::{
    Place as At, Read, ReadError, RequestMark, RequestsWanted, UsageDay, UsageRow, reading,
};

use crate::form::Form;
use crate::house::House;
use crate::names::Names;
use crate::pages::requests::requests;
use crate::trouble::Trouble;
use crate::usage::{Period, Ranking, Sums, csv};
use crate::visit::Visit;

/// Requests on one page.
const PAGE: usize = 50;
/// Requests in one file: a few megabytes.
const FILE: usize = 50_000;
/// Days over which models are ranked.
const RANKED: i64 = 90;

/// What the filter form asks for.
#[derive(Clone, Debug)]
struct Wanted {
    period: Period,
    model: Option<Arc<str>>,
    key: Option<KeyId>,
}

impl Wanted {
    fn read(query: &Form, now: i64) -> Result<Wanted, Vec<Problem>> {
        let period = Period::read(query.text("from"), query.text("to"), now)?;
        let model = Some(query.text("model")).filter(|model| !model.is_empty());
        Ok(Wanted {
            period,
            model: model.map(Arc::from),
            // A key that is none is not there any more, or never was: the form shows that all of them are meant.
            key: query.text("key").parse().ok(),
        })
    }

    fn takes(&self, day: &UsageDay) -> bool {
        self.period.has(day.day_at)
            && self.model.as_ref().is_none_or(|model| *model == day.model)
            && self.key.is_none_or(|key| day.credential == Some(key.0))
    }

    fn requests(&self, account: AccountId, place: At, limit: usize) -> RequestsWanted {
        RequestsWanted {
            account,
            from: self.period.from(),
            to: self.period.to(),
            model: self.model.clone(),
            credential: self.key.map(|key| key.0),
            place,
            limit,
        }
    }

    /// The query that asks for the same; `more` fields come on top.
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

/// Where a page of requests begins or ends, as addresses have it: the time and the id of a request.
fn place(query: &Form) -> At {
    let mark = |text: &str| {
        let (at, operation) = text.split_once('.')?;
        let (at, operation): (i64, OperationId) = (at.parse().ok()?, operation.parse().ok()?);
        Some(RequestMark { at, operation })
    };
    match (mark(query.text("before")), mark(query.text("after"))) {
        (Some(mark), _) => At::OlderThan(mark),
        (None, Some(mark)) => At::NewerThan(mark),
        (None, None) => At::Newest,
    }
}

fn mark(row: &UsageRow) -> String {
    format!("{}.{}", row.at, row.operation)
}

/// What the page is made of.
struct Shown {
    days: Vec<UsageDay>,
    ranking: Ranking,
    rows: Vec<UsageRow>,
    /// Whether there are newer ones than these, and older ones.
    beyond: (bool, bool),
    names: Names,
    keys: Vec<Key>,
}

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let viewer = visit.viewer(house)?;
    let (account, now) = (visit.signed_in()?.account, visit.now);
    let (wanted, problems) = match Wanted::read(&visit.query, now) {
        Ok(wanted) => (Some(wanted), Vec::new()),
        Err(problems) => (None, problems),
    };
    let asked = wanted.clone();
    let place = place(&visit.query);
    let read = move |read: &dyn Read| shown(read, account, asked.as_ref(), place, now);
    let shown = reading(&house.store, read).await?;
    let inside = html! {
        (parts::problems(&problems))
        (parts::heading("Usage", None))
        (filter(house, visit, wanted.as_ref(), &shown, &problems))
        @if let Some(wanted) = &wanted { (results(&shown, wanted, now)) }
    };
    let page = Page::framed("Usage", Place::Usage, viewer, inside);
    Ok(match problems.is_empty() {
        true => visit.page(house, &page),
        false => visit.refused(house, page),
    })
}

fn shown(
    read: &dyn Read,
    account: AccountId,
    wanted: Option<&Wanted>,
    place: At,
    now: i64,
) -> Result<Shown, ReadError> {
    let ranked = Period::last(RANKED, now);
    let recent = read.usage_days(account, ranked.from(), ranked.to())?;
    let mut shown = Shown {
        days: Vec::new(),
        ranking: Ranking::of(&recent),
        rows: Vec::new(),
        beyond: (false, false),
        names: Names::read(read, account, now)?,
        keys: list_keys(read, account)?,
    };
    let Some(wanted) = wanted else {
        return Ok(shown);
    };
    let period = wanted.period;
    shown.days = if ranked.has(period.from()) && ranked.to() >= period.to() {
        recent
    } else {
        read.usage_days(account, period.from(), period.to())?
    };
    shown.days.retain(|day| wanted.takes(day));
    // One more than is shown, to see whether there is more in that direction.
    shown.rows = read.requests(&wanted.requests(account, place, PAGE + 1))?;
    let is_more = shown.rows.len() > PAGE;
    shown.beyond = match place {
        At::Newest => (false, is_more),
        At::OlderThan(_) => (true, is_more),
        At::NewerThan(_) => (is_more, true),
    };
    if is_more {
        match place {
            At::NewerThan(_) => drop(shown.rows.remove(0)),
            _ => drop(shown.rows.pop()),
        }
    }
    Ok(shown)
}

/// The form that chooses.
fn filter(
    house: &House,
    visit: &Visit,
    wanted: Option<&Wanted>,
    shown: &Shown,
    problems: &[Problem],
) -> Markup {
    let day = |name: &str, of: fn(Period) -> String| match wanted {
        Some(wanted) => of(wanted.period),
        None => visit.query.text(name).to_owned(),
    };
    let (from, to) = (day("from", Period::first_day), day("to", Period::last_day));
    let field = |name, label, value| {
        let field = Field::new(name, label).kind(FieldKind::Date).value(value);
        field.narrow().problem(problems).show()
    };
    // Models that are not on sale any more were used all the same.
    let chosen = wanted.and_then(|wanted| wanted.model.as_deref());
    let mut models: Vec<&str> = house
        .facts
        .catalog
        .models()
        .iter()
        .map(|model| &*model.id)
        .collect();
    models.extend(shown.days.iter().map(|day| &*day.model).chain(chosen));
    models.sort_unstable();
    models.dedup();
    let models: Vec<_> = models
        .iter()
        .map(|model| (model.to_string(), format::line(model)))
        .collect();
    let keys: Vec<_> = shown
        .keys
        .iter()
        .map(|key| {
            (
                key.id.to_string(),
                shown.names.of(Some(key.id.0)).to_owned(),
            )
        })
        .collect();
    let key = wanted
        .and_then(|wanted| wanted.key)
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

fn results(shown: &Shown, wanted: &Wanted, now: i64) -> Markup {
    if shown.days.is_empty() && shown.rows.is_empty() {
        let words = wanted.period.words(now);
        let of_some = wanted.model.is_some() || wanted.key.is_some();
        let way_on = if of_some {
            "Choose another model or key, or a longer period."
        } else {
            "Choose a longer period."
        };
        return parts::empty(&format!("Nothing was sent {words}. {way_on}"), None);
    }
    let sums = Sums::of(&shown.days);
    let series = shown.ranking.series(&shown.days);
    let days = shown
        .ranking
        .bars(&shown.days, wanted.period, series.len(), |at| {
            let day = format::day(at);
            let period = Period::read(&day, &day, now).unwrap_or(wanted.period);
            let one = Wanted {
                period,
                ..wanted.clone()
            };
            format!("/usage?{}", one.query(&[]))
        });
    let bars = Bars {
        what: "Credits spent per day by model",
        series: &series,
        days: &days,
    };
    let (newer, older) = shown.beyond;
    let link = |on: bool, name: &str, row: Option<&UsageRow>| {
        let row = row.filter(|_| on)?;
        Some(format!(
            "/usage?{}#requests",
            wanted.query(&[(name, &mark(row))])
        ))
    };
    html! {
        (parts::figures("In this period", &[
            ("Spent", html! { (costs_2(sums.cost)) " " small { "credits" } }, html! { p { (capital(&wanted.period.words(now))) } }),
            ("Requests", html! { (count(sums.requests)) }, html! {
                @if sums.incomplete > 0 { p { (count(sums.incomplete)) " cut off before their end" } }
            }),
            ("Tokens", html! { (count(sums.prompt_tokens.saturating_add(sums.completion_tokens))) }, html! {
                p { (count(sums.prompt_tokens)) " in, " (count(sums.completion_tokens)) " out" }
            }),
            ("Saved by cache", html! { (costs_2(sums.saved)) }, html! { p { (count(sums.cache_hits)) " answers came from the cache" } }),
        ]))
        (parts::panel("Credits spent per day", bars.show(now)))
        section.panel #requests {
            div.panel-head {
                h2 { "Requests" }
                a href={ "/usage.csv?" (wanted.query(&[])) } download { "Download CSV" }
            }
            @if shown.rows.is_empty() {
                p.second { "There are no more requests in this direction." }
            } @else {
                (requests("Requests", &shown.rows, &shown.names, now, true))
            }
            (parts::pager(
                link(newer, "after", shown.rows.first()).as_deref(),
                link(older, "before", shown.rows.last()).as_deref(),
            ))
            p.fine { "Requests that were refused or failed before an answer began cost nothing and are not listed." }
        }
    }
}

/// The same requests as a file.
pub(crate) async fn file(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let (account, now) = (visit.signed_in()?.account, visit.now);
    let Ok(wanted) = Wanted::read(&visit.query, now) else {
        // The page says what is wrong.
        let query = visit.query.write_without("");
        return Ok(visit.go(house, &format!("/usage?{query}")));
    };
    let asked = wanted.requests(account, At::Newest, FILE + 1);
    let text = reading(&house.store, move |read| {
        let rows = read.requests(&asked)?;
        let names = Names::read(read, account, now)?;
        Ok((rows.len() <= FILE).then(|| csv(&rows, |row| names.of(row.usage.credential))))
    });
    let Some(text) = text.await? else {
        let viewer = visit.viewer(house)?;
        let inside = html! {
            (parts::heading("Usage", None))
            (parts::notice(parts::Tone::Bad, "There are too many requests for one file.", html! {
                "A file holds " (count(FILE as u64)) ". Choose a shorter period, a model or a key. "
                a href={ "/usage?" (wanted.query(&[])) } { "Back to usage" }
            }))
        };
        let page = Page::framed("Usage", Place::Usage, viewer, inside);
        return Ok(visit.refused(house, page));
    };
    let mut reply = Reply::of(StatusCode::OK, "text/csv; charset=utf-8", Bytes::from(text));
    let name = format!(
        "usage-{}-{}.csv",
        wanted.period.first_day(),
        wanted.period.last_day()
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

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| {
        first.to_uppercase().chain(letters).collect()
    })
}
