#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod backoff;
mod clock;
mod deadline;
mod entropy;
mod month;
mod timestamp;

use tollgate_service::{GATEWAY, provided};

pub use backoff::{Backoff, Failures, Jitter};
pub use clock::{Clock, ManualClock, Reading};
pub use deadline::Deadline;
pub use entropy::{Entropy, RandomKeyHash};
pub use month::Month;
pub use timestamp::Timestamp;

provided! { GATEWAY => [Clock, Entropy]; }
