//! Deadlines on the monotonic clock.

use std::time::Duration;

/// A point on the process's monotonic clock ([`crate::Clock::elapsed`]): a jump of the wall clock does not move a deadline.
///
/// Meaningless in another process: a deadline has no numeric form, and cannot be stored or sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Duration);

impl Deadline {
    /// A deadline that never passes.
    pub const NEVER: Deadline = Deadline(Duration::MAX);

    /// The deadline `lifetime` after a reading of [`crate::Clock::elapsed`].
    pub const fn after(elapsed: Duration, lifetime: Duration) -> Deadline {
        Deadline(elapsed.saturating_add(lifetime))
    }

    /// Whether the deadline has passed at a reading of [`crate::Clock::elapsed`]; true at the deadline itself.
    pub fn has_passed(self, elapsed: Duration) -> bool {
        elapsed >= self.0
    }

    /// The time left at a reading of [`crate::Clock::elapsed`]; zero after the deadline.
    pub fn remaining(self, elapsed: Duration) -> Duration {
        self.0.saturating_sub(elapsed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_when_its_lifetime_is_over() {
        let second = Duration::from_secs;
        let deadline = Deadline::after(second(5), second(10));
        //   elapsed, passed, remaining
        for (elapsed, passed, remaining) in
            [(0, false, 15), (14, false, 1), (15, true, 0), (16, true, 0)]
        {
            assert_eq!(deadline.has_passed(second(elapsed)), passed, "{elapsed} s");
            assert_eq!(deadline.remaining(second(elapsed)), second(remaining));
        }
        let never = Deadline::after(second(5), Duration::MAX);
        assert!(!never.has_passed(second(u64::MAX)));
    }
}
