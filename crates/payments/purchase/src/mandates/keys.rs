//! Idempotency keys of provider calls for mandates.

use tollgate_money::{AccountId, MandateId};

use crate::keys::key_of;

/// The key of creating a mandate's subscription: 64 hex digits.
pub(super) fn create(environment: &str, account: AccountId, mandate: MandateId) -> String {
    let (account, mandate) = (account.to_string(), mandate.to_string());
    key_of(&["tollgate", environment, &account, &mandate, "subscribe"])
}

/// The key of refunding a charge.
pub(super) fn refund(environment: &str, mandate: MandateId, charge: &str) -> String {
    let mandate = mandate.to_string();
    key_of(&["tollgate", environment, &mandate, "refund", charge])
}
