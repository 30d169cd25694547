//! Rows under optimistic locking: a change names the version that it is based on, and is refused when that is no longer the stored one.

use std::ops::Deref;

use tollgate_clock::Timestamp;
use tollgate_store::{
    AuthorizationPart, AuthorizationRow, CheckoutPart, CheckoutRow, MandatePart, MandateRow, Part,
    TopUpPart, TopUpRow,
};

/// A stored row with a version.
pub trait VersionedRow: Clone {
    /// Its version, and the time of its last change.
    fn stamp(&mut self) -> (&mut i64, &mut Timestamp);

    /// The part that replaces the previous version.
    fn change(self) -> Part;
}

macro_rules! versioned {
    ($($row:ident: $part:ident in $kind:ident;)+) => {
        $(impl VersionedRow for $row {
            fn stamp(&mut self) -> (&mut i64, &mut Timestamp) {
                (&mut self.version, &mut self.updated_at)
            }

            fn change(self) -> Part {
                Part::$kind(Box::new($part::Change(self)))
            }
        })+
    };
}

versioned! {
    TopUpRow: TopUpPart in TopUp;
    MandateRow: MandatePart in Mandate;
    CheckoutRow: CheckoutPart in Checkout;
    AuthorizationRow: AuthorizationPart in Authorization;
}

/// A row that is read freely and changed only by the transitions of the type that wraps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<R>(R);

impl<R: VersionedRow> Versioned<R> {
    /// A row as it is stored, or about to be stored for the first time.
    pub fn new(row: R) -> Versioned<R> {
        Versioned(row)
    }

    /// The next version, changed at `now`.
    #[must_use]
    pub fn next(&self, now: Timestamp, change: impl FnOnce(&mut R)) -> Versioned<R> {
        let mut row = self.0.clone();
        change(&mut row);
        let (version, updated_at) = row.stamp();
        *version += 1;
        *updated_at = now;
        Versioned(row)
    }

    /// The part that replaces the previous version.
    pub fn part(&self) -> Part {
        self.0.clone().change()
    }

    /// The row.
    pub fn into_row(self) -> R {
        self.0
    }
}

impl<R> Deref for Versioned<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.0
    }
}
