//! Heads of HTTP/1.1 while they are read: bounded by `server.head_bytes_max`, and counted in the memory of the client's address.
//!
//! The session's parser keeps up to a megabyte of a head that does not end. Here reading ends 64 KiB above the limit, and a head that is
//! longer than most is counted at its longest from then on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tollgate_memory::{AddressMemory, RequestMemory};

/// Bytes of a head that are not counted before it is complete.
const FREE_BYTES: usize = 4096;

/// A head may be so much too long before its reading ends: a connection with unread bytes is reset, and most clients would lose the answer.
const OVERRUN_BYTES: usize = 64 << 10;

/// Why a request is refused before it is served.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadFault {
    Malformed,
    TooLarge,
    /// It has started and was not complete in time.
    Slow,
    /// There is no memory for it at the moment.
    NoMemory,
}

/// The head that a connection reads.
#[derive(Debug, Default)]
pub(crate) struct HeadReading {
    /// Whether one is being read. Most are complete with their first read, which is made before.
    is_incomplete: AtomicBool,
    head: Mutex<Option<Head>>,
}

#[derive(Debug)]
struct Head {
    address: Arc<AddressMemory>,
    bytes: usize,
    bytes_max: usize,
    memory: Option<RequestMemory>,
    fault: Option<HeadFault>,
}

impl HeadReading {
    /// A head begins, of which `bytes` were read.
    pub(super) fn begin(&self, address: &Arc<AddressMemory>, bytes: usize, bytes_max: usize) {
        *self.lock() = Some(Head {
            address: address.clone(),
            bytes,
            bytes_max,
            memory: None,
            fault: None,
        });
        self.is_incomplete.store(true, Ordering::Relaxed);
    }

    /// The head is complete, or will not be. Returns the cause if a read was refused.
    pub(super) fn end(&self) -> Option<HeadFault> {
        self.is_incomplete.store(false, Ordering::Relaxed);
        self.lock().take()?.fault
    }

    /// Whether a head is being read.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Relaxed)
    }

    /// Before more is read: an error when the head is too long, or when there is no memory for it.
    #[cold]
    pub(super) fn check(&self) -> io::Result<()> {
        let mut head = self.lock();
        let Some(head) = &mut *head else {
            return Ok(());
        };
        let overrun = head.bytes_max.saturating_add(OVERRUN_BYTES);
        let needed = match head.bytes {
            ..=FREE_BYTES => 0,
            bytes if bytes <= head.bytes_max => head.bytes_max,
            _ => overrun,
        };
        let counted = head.memory.as_ref().map_or(0, RequestMemory::bytes);
        let fault = if head.bytes > overrun {
            HeadFault::TooLarge
        } else if needed <= counted {
            return Ok(());
        } else if let Ok(memory) = head.address.take(needed) {
            head.memory = Some(memory);
            return Ok(());
        } else {
            HeadFault::NoMemory
        };
        head.fault = Some(fault);
        Err(io::ErrorKind::OutOfMemory.into())
    }

    /// More was read.
    #[cold]
    pub(super) fn add(&self, bytes: usize) {
        if let Some(head) = &mut *self.lock() {
            head.bytes += bytes;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Head>> {
        // Only the connection's task uses it.
        self.head.lock()
    }
}
