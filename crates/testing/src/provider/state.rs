//! The settings of the stand-in, and the state shared by its handle and all connections.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::calls::Calls;
use super::plan::Plan;
use super::request::{Request, Seen};
use super::script::Script;
use crate::certificate::Certificate;
use crate::gate::Gate;

/// A custom response handler; `None` leaves the request to the stand-in.
pub type Custom = Arc<dyn Fn(&Request) -> Option<Plan> + Send + Sync>;

/// The settings of a stand-in.
#[derive(Clone)]
pub struct Settings {
    /// Its listening address. Default 127.0.0.1, any free port.
    pub address: SocketAddr,
    /// Use TLS with this certificate, offering h2 and HTTP/1.1. Default: no TLS, and HTTP/2 by prior knowledge.
    pub tls: Option<Certificate>,
    /// The key required in requests, else 401. Default: none required.
    pub key: Option<String>,
    /// The models it lists. It accepts every name.
    pub models: Vec<String>,
    /// How many calls are kept in full, the latest ones; all are counted. Default 1024.
    pub calls_kept: usize,
    /// A custom handler, called first. Default: none.
    pub custom: Option<Custom>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            tls: None,
            key: None,
            models: vec!["demo-small".to_owned(), "demo-large".to_owned()],
            calls_kept: 1024,
            custom: None,
        }
    }
}

/// State shared by the handle and all connections.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) calls: Calls,
    pub(super) scripts: Mutex<VecDeque<Script>>,
    pub(super) gates: Mutex<HashMap<String, Gate>>,
    pub(super) connections: AtomicUsize,
    /// Number of connections still to be reset as soon as they are accepted.
    pub(super) to_reset: AtomicU32,
    /// Counts the calls to close idle connections: a connection that waits for a request closes.
    pub(super) hang_ups: watch::Sender<u64>,
}

impl Shared {
    pub(super) fn new(settings: Settings) -> Shared {
        Shared {
            calls: Calls::keeping(settings.calls_kept),
            settings,
            scripts: Mutex::default(),
            gates: Mutex::default(),
            connections: AtomicUsize::new(0),
            to_reset: AtomicU32::new(0),
            hang_ups: watch::Sender::new(0),
        }
    }

    pub(super) fn gate(&self, name: &str) -> Gate {
        let mut gates = self.gates.lock().expect("no panic under the lock");
        gates.entry(name.to_owned()).or_default().clone()
    }

    pub(super) fn scripts(&self) -> std::sync::MutexGuard<'_, VecDeque<Script>> {
        self.scripts.lock().expect("no panic under the lock")
    }

    /// The script of a request: its own, or the first in the queue that matches it.
    pub(super) fn script_for(&self, request: &Seen<'_>) -> Result<Script, String> {
        if let Some(own) = request.json.and_then(|json| json.get("stand_in")) {
            return serde_json::from_value(own.clone())
                .map_err(|problem| format!("stand_in: {problem}"));
        }
        let mut scripts = self.scripts();
        let Some(index) = scripts.iter().position(|script| script.fits(request)) else {
            return Ok(Script::default());
        };
        match &mut scripts[index].times {
            None => Ok(scripts[index].clone()),
            Some(left) if *left > 1 => {
                *left -= 1;
                Ok(scripts[index].clone())
            }
            Some(_) => Ok(scripts.remove(index).unwrap_or_default()),
        }
    }
}
