//! The injected random source: the system's generator, buffered per thread, or a seeded sequence.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes fetched from the system at once: an id does not need a system call.
const POOL_BYTES: usize = 512;

/// The hash of a table whose keys clients choose, and which every request reads. SipHash takes five times as long. A table has a random
/// key, which decides only the order of the table's entries.
pub type RandomKeyHash = ahash::RandomState;

/// The gateway's only source of randomness.
#[derive(Clone, Debug)]
pub struct Entropy {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    System,
    /// A counter mixed with a seed: reproducible, never secret.
    Seeded(Arc<AtomicU64>),
}

struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

impl Entropy {
    /// The operating system's generator.
    pub fn system() -> Entropy {
        Entropy {
            source: Source::System,
        }
    }

    /// A reproducible sequence, for tests.
    pub fn seeded(seed: u64) -> Entropy {
        Entropy {
            source: Source::Seeded(Arc::new(AtomicU64::new(seed))),
        }
    }

    /// Fills `out` with random bytes.
    ///
    /// # Panics
    ///
    /// When the operating system provides no randomness: no id and no secret may be generated without randomness.
    pub fn fill(&self, out: &mut [u8]) {
        match &self.source {
            Source::System if out.len() > POOL_BYTES => system(out),
            Source::System => POOL.with_borrow_mut(|pool| {
                if POOL_BYTES - pool.used < out.len() {
                    system(&mut pool.bytes);
                    pool.used = 0;
                }
                let taken = &mut pool.bytes[pool.used..pool.used + out.len()];
                out.copy_from_slice(taken);
                // The returned bytes may become a secret; no copy remains in the buffer.
                taken.fill(0);
                pool.used += out.len();
            }),
            Source::Seeded(state) => {
                for chunk in out.chunks_mut(8) {
                    let word = splitmix(state.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed));
                    chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
                }
            }
        }
    }

    /// Random bytes as an array.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.fill(&mut out);
        out
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the type that the ban points to"
)]
fn system(out: &mut [u8]) {
    if let Err(error) = getrandom::fill(out) {
        panic!(
            "the operating system provides no random bytes ({error}); no id or secret can be generated"
        );
    }
}

/// The output function of SplitMix64: every counter value gives another word.
fn splitmix(seed: u64) -> u64 {
    let mut word = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_system_source_repeats_nothing_across_refills() {
        let entropy = Entropy::system();
        let drawn: HashSet<[u8; 10]> = (0..1000).map(|_| entropy.bytes()).collect();
        assert_eq!(drawn.len(), 1000);
    }

    #[test]
    fn one_seed_gives_one_sequence() {
        let (one, other) = (Entropy::seeded(7), Entropy::seeded(7));
        assert_eq!(one.bytes::<33>(), other.bytes::<33>());
        assert_ne!(one.bytes::<8>(), Entropy::seeded(8).bytes::<8>());
    }
}
