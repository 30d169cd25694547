//! Purchases with refunded and owed credits: due as soon as the account has free credit, before their stored time.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};
use tollgate_ledger::Ledger;
use tollgate_money::{AccountId, TopUpId};
use tollgate_store::TopUpRow;

/// Maximum of watched purchases. Further purchases are due at their stored times.
pub(super) const OWING_MAX: usize = 256;

/// Purchases with owed credits, and their accounts; `None` before the first read.
#[derive(Debug, Default)]
pub(super) struct Owing(Mutex<Option<BTreeMap<TopUpId, AccountId>>>);

impl Owing {
    /// Whether the stored rows have yet to be read.
    pub(super) fn is_unread(&self) -> bool {
        self.rows().is_none()
    }

    /// Watches the rows of the first read.
    pub(super) fn start(&self, rows: &[TopUpRow]) {
        let read = rows.iter().map(|row| (row.id, row.account));
        self.rows().get_or_insert_default().extend(read);
    }

    /// Watches a purchase while credits are owed.
    pub(super) fn note(&self, row: &TopUpRow) {
        if let Some(rows) = &mut *self.rows() {
            if !row.owed.is_positive() {
                rows.remove(&row.id);
            } else if rows.len() < OWING_MAX {
                rows.insert(row.id, row.account);
            }
        }
    }

    /// Purchases of accounts with free credit now. An account outside memory cannot spend credit.
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
