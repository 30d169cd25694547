//! A call whose answer has started, with its permit at the provider and its accounting: what counts as failed when it breaks.

use bytes::Bytes;
use tollgate_chain::{UpstreamCall, UpstreamError};

use super::call::Call;
use super::ground::Blame;
use super::offer::Ticket;

/// A successful answer in progress, and its ticket.
pub(crate) struct Served {
    pub(super) call: Call,
    pub(super) ticket: Ticket,
    /// The body sent to the provider.
    pub(super) body: Bytes,
}

impl Served {
    /// An answer that breaks off counts as a failure, though nothing can be retried.
    #[cold]
    fn broke(&mut self) {
        let now = self.call.clock.elapsed().as_micros() as u64;
        // The catalog is updated with the next check of all providers.
        let news = self.ticket.failed(Blame::Offer, &self.body, now);
        self.ticket.offer.log(news);
    }
}

impl UpstreamCall for Served {
    fn is_stream(&self) -> bool {
        self.call.is_stream()
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let piece = self.call.read().await;
        if piece.is_err() {
            self.broke();
        }
        piece
    }

    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        let piece = self.call.read_ready();
        if matches!(piece, Some(Err(_))) {
            self.broke();
        }
        piece
    }

    async fn finish(mut self) {
        self.ticket.ended(self.call.read_at.as_micros() as u64);
        // The provider has finished: the next request in the queue need not wait until the connection is back in the pool.
        drop(self.ticket);
        self.call.finish().await;
    }
}
