//! Codes of the store as values.

use tollgate_sql::{FromValue, RowError, ToValue, Value};

use crate::codes::{
    AccountStatus, AuthorizationState, CacheScope, ChangeKind, CheckoutState, CodePurpose,
    CredentialKind, Endpoint, LoginKind, MandateState, NoticeKind, PaymentStatus, Route,
    SubscriptionStatus, TopUpState,
};

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
