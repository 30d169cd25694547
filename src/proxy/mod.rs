//! The HTTP server: sockets, Pingora's sessions, routing, and the exchanges.
//!
//! Pingora's HTTP sessions and TLS carry the bytes; Pingora's `ProxyHttp` phases are not used. The phases answer a malformed head with a
//! bare 400, lose the usage of an answer whose client has disconnected, and cost more than the call made here ([`crate::upstream`]). The
//! sockets are accepted here as well, so that one place limits every resource held open by clients.

mod acme;
mod connection;
mod connections;
mod cors;
mod forwarded;
pub(crate) mod fuzz;
mod generation;
mod handed_over;
mod head;
mod head_reading;
mod health;
mod idle_order;
mod in_process;
mod lifecycle;
mod listen_socket;
mod listener;
mod liveness;
mod memory;
mod proxy_protocol;
mod routes;
mod session;
mod socket;
mod source;
mod state;
mod tls;
mod trailers;
mod wake;
mod worker;
mod write_coalescing;

pub(crate) use self::acme::{AcmeChallenges, AnsweredChallenges, ChallengeResponse};
pub(crate) use self::connections::{Connection, Connections, Places};
pub(crate) use self::generation::Generation;
pub(crate) use self::handed_over::{TOKEN_BYTES, Target};
pub(crate) use self::health::HealthChecks;
pub(crate) use self::in_process::InProcessClient;
pub(crate) use self::lifecycle::LifecycleHeaders;
pub(crate) use self::listen_socket::{ListenSocket, SocketFile};
pub(crate) use self::listener::{
    Bound, ListenError, report_accept_queue, set_accept_queue, spawn_workers,
};
pub(crate) use self::liveness::Liveness;
pub use self::memory::Allocator;
pub(crate) use self::routes::{RouteEntry, Routes};
pub(crate) use self::state::{Proxy, ProxyDeps};
pub(crate) use self::tls::ListenerTls;
