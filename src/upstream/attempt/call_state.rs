//! The state of a call across its attempts, and the outcome of one attempt.

use std::time::Duration;

use bytes::Bytes;
use tollgate_chain::UpstreamError;

use crate::telemetry::AttemptSpan;
use crate::upstream::route::{Account, CallGuard, CandidateSet, SelectionInput};
use crate::upstream::transport::{AttemptError, Call};

/// The state of a request across its attempts.
pub(super) struct CallState {
    pub(super) account: Account,
    /// Clock reading at its start.
    pub(super) started: Duration,
    /// The latest clock reading.
    pub(super) now: Duration,
    /// The candidates that are not to be selected: called already, or without the operation.
    pub(super) tried: CandidateSet,
    pub(super) attempts: u32,
    /// The last candidate, if it may be retried.
    pub(super) retry: Option<RetryTarget>,
    /// The error for the client if no candidate answers.
    pub(super) error: Option<UpstreamError>,
}

/// A candidate that may be retried when no other is left.
#[derive(Clone, Copy)]
pub(super) struct RetryTarget {
    pub(super) at: usize,
    /// Retries there so far.
    pub(super) retries: u32,
    /// Whether to back off first; another of its addresses needs no backoff.
    pub(super) backs_off: bool,
}

impl CallState {
    /// The request, for the selection of a candidate.
    pub(super) fn selection_input(&self) -> SelectionInput {
        SelectionInput {
            account: self.account,
            now: self.now.as_micros() as u64,
        }
    }
}

/// The result of an attempt, and its candidate.
pub(super) struct AttemptOutcome {
    pub(super) at: usize,
    pub(super) guard: CallGuard,
    /// The body sent to the provider.
    pub(super) body: Bytes,
    pub(super) span: Option<Box<AttemptSpan>>,
    pub(super) result: Result<Call, AttemptError>,
}
