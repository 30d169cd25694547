//! What an account has used, put together for people: periods, sums, pictures, files. No HTTP and no store.

mod chart;
mod csv;
mod pace;
mod period;
mod sums;

pub(crate) use chart::Ranking;
pub(crate) use csv::csv;
pub(crate) use pace::{Pace, pace};
pub(crate) use period::{DAY, Period};
pub(crate) use sums::{Change, Sums, change};
