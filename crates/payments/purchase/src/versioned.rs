//! Rows under optimistic locking: a change names its base version, and is refused when the stored version differs.

use std::ops::Deref;

use tollgate_clock::Timestamp;
use tollgate_store::{
    AuthorizationPart, AuthorizationRow, CheckoutPart, CheckoutRow, MandatePart, MandateRow, Part,
    TopUpPart, TopUpRow,
};

/// A stored row with a version.
pub trait VersionedRow: Clone {
    /// Version, and time of the last change.
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

/// A row with free reads; changed only by the transitions of the wrapping type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<R> {
    row: R,
    /// Version in the store.
    stored: i64,
}

impl<R: VersionedRow> Versioned<R> {
    pub fn stored(mut row: R) -> Versioned<R> {
        let stored = *row.stamp().0;
        Versioned { row, stored }
    }

    /// The row changed at `now`. Several changes before a write are one version.
    #[must_use]
    pub fn next(&self, now: Timestamp, change: impl FnOnce(&mut R)) -> Versioned<R> {
        let mut next = self.clone();
        change(&mut next.row);
        let (version, updated_at) = next.row.stamp();
        *version = self.stored + 1;
        *updated_at = now;
        next
    }

    /// The part that replaces the stored version.
    pub fn part(&self) -> Part {
        self.row.clone().change()
    }

    /// The row; stored after the commit of its part.
    pub fn into_row(self) -> R {
        self.row
    }
}

impl<R> Deref for Versioned<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.row
    }
}
