//! Trailers of HTTP/2 requests. The library decodes trailers and keeps them until the end of the stream; no part of the gateway reads
//! trailers. So each is counted in the memory of the client's address, at the maximum length. Trailers are detected by the heads of frames
//! on arrival.

use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tollgate_memory::{AddressMemory, OverBudget, RequestMemory};

/// Bytes in memory for each byte of a field list's limit: HTTP/2 counts 33 bytes for a field of one letter and an empty value.
const BYTES_OF_BYTE: usize = 5;

/// The preface of a client, before its first frame (RFC 9113 section 3.4).
const PREFACE_BYTES: usize = 24;

/// The head of a frame (RFC 9113 section 4.1).
const FRAME_HEAD_BYTES: usize = 9;

/// The type of a frame that opens a stream, or carries its trailers (RFC 9113 section 6.2).
const HEADERS: u8 = 1;

/// The possible trailers of a connection's open streams.
#[derive(Debug)]
pub(super) struct Trailers {
    address: Arc<AddressMemory>,
    bytes_max: usize,
    held: Mutex<Vec<RequestMemory>>,
}

impl Trailers {
    /// Each of at most `list_bytes_max` bytes, as counted by HTTP/2.
    pub(super) fn new(address: Arc<AddressMemory>, list_bytes_max: usize) -> Arc<Trailers> {
        Arc::new(Trailers {
            address,
            bytes_max: list_bytes_max.saturating_mul(BYTES_OF_BYTE),
            held: Mutex::default(),
        })
    }

    /// Some have arrived.
    fn arrived(&self) -> io::Result<()> {
        let memory = self.address.take(self.bytes_max);
        let memory = memory.map_err(|OverBudget| {
            self.address.count_refusal();
            io::Error::from(io::ErrorKind::OutOfMemory)
        })?;
        self.held().push(memory);
        Ok(())
    }

    /// A stream has ended, and `open` streams remain, with at most one each.
    pub(super) fn stream_ended(&self, open: usize) {
        self.held().truncate(open);
    }

    fn held(&self) -> MutexGuard<'_, Vec<RequestMemory>> {
        // All streams of a connection are on one thread.
        self.held.lock()
    }
}

/// Finds trailers in a client's bytes.
#[derive(Debug)]
pub(super) struct TrailerScan {
    trailers: Arc<Trailers>,
    /// Bytes that are no frame's head: the preface, or the rest of a payload.
    skipped: usize,
    head: [u8; FRAME_HEAD_BYTES],
    /// Bytes of the head that have arrived.
    arrived: usize,
    /// The stream that was opened last.
    last_stream: u32,
}

impl TrailerScan {
    pub(super) fn new(trailers: Arc<Trailers>) -> TrailerScan {
        TrailerScan {
            trailers,
            skipped: PREFACE_BYTES,
            head: [0; FRAME_HEAD_BYTES],
            arrived: 0,
            last_stream: 0,
        }
    }

    /// More was read.
    ///
    /// # Errors
    ///
    /// The memory of the address is short of what trailers may need: the connection ends.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            let skipped = self.skipped.min(bytes.len());
            self.skipped -= skipped;
            bytes = &bytes[skipped..];
            let missing = FRAME_HEAD_BYTES - self.arrived;
            let taken = missing.min(bytes.len());
            self.head[self.arrived..][..taken].copy_from_slice(&bytes[..taken]);
            self.arrived += taken;
            bytes = &bytes[taken..];
            if self.arrived < FRAME_HEAD_BYTES {
                return Ok(());
            }
            self.arrived = 0;
            let [a, b, c, kind, _, id @ ..] = self.head;
            self.skipped = u32::from_be_bytes([0, a, b, c]) as usize;
            if kind == HEADERS {
                let stream = u32::from_be_bytes(id) & (u32::MAX >> 1);
                if stream > self.last_stream {
                    self.last_stream = stream;
                } else {
                    self.trailers.arrived()?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_memory::MemoryBudget;

    use super::*;

    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, 0, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn trailers_are_counted_however_the_frames_are_cut() {
        let frames = [
            vec![b'-'; PREFACE_BYTES],
            frame(4, 0, &[]),
            frame(HEADERS, 1, &[1; 40]),
            frame(0, 1, &[1; 200]),
            frame(HEADERS, 3, b"x"),
            frame(HEADERS, 1, b""),
            frame(9, 1, &[1; 9]),
            frame(HEADERS, 3, b"trailers"),
        ]
        .concat();
        for piece in 1..frames.len() {
            let budget = MemoryBudget::new(100 << 20);
            let trailers = Trailers::new(budget.address(Some(1)), 1000);
            let mut scan = TrailerScan::new(trailers.clone());
            for bytes in frames.chunks(piece) {
                scan.read(bytes).expect("they fit");
            }
            assert_eq!(budget.bytes_taken(), 2 * 5000, "pieces of {piece}");
            trailers.stream_ended(1);
            assert_eq!(budget.bytes_taken(), 5000);
            trailers.stream_ended(0);
            assert_eq!(budget.bytes_taken(), 0);
        }
    }

    #[test]
    fn trailers_beyond_the_share_of_the_address_end_the_connection() {
        let budget = MemoryBudget::new(1 << 20);
        let trailers = Trailers::new(budget.address(Some(1)), 10_000);
        let mut scan = TrailerScan::new(trailers);
        scan.read(&[b'-'; PREFACE_BYTES]).expect("no frame");
        scan.read(&frame(HEADERS, 1, b"")).expect("a stream");
        let end = (0..100).find_map(|_| scan.read(&frame(HEADERS, 1, b"")).err());
        assert!(end.is_some());
    }
}
