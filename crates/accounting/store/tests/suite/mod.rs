//! Tests that every engine has to pass.

mod acme;
mod audit_log;
mod authorizations;
mod checkouts;
mod keys;
mod loads;
mod mandates;
mod messages;
mod sessions;
pub(super) mod support;
mod topups;
mod units;
mod usage;

use super::engine;
