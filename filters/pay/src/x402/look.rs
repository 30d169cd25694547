//! A look at the chain: what has become of one authorization, with proof.

use super::chain::{self, Fate, Head, Proof};
use super::facilitator::{Node, Silence};
use super::hex::{Address, Nonce};
use super::offer::Terms;
use super::signer::chain_id;

/// Blocks that one question for logs is about: what public nodes answer at once.
const BLOCKS: u64 = 2_000;

/// Questions for logs in one look.
const QUESTIONS_MAX: u64 = 60;

/// The shortest time between two blocks of the chains this is used with, in seconds: how far back a time lies in blocks.
const BLOCK_SECS: u64 = 2;

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
    /// How many seconds ago it can have been used at the earliest.
    pub secs_ago: u64,
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

/// What the logs tell, from the last block backwards.
async fn used_in(node: &dyn Node, wanted: &Wanted<'_>, head: Head) -> Result<Fate, Silence> {
    let back = (wanted.secs_ago / BLOCK_SECS).min(BLOCKS * QUESTIONS_MAX);
    let first = head.number.saturating_sub(back);
    let mut last = head.number;
    loop {
        let from = last.saturating_sub(BLOCKS - 1).max(first);
        let call = chain::logs_call(wanted.terms, wanted.from, wanted.nonce, (from, last));
        let fate = chain::read_logs(
            &node.call(&call).await?,
            wanted.terms,
            wanted.from,
            wanted.nonce,
        );
        match fate.ok_or_else(|| vague("logs"))? {
            Fate::Nothing if from > first => last = from - 1,
            fate => return Ok(fate),
        }
    }
}

fn vague(what: &str) -> Silence {
    Silence(format!(
        "the node's answer about {what} cannot be understood"
    ))
}
