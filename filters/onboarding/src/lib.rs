#![doc = include_str!("../README.md")]

mod config;
mod developer_onboarding;
mod documents;
mod filter;
mod installation;
mod link_url;
mod module;
mod openapi;
mod security_txt;

pub use config::{FreeTier, OnboardingSettings, RawFreeTier, RawOnboarding, RawSecurity, Security};
pub use documents::Documents;
pub use filter::{Onboarding, UnknownDocument};
pub use installation::{Deprecated, Installation};
pub use module::OnboardingModule;
pub use openapi::document as openapi;
pub use security_txt::ExpiresError;
