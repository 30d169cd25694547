//! `/`: overview of balance, plan, spending and latest requests.

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_filter::Reply;
use tollgate_ledger::Balance;
use tollgate_money::{Micros, Usd};
use tollgate_pages::format::{self, costs_2, count, credits_2, plural};
use tollgate_pages::parts::{self, BarChart, Tone};
use tollgate_pages::{NavItem, Page, Script};
use tollgate_store::{
    PageCursor as At, ReadError, Reader, RequestsQuery, SubscriptionRow, UsageDay, reading,
};

use crate::context::PortalContext;
use crate::credential_names::CredentialNames;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::pages::plan::{class_name, status};
use crate::pages::requests::{ListedRequest, requests};
use crate::samples::ChatExample;
use crate::usage::{Change, Forecast, Period, Ranking, Totals, change, forecast};

/// Days over which models are ranked; the longest selectable period.
const RANKING_DAYS: i64 = 90;
/// Threshold of the low-balance notice, in days.
const LOW_BALANCE_DAYS: i64 = 4;
/// Number of requests shown.
const LATEST_ROWS: usize = 5;

/// Data of the page.
struct OverviewData {
    /// Usage of the last 90 days and of the preceding period, for comparison.
    days: Vec<UsageDay>,
    latest: Vec<ListedRequest>,
    names: CredentialNames,
    balance: Balance,
    class: String,
    /// The subscription, current or ended.
    subscription: Option<SubscriptionRow>,
    /// When and how much PayPal charges next.
    next_charge: Option<(Timestamp, Usd)>,
    period: Period,
    chosen: i64,
    now: Timestamp,
}

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let (account, now) = (request.require_session()?.account, request.now);
    let chosen = match request.query.text("days") {
        "7" => 7,
        "90" => 90,
        _ => 30,
    };
    let read = move |read: &Reader| -> Result<_, ReadError> {
        let ranked = Period::last(RANKING_DAYS, now);
        let class = read.account(account)?.map(|row| row.class_at(now).clone());
        Ok((
            read.usage_days(account, ranked.from(), ranked.to())?,
            ListedRequest::read(
                read,
                &RequestsQuery {
                    account,
                    from: Timestamp::UNIX_EPOCH,
                    to: Timestamp::MAX,
                    model: None,
                    credential: None,
                    cursor: At::Newest,
                    limit: LATEST_ROWS,
                },
            )?,
            CredentialNames::read(read, account)?,
            class.as_deref().unwrap_or_default().to_owned(),
        ))
    };
    let (days, latest, names, class) = reading(&context.store, read).await?;
    let standing = context.plans.state(account).await;
    let standing = standing.map_err(|error| PageError::Store(Box::new(error)))?;
    let balance = context.ledger.balance(account).unwrap_or_default();
    let data = OverviewData {
        days,
        latest,
        names,
        balance,
        class,
        next_charge: standing.next_charge(),
        subscription: standing.subscription,
        period: Period::last(chosen, now),
        chosen,
        now,
    };
    let content = if data.latest.is_empty() {
        getting_started(context, &data, &viewer.address)
    } else {
        dashboard(context, &data)
    };
    let page =
        Page::dashboard("Overview", NavItem::Overview, viewer, content).with_script(Script::Copy);
    Ok(request.page(context, &page))
}

