//! The attempts of a call: failover and retries before the first byte of an answer, hedged requests, and the record of how each attempt
//! ended.

mod call_state;
mod caller;
mod failure_policy;
mod hedge;
mod tracked_call;

pub(crate) use self::caller::Caller;
