//! Payment in the request itself: challenges, credentials, receipts.

mod json;
pub mod x402;
