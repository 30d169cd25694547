//! The allocator, and the return of unused memory to the operating system.
//!
//! A commit completes the exchanges of a whole batch at once, and their allocations are freed together: more than the C library keeps for a
//! thread's next use, so that every exchange took the slow path twice. In addition an allocator keeps freed memory. After a thousand
//! streams have closed that is most of what they used, and to an operator who watches the process it would look like a leak.

/// The allocator of the `tollgate` program. A program that builds its own gateway names it as its `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;

/// Returns the unused pages of the calling thread. Without [`Allocator`] in the program there are none.
#[expect(unsafe_code, reason = "mi_collect has no safe wrapper")]
pub(crate) fn give_back() {
    // SAFETY: it takes no pointers, may be called by any thread at any time, and only returns unused pages.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
