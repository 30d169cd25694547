#![doc = include_str!("../README.md")]

mod address;
mod fetch;
mod public;
mod shelf;

pub use address::{AddressError, DocumentUrl};
pub use fetch::{FetchError, Fetched, Fetcher, SetupError};
pub use shelf::{Kept, Shelf};
