//! The injected clock: wall time and monotonic time, real or manual.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Timestamp;

/// The gateway's only source of time: a wall clock for recorded times and a monotonic clock for durations and deadlines.
///
/// Cheap to clone. Every component that needs the time receives a clock: a test can stop or advance time.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
}

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// [`Clock::elapsed`]
    pub elapsed: Duration,
    /// [`Clock::now`]
    pub now: Timestamp,
}

#[derive(Clone, Debug)]
enum Source {
    System { start: Instant },
    Manual(Arc<Manual>),
}

#[derive(Debug)]
struct Manual {
    unix_micros: AtomicI64,
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
            },
        }
    }

    /// A stopped clock that starts at `now` and is advanced by its handle.
    pub fn manual(now: Timestamp) -> (Clock, ManualClock) {
        let manual = Arc::new(Manual {
            unix_micros: AtomicI64::new(now.as_micros()),
            // Not zero: a reading of zero would hide an uninitialised reading.
            elapsed_nanos: AtomicU64::new(1_000_000_000),
        });
        (
            Clock {
                source: Source::Manual(manual.clone()),
            },
            ManualClock { manual },
        )
    }

    /// The wall clock. May jump; never used for durations.
    pub fn now(&self) -> Timestamp {
        match &self.source {
            Source::System { .. } => wall(),
            Source::Manual(manual) => {
                Timestamp::from_micros(manual.unix_micros.load(Ordering::Relaxed))
            }
        }
    }

    /// Time since the clock was created. Monotonic.
    pub fn elapsed(&self) -> Duration {
        match &self.source {
            Source::System { start } => start.elapsed(),
            Source::Manual(manual) => {
                Duration::from_nanos(manual.elapsed_nanos.load(Ordering::Relaxed))
            }
        }
    }

    /// Time since the start of the machine, including suspensions (CLOCK_BOOTTIME). For deadlines that other machines decide by their
    /// clocks, which go on during a suspension.
    pub fn since_boot(&self) -> Duration {
        match &self.source {
            Source::System { .. } => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
            }
            Source::Manual(manual) => {
                Duration::from_nanos(manual.elapsed_nanos.load(Ordering::Relaxed))
            }
        }
    }

    /// Both clocks.
    pub fn reading(&self) -> Reading {
        Reading {
            elapsed: self.elapsed(),
            now: self.now(),
        }
    }
}

/// A system clock before 1970 is wrong; reading the time as 1970 keeps ids and rows writable.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the type that the ban points to"
)]
fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::UNIX_EPOCH + since.unwrap_or_default()
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
            .fetch_add(by.as_micros() as i64, Ordering::Relaxed);
    }

    /// Sets the wall clock alone, as an operator or a time service does.
    pub fn jump_to(&self, now: Timestamp) {
        self.manual
            .unix_micros
            .store(now.as_micros(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Deadline;

    #[test]
    fn a_jump_of_the_wall_clock_does_not_affect_the_monotonic_clock() {
        let (clock, manual) = Clock::manual(Timestamp::from_secs(5));
        let before = clock.elapsed();
        let deadline = Deadline::after(before, Duration::from_secs(1));
        manual.jump_to(Timestamp::from_secs(500));
        assert_eq!(clock.now(), Timestamp::from_secs(500));
        assert_eq!(clock.elapsed(), before);
        assert!(!deadline.has_passed(clock.elapsed()));
        manual.jump_to(Timestamp::from_micros(1));
        manual.advance(Duration::from_secs(2));
        assert_eq!(clock.now(), Timestamp::from_micros(2_000_001));
        assert_eq!(clock.elapsed() - before, Duration::from_secs(2));
        assert!(deadline.has_passed(clock.elapsed()));
    }
}
