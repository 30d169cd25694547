//! The boundary between the store and a database engine: SQL on its connections, the session of its writer, and the errors that it reports.

mod error;
mod rows;
mod sql;

pub(crate) use self::error::{EngineError, Fault, RowError, WriteError};
pub(crate) use self::rows::{
    Accounts, Balance, Booking, Committed, Credentials, DayRange, EachBody, EachDay, EachPage,
    Engine, Epochs, FeedBounds, JournalRows, NewRun, Page, PageFeed, PageOrder, PageRange, Session,
};
pub(crate) use self::sql::{
    Dialect, EachRow, Feed, KeySet, Run, Select, Sql, SqlRow, ToValue, Value, values,
};
