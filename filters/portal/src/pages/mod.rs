//! Page handlers, one file per page.

pub(crate) mod apps;
pub(crate) mod checkout;
pub(crate) mod consent;
pub(crate) mod credits;
pub(crate) mod docs;
pub(crate) mod keys;
pub(crate) mod overview;
pub(crate) mod plan;
mod requests;
pub(crate) mod sandbox;
mod scope_text;
pub(crate) mod sign_in;
pub(crate) mod sign_out;
pub(crate) mod usage;
