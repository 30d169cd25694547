#![doc = include_str!("../README.md")]

mod answer;
mod boundary;
mod chain;
mod closing;
mod downstream;
mod drive;
mod relay;
mod relay_stream;
pub mod run;
mod stream;
mod upstream;

pub use chain::{Chain, Route};
pub use closing::SILENCE_MAX;
pub use downstream::{BodyError, BodyLength, Downstream, Gone, Head};
pub use drive::{Limits, drive, refuse, send_bare};
pub use relay_stream::{RelayEvent, RelayStream, RelayedHead};
pub use run::Observer;
pub use upstream::{Opening, Upstream, UpstreamCall, UpstreamError, over_budget};
