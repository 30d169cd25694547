//! Heads of HTTP/1.1 during the read: bounded by `server.head_bytes_max`, and counted in the memory of the client's address.
//!
//! The session's parser keeps up to a megabyte of an endless head. Here reading ends 64 KiB above the limit. A head longer than most is
//! counted at the maximum length from then on.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tollgate_memory::{AddressMemory, RequestMemory};

/// Bytes of a head not counted before its end.
const FREE_BYTES: usize = 4096;

/// Excess of a head before reading ends: a connection with unread bytes is reset, and most clients would lose the answer.
const OVERRUN_BYTES: usize = 64 << 10;

/// Why a request is refused before its exchange.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadFault {
    Malformed,
    TooLarge,
    /// The head has started and was not complete in time.
    Slow,
    /// No memory for the request at the moment.
    NoMemory,
}

/// The head that a connection reads.
#[derive(Debug, Default)]
pub(crate) struct HeadReading {
    /// Whether a head is being read. Most heads are complete with their first read, made before.
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
    /// Begins a head after a read of `bytes`.
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

    /// Before the next read: an error for a head beyond the limit, or without memory.
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
        // Only the connection's task uses the head.
        self.head.lock()
    }
}
