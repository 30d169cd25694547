//! A look at the chain: what has become of one authorization, with proof.

use super::chain::{self, Fate, Head, Proof};
use super::facilitator::{Node, Silence};
use super::hex::{Address, Nonce};
use super::offer::Terms;
use super::signer::chain_id;

/// Blocks that one question for logs is about: what public nodes answer at once. One that does not is asked about half as many.
const BLOCKS: u64 = 2_000;

/// Questions for logs in one look.
const QUESTIONS_MAX: u32 = 120;

/// What a look has shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The transfer of the price to us is in this transaction.
    Paid(Nonce),
    /// The wallet has made it void.
    Canceled,
    /// It was not used up to this second of the chain's clock.
    Unspent {
        /// The second of the last block that was looked at.
        until: u64,
    },
    /// It was used to move other money than what was asked for.
    Elsewhere,
    /// It was used, and what for was not found.
    Spent,
}

/// One authorization to be looked at.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What was to be paid, and to whom.
    pub terms: &'a Terms,
    /// The wallet.
    pub from: Address,
    /// Its number.
    pub nonce: Nonce,
    /// A transaction that may be it.
    pub hint: Option<Nonce>,
    /// The seconds, by the chain's clock, between which it can have been used.
    pub between: (u64, u64),
}

/// Looks. What the node says is believed only where all of it fits together.
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

/// What a transaction has done.
async fn proof(
    node: &dyn Node,
    wanted: &Wanted<'_>,
    transaction: Nonce,
) -> Result<Option<Proof>, Silence> {
    let receipt = node.call(&chain::receipt_call(transaction)).await?;
    Ok(chain::read_receipt(
        &receipt,
        wanted.terms,
        wanted.from,
        wanted.nonce,
    ))
}

/// What the logs tell, in the blocks of the time in which the payment could be used, the last ones first. That time may lie long ago: a
/// node may be there only since today.
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

/// A block made at a second or before, and one made after it or at the end, not many apart. Chains make blocks at paces of their own, which
/// change; so blocks are looked at, and no pace is assumed.
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
