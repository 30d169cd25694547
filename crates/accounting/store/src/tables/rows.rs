//! The row traits on a connection of any engine.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

use super::columns::{all_credentials, all_prices, hold, login, posted_accounts};
use super::journal::{
    AFTER, COMMITS, NEWEST_BODIES, StepOrder, any_batch_rows, batch_rows, each_body,
    each_body_between, each_step, on_marks, unposted_rows,
};
use super::{
    acme, allotment, audit_log, carry, checkout, erasure, id_lists, keys, loaded, mandate, oauth,
    pages, parts, plan, refusals, signin, size, topup, usage_days, x402,
};
use crate::allotment::{
    AllotmentRow, CapAllotmentRow, CapRow, KeyCap, KeySpending, Purse, Recall, SharedBalance,
};
use crate::audit_log::AuditRecord;
use crate::carry::{CarriedNode, CarriedRow, CarriedSum, RecordDigest, RowDigest};
use crate::codes::{ChangeKind, LoginKind};
use crate::commit_id;
use crate::engine::{
    Accounts, Balance, Booking, Credentials, DayRange, Dialect, EachBody, EachDay, EachPage,
    EngineError, FeedBounds, JournalRows, PageFeed, PageRange, RowError, Rows, Select, Sql, SqlRow,
    WriteError, WriteRows, values,
};
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::plan::{PaymentRow, SubscriptionRow};
use crate::reads::DayTotals;
use crate::rows::{AccountRow, CredentialRow, LoginRow, OpenHold, PriceRow};
use crate::store::{BatchRows, ChangeRow, StoreSize};
use crate::unit::{LoadedAccount, Part};
use crate::usage::UsageDay;

/// The ids of every commit.
const EVERY_NODE: (i64, i64) = (0, i64::MAX);

impl<C: Sql> Rows for C {
    fn bodies(&self, which: JournalRows, each: &mut EachBody<'_>) -> Result<(), RowError> {
        carry::bodies(self, which, each)?;
        match which {
            JournalRows::Carried => Ok(()),
            JournalRows::All => each_body_between(self, EVERY_NODE, each),
            JournalRows::Posted => {
                let mut marks = Vec::new();
                self.posted_marks(&mut |node, mark| marks.push((commit_id::range(node).0, mark)))?;
                marks
                    .into_iter()
                    .try_for_each(|range| each_body_between(self, range, each))
            }
            JournalRows::Unposted => each_body(self, unposted_rows(self), values![], each),
            JournalRows::OfNode(node) => each_body_between(self, commit_id::range(node), each),
            JournalRows::UnpostedOfNode(node) => {
                let (first, last) = commit_id::range(node);
                let sql = on_marks!(
                    self,
                    "SELECT id, body FROM journal WHERE id BETWEEN ?1 AND ?2 AND id > (SELECT posted FROM ",
                    " WHERE id = ?3) ORDER BY id"
                );
                each_body(self, sql, values![first, last, node], each)
            }
        }
    }

    fn newest_bodies(
        &self,
        node: i64,
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), RowError> {
        let (range, order) = (commit_id::range(node), StepOrder::NewestFirst);
        each_step(self, NEWEST_BODIES, order, range, &mut |row| {
            Ok(each(row.get(1)?))
        })
    }

    fn commits(&self, each: &mut dyn FnMut(BatchRows)) -> Result<(), RowError> {
        each_step(
            self,
            COMMITS,
            StepOrder::OldestFirst,
            EVERY_NODE,
            &mut |row| {
                each(any_batch_rows(row)?);
                Ok(ControlFlow::Continue(()))
            },
        )
    }

    fn commits_after(
        &self,
        node: i64,
        after: i64,
        limit: usize,
    ) -> Result<Vec<BatchRows>, RowError> {
        let (first, last) = commit_id::range(node);
        let after = after.max(first);
        self.all(AFTER, values![after, last, limit], batch_rows)
    }

