//! The injected clock: wall time and monotonic time, real or manual.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Moment;

/// The gateway's only source of time: a wall clock for timestamps and a monotonic clock for durations.
///
/// Cheap to clone. Every component that needs the time receives one, so a test can stop or advance time.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    System { start: Instant, unix_micros: i64 },
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct Manual {
    start: i64,
    unix_micros: AtomicU64,
    elapsed_nanos: AtomicU64,
}

impl Clock {
    /// The system clocks.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the type that the ban points to"
    )]
    pub fn system() -> Clock {
        Clock {
            source: Source::System {
                start: Instant::now(),
                unix_micros: wall(),
            },
        }
    }

    /// A stopped clock that its handle advances, starting at `unix_micros`.
    pub fn manual(unix_micros: u64) -> (Clock, ManualClock) {
        let manual = Arc::new(Manual {
            // Without the initial value of `elapsed`.
            start: unix_micros as i64 - 1_000_000,
            unix_micros: AtomicU64::new(unix_micros),
            // Not zero: a reading of zero would hide an uninitialised one.
            elapsed_nanos: AtomicU64::new(1_000_000_000),
        });
        (
            Clock {
                source: Source::Manual(manual.clone()),
            },
            ManualClock { manual },
        )
    }

    /// Microseconds since 1970-01-01T00:00:00Z. May jump; never used for durations.
    pub fn unix_micros(&self) -> i64 {
        match &self.source {
            Source::System { .. } => wall(),
            Source::Manual(manual) => manual.unix_micros.load(Ordering::Relaxed) as i64,
        }
    }

    /// Both clocks.
    pub fn moment(&self) -> Moment {
        Moment {
            elapsed: self.elapsed(),
            unix_micros: self.unix_micros(),
        }
    }

    /// Microseconds since 1970 as the wall clock would show if it had not been set since this clock was created: for deadlines that must
    /// not move when an operator or a time service sets it. Meaningless in another process.
    pub fn steady_micros(&self) -> i64 {
        self.steady_micros_at(self.elapsed())
    }

    /// The same at a reading of [`Clock::elapsed`].
    pub fn steady_micros_at(&self, elapsed: Duration) -> i64 {
        let start = match &self.source {
            Source::System { unix_micros, .. } => *unix_micros,
            Source::Manual(manual) => manual.start,
        };
        start.saturating_add(i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX))
    }

    /// Time since this clock was created. Monotonic.
    pub fn elapsed(&self) -> Duration {
        match &self.source {
            Source::System { start, .. } => start.elapsed(),
            Source::Manual(manual) => {
                Duration::from_nanos(manual.elapsed_nanos.load(Ordering::Relaxed))
            }
        }
    }
}

/// A system clock before 1970 is wrong; reading it as 1970 keeps ids and rows writable.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the type that the ban points to"
)]
fn wall() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    })
}

/// The handle of a manual [`Clock`].
#[derive(Clone, Debug)]
pub struct ManualClock {
    manual: Arc<Manual>,
}

impl ManualClock {
    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        self.manual
            .elapsed_nanos
            .fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
        self.manual
            .unix_micros
            .fetch_add(by.as_micros() as u64, Ordering::Relaxed);
    }

    /// Sets the wall clock alone, as an operator or a time service does.
    pub fn jump_to(&self, unix_micros: u64) {
        self.manual
            .unix_micros
            .store(unix_micros, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_of_the_wall_clock_does_not_affect_the_monotonic_clock() {
        let (clock, manual) = Clock::manual(5_000_000);
        let before = clock.elapsed();
        let steady = clock.steady_micros();
        manual.jump_to(1);
        assert_eq!(clock.unix_micros(), 1);
        assert_eq!(clock.elapsed(), before);
        assert_eq!(clock.steady_micros(), steady);
        manual.advance(Duration::from_secs(2));
        assert_eq!(clock.unix_micros(), 2_000_001);
        assert_eq!(clock.elapsed() - before, Duration::from_secs(2));
    }
}
