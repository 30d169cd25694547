//! The boundary between the store and a database engine: SQL on the engine's connections, the session of its writer, and its errors.

mod codes;
mod error;
mod rows;

pub(crate) use tollgate_sql::{
    Dialect, EachRow, EngineError, Fault, Feed, KeySet, RowError, Select, Sql, SqlRow, ToValue,
    Value, values,
};

pub(crate) use self::error::{Reading, WriteError, damaged_commit};
pub(crate) use self::rows::{
    Accounts, Balance, Booking, Committed, Credentials, DayRange, EachBody, EachDay, EachPage,
    Engine, Epochs, FeedBounds, JournalRows, NewRun, Page, PageFeed, PageOrder, PageRange, Session,
};
