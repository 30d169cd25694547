//! What an account has used, put together for people: periods, sums, pictures, files. No HTTP and no store.

mod chart;
mod csv;
mod forecast;
mod period;
mod totals;

pub(crate) use chart::Ranking;
pub(crate) use csv::csv;
pub(crate) use forecast::{Forecast, forecast};
pub(crate) use period::{DAY, Period};
pub(crate) use totals::{Change, Totals, change};
