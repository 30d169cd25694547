//! Calls to the model providers: provider selection, connections, and the meaning of their answers.
//!
//! A call is made here and not through Pingora's proxy phases: those lose a body over 64 KiB that a filter has read, and the usage of an
//! answer whose client has disconnected. Connections are pooled by each worker for itself.

mod attempt;
mod budget;
mod call;
mod caller;
mod choice;
mod circuit;
mod evidence;
mod fault;
mod ground;
mod h1;
mod health;
mod hedge;
mod offer;
mod pool;
mod probe;
mod providers;
mod relay;
mod retry_after;
mod room;
mod served;
mod talk;
mod turned;
mod view;

pub(crate) use self::caller::Caller;
pub(crate) use self::providers::Providers;
pub(crate) use self::relay::Relays;
pub(crate) use self::turned::Turning;
pub(crate) use self::view::ProviderView;
