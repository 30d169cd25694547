//! Values on the wire: parameters and columns in the binary format, for the three column types of the schema and the types of counts.

use std::error::Error;
use std::ops::Range;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator as _;
use postgres_protocol::message::backend::DataRowBody;
use postgres_protocol::types::{
    bool_from_sql, bool_to_sql, bytea_to_sql, int2_from_sql, int4_from_sql, int4_to_sql,
    int8_from_sql, int8_to_sql, text_from_sql, text_to_sql,
};
use postgres_protocol::{IsNull, Oid};

use tollgate_sql::{EngineError, Fault, SqlRow, Value};

#[cfg(feature = "any")]
use crate::any;

// Object ids of types (`pg_type.dat` of PostgreSQL), which never change.
const BOOL: Oid = 16;
const BYTEA: Oid = 17;
const NAME: Oid = 19;
const INT8: Oid = 20;
const INT2: Oid = 21;
const INT4: Oid = 23;
const TEXT: Oid = 25;
const VARCHAR: Oid = 1043;

type AnyError = Box<dyn Error + Send + Sync>;

/// Writes a parameter as the type that the server has inferred for the parameter.
pub(crate) fn write(value: Value<'_>, oid: Oid, out: &mut BytesMut) -> Result<IsNull, AnyError> {
    match (value, oid) {
        (Value::Null, _) => return Ok(IsNull::Yes),
        #[cfg(feature = "any")]
        (value, any::ANY) => any::write(value, out),
        (Value::Integer(number), INT8) => int8_to_sql(number, out),
        (Value::Integer(number), INT4) => int4_to_sql(i32::try_from(number)?, out),
        (Value::Integer(number), BOOL) => bool_to_sql(number != 0, out),
        (Value::Text(text), TEXT | VARCHAR) => text_to_sql(text, out),
        (Value::Bytes(bytes), BYTEA) => bytea_to_sql(bytes, out),
        (value, oid) => {
            return Err(format!("{value:?} cannot be a parameter of the type {oid}").into());
        }
    }
    Ok(IsNull::No)
}

fn read(raw: Option<&[u8]>, oid: Oid) -> Result<Value<'_>, AnyError> {
    let Some(raw) = raw else {
        return Ok(Value::Null);
    };
    Ok(match oid {
        INT8 => Value::Integer(int8_from_sql(raw)?),
        INT4 => Value::Integer(int4_from_sql(raw)?.into()),
        INT2 => Value::Integer(int2_from_sql(raw)?.into()),
        BOOL => Value::Integer(bool_from_sql(raw)?.into()),
        TEXT | VARCHAR | NAME => Value::Text(text_from_sql(raw)?),
        BYTEA => Value::Bytes(raw),
        #[cfg(feature = "any")]
        any::ANY => any::read(raw),
        other => return Err(format!("a column has the type {other}").into()),
    })
}

/// A row as received.
pub(crate) struct Row<'r> {
    body: &'r DataRowBody,
    columns: Vec<Option<Range<usize>>>,
    types: &'r [Oid],
}

impl<'r> Row<'r> {
    pub(crate) fn new(body: &'r DataRowBody, types: &'r [Oid]) -> Result<Row<'r>, EngineError> {
        let columns = body.ranges().collect().map_err(malformed)?;
        Ok(Row {
            body,
            columns,
            types,
        })
    }
}

impl SqlRow for Row<'_> {
    fn value(&self, column: usize) -> Result<Value<'_>, EngineError> {
        let (Some(range), Some(oid)) = (self.columns.get(column), self.types.get(column)) else {
            return Err(malformed(format!("a row has no column {column}")));
        };
        let raw = range.clone().map(|range| &self.body.buffer()[range]);
        read(raw, *oid).map_err(malformed)
    }
}

fn malformed(source: impl Into<AnyError>) -> EngineError {
    EngineError {
        fault: Fault::Other,
        source: source.into(),
    }
}
