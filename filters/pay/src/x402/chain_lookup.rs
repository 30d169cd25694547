//! Chain lookup: the proven state of one authorization, read from a node by JSON-RPC.

use tollgate_evm::{Address, Nonce, TxHash, chain_id};

use super::chain::{self, Block, NonceUse, Proof};
use super::facilitator::{CallError, Node};
use super::offer::Terms;

/// Blocks in one log query: the limit of public nodes. A rejected query is repeated over half as many blocks.
const BLOCKS_PER_QUERY: u64 = 2_000;

/// The most log queries in one lookup.
const LOG_QUERIES_MAX: u32 = 120;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnChainStatus {
    /// This transaction transfers the price to us.
    Paid(TxHash),
    /// Cancelled by the wallet.
    Canceled,
    /// Unused up to this second of the chain's clock.
    Unspent {
        /// The timestamp of the last block that was read.
        until: u64,
    },
    /// Used for another transfer.
    OtherTransfer,
    /// Used in a transaction that was not found.
    Spent,
}

/// The authorization to look up.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizationLookup<'a> {
    /// The price, the token and the payee.
    pub terms: &'a Terms,
    /// The wallet.
    pub from: Address,
    pub nonce: Nonce,
    /// A transaction that may contain the transfer.
    pub hint: Option<TxHash>,
    /// The seconds, by the chain's clock, between which the nonce may have been used.
    pub between: (u64, u64),
}

/// Looks up an authorization. The node's answers are trusted only if they are consistent.
pub async fn look_up(
    node: &dyn Node,
    lookup: &AuthorizationLookup<'_>,
) -> Result<OnChainStatus, CallError> {
    let AuthorizationLookup {
        terms, from, nonce, ..
    } = *lookup;
    let response = node.call(&chain::chain_id_call()).await?;
    if chain::read_chain_id(&response).is_none_or(|id| chain_id(&terms.network) != Some(id)) {
        return Err(CallError(format!(
            "the node serves another chain than {}",
            terms.network
        )));
    }
    if let Some(hint) = lookup.hint
        && proof(node, lookup, hint).await? == Some(Proof::Paid)
    {
        return Ok(OnChainStatus::Paid(hint));
    }
    let head = chain::read_block(&node.call(&chain::latest_block_call()).await?);
    let head = head.ok_or_else(|| invalid_answer("the latest block"))?;
    let state = node
        .call(&chain::state_call(terms, from, nonce, head.number))
        .await?;
    match chain::read_state(&state).ok_or_else(|| invalid_answer("a nonce"))? {
        false => Ok(OnChainStatus::Unspent { until: head.time }),
        true => match find_use(node, lookup, head).await? {
            NonceUse::Nothing => Ok(OnChainStatus::Spent),
            NonceUse::Canceled => Ok(OnChainStatus::Canceled),
            NonceUse::Used(transaction) => match proof(node, lookup, transaction).await? {
                Some(Proof::Paid) => Ok(OnChainStatus::Paid(transaction)),
                Some(Proof::OtherTransfer) => Ok(OnChainStatus::OtherTransfer),
                Some(Proof::Nothing) | None => Ok(OnChainStatus::Spent),
            },
        },
    }
}

/// The effect of a transaction on the nonce.
async fn proof(
    node: &dyn Node,
    lookup: &AuthorizationLookup<'_>,
    transaction: TxHash,
) -> Result<Option<Proof>, CallError> {
    let receipt = node.call(&chain::receipt_call(transaction)).await?;
    Ok(chain::read_receipt(
        &receipt,
        lookup.terms,
        lookup.from,
        lookup.nonce,
    ))
}

/// The nonce's logs, newest first, in the blocks of the time in which the payment could be used. The time may be long past: the node may
/// have been configured only today.
async fn find_use(
    node: &dyn Node,
    lookup: &AuthorizationLookup<'_>,
    head: Block,
) -> Result<NonceUse, CallError> {
    let (since, until) = lookup.between;
    let (_, end) = blocks_around(node, until, head).await?;
    let (first, _) = blocks_around(node, since, end).await?;
    let (mut last, mut blocks) = (end.number, BLOCKS_PER_QUERY);
    for _ in 0..LOG_QUERIES_MAX {
        let from = last.saturating_sub(blocks - 1).max(first.number);
        let call = chain::logs_call(lookup.terms, lookup.from, lookup.nonce, (from, last));
        let response = node.call(&call).await?;
        if chain::is_rejected(&response) && blocks > 1 {
            blocks /= 2;
            continue;
        }
        match chain::read_logs(&response, lookup.terms, lookup.from, lookup.nonce) {
            None => return Err(invalid_answer("logs")),
            Some(NonceUse::Nothing) if from > first.number => last = from - 1,
            Some(nonce_use) => return Ok(nonce_use),
        }
    }
    Err(CallError(
        "the node searches too few blocks in one call".to_owned(),
    ))
}

/// A block at or before a second, and a block after the second or the head, not many blocks apart. Block times differ between chains and
/// change, so the search reads blocks (exponential search, then bisection) and assumes no block time.
async fn blocks_around(
    node: &dyn Node,
    second: u64,
    end: Block,
) -> Result<(Block, Block), CallError> {
    let (mut low, mut high, mut step) = (end, end, BLOCKS_PER_QUERY);
    while low.time > second && low.number > 0 {
        high = low;
        low = block(node, low.number.saturating_sub(step)).await?;
        step = step.saturating_mul(2);
    }
    while high.number - low.number > BLOCKS_PER_QUERY {
        let middle = block(node, low.number.midpoint(high.number)).await?;
        match middle.time > second {
            true => high = middle,
            false => low = middle,
        }
    }
    Ok((low, high))
}

async fn block(node: &dyn Node, number: u64) -> Result<Block, CallError> {
    let block = chain::read_block(&node.call(&chain::block_call(number)).await?);
    block
        .filter(|block| block.number == number)
        .ok_or_else(|| invalid_answer("a block"))
}

fn invalid_answer(what: &str) -> CallError {
    CallError(format!("the node's answer about {what} is invalid"))
}
