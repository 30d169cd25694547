//! A call with a started answer, and its guard: the permit, and the health accounting at the end.

use bytes::Bytes;
use tollgate_chain::{UpstreamCall, UpstreamError};

use crate::telemetry::{AttemptFailure, AttemptSpan};
use crate::upstream::route::{CallGuard, FailureScope};
use crate::upstream::transport::Call;

/// A successful answer in progress, and the guard of its call.
pub(crate) struct TrackedCall {
    pub(super) call: Call,
    pub(super) guard: CallGuard,
    /// The body sent to the provider.
    pub(super) body: Bytes,
    pub(super) span: Option<Box<AttemptSpan>>,
}

impl TrackedCall {
    /// Records when the first data of the answer was there.
    #[inline]
    fn note_beginning(&mut self) {
        if let Some(span) = &mut self.span
            && self.call.has_begun()
        {
            span.read();
        }
    }

    /// Records an answer that breaks off: it counts as a failure, though nothing can be retried.
    #[cold]
    fn record_cut(&mut self, error: &UpstreamError) {
        if let Some(span) = &mut self.span {
            span.fail(&AttemptFailure {
                fault: error.fault,
                status: None,
            });
        }
        let now = self.call.clock.elapsed().as_micros() as u64;
        // The catalog is updated with the next check of all providers.
        let change = self
            .guard
            .call_failed(FailureScope::Candidate, &self.body, now);
        self.guard.candidate.log(change);
    }
}

impl UpstreamCall for TrackedCall {
    fn is_stream(&self) -> bool {
        self.call.is_stream()
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let piece = self.call.read().await;
        self.note_beginning();
        piece
    }

    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        let piece = self.call.read_ready();
        self.note_beginning();
        piece
    }

    fn failed(&mut self, error: &UpstreamError) {
        self.record_cut(error);
    }

    async fn finish(mut self) {
        self.guard
            .answer_ended(self.call.read_at.as_micros() as u64);
        if let Some(span) = &mut self.span {
            span.complete();
        }
        // The provider has finished: the next request in the queue need not wait until the connection is back in the pool.
        drop(self.guard);
        self.call.finish().await;
    }
}
