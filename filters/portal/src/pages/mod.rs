//! Page handlers, one file per page.
//!
//! The route table (`routes`) names the pages, and a page names neither it nor the filter: requests, forms, errors and amounts are in files
//! of `src`, below the pages.

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
