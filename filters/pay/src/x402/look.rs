//! Chain lookup: the proven state of one authorization.

use tollgate_evm::{Address, Nonce, TxHash, chain_id};

use super::chain::{self, Fate, Head, Proof};
use super::facilitator::{Node, Silence};
use super::offer::Terms;

/// Blocks in one log query: what public nodes accept. A query that a node rejects is repeated over half as many.
const BLOCKS: u64 = 2_000;

/// The most log queries in one lookup.
const QUESTIONS_MAX: u32 = 120;

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// This transaction transfers the price to us.
    Paid(TxHash),
    /// The wallet cancelled it.
    Canceled,
    /// It was unused up to this second of the chain's clock.
    Unspent {
        /// The timestamp of the last block that was read.
        until: u64,
    },
    /// It was used for another transfer.
    Elsewhere,
    /// It was used, and its transaction was not found.
    Spent,
}

/// The authorization to look up.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The price, the token and the payee.
    pub terms: &'a Terms,
    /// The wallet.
    pub from: Address,
    /// Its nonce.
    pub nonce: Nonce,
    /// A transaction that may contain it.
    pub hint: Option<TxHash>,
    /// The seconds, by the chain's clock, between which it can have been used.
    pub between: (u64, u64),
}

/// Looks up an authorization. The node's answers are trusted only if they are consistent.
pub async fn look(node: &dyn Node, wanted: &Wanted<'_>) -> Result<Sight, Silence> {
    let Wanted {
        terms, from, nonce, ..
    } = *wanted;
    let said = node.call(&chain::chain_call()).await?;
    if chain::read_chain(&said).is_none_or(|id| chain_id(&terms.network) != Some(id)) {
        return Err(Silence(format!("the node is not of {}", terms.network)));
    }
    if let Some(hint) = wanted.hint
        && proof(node, wanted, hint).await? == Some(Proof::Paid)
    {
        return Ok(Sight::Paid(hint));
    }
    let head = chain::read_head(&node.call(&chain::head_call()).await?);
    let head = head.ok_or_else(|| vague("the last block"))?;
    let state = node
        .call(&chain::state_call(terms, from, nonce, head.number))
        .await?;
    match chain::read_state(&state).ok_or_else(|| vague("a nonce"))? {
        false => Ok(Sight::Unspent { until: head.time }),
        true => match used_in(node, wanted, head).await? {
            Fate::Nothing => Ok(Sight::Spent),
            Fate::Canceled => Ok(Sight::Canceled),
            Fate::Used(transaction) => match proof(node, wanted, transaction).await? {
                Some(Proof::Paid) => Ok(Sight::Paid(transaction)),
                Some(Proof::Elsewhere) => Ok(Sight::Elsewhere),
                Some(Proof::Nothing) | None => Ok(Sight::Spent),
            },
        },
    }
}

/// The effect of a transaction on the nonce.
async fn proof(
    node: &dyn Node,
    wanted: &Wanted<'_>,
    transaction: TxHash,
) -> Result<Option<Proof>, Silence> {
    let receipt = node.call(&chain::receipt_call(transaction)).await?;
    Ok(chain::read_receipt(
        &receipt,
        wanted.terms,
        wanted.from,
        wanted.nonce,
    ))
}

/// The nonce's logs, newest first, in the blocks of the time in which the payment could be used. That time may be long past: the node may
/// have been configured only today.
async fn used_in(node: &dyn Node, wanted: &Wanted<'_>, head: Head) -> Result<Fate, Silence> {
    let (since, until) = wanted.between;
    let (_, end) = around(node, until, head).await?;
    let (first, _) = around(node, since, end).await?;
    let (mut last, mut blocks) = (end.number, BLOCKS);
    for _ in 0..QUESTIONS_MAX {
        let from = last.saturating_sub(blocks - 1).max(first.number);
        let call = chain::logs_call(wanted.terms, wanted.from, wanted.nonce, (from, last));
        let said = node.call(&call).await?;
        if chain::is_turned_down(&said) && blocks > 1 {
            blocks /= 2;
            continue;
        }
        match chain::read_logs(&said, wanted.terms, wanted.from, wanted.nonce) {
            None => return Err(vague("logs")),
            Some(Fate::Nothing) if from > first.number => last = from - 1,
            Some(fate) => return Ok(fate),
        }
    }
    Err(Silence(
        "the node looks at too few blocks at once".to_owned(),
    ))
}

/// A block at or before a second, and a block after it or the head, not many blocks apart. Block times differ between chains and change; so
/// blocks are read (exponential search, then bisection), and no block time is assumed.
async fn around(node: &dyn Node, second: u64, end: Head) -> Result<(Head, Head), Silence> {
    let (mut low, mut high, mut step) = (end, end, BLOCKS);
    while low.time > second && low.number > 0 {
        high = low;
        low = block(node, low.number.saturating_sub(step)).await?;
        step = step.saturating_mul(2);
    }
    while high.number - low.number > BLOCKS {
        let middle = block(node, low.number.midpoint(high.number)).await?;
        match middle.time > second {
            true => high = middle,
            false => low = middle,
        }
    }
    Ok((low, high))
}

async fn block(node: &dyn Node, number: u64) -> Result<Head, Silence> {
    let block = chain::read_head(&node.call(&chain::block_call(number)).await?);
    block
        .filter(|block| block.number == number)
        .ok_or_else(|| vague("a block"))
}

fn vague(what: &str) -> Silence {
    Silence(format!(
        "the node's answer about {what} cannot be understood"
    ))
}
