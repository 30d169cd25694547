//! Giving memory back to the operating system.
//!
//! The C library's allocator keeps what was freed for its own later use. After a thousand streams have closed that is most of what they
//! took, and an operator who watches the process would see it as lost.

/// Gives unused pages back. Takes about a millisecond for each hundred megabytes; not for the threads that serve.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "malloc_trim(3) has no safe wrapper")]
pub(crate) fn give_back() {
    // SAFETY: malloc_trim takes no pointers, may be called from any thread at any time, and only returns pages nobody uses.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other C libraries give memory back by themselves or not at all.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn give_back() {}
