//! The SQL that every engine of the store speaks: statements with numbered parameters, values, rows and errors; and the engine SQLite.
//!
//! Statements are written once for all engines. Parameters are `?1`, `?2`, ...; columns are integers, texts and bytes. A unique key is
//! respected by `ON CONFLICT`, since an error would end the transaction of some engines.

mod error;
mod key_set;
mod sqlite;
mod statement;
mod value;

pub use self::error::{EngineError, Fault, RowError};
pub use self::key_set::KeySet;
pub use self::statement::{Dialect, EachRow, Feed, Run, Select, Sql};
pub use self::value::{FromValue, SqlRow, ToValue, Value};
