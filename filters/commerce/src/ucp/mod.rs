//! The Universal Commerce Protocol, versions 2026-08-25 and 2026-04-08: the part supported by this service, in which checkouts of both
//! versions have one form.

pub(crate) mod agent;
pub(crate) mod checkout_sessions;
pub(crate) mod idempotency_key;
pub(crate) mod negotiate;
pub(crate) mod negotiation;
pub(crate) mod profiles;
pub(crate) mod request;
pub(crate) mod wire;

/// The supported versions of the protocol, the current version first. Each version has a separate address.
pub(crate) static VERSIONS: [&str; 2] = [CURRENT, OLDER];

/// The current version.
pub(crate) const CURRENT: &str = "2026-08-25";

/// The version before, which the service's own address reports.
pub(crate) const OLDER: &str = "2026-04-08";

/// The service of checkouts.
pub(crate) const SHOPPING: &str = "dev.ucp.shopping";

/// The checkout capability.
pub(crate) const CHECKOUT: &str = "dev.ucp.shopping.checkout";

/// The identity linking capability (OAuth).
pub(crate) const IDENTITY: &str = "dev.ucp.common.identity_linking";
