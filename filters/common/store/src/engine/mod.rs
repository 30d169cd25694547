//! The boundary between the store and a database engine.

mod error;

pub(crate) use self::error::{EngineError, Fault, RowError, WriteError};
