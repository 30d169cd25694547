//! Spending caps: how much a credential may spend in a period.

use crate::Micros;

/// The spending cap of a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpendingCap {
    /// The amount; not negative.
    pub max: Micros,
    /// Its period.
    pub period: CapPeriod,
}

/// The period over which a credential's spending counts against its cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CapPeriod {
    /// All time.
    Total,
    /// Each calendar month, UTC.
    Month,
}