    fn carry(&self) -> Result<(i64, RowDigest), RowError> {
        carry::number(self)
    }

    fn carried(&self, each: &mut dyn FnMut(CarriedRow)) -> Result<(), RowError> {
        carry::all(self, each)
    }

    fn carried_nodes(&self, each: &mut dyn FnMut(CarriedNode)) -> Result<(), RowError> {
        carry::nodes(self, each)
    }

    fn carried_sum(&self, account: AccountId, node: i64) -> Result<Option<CarriedSum>, RowError> {
        carry::sum_of(self, account, node)
    }

    fn carried_day(
        &self,
        account: AccountId,
        key: &UsageDay,
    ) -> Result<Option<UsageDay>, RowError> {
        usage_days::carried_day(self, account, key)
    }

    fn carried_pages(&self, each: &mut dyn FnMut(AccountId, RecordDigest)) -> Result<(), RowError> {
        carry::pages(self, each)
    }

    fn size(&self) -> Result<StoreSize, RowError> {
        size::size(self)
    }

    fn commit_ids(&self) -> Result<Vec<i64>, RowError> {
        self.all("SELECT id FROM journal ORDER BY id", values![], |row| {
            row.get(0)
        })
    }

    fn commit(&self, id: i64) -> Result<Option<BatchRows>, RowError> {
        let sql = "SELECT id, body, entries, sum_avail, sum_held, prev, hash, at FROM journal WHERE id = ?1";
        self.first(sql, values![id], batch_rows)
    }

    fn last_hash(&self, node: i64) -> Result<Option<[u8; 32]>, RowError> {
        let (first, last) = commit_id::range(node);
        let sql = "SELECT hash FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
        self.first(sql, values![first, last], |row| row.get(0))
    }

    fn last_number(&self, node: i64, epoch: i64) -> Result<i64, RowError> {
        let (first, last) = (
            commit_id::id(node, epoch, 0),
            commit_id::id(node, epoch + 1, 0) - 1,
        );
        let sql = "SELECT id FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
        let found = self.first(sql, values![first, last], |row| row.get(0))?;
        Ok(found.map_or(0, |id| commit_id::numbers(id).2))
    }

    fn posted_marks(&self, each: &mut dyn FnMut(i64, i64)) -> Result<(), RowError> {
        let sql = on_marks!(self, "SELECT id, posted FROM ", " ORDER BY id");
        let read = |row: &dyn SqlRow| Ok((row.get(0)?, row.get(1)?));
        self.each(sql, values![], read, &mut |(node, row)| each(node, row))
    }

    fn posted_holds(&self, each: &mut dyn FnMut(OpenHold)) -> Result<(), RowError> {
        let sql =
            "SELECT id, account_id, amount, node_id, epoch, created_at, expires_at FROM holds";
        self.each(sql, values![], hold, each)
    }

