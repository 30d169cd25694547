//! Bars per day: a picture without text, words beside it, and the same as a table.
//!
//! The picture is as wide as there is room, so only its shapes are stretched; everything that is read stands beside it and keeps its
//! size. What it shows is said once in a sentence, for those who do not see it, and in numbers in the table below.

mod scale;

use maud::{Markup, html};
use tollgate_money::Micros;

use self::scale::Scale;
use super::table::{Cell, Column, table};
use crate::format::{self, costs_2};

/// Units from the base line to the top of the picture; one is a pixel on the screen.
const HEIGHT: i64 = 180;
/// Units for each day, and how many of them its bar takes.
const PITCH: usize = 12;
const WIDTH: usize = 8;
/// A date stands under every tenth bar.
const DATED: usize = 10;

/// One day of a chart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BarDay {
    /// Unix microseconds of its beginning, UTC.
    pub at: i64,
    /// An amount for each series, in their order.
    pub amounts: Vec<Micros>,
    /// Where the day in the table leads to.
    pub link: String,
}

impl BarDay {
    fn sum(&self) -> Micros {
        sum(self.amounts.iter().copied())
    }
}

/// Bars for some days, stacked by series.
#[derive(Clone, Debug)]
pub struct BarChart<'a> {
    /// What it shows, as the beginning of a sentence: `Credits spent per day by model`.
    pub title: &'a str,
    /// What the series are: their names, from the bottom of a bar up, at most five. The last of five is for all others.
    pub series: &'a [String],
    /// Every day, also those without anything, oldest first.
    pub days: &'a [BarDay],
}

impl BarChart<'_> {
    /// Picture, dates, legend and table. Nothing without days.
    pub fn show(&self, now: i64) -> Markup {
        let (Some(first), Some(last)) = (self.days.first(), self.days.last()) else {
            return html! {};
        };
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

    /// The same in numbers, newest first.
    fn data_table(&self, now: i64) -> Markup {
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

    /// The class that gives a series its colour.
    fn colour(&self, series: usize) -> &'static str {
        match series {
            0 => "model-1",
            1 => "model-2",
            2 => "model-3",
            3 => "model-4",
            _ => "model-other",
        }
    }

    /// The rectangles of one day, from the bottom up.
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
            // The last one ends where the day does, so that rounding never makes a day higher or lower than it is.
            let to = if is_last {
                top
            } else {
                scale.height(below, HEIGHT).min(top)
            };
            // A piece that the eye could not tell from the line between two is left to its neighbour above.
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

/// One rectangle, measured from the top of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    series: usize,
    top: i64,
    height: i64,
}

/// A sum for a picture: held at the ends of the range.
fn sum(amounts: impl Iterator<Item = Micros>) -> Micros {
    amounts.fold(Micros::ZERO, Micros::saturating_add)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: i64 = 86_400_000_000;
    /// 2026-10-23T00:00:00Z
    const FIRST: i64 = 1_792_713_600_000_000;

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

    fn day(place: i64, amounts: &[i64]) -> BarDay {
        BarDay {
            at: FIRST + place * DAY,
            amounts: amounts.iter().map(|&amount| Micros::new(amount)).collect(),
            link: format!("/usage?from={place}"),
        }
    }

    #[test]
    fn the_picture_is_said_in_one_sentence_and_shown_in_a_table() {
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

    proptest! {
        #[test]
        fn bars_stand_on_the_base_line_and_say_how_much(
            amounts in prop::collection::vec(prop::collection::vec(0i64..5_000_000_000, 5), 1..40),
        ) {
            let names = names(5);
            let days: Vec<_> = amounts.iter().enumerate().map(|(at, amounts)| day(at as i64, amounts)).collect();
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
