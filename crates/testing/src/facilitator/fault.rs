//! Calls that faults are scripted for, and the effects.

use serde::Deserialize;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// The query for supported payment kinds.
    Supported,
    /// The verification of a payment.
    Verify,
    /// The settlement.
    Settle,
    /// A query to the chain's node.
    Rpc,
}

/// The effect on a call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Executed, and the connection is cut instead of a response.
    LoseAnswer,
    /// The connection is cut before anything is executed.
    LoseCall,
    /// Executed, with a 500 and a page as the response.
    FailAfter,
    /// This status and a page; nothing is executed.
    Status(u16),
    /// A refusal for this reason with this status; nothing is executed.
    Refuse(String, u16),
    /// The transfer is pending: reported so, with this status, until it is mined ([`super::Facilitator::mine`]).
    Pending(u16),
    /// Executed, and refused for this reason nevertheless, with its transaction.
    RefuseAfter(String),
    /// Executed, and refused for this reason nevertheless, without a transaction.
    SettleThenRefuse(String),
    /// Submitted, and refused for this reason nevertheless: the transfer is pending until it is mined ([`super::Facilitator::mine`]).
    SubmitThenRefuse(String),
    /// Executed; the response names another wallet.
    StrangePayer,
    /// Executed; the response names another chain.
    StrangeNetwork,
    /// Executed; the response names no transaction.
    NoTransaction,
    /// Executed; these members of the response are replaced, and those of `null` removed.
    AnswerWith(serde_json::Map<String, serde_json::Value>),
    /// Nothing is executed, and success is reported.
    Phantom,
    /// Nothing is executed, and success is reported with the transaction of the first transfer in a block.
    OldTransaction,
    /// The transaction is in a block and has reverted, and success is reported.
    Reverted,
    /// Executed; the response is JSON outside the protocol.
    Nonsense,
    /// Executed; the response is far larger than any valid one.
    Flood,
    /// A redirect to another host.
    ElsewhereRedirect,
    /// A redirect within this host, executed there.
    Redirect,
    /// Waits at the gate ([`super::Facilitator::gate`]) before execution.
    Hold,
    /// Executed, and waits at the gate before the response.
    HoldAfter,
}

/// A scripted fault of a call.
pub type Fault = crate::fault::Fault<Operation, Effect>;
