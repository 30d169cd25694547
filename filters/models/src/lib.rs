#![doc = include_str!("../README.md")]

mod filter;
mod listing;
mod module;

pub use filter::Models;
pub use module::ModelsModule;
