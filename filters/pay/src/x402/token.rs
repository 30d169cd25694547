//! Token check: whether the contract on the chain is the token of the terms. It is read from the node, remembered, and read again.
//!
//! A price is sent as a number of the token's units, and wallets sign in the token's EIP-712 domain. A token with other decimal places would
//! sell the plan for another price; a payment in another domain is never valid. So with a node no offer is shown, and no payment is
//! submitted for the first time, before the token has been verified.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;
use tollgate_evm::{Word, chain_id};

use super::chain::{self, Returned};
use super::facilitator::{CallError, Node};
use super::offer::{DECIMALS, Terms};

/// Pause before a verified token is read again: the code behind a contract can be replaced.
const VERIFIED_INTERVAL: Duration = Duration::from_hours(1);

/// Pause before a token that differs is read again: a reload may have named another node.
const MISMATCH_INTERVAL: Duration = Duration::from_mins(1);

/// Pause after a check without an answer of the node.
const UNREAD_INTERVAL: Duration = Duration::from_secs(5);

/// How long a request waits for the first check after a start.
const FIRST_CHECK: Duration = Duration::from_secs(10);

/// Why a token is not verified.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The node gave no usable answer.
    #[error("{0}")]
    Unread(#[from] CallError),
    /// The node is of another chain.
    #[error("the node is of the chain {found}, not {wanted}")]
    OtherChain {
        /// The chain id of the node.
        found: u64,
        /// The network of the terms.
        wanted: String,
    },
    /// There is no contract at the token's address.
    #[error("there is no contract at {asset} on {network}")]
    NoContract {
        /// The token's address.
        asset: String,
        network: String,
    },
    /// The token's unit is not the unit of the price.
    #[error("the token at {asset} has {found} decimal places, not {DECIMALS}")]
    Decimals {
        /// The token's address.
        asset: String,
        /// Its decimal places: a number, or "no".
        found: String,
    },
    /// Wallets would sign in a domain that is not the token's.
    #[error(
        "the token at {asset} has another EIP-712 domain than name `{name}`, version `{version}`"
    )]
    Domain {
        /// The token's address.
        asset: String,
        /// The name of the terms.
        name: String,
        /// The version of the terms.
        version: String,
    },
}

impl TokenError {
    /// Whether the chain proves the settings wrong, as opposed to an unreadable chain.
    pub fn is_mismatch(&self) -> bool {
        matches!(
            self,
            TokenError::NoContract { .. } | TokenError::Decimals { .. } | TokenError::Domain { .. }
        )
    }
}

/// Compares the contract at the token's address with the terms: code, `decimals()` and `DOMAIN_SEPARATOR()` at the latest block.
///
/// # Errors
///
/// The difference, or that the node gave no usable answer.
pub async fn read_token(node: &dyn Node, terms: &Terms) -> Result<(), TokenError> {
    let asset = terms.asset.to_string();
    let answer = node.call(&chain::chain_id_call()).await?;
    let found = chain::read_chain_id(&answer).ok_or_else(|| no_answer("its chain id"))?;
    if chain_id(&terms.network) != Some(found) {
        let wanted = terms.network.clone();
        return Err(TokenError::OtherChain { found, wanted });
    }
    let answer = node.call(&chain::code_call(terms)).await?;
    if !chain::read_has_code(&answer).ok_or_else(|| no_answer("the token's code"))? {
        let network = terms.network.clone();
        return Err(TokenError::NoContract { asset, network });
    }
    match call(node, &chain::decimals_call(terms), "decimals()").await? {
        Returned::Word(decimals) if decimals == Word::padded(&[DECIMALS]) => {}
        Returned::Word(Word([.., last])) => {
            let found = last.to_string();
            return Err(TokenError::Decimals { asset, found });
        }
        Returned::Nothing => {
            let found = String::from("no");
            return Err(TokenError::Decimals { asset, found });
        }
    }
    let separator = terms.domain().map(|domain| domain.separator());
    match call(
        node,
        &chain::domain_separator_call(terms),
        "DOMAIN_SEPARATOR()",
    )
    .await?
    {
        Returned::Word(found) if Some(found) == separator => Ok(()),
        _ => Err(TokenError::Domain {
            asset,
            name: terms.asset_name.clone(),
            version: terms.asset_version.clone(),
        }),
    }
}

