//! Payments whose outcome is not proved.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_evm::{Address, Nonce, TxHash};
use tollgate_pay::x402::{payment_action, payment_reference};
use tollgate_purchase::plan::PRICE;
use tollgate_store::{AuthorizationRow, AuthorizationState, ReadError, Reader};

/// Payments per read from the store.
const PAGE: usize = 500;

/// Every payment whose outcome is not proved, oldest first. Blocks.
pub(crate) fn open_payments(store: &Reader) -> Result<Vec<AuthorizationRow>, ReadError> {
    let mut open: Vec<AuthorizationRow> = Vec::new();
    loop {
        let page = store.authorizations_open(open.last(), PAGE)?;
        if page.is_empty() {
            return Ok(open);
        }
        open.extend(page);
    }
}

/// A payment whose outcome is not proved.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Payment")]
pub(crate) struct PaymentView {
    /// Its id: chain, token, wallet and nonce.
    pub(crate) payment: String,
    /// The account that presented it.
    pub(crate) account: String,
    /// `submitted`, `refused` or `unclear`.
    pub(crate) state: &'static str,
    /// The wallet.
    pub(crate) payer: String,
    /// The nonce of the authorization.
    pub(crate) nonce: String,
    /// US dollars.
    pub(crate) amount: String,
    /// As reported by the facilitator: its effect is not proved.
    pub(crate) transaction: Option<String>,
    /// When it was presented, RFC 3339.
    pub(crate) since: String,
    /// When the chain stops accepting it, RFC 3339.
    pub(crate) ends: String,
    /// What is known of it.
    pub(crate) note: Option<String>,
    /// `wait` while the gateway reconciles it, else `resolve`.
    pub(crate) action: &'static str,
}

impl PaymentView {
    /// A payment at `now`.
    pub(crate) fn of(row: &AuthorizationRow, now: Timestamp) -> PaymentView {
        let transaction = row.transaction.map(TxHash);
        PaymentView {
            payment: payment_reference(row),
            account: row.account.to_string(),
            state: match row.state {
                AuthorizationState::Settling => "submitted",
                AuthorizationState::RefusedAfterSubmit => "refused",
                _ => "unclear",
            },
            payer: Address(row.key.payer).to_string(),
            nonce: Nonce(row.key.nonce).to_string(),
            amount: PRICE.to_string(),
            transaction: transaction.map(|hash| hash.to_string()),
            since: row.created_at.rfc3339(),
            ends: row.valid_before.rfc3339(),
            note: row.note.as_deref().map(str::to_owned),
            action: payment_action(row, now),
        }
    }
}
