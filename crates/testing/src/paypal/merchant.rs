//! The merchant's account: client credentials, webhook, and the initial plan.

/// The merchant's client id.
pub const CLIENT_ID: &str = "stand-in-client";

/// The client secret.
pub const CLIENT_SECRET: &str = "EStandInSecret5f0c7a";

/// The id of the one webhook.
pub const WEBHOOK_ID: &str = "4JH86294D6297924G";

/// The initial plan: 199.00 USD each month, without end.
pub const PLAN_ID: &str = "P-5STANDIN44254362WXNWU5NQ";

/// Its product.
pub const PRODUCT_ID: &str = "stand-in-pro";

/// Its price.
pub(super) const PLAN_CENTS: i64 = 19_900;
