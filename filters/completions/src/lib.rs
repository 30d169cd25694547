#![doc = include_str!("../README.md")]

mod answer;
mod error;
mod filter;
mod forward;
mod members;
mod stamp;

pub use filter::Completions;
