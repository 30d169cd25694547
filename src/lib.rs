#![doc = include_str!("ARCHITECTURE.md")]

mod access;
pub mod admin;
mod args;
pub mod commands;
pub mod config;
pub mod demo;
mod drain;
mod gateway;
mod health;
mod liveness;
mod maintenance;
mod memory;
mod messages;
mod mpp;
mod onboarding;
mod paypal;
mod plan;
mod portal;
mod proxy;
mod recurring;
mod registry;
mod socket;
pub mod telemetry;
mod upstream;
mod wait;
mod wake;
mod x402;

pub use gateway::{Address, Books, Gateway, GatewayBuilder, StartError};
pub use memory::Allocator;
pub use registry::{Build, BuildError, Context};
