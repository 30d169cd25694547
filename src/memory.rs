//! The allocator, and giving memory back to the operating system.
//!
//! A commit ends the exchanges of a whole batch at once, and what they had allocated is freed in one go: more than the C library keeps
//! for a thread's next use, so that every exchange took the long way twice. Beside that an allocator keeps what was freed. After a
//! thousand streams have closed that is most of what they took, and an operator who watches the process would see it as lost.

/// The allocator of the `tollgate` program. A program that builds its own gateway names it as its `#[global_allocator]`.
pub use mimalloc::MiMalloc as Allocator;

/// Gives back the unused pages of the thread that calls. Without [`Allocator`] in the program there are none.
#[expect(unsafe_code, reason = "mi_collect has no safe wrapper")]
pub(crate) fn give_back() {
    // SAFETY: it takes no pointers, may be called by any thread at any time, and only returns pages nobody uses.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
