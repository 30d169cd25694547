//! The recorded calls, and how they ended.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::watch;

use crate::head::one_value;

/// One request received by the stand-in.
#[derive(Clone, Debug)]
pub struct Call {
    /// 1 for the first call, and so on.
    pub number: u64,
    /// Its connection, 1 for the first connection.
    pub connection: usize,
    /// `HTTP/1.1` or `HTTP/2.0`.
    pub protocol: &'static str,
    /// The method, as sent.
    pub method: String,
    /// The request target with its query, as sent.
    pub target: String,
    /// Field lines by name, for HTTP/2 without the pseudo-fields.
    pub headers: HeaderMap,
    /// The head byte for byte; empty for HTTP/2.
    pub raw_head: Bytes,
    /// The body without its framing.
    pub body: Bytes,
    /// Pieces of the response's body written to the socket so far: events, if it is a stream.
    pub pieces_sent: usize,
    /// How it ended; `None` while it is in progress.
    pub ended: Option<Ended>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The response was sent to its end.
    Whole,
    /// Aborted by the stand-in, according to its script.
    Cut,
    /// The gateway closed the connection or reset the stream before the end.
    PeerGone,
}

impl Call {
    /// The only value of field `name`; `None` when there is no such field.
    ///
    /// # Panics
    ///
    /// When the field occurs more than once.
    pub fn header(&self, name: &str) -> Option<&str> {
        one_value(&self.headers, name)
    }

    /// The body as JSON.
    ///
    /// # Panics
    ///
    /// When it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("the gateway sent JSON to the provider")
    }
}

/// All calls, the latest of them in full.
#[derive(Debug)]
pub(super) struct Calls {
    kept_max: usize,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    count: u64,
    kept: VecDeque<Call>,
    malformed: Vec<String>,
}

impl Calls {
    pub(super) fn keeping(kept_max: usize) -> Self {
        Self {
            kept_max,
            state: Mutex::default(),
            changes: watch::Sender::new(()),
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.state().count
    }

    pub(super) fn list(&self) -> Vec<Call> {
        self.state().kept.iter().cloned().collect()
    }

    pub(super) fn note_malformed(&self, what: String) {
        self.state().malformed.push(what);
        self.changes.send_replace(());
    }

    pub(super) fn malformed(&self) -> Vec<String> {
        self.state().malformed.clone()
    }

    pub(super) fn forget(&self) {
        *self.state() = State::default();
    }

    /// Wakes after each change.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Counts a call and, when calls are kept, stores the result of `make` for its number.
    pub(super) fn begin(&self, make: impl FnOnce(u64) -> Call) -> u64 {
        let mut state = self.state();
        state.count += 1;
        let number = state.count;
        if self.kept_max > 0 {
            if state.kept.len() == self.kept_max {
                state.kept.pop_front();
            }
            state.kept.push_back(make(number));
            drop(state);
            self.changes.send_replace(());
        }
        number
    }

    pub(super) fn piece_sent(&self, number: u64) {
        self.update(number, |call| call.pieces_sent += 1);
    }

    pub(super) fn end(&self, number: u64, ended: Ended) {
        self.update(number, |call| call.ended = Some(ended));
    }

    fn update(&self, number: u64, change: impl FnOnce(&mut Call)) {
        if self.kept_max == 0 {
            return;
        }
        let mut state = self.state();
        if let Some(call) = state
            .kept
            .iter_mut()
            .rev()
            .find(|call| call.number == number)
        {
            change(call);
            drop(state);
            self.changes.send_replace(());
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no panic under the lock")
    }
}