/// Onboarding steps, shown until the first request.
fn getting_started(context: &PortalContext, data: &OverviewData, address: &str) -> Markup {
    let has_credits = data.balance.available.is_positive();
    let model = context
        .settings
        .installation
        .catalog
        .default_model()
        .or(context.settings.installation.catalog.models().first());
    let example = ChatExample::hello(model.map_or("MODEL", |model| &model.id));
    html! {
        (parts::heading("Overview", None))
        section.panel {
            h2 { "Send your first request in three steps" }
            p.second { "Any OpenAI library works: change its base address and its key." }
            ol.steps {
                li.done {
                    div.step {
                        h3 { "Create your account " (parts::pill(Tone::Good, "Done")) }
                        p.second { "You are signed in as " b { (address) } "." }
                    }
                }
                li.done[has_credits] {
                    div.step {
                        h3 { @if context.sells_credits() { "Add credits " } @else { "Get credits " } @if has_credits { (parts::pill(Tone::Good, "Done")) } }
                        p.second {
                            @if has_credits {
                                "You have " b { (credits_2(data.balance.available)) } " credits."
                            } @else {
                                "Answers are paid from credits." @if let Some(price) = &context.settings.installation.credit_price { " " (price) }
                            }
                        }
                        @if context.sells_credits() { p { (parts::link_button("/credits/add", "Add credits", !has_credits)) } }
                    }
                }
                li {
                    div.step {
                        h3 { "Create a key and call the API" }
                        p.second { "The key is shown once. The example below reads it from the environment." }
                        p { (parts::link_button("/keys/create", "Create key", has_credits)) }
                    }
                }
            }
        }
        section.panel { (parts::samples("first", "First request", &example.samples(&context.address))) }
        // A program may buy the plan before its first request.
        @if data.subscription.is_some() { (plan(context, data)) }
        div.empty {
            h2 { "No requests yet" }
            p {
                "Spending by day and model appears here a few seconds after the first request. To try without writing code, open the "
                a href="/sandbox" { "Sandbox" } "."
            }
        }
    }
}

fn dashboard(context: &PortalContext, data: &OverviewData) -> Markup {
    let forecast = forecast(&data.days, data.balance.available, data.now);
    let is_sold = context.sells_credits();
    html! {
        @if let Some(notice) = notice(data.balance.available, forecast, is_sold) { (notice) }
        (parts::heading("Overview", None))
        (key_figures(data, forecast, is_sold))
        (spending(data))
        div.columns {
            section.panel {
                div.panel-head { h2 { "Latest requests" } a href="/usage" { "All usage" } }
                (requests("Latest requests", &data.latest, &data.names, data.now, false))
            }
            (plan(context, data))
        }
    }
}

/// The balance notice, if action is needed. `is_sold`: whether credits can be bought here.
fn notice(available: Micros, forecast: Option<Forecast>, is_sold: bool) -> Option<Markup> {
    let add = match is_sold {
        true => html! { a href="/credits/add" { "Add credits" } },
        false => html! { "Credits cannot be bought here: ask the operator." },
    };
    if !available.is_positive() {
        let text = html! { "Requests are refused until you have credits. " (add) };
        return Some(parts::notice(Tone::Bad, "Your balance is used up.", text));
    }
    let left = forecast?.days_left;
    let lead = match left {
        0 => "Less than a day left at this week’s pace.".to_owned(),
        1..LOW_BALANCE_DAYS => format!("About {} left at this week’s pace.", plural(left, "day")),
        _ => return None,
    };
    Some(parts::notice(Tone::Warn, &lead, add))
}

