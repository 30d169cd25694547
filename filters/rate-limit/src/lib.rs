#![doc = include_str!("../README.md")]

mod address_limit;
mod builder;
mod concurrency;
pub mod config;
mod corrections;
mod counters;
mod fields;
mod gcra;
mod lease;
mod module;
mod outstanding;
mod partitions;
mod prepared;
mod quota;
mod rate_limit;
mod refusal;
mod shared_limits;
mod shared_permits;
mod tokens;

pub use address_limit::AddressLimit;
pub use builder::RateLimits;
pub use config::{Class, Limits, RawLimits};
pub use counters::Counters;
pub use module::RateLimitModule;
pub use prepared::{FAILED_CREDENTIALS, MISSING_CREDENTIALS};
pub use quota::{Decision, Quota};
pub use rate_limit::{RateLimit, UnknownClass};
pub use tokens::TokenQuota;
