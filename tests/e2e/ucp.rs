//! Selling to commerce platforms: what they are told, and checkouts.

mod discovery;
mod product;
mod schemas;
