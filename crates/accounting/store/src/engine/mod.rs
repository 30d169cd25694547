//! The boundary between the store and a database engine: the row traits, codes as values, and the errors of units of work.

mod codes;
mod error;
mod rows;

pub(crate) use tollgate_sql::{
    Dialect, EachRow, EngineError, Fault, Feed, KeySet, RowError, Run, Select, Sql, SqlRow,
    ToValue, Value, values,
};

pub(crate) use self::error::{Reading, WriteError, damaged_commit};
pub(crate) use self::rows::{
    Accounts, Balance, Booking, Committed, Credentials, DayRange, EachBody, EachDay, EachPage,
    Engine, Epochs, FeedBounds, JournalRows, NewRun, Page, PageFeed, PageOrder, PageRange,
    RecoverRows, Rows, Session, WriteRows,
};
