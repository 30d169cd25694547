//! Payment in the request itself: challenges, credentials, receipts.

mod json;
pub mod mpp;
pub mod x402;
