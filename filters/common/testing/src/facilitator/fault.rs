//! What can be made to go wrong.

use serde::Deserialize;

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// What is settled at all.
    Supported,
    /// Whether a payment would work.
    Verify,
    /// The transfer.
    Settle,
    /// A question to the node of the chain.
    Rpc,
}

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It is carried out, and the connection is cut instead of an answer.
    LoseAnswer,
    /// The connection is cut before anything is done.
    LoseCall,
    /// It is carried out and answered with 500 and a page.
    FailAfter,
    /// This status and a page, and nothing is done.
    Status(u16),
    /// A refusal for this reason with this status, and nothing is done.
    Refuse(String, u16),
    /// The transfer is on its way: it is told so, with this status, until it is mined ([`super::Facilitator::mine`]).
    Pending(u16),
    /// It is carried out and refused for this reason all the same, with its transaction.
    RefuseAfter(String),
    /// It is carried out and refused for this reason all the same, and no transaction is named.
    SettleThenRefuse(String),
    /// It is submitted and refused for this reason all the same: the transfer is pending until it is mined ([`super::Facilitator::mine`]).
    SubmitThenRefuse(String),
    /// It is carried out, and the answer names another wallet.
    StrangePayer,
    /// It is carried out, and the answer names another chain.
    StrangeNetwork,
    /// It is carried out, and the answer names no transaction.
    NoTransaction,
    /// Nothing is done, and success is told.
    Phantom,
    /// Nothing is done, and success is told with the transaction of the first transfer in a block.
    OldTransaction,
    /// The transaction is in a block and has reverted, and success is told.
    Reverted,
    /// It is carried out and answered with JSON that is none of the protocol's.
    Nonsense,
    /// It is carried out and answered with far more bytes than any answer has.
    Flood,
    /// It is sent on to another host.
    ElsewhereRedirect,
    /// It is sent on within this host, and carried out there.
    Redirect,
    /// It waits at the gate ([`super::Facilitator::gate`]) before anything is done.
    Hold,
    /// It is carried out and waits at the gate before it is answered.
    HoldAfter,
}

/// A thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Fault {
    /// With which call.
    pub operation: Operation,
    /// What happens.
    pub effect: Effect,
    /// How often.
    #[serde(default = "once")]
    pub times: u32,
}

impl Fault {
    /// Something that goes wrong once.
    pub fn once(operation: Operation, effect: Effect) -> Fault {
        Fault {
            operation,
            effect,
            times: 1,
        }
    }

    /// The same, so many times.
    #[must_use]
    pub fn times(self, times: u32) -> Fault {
        Fault { times, ..self }
    }
}

fn once() -> u32 {
    1
}
