//! Values of parameters and columns, and the types of the program as values.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{
    AccountId, CapPeriod, CheckoutId, CredentialId, GrantId, LoginId, MandateId, Micros,
    OperationId, PaymentId, SubscriptionId, TopUpId, Usd,
};

use crate::error::{EngineError, RowError};

/// A value of a parameter or a column. Booleans are 0 and 1, times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'v> {
    Null,
    Integer(i64),
    Text(&'v str),
    Bytes(&'v [u8]),
}

/// A row of a result.
pub trait SqlRow {
    /// The value of a column; the first is 0.
    fn value(&self, column: usize) -> Result<Value<'_>, EngineError>;
}

impl<'a> dyn SqlRow + 'a {
    /// The value of a column, converted.
    pub fn get<'r, T: FromValue<'r>>(&'r self, column: usize) -> Result<T, RowError> {
        T::from_value(self.value(column)?)
    }
}

/// The values of a statement, in the order of its parameters.
#[macro_export]
macro_rules! values {
    ($($value:expr),* $(,)?) => { &[$($crate::ToValue::to_value(&$value)),*] };
}

/// A type that can be a parameter.
pub trait ToValue {
    /// The parameter.
    fn to_value(&self) -> Value<'_>;
}

/// A type that a column can be read as.
pub trait FromValue<'v>: Sized {
    /// Reads a column.
    ///
    /// # Errors
    ///
    /// [`RowError::Damaged`] for a value of another type or range, [`RowError::Unknown`] for an unknown code.
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

/// A count; a count beyond the largest storable number is stored as the largest number.
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

impl ToValue for CapPeriod {
    fn to_value(&self) -> Value<'_> {
        Value::Integer(match self {
            CapPeriod::Total => 0,
            CapPeriod::Month => 1,
        })
    }
}

impl<'v> FromValue<'v> for CapPeriod {
    fn from_value(value: Value<'v>) -> Result<CapPeriod, RowError> {
        match i64::from_value(value)? {
            0 => Ok(CapPeriod::Total),
            1 => Ok(CapPeriod::Month),
            code => Err(RowError::Unknown {
                what: "a cap's period",
                value: code.to_string(),
            }),
        }
    }
}
