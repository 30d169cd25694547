#![doc = include_str!("../README.md")]

mod address;
mod cache;
mod fetch;
mod public;
mod slots;

pub use address::{AddressError, DocumentUrl};
pub use cache::{Cached, DocumentCache};
pub use fetch::{FetchError, Fetched, Fetcher, SetupError};
