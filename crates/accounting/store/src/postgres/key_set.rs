//! A set of keys beside a connection: a temporary SQLite file, so that it may be larger than memory and costs the server nothing.

use std::cell::RefCell;

use crate::engine::{EngineError, Fault, KeySet, RowError};

/// A set that is begun and ended.
#[derive(Default)]
pub(super) struct SpillingSet(RefCell<Option<rusqlite::Connection>>);

impl SpillingSet {
    pub(super) fn begin(&self) -> Result<(), RowError> {
        // The empty name is a private file that is removed when it is closed.
        let file = rusqlite::Connection::open("").map_err(RowError::from)?;
        file.begin_set()?;
        *self.0.borrow_mut() = Some(file);
        Ok(())
    }

    pub(super) fn add(&self, key: &[u8]) -> Result<bool, RowError> {
        match &*self.0.borrow() {
            Some(file) => file.add_to_set(key),
            None => Err(RowError::Engine(EngineError {
                fault: Fault::Other,
                source: "no set was begun".into(),
            })),
        }
    }

    pub(super) fn end(&self) {
        *self.0.borrow_mut() = None;
    }
}
