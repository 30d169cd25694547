#![doc = include_str!("ARCHITECTURE.md")]

mod acme;
pub mod admin;
mod args;
pub mod commands;
pub mod config;
mod database;
pub mod demo;
mod doctor;
#[doc(hidden)]
pub mod fuzz;
mod gateway;
mod proxy;
mod registry;
mod release;
pub mod telemetry;
mod trace_context;
mod upstream;

pub use gateway::{Address, Books, Gateway, GatewayBuilder, PredecessorError, StartError};
pub use proxy::Allocator;
pub use tollgate_module::{Build, BuildError, FilterType, Module, RouteChange, RouteContext};
pub use upstream::Resolver;

// The items for filters of other programs. A filter needs no further dependency on this repository.
pub use {
    tollgate_clock as clock, tollgate_counters as counters, tollgate_filter as filter,
    tollgate_ledger as ledger, tollgate_module as module, tollgate_money as money,
    tollgate_openai as openai,
};
