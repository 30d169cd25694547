#![doc = include_str!("../README.md")]

mod cookie;
mod filter;
mod form;
mod house;
mod next;
mod origin;
mod pages;
mod routes;
mod trouble;
mod visit;

pub use filter::Portal;
pub use house::{Channels, Parts, Service};
