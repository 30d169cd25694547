//! The authorization server from outside: what clients register, where browsers are sent, what codes become, and who is refused.

mod authorize;
mod consent;
mod discovery;
mod limits;
mod register;
mod revoke;
pub(crate) mod support;
mod token;
