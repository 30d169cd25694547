//! The allocator, and the return of unused memory to the operating system.
//!
//! A commit completes the exchanges of a whole batch at once, and their allocations are freed together. The C library keeps fewer for a
//! thread's next use, so every exchange took the slow path twice. In addition an allocator keeps freed memory. After the close of a
//! thousand streams, most of their memory is unused, and an operator who watches the process would suspect a leak.

/// The allocator of the `tollgate` program. Another program with a gateway names this allocator as `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;

/// Returns the unused pages of the calling thread. Without [`Allocator`] in the program the call has no effect.
#[expect(unsafe_code, reason = "mi_collect has no safe wrapper")]
pub(crate) fn give_back() {
    // SAFETY: it takes no pointers, may be called by any thread at any time, and only returns unused pages.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
