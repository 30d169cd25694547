//! The filter chain's driver: which filter is called when, what is sent and what is held back.
//!
//! This crate sees filters only as `dyn Filter`, clients only as [`Downstream`] and model providers only as [`Upstream`], so the same code
//! serves real sockets and the tests of a single filter.
//!
//! Order of work for one exchange ([`drive`]):
//!
//! 1. `on_request` of each filter in chain order; the body is read just before the first filter that requires it.
//! 2. `on_forward` in chain order, then the call upstream.
//! 3. Each piece of the response passes `on_event` in reverse order. A stream's events are sent at once, joined with what else has arrived;
//!    before the first of them `before_first_byte` waits for durable work.
//! 4. `before_tail` in reverse order, then the held-back pieces.
//! 5. `on_end`, exactly once for each filter that saw the request, on every exit: also when the future is dropped or a filter panics, since
//!    it is called by `Drop` of the [`run::Run`] that owns the exchange.
//!
//! A request for which a filter left a [`tollgate_filter::Relay`] is streamed through a [`RelayStream`]: `on_forward`, both directions
//! concurrently and piece by piece without inspection, `before_first_byte` before the head of its response, `before_tail` before its end.

mod answer;
mod boundary;
mod chain;
mod downstream;
mod drive;
mod relay;
mod relay_stream;
pub mod run;
mod stream;
mod upstream;

pub use chain::{Chain, Route};
pub use downstream::{BodyError, BodyLength, Downstream, Gone, Head};
pub use drive::{Limits, drive, refuse, send_bare};
pub use relay_stream::{RelayEvent, RelayStream, RelayedHead};
pub use run::Observer;
pub use upstream::{Opening, Upstream, UpstreamCall, UpstreamError};
