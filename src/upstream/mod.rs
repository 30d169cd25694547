//! The client of the model providers: provider selection, connection pools, retries, circuit breakers and admission control.
//!
//! A call is made here and not through Pingora's proxy phases: those lose a body over 64 KiB that a filter has read, and the usage of an
//! answer whose client has disconnected. Connections are pooled by each worker for itself.

mod attempt;
mod route;
mod translate;
mod transport;
mod wait;

pub(crate) use self::attempt::Caller;
pub(crate) use self::route::{CandidateView, ProviderView, Providers};
pub(crate) use self::translate::TextViaChat;
pub use self::transport::Resolver;
pub(crate) use self::transport::{Relays, fuzz_answer, fuzz_retry_after};
pub(crate) use self::wait::{Elapsed, within};
