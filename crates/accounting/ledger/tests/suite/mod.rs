//! Tests of the ledger for every engine of the store.

mod attached_parts;
mod audit;
mod holds;
mod loading;
mod model;
mod prices;
pub(super) mod testbed;

use super::{database, engine};

pub(super) use self::testbed::{bed, open, options};
