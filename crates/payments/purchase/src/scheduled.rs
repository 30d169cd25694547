//! Rows reconciled on a schedule: attempts, the time of the next attempt, and whether a reconciliation counts as an attempt.
//!
//! | Caller | Attempt | Next attempt | Alert for manual resolution |
//! |---|---|---|---|
//! | worker | yes | later by the backoff | yes |
//! | buyer, agent, other rail | no | unchanged or earlier | no |

use std::ops::Deref;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_store::{MandateRow, Part, TopUpRow};

use crate::versioned::{Versioned, VersionedRow};

/// A row with a schedule.
pub(crate) trait ScheduledRow: VersionedRow {
    /// Schedule fields.
    fn schedule(&mut self) -> Schedule<'_>;
}

/// The schedule fields of a row.
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

/// A stored row with a schedule, and the cause of the reconciliation.
#[derive(Clone, Debug)]
pub(crate) struct Scheduled<R> {
    row: Versioned<R>,
    is_asked: bool,
}

impl<R: ScheduledRow> Scheduled<R> {
    /// A row reconciled by the worker, or a change without reconciliation.
    pub(crate) fn stored(row: R) -> Scheduled<R> {
        Scheduled {
            row: Versioned::stored(row),
            is_asked: false,
        }
    }

    /// A row reconciled on request, which is no attempt.
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

    /// Sets the next attempt; a reconciliation on request keeps an earlier planned attempt.
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

    /// The row needs manual resolution; `next`: an attempt in case the cause disappears.
    pub(crate) fn stuck(&self, why: &str, now: Timestamp, next: Option<Timestamp>) -> Scheduled<R> {
        self.change(now, |row| *row.schedule().note = Some(Arc::from(why)))
            .attempted(now, |_| next)
    }

    /// The part that replaces the stored version.
    pub(crate) fn part(&self) -> Part {
        self.row.part()
    }

    /// The row after the commit of its part.
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
