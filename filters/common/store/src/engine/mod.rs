//! The boundary between the store and a database engine: the traits that an engine implements, and the errors it reports.

mod error;
mod rows;

pub(crate) use self::error::{EngineError, Fault, RowError, WriteError};
pub(crate) use self::rows::{
    Accounts, Balance, Booking, Credentials, DayRange, EachBody, EachDay, EachPage, Engine,
    JournalRows, NewRun, Page, PageOrder, PageRange, RecoverRows, Rows, Session, WriteRows,
};
