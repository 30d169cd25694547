//! The observer of the store: commits of other callers, and changes by other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use tollgate_money::{AccountId, CredentialId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    ChangeKind, ChangeRow, Effect, EntryKind, NewAccount, Observer, Part, PlanPart, ReadError,
};

use crate::account::Balance;
use crate::accounts::{Accounts, Ledger};
use crate::resident::Resident;

/// Applies commits of other callers to memory: new accounts, incoming credit, debts of returned payments, and first payments of accounts.
/// For an account outside memory a later load brings the changes.
pub(crate) struct CommitObserver {
    ledger: Weak<Accounts>,
    changed: Mutex<Changed>,
}

/// Changes by other nodes, collected until read together: the node answers no request with a key while its view is seconds behind the feed.
#[derive(Default)]
struct Changed {
    /// Accounts in memory that were changed or given credit.
    accounts: BTreeSet<AccountId>,
    /// Accounts whose recall has begun or ended, with the number of the last change.
    recalls: BTreeMap<AccountId, i64>,
}

impl CommitObserver {
    pub(crate) fn new(ledger: &Ledger) -> CommitObserver {
        CommitObserver {
            ledger: Arc::downgrade(&ledger.0),
            changed: Mutex::default(),
        }
    }

    fn changed_elsewhere(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock()
    }
}

impl Observer for CommitObserver {
    fn committed(&self, part: &Part, effect: Effect) {
        let (Some(ledger), Effect::Applied) = (self.ledger.upgrade().map(Ledger), effect) else {
            return;
        };
        if let Some(debt) = part.debt() {
            ledger.set_debt(&debt);
        }
        match part {
            Part::CreateAccount(account) => ledger.add_account(account),
            Part::Ledger(LedgerPart::Credit {
                account,
                amount,
                kind,
                ..
            }) => {
                // Outgoing credit has left the memory before.
                let booked = (*amount).max(Micros::ZERO);
                let is_payment = amount.is_positive() && *kind == EntryKind::TopUp;
                ledger.apply_booked_credit(*account, booked, is_payment);
                if amount.is_positive() {
                    ledger.share_credit(*account, *amount);
                }
            }
            // The plan may come without credit.
            Part::Plan(part) => {
                if let PlanPart::Pay(payment) = &**part {
                    ledger.mark_paid(payment.account);
                }
            }
            _ => {}
        }
    }

    fn changed(&self, change: &ChangeRow) -> Result<(), ReadError> {
        let Some(ledger) = self.ledger.upgrade().map(Ledger) else {
            return Ok(());
        };
        let account = AccountId::from_bytes(change.subject);
        match change.kind {
            ChangeKind::Account | ChangeKind::Credit => {
                if ledger.is_read_again(account) {
                    self.changed_elsewhere().accounts.insert(account);
                }
                Ok(())
            }
            ChangeKind::Recall => {
                let recalls = &mut self.changed_elsewhere().recalls;
                recalls.insert(account, change.number);
                Ok(())
            }
            ChangeKind::Credential => {
                let credential = CredentialId::from_bytes(change.subject);
                ledger.credential_changed(credential, change.number)
            }
            _ => Ok(()),
        }
    }

    fn changes_ended(&self) -> Result<(), ReadError> {
        let Some(ledger) = self.ledger.upgrade().map(Ledger) else {
            return Ok(());
        };
        // Only the feed changes the sets, on this thread.
        let mut changed = self.changed_elsewhere();
        if !changed.recalls.is_empty() {
            ledger.recalls_changed(&changed.recalls)?;
            changed.recalls.clear();
        }
        if !changed.accounts.is_empty() {
            ledger.read_again(&changed.accounts.iter().copied().collect::<Vec<_>>())?;
            changed.accounts.clear();
        }
        Ok(())
    }
}

impl Ledger {
    fn add_account(&self, account: &NewAccount) {
        let mut balance = Balance {
            credit_limit: account.credit_limit,
            ..Balance::default()
        };
        let mut shard = self.shard(account.id);
        if self.has_allotments {
            balance.credit_limit = Micros::ZERO;
            let allotment = shard.allotments.entry(account.id).or_default();
            allotment.credit_limit = account.credit_limit;
        }
        let resident = || Resident::from(balance);
        shard.accounts.entry(account.id).or_insert_with(resident);
    }
}
