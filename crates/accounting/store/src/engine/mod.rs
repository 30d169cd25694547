//! The boundary between the store and a database engine: SQL on its connections, the row traits, and the errors it reports.

mod error;
mod rows;
mod sql;

pub(crate) use self::error::{EngineError, Fault, RowError, WriteError};
pub(crate) use self::rows::{
    Accounts, Balance, Booking, Committed, Credentials, DayRange, EachBody, EachDay, EachPage,
    Engine, Epochs, FeedBounds, JournalRows, KeySet, NewRun, Page, PageFeed, PageOrder, PageRange,
    RecoverRows, Rows, Session, WriteRows,
};
pub(crate) use self::sql::{
    Dialect, EachRow, Feed, Run, Select, Sql, SqlRow, ToValue, Value, values,
};
