//! Values of a single type on the wire, for a simulated server: a byte for the kind, and the value.

use bytes::BytesMut;
use postgres_protocol::Oid;
use tollgate_sql::Value;

/// The pseudo-type `any` of PostgreSQL, absent from columns and parameters of a real server.
pub const ANY: Oid = 2276;

/// Writes a parameter that is not null.
pub fn write(value: Value<'_>, out: &mut BytesMut) {
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
///
/// # Panics
///
/// On bytes that [`write()`] has not written.
pub fn read(raw: &[u8]) -> Value<'_> {
    let (kind, bytes) = raw.split_first().expect("the kind of a value");
    match kind {
        0 => Value::Integer(i64::from_be_bytes(bytes.try_into().expect("eight bytes"))),
        1 => Value::Text(std::str::from_utf8(bytes).expect("a text")),
        _ => Value::Bytes(bytes),
    }
}
