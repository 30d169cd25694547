//! Bar chart per day: an SVG without text, labels beside the SVG, and a data table.
//!
//! The SVG fills the available width, so only shapes are stretched; the labels keep their size. For accessibility a sentence summarises the
//! chart, and the table contains the numbers.

mod scale;

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_money::Micros;

use self::scale::Scale;
use super::empty;
use super::table::{Cell, Column, table};
use crate::format::{self, costs_2};

/// Height of the SVG in units; one is a pixel on screen.
const HEIGHT: i64 = 180;
/// Units per day, and the width of its bar.
const PITCH: usize = 12;
const WIDTH: usize = 8;
/// Every tenth bar has a date label.
const DATED: usize = 10;

/// One day of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarDay {
    /// Start of the day (UTC).
    pub at: Timestamp,
    /// Amounts per series, in order.
    pub amounts: Vec<Micros>,
    /// Link of the day in the table.
    pub link: String,
}

impl BarDay {
    fn sum(&self) -> Micros {
        sum(self.amounts.iter().copied())
    }
}

/// A stacked bar chart.
#[derive(Clone, Debug)]
pub struct BarChart<'a> {
    /// Title, as the beginning of a sentence: `Credits spent per day by model`.
    pub title: &'a str,
    /// Series names, from the bottom of a bar up, at most five. The fifth stands for all further series.
    pub series: &'a [String],
    /// All days, including empty days, oldest first.
    pub days: &'a [BarDay],
}

impl BarChart<'_> {
    /// Chart, dates, legend and table; empty without days.
    pub fn show(&self, now: Timestamp) -> Markup {
        let (Some(first), Some(last)) = (self.days.first(), self.days.last()) else {
            return html! {};
        };
        if self.days.iter().all(|day| !day.sum().is_positive()) {
            let words = format!(
                "No credits were spent from {} to {}.",
                format::date(first.at, now),
                format::date(last.at, now)
            );
            return empty(&words, None);
        }
        let highest = self.days.iter().max_by_key(|day| day.sum());
        let highest = highest.unwrap_or(first);
        let scale = Scale::to(highest.sum());
        let sentence = format!(
            "{} from {} to {}: {} credits in all, most on {} with {}.",
            self.title,
            format::date(first.at, now),
            format::date(last.at, now),
            costs_2(sum(self.days.iter().map(BarDay::sum))),
            format::date(highest.at, now),
            costs_2(highest.sum()),
        );
        let width = self.days.len() * PITCH;
        html! {
            div.chart {
                ol.chart-axis aria-hidden="true" {
                    @for label in scale.labels().iter().rev() { li { (label) } }
                }
                div.chart-plot {
                    ol.chart-lines aria-hidden="true" { @for _ in 0..=scale.steps() { li {} } }
                    svg role="img" aria-label=(sentence) viewBox={ "0 0 " (width) " " (HEIGHT) } preserveAspectRatio="none" {
                        @for (place, day) in self.days.iter().enumerate() {
                            g {
                                title { (format::date(day.at, now)) ": " (costs_2(day.sum())) " credits" }
                                rect.hit x=(place * PITCH) y="0" width=(PITCH) height=(HEIGHT) {}
                                @for piece in self.segments(day, &scale) {
                                    rect.(self.colour(piece.series)) x=(place * PITCH + (PITCH - WIDTH) / 2) width=(WIDTH)
                                        y=(piece.top) height=(piece.height) {}
                                }
                            }
                        }
                    }
                }
                div.chart-dates.many[self.days.len() > 45] aria-hidden="true" {
                    @for (place, day) in self.days.iter().enumerate() {
                        @let ends_soon = place > 0 && self.days.len() - place < DATED / 2;
                        span { @if place.is_multiple_of(DATED) && !ends_soon { (format::day_short(day.at)) } }
                    }
                }
            }
            ul.legend {
                @for (place, name) in self.series.iter().enumerate() {
                    li {
                        svg.(self.colour(place)) aria-hidden="true" viewBox="0 0 10 10" width="10" height="10" {
                            rect width="10" height="10" rx="2.5" {}
                        }
                        span.legend-name { (name) }
                        " "
                        b.tabular { (costs_2(sum(self.days.iter().map(|day| day.amounts[place])))) }
                    }
                }
            }
            details aria-label="Show as a table" {
                summary { "Show as a table" }
                (self.data_table(now))
            }
        }
    }

    /// The data table, newest first.
    fn data_table(&self, now: Timestamp) -> Markup {
        let mut columns = vec![Column::text("Day")];
        columns.extend(self.series.iter().map(|name| Column::number(name)));
        columns.push(Column::number("All"));
        let rows: Vec<Vec<Cell>> = self
            .days
            .iter()
            .rev()
            .map(|day| {
                let mut row = vec![Cell::new(
                    html! { a href=(day.link) { (format::date(day.at, now)) } },
                )];
                let amounts = day
                    .amounts
                    .iter()
                    .map(|amount| Cell::labelled(html! { (costs_2(*amount)) }));
                row.extend(amounts);
                row.push(Cell::labelled(html! { b { (costs_2(day.sum())) } }));
                row
            })
            .collect();
        html! {
            div.scroll tabindex="0" role="region" aria-label={ (self.title) ", as a table" } {
                (table(self.title, &columns, &rows, None))
            }
        }
    }

    /// CSS class of a series.
    fn colour(&self, series: usize) -> &'static str {
        match series {
            0 => "model-1",
            1 => "model-2",
            2 => "model-3",
            3 => "model-4",
            _ => "model-other",
        }
    }

    /// The segments of one day, from the bottom up.
    fn segments(&self, day: &BarDay, scale: &Scale) -> Vec<Segment> {
        let top = scale.height(day.sum(), HEIGHT);
        let shown: Vec<usize> = (0..day.amounts.len())
            .filter(|&series| day.amounts[series].is_positive())
            .collect();
        let mut segments = Vec::new();
        let (mut below, mut from) = (Micros::ZERO, 0);
        for (place, &series) in shown.iter().enumerate() {
            below = below.saturating_add(day.amounts[series]);
            let is_last = place + 1 == shown.len();
            // The last segment ends at the total, so rounding never changes the height of a bar.
            let to = if is_last {
                top
            } else {
                scale.height(below, HEIGHT).min(top)
            };
            // A segment too thin to see is merged into the next segment above.
            if to <= from {
                continue;
            }
            let gap = i64::from(from > 0 && to - from > 1);
            segments.push(Segment {
                series,
                top: HEIGHT - to,
                height: to - from - gap,
            });
            from = to;
        }
        segments
    }
}

