//! The client of the model providers: provider selection, connection pools, retries, circuit breakers and admission control.
//!
//! A call is made here and not through Pingora's proxy phases: those lose a body over 64 KiB that a filter has read, and the usage of an
//! answer whose client has disconnected. Connections are pooled by each worker for itself.

mod admission;
mod attempt;
mod budget;
mod call;
mod caller;
mod candidate;
mod circuit;
mod evidence;
mod failure_policy;
mod fault;
mod h1;
mod health;
mod hedge;
mod http_exchange;
mod load_balancing;
mod pool;
mod probe;
mod providers;
mod relay;
mod retry_after;
mod tracked_call;
mod translate;
mod view;

pub(crate) use self::caller::Caller;
pub(crate) use self::providers::Providers;
pub(crate) use self::relay::Relays;
pub(crate) use self::translate::TextViaChat;
pub(crate) use self::view::ProviderView;
