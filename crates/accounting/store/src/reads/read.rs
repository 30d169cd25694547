//! Reads of accounts, credentials and the ledger, for every engine.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

use super::audit::Snapshot;
use super::records::RecordQuery;
use super::{day_totals, tail, usage};
use crate::allotment::{AllotmentRow, Budget, CapAllotmentRow, KeyCap};
use crate::codes::LoginKind;
use crate::commit_id;
use crate::engine::{Accounts, Credentials};
use crate::entries::{Entry, LedgerPart};
use crate::error::ReadError;
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::reader::Reader;
use crate::rows::{
    AccountRow, CredentialRow, LedgerLine, LoginRow, OpenHold, PriceRow, UsageRow, UsageTotal,
};
use crate::store::{BatchRows, OperationRows, RetainedJournal, StoreSize};
use crate::tables;
use crate::usage::{RequestsQuery, UsageDay};

impl Reader {
    /// Visits every account, for a node that keeps accounts in memory.
    pub fn accounts(&self, each: &mut dyn FnMut(AccountRow)) -> Result<(), ReadError> {
        self.with_view("accounts", |sql| tail::accounts(sql, Accounts::All, each))
    }

    /// Visits every credential that is neither revoked nor expired at `now`.
    pub fn credentials(
        &self,
        now: Timestamp,
        each: &mut dyn FnMut(CredentialRow),
    ) -> Result<(), ReadError> {
        self.with("credentials", |sql| {
            tables::credentials::each(sql, Credentials::ValidAt(now), each)
        })
    }