async fn call(node: &dyn Node, request: &Value, name: &str) -> Result<Returned, TokenError> {
    let answer = node.call(request).await?;
    chain::read_returned(&answer).ok_or_else(|| no_answer(name))
}

fn no_answer(what: &str) -> TokenError {
    TokenError::Unread(CallError(format!(
        "the node's answer about {what} is invalid"
    )))
}

/// The result of the check, remembered. Cheap to clone.
#[derive(Clone)]
pub struct TokenCheck {
    /// `None` without a node, and without a comparison.
    read: Option<Arc<Read>>,
}

struct Read {
    node: Arc<dyn Node>,
    terms: Terms,
    state: watch::Sender<TokenState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenState {
    /// Before the first check.
    Unknown,
    /// The token is that of the terms.
    Verified,
    /// The node gave no usable answer, and the token was not verified before.
    Unread,
    /// The token is not that of the terms.
    Mismatch,
}

impl TokenState {
    /// Pause before the next check.
    fn interval(self) -> Duration {
        match self {
            TokenState::Verified => VERIFIED_INTERVAL,
            TokenState::Mismatch => MISMATCH_INTERVAL,
            TokenState::Unknown | TokenState::Unread => UNREAD_INTERVAL,
        }
    }
}

impl TokenCheck {
    /// A check of the token of these terms, before the first call to the node.
    pub fn new(node: Option<Arc<dyn Node>>, terms: &Terms) -> TokenCheck {
        let read = |node| {
            Arc::new(Read {
                node,
                terms: terms.clone(),
                state: watch::Sender::new(TokenState::Unknown),
            })
        };
        TokenCheck {
            read: node.map(read),
        }
    }

    /// Whether the token is verified, or no node for the verification exists.
    pub fn is_verified(&self) -> bool {
        let is_verified = |read: &Arc<Read>| *read.state.borrow() == TokenState::Verified;
        self.read.as_ref().is_none_or(is_verified)
    }

    /// Waits for the end of the first check, for ten seconds at most: a request right after a start is not refused for it.
    pub async fn first_check(&self) {
        if let Some(read) = &self.read {
            let mut state = read.state.subscribe();
            let known = state.wait_for(|state| *state != TokenState::Unknown);
            let _ = tokio::time::timeout(FIRST_CHECK, known).await;
        }
    }

    /// Reads the token once. A node that does not answer leaves a verified token verified.
    pub async fn check(&self) {
        if let Some(read) = &self.read {
            read.check().await;
        }
    }

    /// Reads the token at once and then regularly, until the future is dropped.
    pub(super) async fn run_checks(&self) {
        while let Some(read) = &self.read {
            let state = read.check().await;
            tokio::time::sleep(state.interval()).await;
        }
    }
}

impl Read {
    async fn check(&self) -> TokenState {
        let result = read_token(&*self.node, &self.terms).await;
        let network = &self.terms.network;
        let last = *self.state.borrow();
        let state = match &result {
            Ok(()) => TokenState::Verified,
            Err(error) if error.is_mismatch() => TokenState::Mismatch,
            Err(_) if last == TokenState::Verified => TokenState::Verified,
            Err(_) => TokenState::Unread,
        };
        self.state.send_replace(state);
        match result {
            // An outage is logged once.
            _ if state == last => {}
            Ok(()) => {
                let asset = &self.terms.asset;
                tracing::info!(%asset, %network, "verified token of x402 payments");
            }
            Err(error) if state == TokenState::Mismatch => tracing::error!(%error, %network,
                "suspending x402 offers: the token on the chain is not the token of `[payments.x402]`; correct `asset`, `asset_name` and `asset_version`"),
            Err(error) => tracing::warn!(%error, %network,
                "suspending x402 offers: the token cannot be read from the node of `payments.x402.rpc_url`"),
        }
        state
    }
}

impl fmt::Debug for TokenCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCheck")
            .field("is_verified", &self.is_verified())
            .finish_non_exhaustive()
    }
}
