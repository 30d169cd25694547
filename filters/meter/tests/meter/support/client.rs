//! A client that stores what it receives, and may disconnect.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use tollgate_chain::{BodyError, Downstream, Gone, Head};
use tollgate_clock::ManualClock;
use tollgate_ledger::Ledger;
use tollgate_memory::MemoryUse;
use tollgate_money::{AccountId, Micros};

/// When a client disconnects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    Never,
    /// As soon as its request is sent.
    AtOnce,
    /// After this many pieces of a stream.
    After(usize),
    /// While the last piece of an answer is being sent.
    AtTheEnd,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) body: Bytes,
    leaves: Leaves,
    pub(crate) status: Option<u16>,
    pub(crate) received: String,
    headers: HeaderMap,
    pieces: usize,
    /// Pieces received, for observers.
    pub(crate) watched: Arc<AtomicUsize>,
    /// The clock that it advances while a piece is being sent to it, and by how much.
    pub(crate) reads_slowly: Option<(ManualClock, Duration)>,
    /// The account whose available credit is read when a whole answer or a refusal is sent to it.
    pub(crate) observed_account: Option<(Ledger, AccountId)>,
    /// The value read.
    pub(crate) available: Option<i64>,
}

impl Client {
    pub(crate) fn new(leaves: Leaves) -> Client {
        Client {
            body: Bytes::new(),
            leaves,
            status: None,
            received: String::new(),
            headers: HeaderMap::new(),
            pieces: 0,
            watched: Arc::default(),
            reads_slowly: None,
            observed_account: None,
            available: None,
        }
    }

    pub(crate) fn staying() -> Client {
        Client::new(Leaves::Never)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        Some(value.to_str().expect("a visible value"))
    }

    fn has_left(&self) -> bool {
        match self.leaves {
            Leaves::Never | Leaves::AtTheEnd => false,
            Leaves::AtOnce => true,
            Leaves::After(pieces) => self.pieces >= pieces,
        }
    }

    fn receive(&mut self, piece: &[u8]) -> Result<(), Gone> {
        if self.has_left() {
            return Err(Gone);
        }
        self.pieces += 1;
        self.watched.store(self.pieces, Ordering::Relaxed);
        self.received += std::str::from_utf8(piece).expect("answers are UTF-8");
        Ok(())
    }
}

impl Downstream for Client {
    async fn read_body(&mut self, _: usize, _: &mut MemoryUse) -> Result<Bytes, BodyError> {
        Ok(self.body.clone())
    }

    async fn send(&mut self, head: Head, body: Bytes) -> Result<(), Gone> {
        if self.leaves == Leaves::AtTheEnd {
            return Err(Gone);
        }
        self.status = Some(head.status.as_u16());
        self.headers = head.headers;
        if let Some((ledger, account)) = &self.observed_account {
            self.available = ledger.available(*account).map(Micros::get);
        }
        self.receive(&body)
    }

    async fn start(&mut self, head: Head, first: &mut BytesMut) -> Result<(), Gone> {
        self.status = Some(head.status.as_u16());
        self.receive(&first.split())
    }

    async fn write(&mut self, piece: &mut BytesMut) -> Result<(), Gone> {
        if let Some((manual, by)) = &self.reads_slowly {
            manual.advance(*by);
        }
        self.receive(&piece.split())
    }

    async fn finish(&mut self, last: &mut BytesMut) -> Result<(), Gone> {
        if self.leaves == Leaves::AtTheEnd {
            return Err(Gone);
        }
        self.receive(&last.split())
    }

    async fn gone(&mut self) {
        if !self.has_left() {
            std::future::pending().await
        }
    }
}
