//! Rows that are reconciled on a schedule: their attempts, the time of the next one, and whether a reconciliation counts as one.
//!
//! The worker's reconciliations are the attempts: each lengthens the wait, and one that finds a row which needs manual resolution raises
//! the alert. A buyer, an agent or another rail that asks changes neither, however often it asks: the worker's next attempt stays where it
//! was, or comes earlier.

use std::ops::Deref;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_store::{MandateRow, Part, TopUpRow};

use crate::versioned::{Versioned, VersionedRow};

/// A row with a schedule.
pub(crate) trait ScheduledRow: VersionedRow {
    /// The fields of its schedule.
    fn schedule(&mut self) -> Schedule<'_>;
}

/// The fields of a row that its schedule uses.
pub(crate) struct Schedule<'r> {
    attempts: &'r mut u32,
    next_attempt_at: &'r mut Option<Timestamp>,
    notifications: i64,
    acknowledged: &'r mut i64,
    note: &'r mut Option<Arc<str>>,
}

macro_rules! scheduled {
    ($($row:ty),+) => {
        $(impl ScheduledRow for $row {
            fn schedule(&mut self) -> Schedule<'_> {
                Schedule {
                    attempts: &mut self.attempts,
                    next_attempt_at: &mut self.next_attempt_at,
                    notifications: self.notifications,
                    acknowledged: &mut self.acknowledged,
                    note: &mut self.note,
                }
            }
        })+
    };
}

scheduled!(MandateRow, TopUpRow);

/// A stored row with a schedule, and who has caused its reconciliation.
#[derive(Clone, Debug)]
pub(crate) struct Scheduled<R> {
    row: Versioned<R>,
    is_asked: bool,
}

impl<R: ScheduledRow> Scheduled<R> {
    /// A row that the worker reconciles, or a change that is no reconciliation.
    pub(crate) fn stored(row: R) -> Scheduled<R> {
        Scheduled {
            row: Versioned::stored(row),
            is_asked: false,
        }
    }

    /// A row that is reconciled because it is asked for, which is no attempt.
    pub(crate) fn asked(row: R) -> Scheduled<R> {
        Scheduled {
            is_asked: true,
            ..Scheduled::stored(row)
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Any change.
    pub(crate) fn change(&self, now: Timestamp, change: impl FnOnce(&mut R)) -> Scheduled<R> {
        Scheduled {
            row: self.row.next(now, change),
            is_asked: self.is_asked,
        }
    }

    /// Every notification so far is covered by a read.
    pub(crate) fn acknowledged(&self, now: Timestamp) -> Scheduled<R> {
        self.change(now, |row| {
            let schedule = row.schedule();
            *schedule.acknowledged = schedule.notifications;
        })
    }

    /// Reconciled without a change of the state, and the time of the next attempt.
    pub(crate) fn attempted(
        &self,
        now: Timestamp,
        next: impl FnOnce(&R) -> Option<Timestamp>,
    ) -> Scheduled<R> {
        let counted = self.change(now, |row| {
            *row.schedule().attempts += u32::from(!self.is_asked);
        });
        counted.next_attempt(now, next)
    }

    /// The next attempt is at this time; one that was planned earlier stays where the row is asked for.
    pub(crate) fn next_attempt(
        &self,
        now: Timestamp,
        next: impl FnOnce(&R) -> Option<Timestamp>,
    ) -> Scheduled<R> {
        self.change(now, |row| {
            let next = next(row);
            let planned = row.schedule().next_attempt_at;
            let kept = planned.filter(|_| self.is_asked);
            *planned = kept.into_iter().chain(next).min();
        })
    }

    /// It needs manual resolution; `next`: an attempt in case it resolves itself.
    pub(crate) fn stuck(&self, why: &str, now: Timestamp, next: Option<Timestamp>) -> Scheduled<R> {
        self.change(now, |row| *row.schedule().note = Some(Arc::from(why)))
            .attempted(now, |_| next)
    }

    /// The part that replaces the stored version.
    pub(crate) fn part(&self) -> Part {
        self.row.part()
    }

    /// The same after its part was committed.
    pub(crate) fn written(self) -> Scheduled<R> {
        Scheduled {
            is_asked: self.is_asked,
            ..Scheduled::stored(self.into_row())
        }
    }

    pub(crate) fn into_row(self) -> R {
        self.row.into_row()
    }
}

impl<R> Deref for Scheduled<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.row
    }
}
