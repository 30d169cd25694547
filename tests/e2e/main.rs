//! The gateway from outside, over real sockets: what clients see, what providers see, and what stands in the books afterwards.
//!
//! Every test ends with a look at the books ([`rig::Rig::finish`]): they balance, nothing is held, and what was spent is what the
//! clients were told.

mod addresses;
mod bodies;
mod cache;
mod corpus;
mod credits;
mod dashboard;
mod disconnects;
mod documents;
mod forward;
mod frames;
mod heads;
mod idempotency;
mod limits;
mod mandates;
mod mcp;
mod members;
mod metrics;
mod money;
mod oauth;
mod pages;
mod pay;
mod paypal;
mod process;
mod providers;
mod rig;
mod routes;
mod sandbox;
mod security;
mod sign_in;
mod slow;
mod text;
mod third_party;
mod ucp;
mod usage;