/// One segment, measured from the top of the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    series: usize,
    top: i64,
    height: i64,
}

/// A saturating sum.
fn sum(amounts: impl Iterator<Item = Micros>) -> Micros {
    amounts.fold(Micros::ZERO, Micros::saturating_add)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    /// 2026-10-23T00:00:00Z
    const FIRST: Timestamp = Timestamp::from_secs(1_792_713_600);

    fn bars<'a>(series: &'a [String], days: &'a [BarDay]) -> BarChart<'a> {
        BarChart {
            title: "Credits spent per day by model",
            series,
            days,
        }
    }

    fn names(number: usize) -> Vec<String> {
        (0..number).map(|name| format!("model-{name}")).collect()
    }

    fn day(place: u32, amounts: &[i64]) -> BarDay {
        BarDay {
            at: FIRST + place * DAY,
            amounts: amounts.iter().map(|&amount| Micros::new(amount)).collect(),
            link: format!("/usage?from={place}"),
        }
    }

    #[test]
    fn the_chart_has_a_summary_sentence_and_a_data_table() {
        let names = names(2);
        let days = [
            day(0, &[10_000_000, 2_500_000]),
            day(1, &[0, 0]),
            day(2, &[1_000_000, 0]),
        ];
        let text = bars(&names, &days).show(FIRST + 3 * DAY).into_string();
        for piece in [
            "aria-label=\"Credits spent per day by model from 23 October to 25 October: 13.50 credits in all, \
             most on 23 October with 12.50.\"",
            "<title>24 October: 0.00 credits</title>",
            "preserveAspectRatio=\"none\"",
            "<details aria-label=\"Show as a table\">",
            "<a href=\"/usage?from=2\">25 October</a>",
        ] {
            assert!(text.contains(piece), "{piece} in {text}");
        }
        assert!(!text.contains("<text"), "letters would be stretched");
        assert!(!text.contains("style="), "the policy forbids it");
        let newest = text.find(">25 October</a>").expect("a row");
        assert!(newest < text.find(">23 October</a>").expect("a row"));
        assert_eq!(bars(&names, &[]).show(FIRST).into_string(), "");
    }

    #[test]
    fn a_chart_without_an_amount_says_so() {
        let names = names(1);
        let days = [day(0, &[0]), day(1, &[0])];
        let text = bars(&names, &days).show(FIRST + 3 * DAY).into_string();
        let says = "No credits were spent from 23 October to 24 October.";
        assert!(text.contains(says), "{text}");
        assert!(!text.contains("<svg"), "{text}");
    }

    proptest! {
        #[test]
        fn bars_start_at_the_base_line_and_match_their_amounts(
            amounts in prop::collection::vec(prop::collection::vec(0i64..5_000_000_000, 5), 1..40),
        ) {
            let names = names(5);
            let days: Vec<_> = amounts.iter().enumerate().map(|(at, amounts)| day(at as u32, amounts)).collect();
            let bars = bars(&names, &days);
            let highest = days.iter().map(BarDay::sum).max().expect("a day");
            let scale = Scale::to(highest);
            for day in &days {
                let segments = bars.segments(day, &scale);
                prop_assert_eq!(segments.is_empty(), day.sum() == Micros::ZERO, "a day with anything shows");
                let mut at = HEIGHT;
                for piece in &segments {
                    prop_assert!(piece.height >= 1, "{:?}", segments);
                    let bottom = piece.top + piece.height;
                    prop_assert!(bottom == at || bottom == at - 1, "apart by a pixel at most: {:?}", segments);
                    at = piece.top;
                }
                prop_assert!(at >= 0, "within the picture");
                if let Some(last) = segments.last() {
                    prop_assert_eq!(HEIGHT - last.top, scale.height(day.sum(), HEIGHT));
                }
            }
        }
    }
}
