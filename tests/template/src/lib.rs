#![doc = include_str!("../README.md")]

mod config;
mod filter;
mod module;

pub use module::OfficeHoursModule;
