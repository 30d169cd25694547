//! Parameters and columns of the simulated server.

use bytes::BytesMut;
use rusqlite::types::Value as Sqlite;
use tollgate_postgres::any::{read, write};
use tollgate_sql::Value;

/// A received parameter.
pub(super) fn parse(raw: &[u8]) -> Sqlite {
    match read(raw) {
        Value::Null => Sqlite::Null,
        Value::Integer(number) => Sqlite::Integer(number),
        Value::Text(text) => Sqlite::Text(text.to_owned()),
        Value::Bytes(bytes) => Sqlite::Blob(bytes.to_vec()),
    }
}

/// A column of a row to send.
pub(super) fn encode(value: &Sqlite) -> Option<BytesMut> {
    let value = match value {
        Sqlite::Null => return None,
        Sqlite::Integer(number) => Value::Integer(*number),
        Sqlite::Real(number) => Value::Integer(*number as i64),
        Sqlite::Text(text) => Value::Text(text),
        Sqlite::Blob(bytes) => Value::Bytes(bytes),
    };
    let mut out = BytesMut::new();
    write(value, &mut out);
    Some(out)
}
