//! Usage of an account prepared for display: periods, totals, charts, CSV. No HTTP and no store access.

mod chart;
mod csv;
mod forecast;
pub(crate) mod period;
mod totals;

pub(crate) use chart::Ranking;
pub(crate) use csv::csv;
pub(crate) use forecast::{Forecast, forecast};
pub(crate) use period::{DAY, Period, start_of_month};
pub(crate) use totals::{Change, Totals, change};
