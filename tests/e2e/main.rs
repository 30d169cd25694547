//! End-to-end tests over real sockets: the answers to clients, the calls to providers, and the ledger afterwards.
//!
//! Every test ends with an audit ([`rig::Rig::finish`]): the ledger balances, no credit is held, and the spent credit matches the charges
//! received by clients.

mod account_pages;
mod addresses;
mod admin;
mod bodies;
mod cache;
mod corpus;
mod credits;
mod dashboard;
mod disconnects;
mod documents;
mod endings;
mod forward;
mod frames;
mod heads;
mod idempotency;
mod key_revocation;
mod limits;
mod listeners;
mod loading;
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
mod shared;
mod sign_in;
mod slow;
mod stock_clients;
mod text;
mod third_party;
mod ucp;
mod usage;
