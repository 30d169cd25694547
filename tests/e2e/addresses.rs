//! The client's address: limits by address, and addresses reported by trusted proxies.

mod credentials;
mod forwarded;
mod proxy_protocol;
