//! `/`: what the account has, whether it works, and where the credits go.

use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_ledger::Balance;
use tollgate_money::Micros;
use tollgate_pages::format::{self, costs_2, count, credits_2, plural};
use tollgate_pages::parts::{self, Bars, Tone};
use tollgate_pages::{Page, Place, Script};
use tollgate_store::{
    Place as At, Read, ReadError, RequestsWanted, SubscriptionRow, UsageDay, UsageRow, reading,
};

use crate::house::House;
use crate::names::Names;
use crate::pages::plan::{class_name, held};
use crate::pages::requests::requests;
use crate::samples::ChatExample;
use crate::trouble::Trouble;
use crate::usage::{Change, Pace, Period, Ranking, Sums, change, pace};
use crate::visit::Visit;

/// Days over which models are ranked, and the longest period that is shown.
const RANKED: i64 = 90;
/// A balance that lasts fewer days than this is worth a notice.
const DAYS_SHORT: i64 = 4;
/// Requests shown.
const LATEST: usize = 5;

/// What the page is made of.
struct Shown {
    /// Days of the last ninety, and what there was before them as far as a period is compared with it.
    days: Vec<UsageDay>,
    latest: Vec<UsageRow>,
    names: Names,
    balance: Balance,
    class: String,
    /// What it has of the plan, ended or not.
    subscription: Option<SubscriptionRow>,
    period: Period,
    chosen: i64,
    now: i64,
}

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let viewer = visit.viewer(house)?;
    let (account, now) = (visit.signed_in()?.account, visit.now);
    let chosen = match visit.query.text("days") {
        "7" => 7,
        "90" => 90,
        _ => 30,
    };
    let read = move |read: &dyn Read| -> Result<_, ReadError> {
        let ranked = Period::last(RANKED, now);
        let class = read.account(account)?.map(|row| row.class_at(now).clone());
        Ok((
            read.usage_days(account, ranked.from(), ranked.to())?,
            read.requests(&RequestsWanted {
                account,
                from: 0,
                to: i64::MAX,
                model: None,
                credential: None,
                place: At::Newest,
                limit: LATEST,
            })?,
            Names::read(read, account, now)?,
            class.as_deref().unwrap_or_default().to_owned(),
            read.subscription(account)?,
        ))
    };
    let (days, latest, names, class, subscription) = reading(&house.store, read).await?;
    let balance = house.ledger.balance(account).unwrap_or_default();
    let shown = Shown {
        days,
        latest,
        names,
        balance,
        class,
        subscription,
        period: Period::last(chosen, now),
        chosen,
        now,
    };
    let inside = if shown.latest.is_empty() {
        first_run(house, &shown, &viewer.address)
    } else {
        account_page(house, &shown)
    };
    let page = Page::framed("Overview", Place::Overview, viewer, inside).with_script(Script::Copy);
    Ok(visit.page(house, &page))
}

/// Until the first request: what to do.
fn first_run(house: &House, shown: &Shown, address: &str) -> Markup {
    let has_credits = shown.balance.available.is_positive();
    let model = house
        .facts
        .catalog
        .default_model()
        .or(house.facts.catalog.models().first());
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
                        h3 { "Add credits " @if has_credits { (parts::pill(Tone::Good, "Done")) } }
                        p.second {
                            @if has_credits {
                                "You have " b { (credits_2(shown.balance.available)) } " credits."
                            } @else {
                                "Answers are paid from credits." @if let Some(price) = &house.facts.credit_price { " " (price) }
                            }
                        }
                        p { (parts::link_button("/credits/add", "Add credits", !has_credits)) }
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
        section.panel { (parts::samples("first", "First request", &example.samples(&house.address))) }
        // A program may buy the plan before it asks for anything else.
        @if shown.subscription.is_some() { (plan(house, shown)) }
        div.empty {
            h2 { "No requests yet" }
            p {
                "Spending by day and model appears here a few seconds after the first request. To try without writing code, open the "
                a href="/sandbox" { "Sandbox" } "."
            }
        }
    }
}

fn account_page(house: &House, shown: &Shown) -> Markup {
    let pace = pace(&shown.days, shown.balance.available, shown.now);
    html! {
        @if let Some(notice) = notice(shown.balance.available, pace) { (notice) }
        (parts::heading("Overview", None))
        (glance(shown, pace))
        (spending(shown))
        div.columns {
            section.panel {
                div.panel-head { h2 { "Latest requests" } a href="/usage" { "All usage" } }
                (requests("Latest requests", &shown.latest, &shown.names, shown.now, false))
            }
            (plan(house, shown))
        }
    }
}

