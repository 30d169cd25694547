//! SQL on a connection of any engine: statements with numbered parameters, and the values of their rows.
//!
//! Statements are written once for all engines: parameters are `?1`, `?2`, ..., columns are integers, texts and bytes, and a unique key is
//! respected by `ON CONFLICT`, since an error would end the transaction of some engines.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{
    AccountId, CapPeriod, CheckoutId, CredentialId, GrantId, LoginId, MandateId, Micros,
    OperationId, PaymentId, SubscriptionId, TopUpId, Usd,
};

use super::error::{EngineError, Fault, RowError};
use crate::codes::{
    AccountStatus, AuthorizationState, CacheScope, ChangeKind, CheckoutState, CodePurpose,
    CredentialKind, Endpoint, LoginKind, MandateState, NoticeKind, PaymentStatus, Route,
    SubscriptionStatus, TopUpState, cap_period, cap_period_code,
};

/// A value of a parameter or a column. Booleans are 0 and 1, times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'v> {
    Null,
    Integer(i64),
    Text(&'v str),
    Bytes(&'v [u8]),
}

/// A row of a result.
pub(crate) trait SqlRow {
    /// The value of a column; the first is 0.
    fn value(&self, column: usize) -> Result<Value<'_>, EngineError>;
}

impl<'a> dyn SqlRow + 'a {
    /// The value of a column, converted.
    pub(crate) fn get<'r, T: FromValue<'r>>(&'r self, column: usize) -> Result<T, RowError> {
        T::from_value(self.value(column)?)
    }
}

/// Receives the rows of a query until it breaks.
pub(crate) type EachRow<'e> = dyn FnMut(&dyn SqlRow) -> Result<ControlFlow<()>, RowError> + 'e;

/// Runs a statement with further values.
pub(crate) type Run<'r> = dyn FnMut(&[Value<'_>]) -> Result<(), EngineError> + 'r;

/// Passes on each list of values with which a statement is to be run.
pub(crate) type Feed<'f> = dyn FnMut(&mut Run<'_>) -> Result<(), EngineError> + 'f;

/// The engine that a statement is for, where one text cannot serve all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    /// PostgreSQL, and what speaks its protocol.
    Postgres,
}

/// A set of keys on a connection, which the engine moves to disk when it is large.
pub(crate) trait KeySet {
    /// Begins an empty set.
    fn begin_set(&self) -> Result<(), RowError>;

    /// Adds a key to the set; `false` when it had it.
    fn add_to_set(&self, key: &[u8]) -> Result<bool, RowError>;

    /// Ends the set.
    fn end_set(&self) -> Result<(), RowError>;
}

/// One connection. Statements are prepared once for each text and kept.
pub(crate) trait Sql: KeySet {
    /// The engine's few differences.
    fn dialect(&self) -> Dialect;

