#![doc = include_str!("../README.md")]

mod config;
mod developer_onboarding;
mod documents;
mod filter;
mod module;
mod openapi;
mod public_url;
mod security_txt;

pub use config::{FreeTier, OnboardingSettings, RawFreeTier, RawOnboarding, RawSecurity, Security};
pub use documents::{Deprecated, Documents, Installation};
pub use filter::{Onboarding, UnknownDocument};
pub use module::OnboardingModule;
pub use openapi::document as openapi;
pub use security_txt::ExpiresError;
