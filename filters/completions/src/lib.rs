#![doc = include_str!("../README.md")]

mod answer;
mod error;
mod filter;
mod forward;
mod members;
mod module;
mod stamp;

pub use filter::Completions;
pub use module::CompletionsModule;
