//! Injected time and randomness: the two inputs that a test must control.
//!
//! A point of wall-clock time is a [`Timestamp`]: it is recorded, shown and compared with other recorded times, and it may jump when an
//! operator or a time service sets the clock. A point at which something of this process ends is a [`Deadline`]: it lies on the monotonic
//! clock, so no jump moves it, and it cannot be stored, because another process has another clock.

mod clock;
mod deadline;
mod entropy;
mod timestamp;

pub use clock::{Clock, ManualClock, Reading};
pub use deadline::Deadline;
pub use entropy::Entropy;
pub use timestamp::Timestamp;
