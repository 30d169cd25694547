//! Purchases whose refunded credits are owed: due as soon as their account has free credit, and not only at the time that they store.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};
use tollgate_ledger::Ledger;
use tollgate_money::{AccountId, TopUpId};
use tollgate_store::TopUpRow;

/// The most purchases that are watched. Those beyond are due at the times that they store.
pub(super) const OWING_MAX: usize = 256;

/// Purchases whose credits are owed, with their accounts; `None` before they were read.
#[derive(Debug, Default)]
pub(super) struct Owing(Mutex<Option<BTreeMap<TopUpId, AccountId>>>);

impl Owing {
    /// Whether the stored ones have yet to be read.
    pub(super) fn is_unread(&self) -> bool {
        self.rows().is_none()
    }

    /// Watches these, which were read at the start.
    pub(super) fn start(&self, rows: &[TopUpRow]) {
        let read = rows.iter().map(|row| (row.id, row.account));
        self.rows().get_or_insert_default().extend(read);
    }

    /// Watches a purchase while its credits are owed.
    pub(super) fn note(&self, row: &TopUpRow) {
        if let Some(rows) = &mut *self.rows() {
            if !row.owed.is_positive() {
                rows.remove(&row.id);
            } else if rows.len() < OWING_MAX {
                rows.insert(row.id, row.account);
            }
        }
    }

    /// Those whose accounts have free credit now. An account that is not in memory cannot spend any.
    pub(super) fn collectable(&self, ledger: &Ledger) -> Vec<TopUpId> {
        let rows = self.rows();
        let rows = rows.iter().flatten();
        let rows = rows.filter(|(_, account)| ledger.has_free_credit(**account));
        rows.map(|(id, _)| *id).collect()
    }

    fn rows(&self) -> MutexGuard<'_, Option<BTreeMap<TopUpId, AccountId>>> {
        self.0.lock()
    }
}