    /// Runs a statement without a result; the number of rows that it changed.
    fn execute(&self, sql: &str, values: &[Value<'_>]) -> Result<usize, EngineError>;

    /// Runs a statement that only must not fail. An engine may send it with the next one whose result is needed, and says then that it failed.
    fn write(&self, sql: &str, values: &[Value<'_>]) -> Result<(), EngineError> {
        self.execute_each(sql, &mut |run| run(values))
    }

    /// Runs one statement for each list of values that `feed` passes on. An engine may send them together, and with later ones as
    /// [`write`](Self::write) says.
    fn execute_each(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        feed(&mut |values| self.execute(sql, values).map(|_| ()))
    }

    /// Runs a statement on one row of `VALUES (?1, ?2, ...)` for each list of values. An engine may run it on many rows at once, so no two of
    /// them have the same key.
    fn execute_rows(&self, sql: &str, feed: &mut Feed<'_>) -> Result<(), EngineError> {
        self.execute_each(sql, feed)
    }

    /// Visits the rows of a query as they arrive, until `each` breaks. Rows are not collected: a result may be larger than memory. A
    /// statement that writes and returns has written everything when its first row is visited.
    fn query(
        &self,
        sql: &str,
        values: &[Value<'_>],
        each: &mut EachRow<'_>,
    ) -> Result<(), RowError>;
}

/// Ways to run a query.
pub(crate) trait Select: Sql {
    /// Visits the rows of a query, converted.
    fn each<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&dyn SqlRow) -> Result<T, RowError>,
        each: &mut dyn FnMut(T),
    ) -> Result<(), RowError> {
        self.query(sql, values, &mut |row| {
            each(read(row)?);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// The rows of a query, converted.
    fn all<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        read: impl FnMut(&dyn SqlRow) -> Result<T, RowError>,
    ) -> Result<Vec<T>, RowError> {
        let mut found = Vec::new();
        self.each(sql, values, read, &mut |row| found.push(row))?;
        Ok(found)
    }

    /// The first row of a query, converted.
    fn first<T>(
        &self,
        sql: &str,
        values: &[Value<'_>],
        mut read: impl FnMut(&dyn SqlRow) -> Result<T, RowError>,
    ) -> Result<Option<T>, RowError> {
        let mut found = None;
        self.query(sql, values, &mut |row| {
            found = Some(read(row)?);
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// The number that a query has as its only row and column; 0 without a row.
    fn number(&self, sql: &str, values: &[Value<'_>]) -> Result<i64, RowError> {
        let found = self.first(sql, values, |row| row.get(0))?;
        Ok(found.unwrap_or(0))
    }

    /// Whether a query has a row.
    fn exists(&self, sql: &str, values: &[Value<'_>]) -> Result<bool, RowError> {
        let mut found = false;
        self.query(sql, values, &mut |_| {
            found = true;
            Ok(ControlFlow::Break(()))
        })?;
        Ok(found)
    }

    /// Runs a statement that may violate a unique key, which then changes nothing: `None`. An insert says `ON CONFLICT DO NOTHING` instead,
    /// for which an engine needs no savepoint.
    fn execute_unique(
        &self,
        sql: &str,
        values: &[Value<'_>],
    ) -> Result<Option<usize>, EngineError> {
        let has_savepoint = self.dialect() == Dialect::Postgres;
        if has_savepoint {
            self.execute("SAVEPOINT one_statement", &[])?;
        }
        let done = match self.execute(sql, values) {
            Ok(changed) => Some(changed),
            Err(error) if error.fault == Fault::Key => None,
            Err(error) => return Err(error),
        };
        if has_savepoint {
            if done.is_none() {
                self.execute("ROLLBACK TO one_statement", &[])?;
            }
            self.execute("RELEASE one_statement", &[])?;
        }
        Ok(done)
    }
}

impl<C: Sql + ?Sized> Select for C {}

/// The values of a statement, in the order of its parameters.
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::engine::ToValue::to_value(&$value)),*] };
}
pub(crate) use values;

/// What can be a parameter.
pub(crate) trait ToValue {
    fn to_value(&self) -> Value<'_>;
}

/// What a column can be read as.
pub(crate) trait FromValue<'v>: Sized {
    fn from_value(value: Value<'v>) -> Result<Self, RowError>;
}

/// The error for a value of another type.
fn unlike(value: Value<'_>, wanted: &str) -> RowError {
    let found = match value {
        Value::Null => "nothing",
        Value::Integer(_) => "a number",
        Value::Text(_) => "a text",
        Value::Bytes(_) => "bytes",
    };
    RowError::Damaged(format!("a row has {found} in place of {wanted}"))
}

impl ToValue for i64 {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(*self)
    }
}

impl<'v> FromValue<'v> for i64 {
    fn from_value(value: Value<'v>) -> Result<i64, RowError> {
        match value {
            Value::Integer(number) => Ok(number),
            other => Err(unlike(other, "a number")),
        }
    }
}

macro_rules! numbers {
    ($($number:ty)*) => { $(
        impl ToValue for $number {
            fn to_value(&self) -> Value<'_> {
                Value::Integer(i64::from(*self))
            }
        }

        impl<'v> FromValue<'v> for $number {
            fn from_value(value: Value<'v>) -> Result<$number, RowError> {
                let number = i64::from_value(value)?;
                <$number>::try_from(number)
                    .map_err(|_| RowError::Damaged(format!("a row has the number {number} where none so large can be")))
            }
        }
    )* };
}
numbers! { u8 u16 u32 i32 }

/// A count; stored as the largest number there is when it is greater.
impl ToValue for u64 {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl<'v> FromValue<'v> for u64 {
    fn from_value(value: Value<'v>) -> Result<u64, RowError> {
        i64::from_value(value).map(i64::unsigned_abs)
    }
}

/// The limit of a query.
impl ToValue for usize {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(i64::try_from(*self).unwrap_or(i64::MAX))
    }
}

impl ToValue for bool {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(i64::from(*self))
    }
}

impl<'v> FromValue<'v> for bool {
    fn from_value(value: Value<'v>) -> Result<bool, RowError> {
        i64::from_value(value).map(|number| number != 0)
    }
}

impl ToValue for str {
    fn to_value(&self) -> Value<'_> {
        Value::Text(self)
    }
}

impl ToValue for String {
    fn to_value(&self) -> Value<'_> {
        Value::Text(self)
    }
}

impl ToValue for [u8] {
    fn to_value(&self) -> Value<'_> {
        Value::Bytes(self)
    }
}

impl ToValue for Vec<u8> {
    fn to_value(&self) -> Value<'_> {
        Value::Bytes(self)
    }
}

impl<const N: usize> ToValue for [u8; N] {
    fn to_value(&self) -> Value<'_> {
        Value::Bytes(self)
    }
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Value<'_> {
        (**self).to_value()
    }
}