    fn posted_accounts(
        &self,
        which: Accounts<'_>,
        each: &mut dyn FnMut(AccountRow),
    ) -> Result<(), RowError> {
        match which {
            Accounts::All => posted_accounts(self, "", values![], each),
            Accounts::Of(accounts) => id_lists::each(accounts, &mut |values, ids| {
                posted_accounts(self, &format!("WHERE id IN ({ids})"), &values, each)
            }),
            Accounts::After(after, limit) => {
                let after = after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]);
                let which = "WHERE id > ?1 ORDER BY id LIMIT ?2";
                posted_accounts(self, which, values![after, limit], each)
            }
        }
    }

    fn load_accounts(
        &self,
        node: i64,
        accounts: &[AccountId],
        each: &mut dyn FnMut(AccountId, LoadedAccount),
    ) -> Result<(), RowError> {
        loaded::accounts(self, node, accounts, each)
    }

    fn posted_owed(&self) -> Result<i64, RowError> {
        loaded::owed(self)
    }

    fn account_classes(&self) -> Result<Vec<Arc<str>>, RowError> {
        let sql = "SELECT DISTINCT rate_class FROM accounts";
        self.all(sql, values![], |row| row.get::<Arc<str>>(0))
    }

    fn posted_balances(
        &self,
        node: i64,
        accounts: &[AccountId],
        each: &mut dyn FnMut(AccountId, Balance),
    ) -> Result<(), RowError> {
        loaded::balances(self, node, accounts, each)
    }

    fn allotments(&self, node: i64, each: &mut dyn FnMut(AllotmentRow)) -> Result<(), RowError> {
        allotment::of_node(self, node, each)
    }

    fn shared_balances(
        &self,
        accounts: &[AccountId],
        each: &mut dyn FnMut(AccountId, SharedBalance),
    ) -> Result<(), RowError> {
        allotment::shared_balances(self, accounts, each)
    }

    fn is_recall_pending(&self, node: i64, purse: Purse, recall: i64) -> Result<bool, RowError> {
        allotment::is_recall_pending(self, node, purse, recall)
    }

    fn cap_allotments(
        &self,
        node: i64,
        each: &mut dyn FnMut(CapAllotmentRow),
    ) -> Result<(), RowError> {
        allotment::caps_of_node(self, node, each)
    }

    fn cap_rows(&self, cap: KeyCap) -> Result<Vec<CapRow>, RowError> {
        allotment::cap_rows(self, cap)
    }

    fn cap_months(&self, credential: CredentialId) -> Result<Vec<Month>, RowError> {
        allotment::cap_months(self, credential)
    }

    fn recall(&self, purse: Purse) -> Result<Recall, RowError> {
        allotment::recall(self, purse)
    }

    fn changes(
        &self,
        after: i64,
        limit: usize,
        each: &mut dyn FnMut(ChangeRow),
    ) -> Result<FeedBounds, RowError> {
        allotment::changes(self, after, limit, each)
    }

    fn changed_caps_without(
        &self,
        node: i64,
        each: &mut dyn FnMut(KeyCap),
    ) -> Result<(), RowError> {
        allotment::changed_caps_without(self, node, each)
    }

    fn recalls(&self, node: i64, each: &mut dyn FnMut(Purse, i64)) -> Result<(), RowError> {
        allotment::recalls(self, node, each)
    }

    fn pages(&self, which: PageRange, each: &mut EachPage<'_>) -> Result<(), RowError> {
        pages::of_account(self, which, each)
    }

    fn all_pages(&self, each: &mut EachPage<'_>) -> Result<(), RowError> {
        let sql = "SELECT account_id, id, at_min, at_max, body FROM postings";
        pages::each(self, sql, values![], each)
    }

    fn usage_days(&self, which: DayRange, each: &mut EachDay<'_>) -> Result<(), RowError> {
        usage_days::read(self, which, each)
    }

    fn are_days_posted(&self) -> Result<bool, RowError> {
        let sql = on_marks!(self, "SELECT 1 FROM ", " WHERE days_posted <> posted");
        Ok(!self.exists(sql, values![])?)
    }

    fn booked(
        &self,
        account: AccountId,
        reference: &str,
    ) -> Result<Option<(OperationId, i64, Micros)>, RowError> {
        let sql = "SELECT op_id, kind, amount FROM credit_references WHERE account_id = ?1 AND reference = ?2";
        self.first(sql, values![account, reference], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
    }

    fn bookings(&self, each: &mut dyn FnMut(Booking<'_>)) -> Result<(), RowError> {
        let sql = "SELECT account_id, reference, op_id, kind, amount FROM credit_references";
        self.query(sql, values![], &mut |row| {
            each(Booking {
                account: row.get(0)?,
                reference: row.get(1)?,
                operation: row.get(2)?,
                kind: row.get(3)?,
                amount: row.get(4)?,
            });
            Ok(ControlFlow::Continue(()))
        })
    }

    fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), RowError> {
        all_prices(self, each)
    }

    fn payments(&self, each: &mut dyn FnMut(PaymentRow)) -> Result<(), RowError> {
        plan::all_payments(self, each)
    }

    fn subscriptions(&self, each: &mut dyn FnMut(SubscriptionRow)) -> Result<(), RowError> {
        plan::all_subscriptions(self, each)
    }

    fn audit_records(&self, each: &mut dyn FnMut(AuditRecord)) -> Result<(), RowError> {
        audit_log::all(self, each)
    }

    fn last_audit_record(&self, node: i64) -> Result<Option<(i64, [u8; 32])>, RowError> {
        audit_log::last(self, node)
    }

    fn account_of_login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<AccountId>, RowError> {
        let sql = "SELECT account_id FROM logins WHERE kind = ?1 AND address = ?2";
        self.first(sql, values![kind, address], |row| row.get(0))
    }

    fn logins(&self, account: AccountId, each: &mut dyn FnMut(LoginRow)) -> Result<(), RowError> {
        let sql = "SELECT id, account_id, kind, address, verified_at, created_at FROM logins WHERE account_id = ?1 ORDER BY id";
        self.each(sql, values![account], login, each)
    }

    fn credentials(
        &self,
        which: Credentials<'_>,
        each: &mut dyn FnMut(CredentialRow),
    ) -> Result<(), RowError> {
        match which {
            // The plus keeps the engine from using the index by expiry, which would fetch each row separately.
            Credentials::ValidAt(now) => all_credentials(
                self,
                "WHERE revoked_at IS NULL AND +expires_at > ?1",
                values![now],
                each,
            ),
            Credentials::OfAccount(account) => all_credentials(
                self,
                "WHERE account_id = ?1 ORDER BY created_at, id",
                values![account],
                each,
            ),
            Credentials::WithId(id) => all_credentials(self, "WHERE id = ?1", values![id], each),
            Credentials::WithHash(hash) => {
                all_credentials(self, "WHERE hash = ?1", values![hash], each)
            }
        }
    }

    fn idempotency(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRow>, RowError> {
        keys::read(self, key)
    }
}

impl<C: Sql> WriteRows for C {
    fn begin_unit(&self) -> Result<(), EngineError> {
        self.write("SAVEPOINT unit", values![])
    }

    fn keep_unit(&self) -> Result<(), EngineError> {
        self.write("RELEASE unit", values![])
    }

    fn undo_unit(&self) -> Result<(), EngineError> {
        self.write("ROLLBACK TO unit", values![])?;
        self.keep_unit()
    }

    fn insert_audit_record(&self, record: &AuditRecord) -> Result<(), EngineError> {
        audit_log::insert(self, record)
    }

    fn write_part(&self, part: &Part) -> Result<(), WriteError> {
        match part {
            Part::CreateAccount(account) => parts::create_account(self, account),
            Part::ChangeAccount(change) => parts::change_account(self, change),
            Part::InsertCredential(credential) => parts::insert_credential(self, credential),
            Part::ChangeCredential(change) => parts::change_credential(self, change),
            Part::RevokeCredential { id, at } => parts::revoke_credential(self, *id, *at),
            Part::InsertLogin(login) => parts::insert_login(self, login),
            Part::RecordPrice(row) => parts::record_price(self, row),
            Part::Idempotency(part) => keys::write(self, part),
            Part::OAuth(part) => oauth::write(self, part),
            Part::Plan(part) => plan::write(self, part),
            Part::Authorization(part) => x402::write(self, part),
            Part::Acme(part) => acme::write(self, part),
            Part::TopUp(part) => topup::write(self, part),
            Part::Checkout(part) => checkout::write(self, part),
            Part::Mandate(part) => mandate::write(self, part),
            Part::Signin(part) => signin::write(self, part),
            Part::RecordRefusals(rows) => refusals::write(self, rows),
            // The change is all of it.
            Part::PurgeCache { .. } => Ok(()),
            Part::EraseAccount(account) => Ok(erasure::erase(self, *account)?),
            Part::PruneChanges => Ok(self.prune_changes()?),
            Part::Audit(_) => unreachable!("an event of the audit log is chained by the writer"),
            Part::Load(_) => unreachable!("a load writes nothing"),
            Part::Ledger(_) | Part::Allotment(_) | Part::Carry(_) => {
                unreachable!("a part of the ledger is packed into the journal")
            }
        }
    }

    fn insert_change(
        &self,
        id: [u8; 16],
        at: Timestamp,
        kind: ChangeKind,
        subject: &[u8; 16],
        number: i64,
    ) -> Result<(), EngineError> {
        let sql = "INSERT INTO changes (id, at, kind, subject, number) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.write(sql, values![id, at, kind, subject, number])
    }

    fn prune_changes(&self) -> Result<(), RowError> {
        allotment::prune_changes(self)
    }

    fn next_number(&self) -> Result<i64, RowError> {
        allotment::next_number(self)
    }

    fn move_shared(&self, moves: &BTreeMap<AccountId, i64>) -> Result<(), EngineError> {
        allotment::move_shared(self, moves)
    }

    fn open_allotments(
        &self,
        node: i64,
        opened: &BTreeMap<AccountId, i64>,
    ) -> Result<(), EngineError> {
        allotment::open_allotments(self, node, opened)
    }

    fn insert_cap_row(
        &self,
        node: i64,
        cap: KeyCap,
        granted: i64,
        spent: i64,
        recall: i64,
    ) -> Result<(), EngineError> {
        allotment::insert_cap_row(self, node, cap, granted, spent, recall)
    }

    fn open_cap_row(&self, node: i64, cap: KeyCap, recall: i64) -> Result<(), EngineError> {
        allotment::open_cap_row(self, node, cap, recall)
    }

    fn grant_cap(&self, node: i64, cap: KeyCap, by: i64) -> Result<(), EngineError> {
        allotment::grant_cap(self, node, cap, by)
    }

    fn try_grant_cap(&self, node: i64, cap: KeyCap, by: i64) -> Result<bool, EngineError> {
        allotment::try_grant_cap(self, node, cap, by)
    }

    fn spend_caps(&self, node: i64, spent: &KeySpending) -> Result<(), EngineError> {
        allotment::spend_caps(self, node, spent)
    }

    fn answer_recalls(
        &self,
        node: i64,
        answers: &BTreeMap<AccountId, i64>,
    ) -> Result<(), EngineError> {
        allotment::answer_recalls(self, node, answers)
    }

    fn answer_cap_recall(&self, node: i64, cap: KeyCap, number: i64) -> Result<(), EngineError> {
        allotment::answer_cap_recall(self, node, cap, number)
    }

    fn leave(&self, node: i64) -> Result<(), EngineError> {
        allotment::leave(self, node)
    }

    fn set_recall(&self, purse: Purse, recall: Recall) -> Result<(), EngineError> {
        allotment::set_recall(self, purse, recall)
    }

    fn account_exists(&self, account: AccountId) -> Result<bool, RowError> {
        parts::account_exists(self, account)
    }

    fn book(&self, booking: Booking<'_>) -> Result<(), EngineError> {
        let sql = "INSERT INTO credit_references (account_id, reference, op_id, kind, amount) VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = values![
            booking.account,
            booking.reference,
            booking.operation,
            booking.kind,
            booking.amount,
        ];
        self.write(sql, values)
    }

    fn post_balances(
        &self,
        node: i64,
        balances: &[(AccountId, Balance)],
    ) -> Result<(), EngineError> {
        if commit_id::has_allotments(node) {
            return allotment::post_balances(self, node, balances);
        }
        let sql = match self.dialect() {
            // Without a savepoint, which would copy each page: an error here rolls back the whole transaction.
            Dialect::Sqlite => {
                "UPDATE OR FAIL accounts SET available = ?2, held = ?3, updated_at = max(updated_at, ?4) WHERE id = ?1"
            }
            Dialect::Postgres => {
                "UPDATE accounts AS a SET available = v.available, held = v.held, updated_at = greatest(a.updated_at, v.at)
                 FROM (VALUES (CAST(?1 AS BYTEA), CAST(?2 AS BIGINT), CAST(?3 AS BIGINT), CAST(?4 AS BIGINT))) AS v (id, available, held, at)
                 WHERE a.id = v.id"
            }
        };
        self.execute_rows(sql, &mut |run| {
            balances.iter().try_for_each(|(account, balance)| {
                run(values![
                    account,
                    balance.available,
                    balance.held,
                    balance.at
                ])
            })
        })
    }

    fn remove_holds(&self, ended: &[OperationId]) -> Result<(), EngineError> {
        self.execute_each("DELETE FROM holds WHERE id = ?1", &mut |run| {
            (ended.iter()).try_for_each(|operation| run(values![operation]))
        })
    }

    fn insert_holds<'h>(
        &self,
        mut begun: impl Iterator<Item = &'h OpenHold>,
    ) -> Result<(), EngineError> {
        let sql = "INSERT INTO holds (id, account_id, amount, node_id, epoch, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        self.execute_rows(sql, &mut |run| {
            begun.try_for_each(|hold| {
                run(values![
                    hold.operation,
                    hold.account,
                    hold.amount,
                    hold.node,
                    hold.epoch,
                    hold.created_at,
                    hold.expires_at,
                ])
            })
        })
    }

    fn insert_pages(&self, feed: &mut PageFeed<'_>) -> Result<(), EngineError> {
        let sql = "INSERT INTO postings (account_id, at_max, id, at_min, body) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.execute_rows(sql, &mut |run| {
            feed(&mut |page| {
                run(values![
                    page.account,
                    page.at_max,
                    page.row,
                    page.at_min,
                    page.body
                ])
            })
        })
    }

    fn add_usage_days(&self, totals: &DayTotals) -> Result<(), EngineError> {
        usage_days::add(self, totals)
    }

    fn remove_usage_days(&self) -> Result<(), EngineError> {
        self.write("DELETE FROM usage_days", values![])
    }

    fn set_days_posted(&self) -> Result<(), EngineError> {
        let sql = on_marks!(self, "UPDATE ", " SET days_posted = posted");
        self.write(sql, values![])
    }

    fn set_posted(&self, node: i64, row: i64) -> Result<(), EngineError> {
        // `posted` is NOT NULL, so this fails if the journal row is missing, which may have been sent without waiting for its result.
        let sql = on_marks!(
            self,
            "UPDATE ",
            " SET posted = (SELECT id FROM journal WHERE id = ?2), days_posted = ?2 WHERE id = ?1"
        );
        self.write(sql, values![node, row])
    }

    fn put_carry(&self, number: i64, digest: &RowDigest) -> Result<(), EngineError> {
        carry::put_number(self, number, digest)
    }

    fn put_carried(&self, row: &CarriedRow) -> Result<(), EngineError> {
        carry::put(self, row)
    }

    fn remove_carried_record(
        &self,
        operation: OperationId,
    ) -> Result<Option<CarriedRow>, RowError> {
        carry::remove_record(self, operation)
    }

    fn add_carried_pages(&self, account: AccountId, more: RecordDigest) -> Result<(), RowError> {
        carry::add_pages(self, account, more)
    }

    fn take_usage_day(&self, account: AccountId, day: &UsageDay) -> Result<(), EngineError> {
        usage_days::take(self, account, day)
    }

    fn remove_pages(
        &self,
        account: AccountId,
        rows: (i64, i64),
        until: Timestamp,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RowError> {
        carry::remove_pages(self, account, rows, until, each)
    }

    fn remove_commits(&self, after: i64, last: i64) -> Result<(), EngineError> {
        let sql = "DELETE FROM journal WHERE id > ?1 AND id <= ?2";
        self.write(sql, values![after, last])
    }
}
