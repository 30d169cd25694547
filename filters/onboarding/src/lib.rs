#![doc = include_str!("../README.md")]

mod address;
mod config;
mod documents;
mod entry;
mod filter;
mod openapi;
mod security;

pub use config::{FreeTier, OnboardingSettings, RawFreeTier, RawOnboarding, RawSecurity, Security};
pub use documents::{Deprecated, Documents, Installation, Service};
pub use filter::{Onboarding, UnknownDocument};
pub use openapi::document as openapi;
pub use security::ExpiresError;