impl<T: ToValue + ?Sized> ToValue for Arc<T> {
    fn to_value(&self) -> Value<'_> {
        (**self).to_value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, ToValue::to_value)
    }
}

impl<'v, T: FromValue<'v>> FromValue<'v> for Option<T> {
    fn from_value(value: Value<'v>) -> Result<Option<T>, RowError> {
        match value {
            Value::Null => Ok(None),
            value => T::from_value(value).map(Some),
        }
    }
}

impl<'v> FromValue<'v> for &'v str {
    fn from_value(value: Value<'v>) -> Result<&'v str, RowError> {
        match value {
            Value::Text(text) => Ok(text),
            other => Err(unlike(other, "a text")),
        }
    }
}

impl<'v> FromValue<'v> for &'v [u8] {
    fn from_value(value: Value<'v>) -> Result<&'v [u8], RowError> {
        match value {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(unlike(other, "bytes")),
        }
    }
}

impl<'v, const N: usize> FromValue<'v> for [u8; N] {
    fn from_value(value: Value<'v>) -> Result<[u8; N], RowError> {
        let bytes = <&[u8]>::from_value(value)?;
        bytes.try_into().map_err(|_| {
            RowError::Damaged(format!("a row has {} bytes in place of {N}", bytes.len()))
        })
    }
}

macro_rules! owned {
    ($($borrowed:ty => $($owned:ty)*;)*) => { $($(
        impl<'v> FromValue<'v> for $owned {
            fn from_value(value: Value<'v>) -> Result<$owned, RowError> {
                <&$borrowed>::from_value(value).map(Into::into)
            }
        }
    )*)* };
}
owned! { str => String Arc<str>; [u8] => Vec<u8> Arc<[u8]>; }

macro_rules! amounts {
    ($($name:ty, $of:expr, $as:expr;)*) => { $(
        impl ToValue for $name {
            fn to_value(&self) -> Value<'_> {
                Value::Integer($as(*self))
            }
        }

        impl<'v> FromValue<'v> for $name {
            fn from_value(value: Value<'v>) -> Result<$name, RowError> {
                i64::from_value(value).map($of)
            }
        }
    )* };
}
amounts! {
    Timestamp, Timestamp::from_micros, Timestamp::as_micros;
    Micros, Micros::new, Micros::get;
    Usd, Usd::from_cents, Usd::cents;
}

/// A duration in microseconds.
impl ToValue for Duration {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(i64::try_from(self.as_micros()).unwrap_or(i64::MAX))
    }
}

impl<'v> FromValue<'v> for Duration {
    fn from_value(value: Value<'v>) -> Result<Duration, RowError> {
        let micros = i64::from_value(value)?;
        Ok(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
    }
}

macro_rules! ids {
    ($($id:ty)*) => { $(
        impl ToValue for $id {
            fn to_value(&self) -> Value<'_> {
                Value::Bytes(self.as_bytes())
            }
        }

        impl<'v> FromValue<'v> for $id {
            fn from_value(value: Value<'v>) -> Result<$id, RowError> {
                <[u8; 16]>::from_value(value).map(<$id>::from_bytes)
            }
        }
    )* };
}
ids! {
    AccountId CheckoutId CredentialId GrantId LoginId MandateId OperationId PaymentId SubscriptionId TopUpId
}

macro_rules! codes {
    ($($name:ty: $what:literal;)*) => { $(
        impl ToValue for $name {
            fn to_value(&self) -> Value<'_> {
                Value::Integer(self.code())
            }
        }

        impl<'v> FromValue<'v> for $name {
            fn from_value(value: Value<'v>) -> Result<$name, RowError> {
                let code = i64::from_value(value)?;
                <$name>::from_code(code).ok_or_else(|| RowError::Unknown { what: $what, value: code.to_string() })
            }
        }
    )* };
}
impl ToValue for CapPeriod {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(cap_period_code(*self))
    }
}

impl<'v> FromValue<'v> for CapPeriod {
    fn from_value(value: Value<'v>) -> Result<CapPeriod, RowError> {
        let code = i64::from_value(value)?;
        cap_period(code).ok_or_else(|| RowError::Unknown {
            what: "a cap's period",
            value: code.to_string(),
        })
    }
}

codes! {
    AccountStatus: "an account's status";
    AuthorizationState: "a signed transfer's state";
    CacheScope: "an account's cache scope";
    ChangeKind: "a change's kind";
    CheckoutState: "a checkout's state";
    CodePurpose: "a code's purpose";
    CredentialKind: "a credential's kind";
    Endpoint: "an endpoint";
    LoginKind: "a login's kind";
    MandateState: "a mandate's state";
    NoticeKind: "a notice's kind";
    PaymentStatus: "a payment's status";
    Route: "a route of payment";
    SubscriptionStatus: "a subscription's status";
    TopUpState: "a purchase's state";
}
