//! What can be made to go wrong.

use serde::Deserialize;

/// A call to PayPal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Getting a token.
    Token,
    /// Making an order.
    Create,
    /// Reading one.
    Read,
    /// Taking its money.
    Capture,
    /// Fetching a certificate.
    Certificate,
    /// Asking whether a notice is genuine.
    Verify,
    /// Making, reading and listing products and plans.
    Plan,
    /// Making a subscription.
    Subscribe,
    /// Reading one.
    Subscription,
    /// Listing its charges.
    Transactions,
    /// Ending, stopping or starting one.
    End,
    /// Giving a charge back.
    Refund,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// It is carried out, and the connection is cut instead of an answer.
    LoseAnswer,
    /// The connection is cut before anything is done.
    LoseCall,
    /// It is carried out and answered with 500.
    FailAfter,
    /// 503, and nothing is done.
    Unavailable,
    /// 429, and nothing is done.
    TooMany,
    /// 401, as with a token that has run out.
    Unauthorized,
    /// 422 `INSTRUMENT_DECLINED`, for taking money.
    Decline,
    /// 422 `COMPLIANCE_VIOLATION`.
    Refuse,
    /// The payment stays on its way, for taking money.
    Pending,
    /// It is carried out, the answer is lost, and no order can be read any more: for taking money.
    Blackout,
    /// An answer with a link to another host, for making an order or a subscription.
    StrangeLink,
    /// An answer of the wrong amount, for reading.
    StrangeAmount,
}

/// A thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
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
