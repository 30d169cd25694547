#![doc = include_str!("../README.md")]

mod cookie;
mod facts;
mod filter;
mod form;
mod house;
mod inside;
mod names;
mod next;
mod origin;
mod pages;
mod promise;
mod routes;
mod samples;
mod statement;
mod trouble;
mod usage;
mod visit;

pub use facts::{ClassFacts, EndingFacts, Facts};
pub use filter::Portal;
pub use house::{Channels, Parts, Service};
pub use inside::{Inside, InsideAnswer, InsideAnswering, InsideCall};
pub use promise::keep_promises;
