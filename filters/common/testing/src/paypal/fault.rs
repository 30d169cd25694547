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
    /// Verifying the signature of a notification.
    Verify,
    /// Creating, reading and listing products and plans.
    Plan,
    /// Making a subscription.
    Subscribe,
    /// Reading one.
    Subscription,
    /// Listing its charges.
    Transactions,
    /// Cancelling, suspending or activating one.
    End,
    /// Giving a charge back.
    Refund,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Executed, and the connection is cut instead of a response.
    LoseAnswer,
    /// The connection is cut before anything is executed.
    LoseCall,
    /// Executed, with a 500 as the response.
    FailAfter,
    /// 503, and nothing is done.
    Unavailable,
    /// 429, and nothing is done.
    TooMany,
    /// 401, as with an expired token.
    Unauthorized,
    /// 422 `INSTRUMENT_DECLINED`, for a capture.
    Decline,
    /// 422 `COMPLIANCE_VIOLATION`.
    Refuse,
    /// The payment remains pending, for a capture.
    Pending,
    /// Executed, the response is lost, and orders cannot be read any more: for a capture.
    Blackout,
    /// A response with a link to another host, for creating an order or a subscription.
    StrangeLink,
    /// A response with the wrong amount, for reading.
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
