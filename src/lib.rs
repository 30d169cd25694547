#![doc = include_str!("ARCHITECTURE.md")]

pub mod admin;
mod args;
pub mod commands;
pub mod config;
pub mod demo;
mod gateway;
mod modules;
mod proxy;
mod registry;
pub mod telemetry;
mod upstream;

pub use gateway::{Address, Books, Gateway, GatewayBuilder, StartError};
pub use proxy::Allocator;
pub use tollgate_module::{Build, BuildError, FilterType, Module, RouteChange, RouteContext};
