//! A stand-in x402 facilitator with a chain: `/supported`, `/verify`, `/settle`, and the chain's node at `/rpc`.
//!
//! It enforces the rules of the real ones (signatures are verified, a nonce is used once, no wallet pays more than its balance) and can be
//! scripted to lose responses, fail, respond slowly, leave transfers pending and lie. A test uses it in process; other programs use
//! `/_control/...` ([`control`]).

mod chain;
pub mod control;
mod fault;
mod http;
mod rpc;
mod rules;
mod state;
mod token;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tollgate_clock::Clock;
use tollgate_evm::{Address, Authorization, Nonce};

pub use chain::Mined;
pub use fault::{Effect, Fault, Operation};
pub use state::Call;
pub use token::{Contract, MERCHANT, NETWORK, merchant};

use crate::gate::Gate;
use crate::server::Server;
use state::Shared;

/// The result of a call without a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Bytes,
}

/// A facilitator that listens on this machine.
pub struct Facilitator {
    server: Server,
    shared: Arc<Shared>,
}

impl Facilitator {
    /// Starts one on a free port, on the caller's runtime, by the machine's clock.
    ///
    /// # Panics
    ///
    /// When this machine has no free port.
    pub async fn start() -> Facilitator {
        Facilitator::start_at(Clock::system()).await
    }

    /// The same by this clock.
    ///
    /// # Panics
    ///
    /// When this machine has no free port.
    pub async fn start_at(clock: Clock) -> Facilitator {
        let (server, shared) = Server::start(|_| Shared::new(clock)).await;
        Facilitator { server, shared }
    }

    /// Starts one on its own thread, for a program without a runtime.
    ///
    /// # Errors
    ///
    /// When no port or no thread is available.
    pub fn start_own_thread() -> io::Result<Facilitator> {
        let make = |_| Shared::new(Clock::system());
        let (server, shared) = Server::start_own_thread("facilitator stand-in", make)?;
        Ok(Facilitator { server, shared })
    }

    /// Its address, for `payments.x402.facilitator_url`.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The address of its chain's node, for `payments.x402.rpc_url`.
    pub fn rpc_url(&self) -> String {
        format!("{}/rpc", self.url())
    }

    /// The response to a call at this path, without a connection; `None` for one that is cut.
    pub async fn call(&self, path: &str, body: &[u8]) -> Option<Answered> {
        let reply = self.shared.answer(path, None, body).await?;
        Some(Answered {
            status: reply.status,
            body: reply.body,
        })
    }

    /// Faults for the next calls; the first match applies first.
    pub fn fault(&self, fault: Fault) {
        self.shared.with(|state| state.faults.add(fault));
    }

    /// Removes all scripted faults.
    pub fn no_faults(&self) {
        self.shared.with(|state| state.faults.clear());
    }

    /// The gate for calls that were scripted to wait.
    pub fn gate(&self) -> Gate {
        self.shared.gate.clone()
    }

    /// From now on a settled payment is reported as settled again. Otherwise its nonce is reported as used, as by the published
    /// facilitator.
    pub fn remember(&self) {
        self.shared.with(|state| state.remembers = true);
    }

    /// From now on every call requires this bearer token.
    pub fn want_bearer(&self, bearer: &str) {
        self.shared
            .with(|state| state.bearer = Some(bearer.to_owned()));
    }

    /// Pending transfers are mined, or dropped; returns how many were mined.
    pub fn mine(&self, arrives: bool) -> usize {
        self.shared.with(|state| state.mine(arrives))
    }

    /// Removes the last transfer from its block.
    pub fn undo(&self) -> bool {
        self.shared.with(|state| state.chain.undo())
    }

    /// Sends a transfer without the facilitator.
    pub fn submit(&self, transfer: &Authorization) -> bool {
        self.submit_together(std::slice::from_ref(transfer))
    }

    /// The same with several in one transaction.
    pub fn submit_together(&self, transfers: &[Authorization]) -> bool {
        self.shared.with(|state| {
            let hash = state.chain.new_hash();
            let mut all = transfers.iter();
            all.all(|transfer| state.chain.execute(transfer, hash))
        })
    }

    /// A wallet cancels its own transfer.
    pub fn cancel(&self, wallet: Address, nonce: Nonce) {
        self.shared.with(|state| state.chain.cancel(wallet, nonce));
    }

    /// Sets the balance of a wallet.
    pub fn set_balance(&self, wallet: Address, amount: u64) {
        self.shared
            .with(|state| state.chain.set_balance(wallet, amount));
    }

    /// Advances the chain's clock by a number of seconds.
    pub fn advance(&self, secs: u64) {
        self.shared.with(|state| state.chain.ahead += secs);
    }

    /// The chain's node reports another chain id.
    pub fn be_of_chain(&self, number: u64) {
        self.shared.with(|state| state.chain.number = number);
    }

    /// Another contract is at the token's address, as the node reports it. Transfers are executed as before.
    pub fn deploy(&self, contract: Contract) {
        self.shared.with(|state| state.chain.contract = contract);
    }

    /// The chain's node limits the block range of log queries, and refuses larger ones.
    pub fn look_through(&self, blocks: u64) {
        self.shared.with(|state| state.chain.blocks_max = blocks);
    }

    /// The chain's node lags by a number of blocks: it returns nothing of later ones.
    pub fn lag(&self, blocks: u64) {
        self.shared.with(|state| state.chain.lag = blocks);
    }

    /// Every transfer that is in a block.
    pub fn transfers(&self) -> Vec<Mined> {
        self.shared.with(|state| state.chain.mined.clone())
    }

    /// How often an operation was called, answered or not.
    pub fn calls(&self, operation: Operation) -> u64 {
        self.shared.with(|state| state.faults.calls(operation))
    }

    /// The bodies of calls, in order.
    pub fn asked(&self, operation: Operation) -> Vec<Value> {
        self.shared.with(|state| {
            let calls = state.kept.iter().filter(|call| call.operation == operation);
            calls
                .map(|call| serde_json::from_slice(&call.body).unwrap_or(Value::Null))
                .collect()
        })
    }
}
