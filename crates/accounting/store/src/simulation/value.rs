//! Values on the wire to the simulated server, which has one type for all of them: a byte for the kind, and the value.

use bytes::BytesMut;
use postgres_protocol::Oid;
use rusqlite::types::Value as Sqlite;

use crate::engine::Value;

/// The type: the pseudo-type "any" of PostgreSQL, which no column and no parameter there has.
pub(crate) const ANY: Oid = 2276;

/// Writes a parameter that is not null.
pub(crate) fn write(value: Value<'_>, out: &mut BytesMut) {
    let (kind, bytes) = match &value {
        Value::Null => return,
        Value::Integer(number) => (0, &number.to_be_bytes()[..]),
        Value::Text(text) => (1, text.as_bytes()),
        Value::Bytes(bytes) => (2, *bytes),
    };
    out.extend_from_slice(&[kind]);
    out.extend_from_slice(bytes);
}

/// Reads a column that is not null.
pub(crate) fn read(raw: &[u8]) -> Value<'_> {
    let (kind, bytes) = raw.split_first().expect("the kind of a value");
    match kind {
        0 => Value::Integer(i64::from_be_bytes(bytes.try_into().expect("eight bytes"))),
        1 => Value::Text(std::str::from_utf8(bytes).expect("a text")),
        _ => Value::Bytes(bytes),
    }
}

/// A parameter that was received.
pub(super) fn parse(raw: &[u8]) -> Sqlite {
    match read(raw) {
        Value::Null => Sqlite::Null,
        Value::Integer(number) => Sqlite::Integer(number),
        Value::Text(text) => Sqlite::Text(text.to_owned()),
        Value::Bytes(bytes) => Sqlite::Blob(bytes.to_vec()),
    }
}

/// A column of a row that is sent.
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