    /// Visits every version of every price.
    pub fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), ReadError> {
        self.with("prices", |sql| tables::prices::all(sql, each))
    }

    /// Visits every open hold.
    pub fn open_holds(&self, each: &mut dyn FnMut(OpenHold)) -> Result<(), ReadError> {
        self.with_view("holds", |sql| {
            tail::open_holds(sql)?.into_values().for_each(each);
            Ok(())
        })
    }

    /// An account.
    pub fn account(&self, id: AccountId) -> Result<Option<AccountRow>, ReadError> {
        self.with_view("an account", |sql| tail::account(sql, id))
    }

    /// Visits some accounts. Reads the unposted rows once for all accounts.
    pub fn accounts_of(
        &self,
        ids: &[AccountId],
        each: &mut dyn FnMut(AccountRow),
    ) -> Result<(), ReadError> {
        self.with_view("accounts", |sql| {
            tail::accounts(sql, Accounts::Of(ids), each)
        })
    }

    /// Whether a reference of an account is booked, as anything.
    pub fn is_booked(&self, account: AccountId, reference: &str) -> Result<bool, ReadError> {
        self.with("a booked reference", |sql| {
            Ok(tables::bookings::booked(sql, account, reference)?.is_some())
        })
    }

    /// An account with its last posted balance, without later commits. Every other field is as committed.
    pub fn posted_account(&self, id: AccountId) -> Result<Option<AccountRow>, ReadError> {
        self.with("an account", |sql| {
            let mut found = None;
            tables::accounts::posted(sql, Accounts::Of(&[id]), &mut |row| found = Some(row))?;
            Ok(found)
        })
    }

    /// The credit of all accounts, available and held, without negative balances. The database visits every account.
    pub fn owed(&self) -> Result<Micros, ReadError> {
        self.with_view("the credit of all accounts", |sql| tail::owed(sql))
    }

    /// Every rate class of an account. Visits every account.
    pub fn account_classes(&self) -> Result<Vec<Arc<str>>, ReadError> {
        self.with("the rate classes of accounts", |sql| {
            tables::accounts::classes(sql)
        })
    }

    /// The account of a login.
    pub fn account_by_login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<AccountRow>, ReadError> {
        self.with_view("an account", |sql| {
            match tables::logins::account_of(sql, kind, address)? {
                Some(id) => tail::account(sql, id),
                None => Ok(None),
            }
        })
    }

    /// At most `limit` accounts after `after`, in the order of their ids.
    pub fn accounts_after(
        &self,
        after: Option<AccountId>,
        limit: usize,
    ) -> Result<Vec<AccountRow>, ReadError> {
        self.with_view("accounts", |sql| {
            let mut found = Vec::new();
            let which = Accounts::After(after, limit);
            tail::accounts(sql, which, &mut |row| found.push(row))?;
            Ok(found)
        })
    }

    /// The logins of an account.
    pub fn logins(&self, account: AccountId) -> Result<Vec<LoginRow>, ReadError> {
        self.with("logins", |sql| {
            let mut found = Vec::new();
            tables::logins::of_account(sql, account, &mut |row| found.push(row))?;
            Ok(found)
        })
    }

    /// The credentials of an account, including revoked and expired credentials, oldest first.
    pub fn account_credentials(&self, account: AccountId) -> Result<Vec<CredentialRow>, ReadError> {
        self.with("credentials", |sql| {
            let mut found = Vec::new();
            let which = Credentials::OfAccount(account);
            tables::credentials::each(sql, which, &mut |row| found.push(row))?;
            Ok(found)
        })
    }

    /// Charges to a credential of an account since `since`, from the usage records.
    pub fn credential_spent(
        &self,
        account: AccountId,
        credential: CredentialId,
        since: Timestamp,
    ) -> Result<Micros, ReadError> {
        let wanted = RecordQuery {
            account,
            from: since,
            to: Timestamp::MAX,
        };
        self.with_view("what a credential has spent", |sql| {
            usage::spent(sql, wanted, credential)
        })
    }

    /// The credential whose secret has the digest, even if revoked or expired.
    pub fn credential_by_hash(&self, hash: &[u8; 32]) -> Result<Option<CredentialRow>, ReadError> {
        self.with("a credential", |sql| {
            let mut found = None;
            let which = Credentials::WithHash(hash);
            tables::credentials::each(sql, which, &mut |row| found = Some(row))?;
            Ok(found)
        })
    }

    /// The credential with the id, even if revoked or expired.
    pub fn credential(&self, id: CredentialId) -> Result<Option<CredentialRow>, ReadError> {
        self.with("a credential", |sql| {
            let mut found = None;
            tables::credentials::each(sql, Credentials::WithId(id), &mut |row| found = Some(row))?;
            Ok(found)
        })
    }

    /// The state of an idempotency key, expired or not.
    pub fn idempotency(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRow>, ReadError> {
        self.with("an idempotency key", |sql| tables::keys::read(sql, key))
    }

    /// Usage of an account in `from <= at < to`, by day (UTC) and model.
    pub fn usage_totals(
        &self,
        account: AccountId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageTotal>, ReadError> {
        self.with_view("usage", |sql| {
            usage::totals(sql, RecordQuery { account, from, to })
        })
    }

    /// Usage of an account in `from <= at < to`, by day (UTC), model and credential.
    pub fn usage_days(
        &self,
        account: AccountId,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<Vec<UsageDay>, ReadError> {
        self.with_view("usage", |sql| {
            day_totals::days(sql, RecordQuery { account, from, to })
        })
    }

    /// Requests of an account with a usage record, newest first.
    pub fn requests(&self, wanted: &RequestsQuery) -> Result<Vec<UsageRow>, ReadError> {
        self.with_view("requests", |sql| usage::requests(sql, wanted))
    }

    /// The last `limit` entries before `before` that changed the balance of an account, newest first: credits, settlements and charges,
    /// with their usage. Holds and releases do not change a balance and are not listed.
    pub fn lines(
        &self,
        account: AccountId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<LedgerLine>, ReadError> {
        let wanted = RecordQuery {
            account,
            from: Timestamp::MIN,
            to: before,
        };
        self.with_view("entries", |sql| {
            let moves = |_, part: &_| Entry::of(part).is_some();
            let found = wanted.newest(sql, limit, &moves)?;
            let line = |part: LedgerPart| {
                let usage = part.usage();
                Entry::of(&part).map(|entry| LedgerLine { entry, usage })
            };
            Ok(found.into_iter().filter_map(line).collect())
        })
    }

    /// All stored data of an operation. Scans the whole journal: for an investigation, not for a request.
    pub fn operation(&self, id: OperationId) -> Result<OperationRows, ReadError> {
        self.with_view("an operation", |sql| {
            let parts = tail::of_operation(sql, id)?;
            let ends = |part: &&LedgerPart| {
                matches!(part, LedgerPart::Settle { .. } | LedgerPart::Release { .. })
            };
            Ok(OperationRows {
                id,
                entries: parts.iter().filter_map(Entry::of).collect(),
                hold: tail::open_holds(sql)?.remove(&id),
                usage: parts.iter().find_map(LedgerPart::usage),
                is_duplicate: parts.len() - parts.iter().filter(ends).count() > 1,
            })
        })
    }

    /// Visits the allotments of a node, as last posted.
    pub fn allotments(
        &self,
        node: i64,
        each: &mut dyn FnMut(AllotmentRow),
    ) -> Result<(), ReadError> {
        self.with("allotments", |sql| {
            tables::allotment::of_node(sql, node, each)
        })
    }

    /// Visits a node's parts of the caps of keys, as of the node's last posting.
    pub fn cap_allotments(
        &self,
        node: i64,
        each: &mut dyn FnMut(CapAllotmentRow),
    ) -> Result<(), ReadError> {
        self.with("allotments of caps", |sql| {
            tables::allotment::caps_of_node(sql, node, each)
        })
    }

    /// Visits the caps of keys with a change that some node has not read, where other nodes have parts and the node has no part.
    pub fn changed_caps_without(
        &self,
        node: i64,
        each: &mut dyn FnMut(KeyCap),
    ) -> Result<(), ReadError> {
        self.with("changed caps", |sql| {
            tables::allotment::changed_caps_without(sql, node, each)
        })
    }

    /// Visits the accounts whose recall a node has not answered, and all recalled caps, with the number of the recall.
    pub fn recalls(&self, node: i64, each: &mut dyn FnMut(Budget, i64)) -> Result<(), ReadError> {
        self.with("recalls", |sql| tables::allotment::recalls(sql, node, each))
    }

    /// The number of the recall of a budget, 0 for no recall.
    pub fn recall(&self, budget: Budget) -> Result<i64, ReadError> {
        self.with("a recall", |sql| {
            Ok(tables::allotment::recall(sql, budget)?.number)
        })
    }

    /// Visits some accounts with the number of the account's recall, 0 for no recall.
    pub fn recalls_of(
        &self,
        accounts: &[AccountId],
        each: &mut dyn FnMut(AccountId, i64),
    ) -> Result<(), ReadError> {
        self.with("recalls", |sql| {
            tables::allotment::shared_balances(sql, accounts, &mut |account, it| {
                each(account, it.recall.number)
            })
        })
    }

    /// The size of the database.
    pub fn size(&self) -> Result<StoreSize, ReadError> {
        self.with("the size of the database", |sql| tables::size::size(sql))
    }

    /// The extent of every node's journal in the store.
    pub fn retained(&self) -> Result<Vec<RetainedJournal>, ReadError> {
        self.with_view("the nodes", |sql| {
            let mut carried = HashMap::new();
            tables::carry::nodes(sql, &mut |node| {
                carried.insert(node.node, node);
            })?;
            let mut found = Vec::new();
            tables::marks::posted(sql, &mut |node, posted| {
                let (_, epoch, number) = commit_id::numbers(posted);
                found.push(RetainedJournal {
                    node,
                    carried: carried.get(&node).copied(),
                    posted: (posted != 0).then_some((epoch, number)),
                });
            })?;
            Ok(found)
        })
    }

    /// At most `limit` commits of a node in order, after the commit with an epoch and a number; from the first commit on for `None`.
    pub fn commits_after(
        &self,
        node: i64,
        after: Option<(i64, i64)>,
        limit: usize,
    ) -> Result<Vec<BatchRows>, ReadError> {
        let after = after.map_or(0, |(epoch, number)| commit_id::id(node, epoch, number));
        self.with("commits", |sql| {
            tables::journal::commits_after(sql, node, after, limit)
        })
    }

    /// A consistent snapshot until its drop, for the audit.
    pub fn snapshot(&self) -> Result<Snapshot<'_>, ReadError> {
        Snapshot::begin(self)
    }
}
