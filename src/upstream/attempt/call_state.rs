//! The state of a call across attempts, and the outcome of one attempt.

use std::time::Duration;

use bytes::Bytes;
use tollgate_chain::UpstreamError;

use crate::telemetry::AttemptSpan;
use crate::upstream::route::{Account, CallGuard, CandidateSet, Candidates, SelectionInput};
use crate::upstream::transport::{AttemptError, Call, fault};

/// The state of a request across its attempts.
pub(super) struct CallState {
    pub(super) account: Account,
    /// Clock reading at the start.
    pub(super) started: Duration,
    /// The latest clock reading.
    pub(super) now: Duration,
    /// The candidates that are not to be selected: called already, or without the operation.
    pub(super) tried: CandidateSet,
    pub(super) attempts: u32,
    /// The last candidate, if retries are allowed.
    pub(super) retry: Option<RetryTarget>,
    /// The last retried candidate, with the number of retries so far.
    pub(super) retried: Option<RetryTarget>,
    /// The candidates whose queue gave a permit that circuits did not let the request use.
    pub(super) turned_away: CandidateSet,
    /// The error for the client if no candidate answers.
    pub(super) error: Option<UpstreamError>,
}

/// A candidate for a retry without another candidate left.
#[derive(Clone, Copy)]
pub(super) struct RetryTarget {
    pub(super) at: usize,
    /// Retries so far.
    pub(super) retries: u32,
}

impl CallState {
    /// The time that is left at a provider whose time limit for the whole call is `total`.
    pub(super) fn time_left(&self, total: Duration) -> Duration {
        (self.started + total).saturating_sub(self.now)
    }

    /// Excludes the candidates whose time for the whole call has passed: an attempt would have no time, and would count as their failure.
    pub(super) fn drop_late(&mut self, candidates: &Candidates) {
        for (at, candidate) in candidates.list.iter().enumerate() {
            let total = candidate.provider.settings.timeouts.total;
            if self.time_left(total).is_zero() {
                self.tried |= 1 << at;
                let error = || fault::timeout("a provider", total);
                self.error.get_or_insert_with(error);
            }
        }
    }

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
