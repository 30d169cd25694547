//! UCP: discovery, product document and checkouts.

mod buying;
mod discovery;
mod lifecycle;
mod platform;
mod product;
mod refusals;
mod schemas;

pub(crate) use platform::{AGENT, PROTOCOL, Platform, payment, plan};
