//! Lua scripts, executed atomically by the server.

use std::sync::Arc;

/// A Lua script over one key: `KEYS[1]`, numbers as arguments, and the id of this run as the last argument. Returns a list of whole
/// numbers.
#[derive(Clone, Debug)]
pub struct Script(pub(crate) Arc<redis::Script>);

impl Script {
    /// The script with this text.
    pub fn new(text: &str) -> Script {
        Script(Arc::new(redis::Script::new(text)))
    }
}
