#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod cap;
mod decimal;
mod hash;
mod id;
mod micros;
mod price;
mod usd;
mod usd_per_credit;

pub use cap::{CapPeriod, SpendingCap};
pub use decimal::{DecimalError, DecimalText};
pub use hash::IdHasher;
pub use id::{
    AccountId, CheckoutId, CredentialId, GrantId, IdError, IdText, LoginId, MandateId, OperationId,
    PaymentId, SubscriptionId, TopUpId,
};
pub use micros::{MICROS_PER_CREDIT, Micros};
pub use price::{Price, TOKENS_PER_PRICE, TokenPrice};
pub use usd::Usd;
pub use usd_per_credit::{UsdPerCredit, UsdPrice};
