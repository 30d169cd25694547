//! A call in progress: reads the answer with its time limits, and returns the connection to the pool.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate_chain::{UpstreamCall, UpstreamError};
use tollgate_clock::Clock;

use super::connections::Connections;
use super::fault;
use super::link::Link;
use crate::upstream::wait::within;

/// A successful answer in progress.
pub(crate) struct Call {
    pub(super) link: Link,
    pub(super) connections: Arc<Connections>,
    /// The index of the provider, for the pool.
    pub(super) pool_index: usize,
    /// The most idle connections to keep at the address.
    pub(super) idle_max: usize,
    /// Whether the first data is awaited still, and the time limit for it.
    pub(super) beginning: Beginning,
    /// Time limit for the following chunk.
    pub(super) silence_max: Duration,
    pub(in crate::upstream) clock: Clock,
    pub(super) is_stream: bool,
    /// Clock reading at which the whole call times out.
    pub(super) deadline: Duration,
    /// Clock reading at the start of the wait for the next chunk. A dropped and restarted read continues the wait: a client with keep-alive
    /// comments, or a disconnect, gives a silent provider no more time.
    pub(super) waiting_since: Option<Duration>,
    /// Clock reading at the last read.
    pub(in crate::upstream) read_at: Duration,
}

/// Whether the first data of an answer is awaited: of a stream the first line that is neither empty nor a comment, of a whole answer the
/// first byte that is no white space. A provider may send the head of an answer, and anything else, long before its model has begun.
pub(super) enum Beginning {
    /// Awaited, each time for `limit`.
    Awaited { limit: Duration, in_comment: bool },
    /// It has arrived.
    Passed,
}

impl Beginning {
    pub(super) fn awaited(limit: Duration) -> Beginning {
        Beginning::Awaited {
            limit,
            in_comment: false,
        }
    }

    /// Reads a piece of the answer.
    fn read(&mut self, is_stream: bool, piece: &[u8]) {
        let Beginning::Awaited { in_comment, .. } = self else {
            return;
        };
        for byte in piece {
            match byte {
                b'\n' | b'\r' => *in_comment = false,
                _ if *in_comment => {}
                b':' if is_stream => *in_comment = true,
                b' ' | b'\t' if !is_stream => {}
                _ => {
                    *self = Beginning::Passed;
                    return;
                }
            }
        }
    }
}

impl Call {
    /// Whether data of the answer has been read: not only comments, for a stream.
    pub(in crate::upstream) fn has_begun(&self) -> bool {
        matches!(self.beginning, Beginning::Passed)
    }

    fn note(&mut self, piece: &Result<Option<Bytes>, UpstreamError>) {
        if let (Beginning::Awaited { .. }, Ok(Some(piece))) = (&self.beginning, piece) {
            self.beginning.read(self.is_stream, piece);
        }
    }
}

impl UpstreamCall for Call {
    fn is_stream(&self) -> bool {
        self.is_stream
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let now = self.clock.elapsed();
        self.read_at = now;
        let left = self.deadline.saturating_sub(now);
        if left.is_zero() {
            // Data that is already buffered would be taken without a check of the time.
            return Err(fault::timeout("the end of the answer", left));
        }
        let waited = now.saturating_sub(*self.waiting_since.get_or_insert(now));
        let (awaited, silence_max) = match &self.beginning {
            Beginning::Passed => ("the next piece of the answer", self.silence_max),
            Beginning::Awaited { limit, .. } => ("the first data of the answer", *limit),
        };
        let limit = silence_max.saturating_sub(waited).min(left);
        let read = within(limit, pin!(self.link.read_body())).await;
        self.waiting_since = None;
        match read {
            Ok(piece) => {
                self.note(&piece);
                piece
            }
            Err(_) => Err(fault::timeout(awaited, silence_max.min(waited + limit))),
        }
    }

    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        use std::future::Future;
        use std::task::{Context, Poll, Waker};
        // No task waits on this waker: the next `read` registers the task's waker.
        let mut cx = Context::from_waker(Waker::noop());
        let read = {
            let read = tokio::task::coop::unconstrained(self.link.read_body());
            pin!(read).poll(&mut cx)
        };
        let Poll::Ready(piece) = read else {
            return None;
        };
        self.waiting_since = None;
        self.note(&piece);
        Some(piece)
    }

    async fn finish(self) {
        let Call {
            link,
            connections,
            pool_index,
            idle_max,
            read_at,
            ..
        } = self;
        match link {
            Link::Plain(connection, address) => {
                if let Some(connection) = connection.keep() {
                    let key = (pool_index, address);
                    connections.pool.put(key, connection, read_at, idle_max);
                }
            }
            Link::Pooled(session, peer) => {
                if let Some(connector) = connections.connector.get() {
                    let idle = peer.options.idle_timeout;
                    Box::pin(connector.release_http_session(*session, &*peer, idle)).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_begins_with_its_first_data_and_not_with_comments_or_white_space() {
        let begun = |is_stream, text: &str| {
            // In a single piece, and byte by byte.
            let pieces = [vec![text.as_bytes()], text.as_bytes().chunks(1).collect()];
            let [whole, split] = pieces.map(|pieces: Vec<&[u8]>| {
                let mut beginning = Beginning::awaited(Duration::from_secs(1));
                for piece in pieces {
                    beginning.read(is_stream, piece);
                }
                matches!(beginning, Beginning::Passed)
            });
            assert_eq!(whole, split, "{text:?}");
            whole
        };
        for text in ["", "\n", "\r\n\r\n", ": keep-alive\n\n", ":\r:data:\n"] {
            assert!(!begun(true, text), "{text:?}");
        }
        for text in ["data: {}", "\n\nevent: x", ": wait\n\ndata", ":\rdata"] {
            assert!(begun(true, text), "{text:?}");
        }
        assert!(!begun(false, " \t\r\n"));
        assert!(begun(false, "\n {") && begun(false, ": {"));
    }
}
