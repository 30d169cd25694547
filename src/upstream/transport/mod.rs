//! The transport of a call: connections and pools, HTTP, and the relay of requests to upstreams other than providers.

mod addresses;
mod attempt;
mod call;
mod connections;
mod endpoint;
pub(super) mod fault;
mod h1;
mod http_exchange;
mod link;
mod pool;
mod provider_words;
mod relay;
mod request;
mod resolver;
mod retry_after;

pub(crate) use self::addresses::Addresses;
pub(super) use self::call::Call;
pub(super) use self::connections::Connections;
pub(super) use self::endpoint::Endpoint;
pub(crate) use self::h1::fuzz_answer;
pub(super) use self::http_exchange::USER_AGENT;
pub(crate) use self::relay::Relays;
pub(super) use self::request::{AttemptError, Delivery, ProviderRequest, RequestIds, Unpaid};
pub use self::resolver::Resolver;
pub(crate) use self::retry_after::fuzz as fuzz_retry_after;
