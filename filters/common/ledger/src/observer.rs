//! The observer of the store: what other callers commit, and what other nodes change.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tollgate_money::{AccountId, CredentialId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    ChangeKind, ChangeRow, Effect, EntryKind, NewAccount, Observer, Part, PlanPart, Purse,
    ReadError,
};

use crate::account::Balance;
use crate::accounts::Inner;
use crate::resident::Resident;

/// Brings into memory what was committed in units of other callers: new accounts, incoming credit, and that an account has paid. An account
/// that is not in memory has it when it is loaded.
pub(crate) struct CommitObserver {
    inner: Weak<Inner>,
    /// Accounts in memory that were changed or given credit at other nodes, until they are read again: together, since each read of what is not
    /// posted reads all of it.
    changed: Mutex<BTreeSet<AccountId>>,
}

impl CommitObserver {
    pub(crate) fn new(inner: &Arc<Inner>) -> CommitObserver {
        CommitObserver {
            inner: Arc::downgrade(inner),
            changed: Mutex::default(),
        }
    }

    fn changed_accounts(&self) -> MutexGuard<'_, BTreeSet<AccountId>> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for CommitObserver {
    fn committed(&self, part: &Part, effect: Effect) {
        let (Some(inner), Effect::Applied) = (self.inner.upgrade(), effect) else {
            return;
        };
        match part {
            Part::CreateAccount(account) => inner.add_account(account),
            Part::Ledger(LedgerPart::Credit {
                account,
                amount,
                kind,
                ..
            }) => {
                // What is taken away has left the memory before.
                let booked = (*amount).max(Micros::ZERO);
                let is_payment = amount.is_positive() && *kind == EntryKind::TopUp;
                inner.apply_booked_credit(*account, booked, is_payment);
                if amount.is_positive() {
                    inner.share_credit(*account, *amount);
                }
            }
            // The plan may come without credit.
            Part::Plan(part) => {
                if let PlanPart::Pay(payment) = &**part {
                    inner.mark_paid(payment.account);
                }
            }
            _ => {}
        }
    }

    fn changed(&self, change: &ChangeRow) -> Result<(), ReadError> {
        let Some(inner) = self.inner.upgrade() else {
            return Ok(());
        };
        let account = AccountId::from_bytes(change.subject);
        match change.kind {
            ChangeKind::Account | ChangeKind::Credit => {
                if inner.is_read_again(account) {
                    self.changed_accounts().insert(account);
                }
                Ok(())
            }
            ChangeKind::Recall => inner.recall_changed(Purse::Account(account), change.number),
            ChangeKind::Credential => {
                let credential = CredentialId::from_bytes(change.subject);
                inner.credential_changed(credential, change.number)
            }
            _ => Ok(()),
        }
    }

    fn changes_ended(&self) -> Result<(), ReadError> {
        let changed: Vec<AccountId> = self.changed_accounts().iter().copied().collect();
        if let Some(inner) = self.inner.upgrade().filter(|_| !changed.is_empty()) {
            inner.read_again(&changed)?;
            self.changed_accounts().clear();
        }
        Ok(())
    }
}

impl Inner {
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
