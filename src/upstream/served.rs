//! A call whose answer has begun, with what the gateway keeps of it besides: its place among the provider's calls, and who is to blame
//! when it breaks.

use bytes::Bytes;
use tollgate_chain::{UpstreamCall, UpstreamError};

use super::call::Call;
use super::ground::Blame;
use super::offer::Ticket;

/// A successful answer on its way, and its ticket.
pub(crate) struct Served {
    pub(super) call: Call,
    pub(super) ticket: Ticket,
    /// What the provider was asked.
    pub(super) body: Bytes,
}

impl Served {
    /// An answer that breaks off is as bad as none, though nothing can be asked again.
    #[cold]
    fn broke(&mut self) {
        let now = self.call.clock.elapsed().as_micros() as u64;
        // The catalog hears of it with the next look at all providers.
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
        // The provider is done with it: the next one in the queue need not wait for the connection to be put away.
        drop(self.ticket);
        self.call.finish().await;
    }
}
