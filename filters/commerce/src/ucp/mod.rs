//! The Universal Commerce Protocol, version 2026-04-08: the part that this service supports.

pub(crate) mod agent;
pub(crate) mod checkout_sessions;
pub(crate) mod idempotency_key;
pub(crate) mod negotiate;
pub(crate) mod negotiation;
pub(crate) mod profiles;
pub(crate) mod request;
pub(crate) mod wire;

/// The version of the protocol.
pub(crate) const VERSION: &str = "2026-04-08";

/// The service of checkouts.
pub(crate) const SHOPPING: &str = "dev.ucp.shopping";

/// The checkout capability.
pub(crate) const CHECKOUT: &str = "dev.ucp.shopping.checkout";

/// The identity linking capability (OAuth).
pub(crate) const IDENTITY: &str = "dev.ucp.common.identity_linking";