/// What needs doing, if anything does.
fn notice(available: Micros, pace: Option<Pace>) -> Option<Markup> {
    let add = html! { a href="/credits/add" { "Add credits" } };
    if !available.is_positive() {
        let text = html! { "Requests are refused until you add credits. " (add) };
        return Some(parts::notice(Tone::Bad, "Your balance is used up.", text));
    }
    let left = pace?.days_left;
    let lead = match left {
        0 => "Less than a day left at this week’s pace.".to_owned(),
        1..DAYS_SHORT => format!("About {} left at this week’s pace.", plural(left, "day")),
        _ => return None,
    };
    Some(parts::notice(Tone::Warn, &lead, add))
}

fn glance(shown: &Shown, pace: Option<Pace>) -> Markup {
    let of = |period: Period| Sums::of(shown.days.iter().filter(move |day| period.has(day.day_at)));
    let sums = of(shown.period);
    let before = shown.period.before();
    // What is older than all that was read is not known.
    let is_known = before.from() >= Period::last(RANKED, shown.now).from();
    let change = is_known
        .then(|| change(of(before).cost, sums.cost))
        .flatten();
    let than = format!("than the {} days before", shown.chosen);
    let compared = match change {
        None => None,
        Some(Change::More(part)) => Some(format!("{part}% more {than}")),
        Some(Change::Less(part)) => Some(format!("{part}% less {than}")),
        Some(Change::Same) => Some(format!("As much as in the {} days before", shown.chosen)),
        Some(Change::ManyTimes) => Some(format!(
            "More than ten times as much as in the {} days before",
            shown.chosen
        )),
    };
    let Balance {
        available, held, ..
    } = shown.balance;
    let lasts = pace
        .filter(|_| available.is_positive())
        .map(|pace| match pace.days_left {
            0 => "less than a day".to_owned(),
            1..=365 => format!("about {}", plural(pace.days_left, "day")),
            _ => "more than a year".to_owned(),
        });
    let spent = format!("Spent, last {} days", shown.chosen);
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
                    p { (parts::link_button("/credits/add", "Add credits", true)) }
                },
            ),
            (
                &spent,
                html! { (costs_2(sums.cost)) },
                html! { @if let Some(compared) = compared { p { (compared) } } },
            ),
            (
                "Requests",
                html! { (count(sums.requests)) },
                html! {
                    @if sums.incomplete > 0 { p { (count(sums.incomplete)) " cut off before their end" } }
                },
            ),
            (
                "Saved by cache",
                html! { (costs_2(sums.saved)) },
                html! {
                    p { @if sums.cache_hits == 1 { "1 answer came from the cache" } @else { (count(sums.cache_hits)) " answers came from the cache" } }
                },
            ),
        ],
    )
}

fn spending(shown: &Shown) -> Markup {
    let ranking = Ranking::of(&shown.days);
    let of_period: Vec<_> = shown
        .days
        .iter()
        .filter(|day| shown.period.has(day.day_at))
        .cloned()
        .collect();
    let series = ranking.series(&of_period);
    let days = ranking.bars(&of_period, shown.period, series.len(), |at| {
        let day = format::day(at);
        format!("/usage?from={day}&to={day}")
    });
    let bars = Bars {
        what: "Credits spent per day by model",
        series: &series,
        days: &days,
    };
    let periods = [
        ("/?days=7", "7 days", 7),
        ("/", "30 days", 30),
        ("/?days=90", "90 days", 90),
    ];
    let periods = periods.map(|(address, words, days)| (address, words, days == shown.chosen));
    parts::panel_beside(
        "Credits spent per day",
        parts::switch("Period", &periods),
        bars.show(shown.now),
    )
}

fn plan(house: &House, shown: &Shown) -> Markup {
    let class = house
        .facts
        .classes
        .iter()
        .find(|class| class.name == shown.class);
    html! {
        section.panel {
            div.panel-head { h2 { "Plan" } div { (held::pill(shown.subscription.as_ref(), shown.now)) } }
            p.figure { (class_name(house, &shown.class)) }
            @if let Some(row) = &shown.subscription { p { (held::until(row, shown.now)) } }
            @if let Some(class) = class { p.second { (class.words()) "." } }
            p { a href="/plan" { "Manage plan" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(available: i64, days_left: Option<i64>) -> String {
        let pace = days_left.map(|days_left| Pace { days_left });
        notice(Micros::new(available), pace).map_or(String::new(), Markup::into_string)
    }

    #[test]
    fn a_notice_stands_only_where_something_needs_doing() {
        for (available, days_left, says) in [
            (0, None, "Your balance is used up."),
            (-5, Some(0), "Your balance is used up."),
            (5, Some(0), "Less than a day left"),
            (5, Some(1), "About 1 day left at this week’s pace."),
            (5, Some(3), "About 3 days left"),
        ] {
            let told = told(available, days_left);
            assert!(told.contains(says), "{told}");
            assert!(told.contains("href=\"/credits/add\""), "{told}");
        }
        assert_eq!(told(5, Some(4)), "");
        assert_eq!(told(5, None), "", "no forecast where there is none");
    }
}
