//! Shared test support: a gateway process that crashes and restarts over one folder, and an in-memory payment provider with faults.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod faults;
pub(crate) mod process;
pub(crate) mod recurring_provider;
