//! The client's address: limits by address, and who they are about when the connection comes from a proxy.

mod credentials;
mod forwarded;
mod proxy_protocol;
