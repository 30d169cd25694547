//! The authorization server end to end: registration, authorization, tokens, revocation and errors.

mod authorize;
mod consent;
mod discovery;
mod limits;
mod register;
mod revoke;
pub(crate) mod support;
mod token;