fn key_figures(data: &OverviewData, forecast: Option<Forecast>, is_sold: bool) -> Markup {
    let of =
        |period: Period| Totals::of(data.days.iter().filter(move |day| period.has(day.day_at)));
    let totals = of(data.period);
    let before = data.period.before();
    // Usage older than the period read is unknown.
    let is_known = before.from() >= Period::last(RANKING_DAYS, data.now).from();
    let change = is_known
        .then(|| change(of(before).cost, totals.cost))
        .flatten();
    let than = format!("than the {} days before", data.chosen);
    let compared = match change {
        None => None,
        Some(Change::More(part)) => Some(format!("{part}% more {than}")),
        Some(Change::Less(part)) => Some(format!("{part}% less {than}")),
        Some(Change::Same) => Some(format!("As much as in the {} days before", data.chosen)),
        Some(Change::ManyTimes) => Some(format!(
            "More than ten times as much as in the {} days before",
            data.chosen
        )),
    };
    let Balance {
        available, held, ..
    } = data.balance;
    let lasts = forecast
        .filter(|_| available.is_positive())
        .map(|forecast| match forecast.days_left {
            0 => "less than a day".to_owned(),
            1..=365 => format!("about {}", plural(forecast.days_left, "day")),
            _ => "more than a year".to_owned(),
        });
    let spent = format!("Spent, last {} days", data.chosen);
    parts::figures(
        "Account at a glance",
        &[
            (
                "Balance",
                html! { (credits_2(available)) " " small { "credits" } },
                html! {
                    p {
                        @if held.is_positive() { (format::credits_up_2(held)) " held for running requests. " }
                        @if let Some(lasts) = lasts { "At this week’s pace, enough for " b { (lasts) } "." }
                    }
                    @if is_sold { p { (parts::link_button("/credits/add", "Add credits", true)) } }
                },
            ),
            (
                &spent,
                html! { (costs_2(totals.cost)) },
                html! { @if let Some(compared) = compared { p { (compared) } } },
            ),
            (
                "Requests",
                html! { (count(totals.requests)) },
                html! {
                    @if totals.incomplete > 0 { p { (count(totals.incomplete)) " cut off before their end" } }
                },
            ),
            (
                "Saved by cache",
                html! { (credits_2(totals.saved)) },
                html! {
                    p { @if totals.cache_hits == 1 { "1 answer came from the cache" } @else { (count(totals.cache_hits)) " answers came from the cache" } }
                },
            ),
        ],
    )
}

fn spending(data: &OverviewData) -> Markup {
    let ranking = Ranking::of(&data.days);
    let of_period: Vec<_> = data
        .days
        .iter()
        .filter(|day| data.period.has(day.day_at))
        .cloned()
        .collect();
    let series = ranking.series(&of_period);
    let days = ranking.bars(&of_period, data.period, series.len(), |at| {
        let day = format::day(at);
        format!("/usage?from={day}&to={day}")
    });
    let bars = BarChart {
        title: "Credits spent per day by model",
        series: &series,
        days: &days,
    };
    let periods = [
        ("/?days=7", "7 days", 7),
        ("/", "30 days", 30),
        ("/?days=90", "90 days", 90),
    ];
    let periods = periods.map(|(address, words, days)| (address, words, days == data.chosen));
    parts::panel_beside(
        "Credits spent per day",
        parts::switch("Period", &periods),
        bars.show(data.now),
    )
}

fn plan(context: &PortalContext, data: &OverviewData) -> Markup {
    let class = context
        .settings
        .installation
        .classes
        .iter()
        .find(|class| *class.name == *data.class);
    html! {
        section.panel {
            div.panel-head { h2 { "Plan" } div { (status::pill(data.subscription.as_ref(), data.now)) } }
            p.figure { (class_name(context, &data.class)) }
            @if let Some(row) = &data.subscription { p { (status::until(row, data.next_charge, data.now)) } }
            @if let Some(class) = class { p.second { (class.quota_text()) "." } }
            p { a href="/plan" { "Manage plan" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice_text(available: i64, days_left: Option<i64>) -> String {
        let forecast = days_left.map(|days_left| Forecast { days_left });
        notice(Micros::new(available), forecast, true).map_or(String::new(), Markup::into_string)
    }

    #[test]
    fn a_notice_is_shown_only_when_action_is_needed() {
        for (available, days_left, says) in [
            (0, None, "Your balance is used up."),
            (-5, Some(0), "Your balance is used up."),
            (5, Some(0), "Less than a day left"),
            (5, Some(1), "About 1 day left at this week’s pace."),
            (5, Some(3), "About 3 days left"),
        ] {
            let notice_text = notice_text(available, days_left);
            assert!(notice_text.contains(says), "{notice_text}");
            assert!(
                notice_text.contains("href=\"/credits/add\""),
                "{notice_text}"
            );
        }
        assert_eq!(notice_text(5, Some(4)), "");
        assert_eq!(notice_text(5, None), "", "no forecast where there is none");
    }
}
