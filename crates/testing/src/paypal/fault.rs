//! Calls that faults are scripted for, and the effects.

use serde::Deserialize;

/// A call to PayPal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Requesting a token.
    Token,
    /// Creating an order.
    Create,
    /// Reading one.
    Read,
    /// Capturing it.
    Capture,
    /// Fetching a certificate.
    Certificate,
    /// Verifying the signature of a notification.
    Verify,
    /// Creating, reading and listing products and plans.
    Plan,
    /// Creating a subscription.
    Subscribe,
    /// Reading one.
    Subscription,
    /// Listing its charges.
    Transactions,
    /// Cancelling, suspending or activating one.
    End,
    /// Refunding a charge.
    Refund,
}

/// The effect on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Executed, and the connection is cut instead of a response.
    LoseAnswer,
    /// The connection is cut before anything is executed.
    LoseCall,
    /// Executed, with a 500 as the response.
    FailAfter,
    /// 503, and nothing is executed.
    Unavailable,
    /// 429, and nothing is executed.
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
    /// Executed, and waits at the gate ([`super::PayPal::gate`]) before the response: for a capture, and for listing charges.
    HoldAfter,
    /// A response with a link to another host, for creating an order or a subscription.
    StrangeLink,
    /// A response with the wrong amount, for reading.
    StrangeAmount,
}

/// A scripted fault of a call.
pub type Fault = crate::fault::Fault<Operation, Effect>;
