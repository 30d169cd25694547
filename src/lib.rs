#![doc = include_str!("ARCHITECTURE.md")]

pub mod admin;
mod args;
pub mod commands;
pub mod config;
pub mod demo;
mod gateway;
mod liveness;
mod memory;
mod modules;
mod proxy;
mod registry;
mod socket;
pub mod telemetry;
mod upstream;
mod wait;
mod wake;

pub use gateway::{Address, Books, Gateway, GatewayBuilder, StartError};
pub use memory::Allocator;
pub use tollgate_module::{Build, BuildError, Module, RouteContext};
