//! The row traits on a connection to SQLite.

use std::ops::ControlFlow;

use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use super::columns::{
    all_credentials, all_prices, each_row, hold, login, posted_accounts, rows_max,
};
use super::{
    checkout, file, keys, mandate, oauth, parts, plan, refusals, signin, topup, usage_days, x402,
};
use crate::codes::{ChangeKind, LoginKind};
use crate::commit_id;
use crate::engine::{
    Accounts, Balance, Booking, Credentials, DayRange, EachBody, EachDay, EachPage, EngineError,
    JournalRows, NewRun, Page, PageOrder, PageRange, RecoverRows, RowError, Rows, WriteError,
    WriteRows,
};
use crate::entries::Seal;
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::plan::{PaymentRow, SubscriptionRow};
use crate::reads::DayTotals;
use crate::rows::{AccountRow, CredentialRow, LoginRow, OpenHold, PriceRow};
use crate::store::BatchRows;
use crate::unit::Part;

pub(crate) const INSERT_COMMIT: &str = "INSERT INTO journal (id, entries, sum_avail, sum_held, prev, hash, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

const ALL: &str =
    "SELECT body, id, entries, sum_avail, sum_held, prev, hash, at FROM journal ORDER BY id";

/// Every node's rows after its last posted one. They are in the order of the ids; the clause says so to avoid a sort.
const UNPOSTED: &str = "SELECT j.body, j.id FROM nodes n JOIN journal j
     ON j.id BETWEEN max(n.posted + 1, n.id << 56) AND (n.id << 56 | 72057594037927935) ORDER BY n.id, j.id";

const POSTED: &str = "SELECT j.body, j.id FROM nodes n JOIN journal j ON j.id BETWEEN n.id << 56 AND n.posted ORDER BY n.id, j.id";

fn batch_rows(row: &Row<'_>) -> Result<BatchRows, RowError> {
    let (node, epoch, number) = commit_id::numbers(row.get(1)?);
    Ok(BatchRows {
        seal: Seal {
            node,
            epoch,
            number,
            entries: row.get(2)?,
            sum_available: Micros::new(row.get(3)?),
            sum_held: Micros::new(row.get(4)?),
            previous: row.get(5)?,
            hash: row.get(6)?,
            at: row.get(7).map(Timestamp::from_micros)?,
        },
        body: row.get(0)?,
    })
}

fn each_body(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    each: &mut EachBody<'_>,
) -> Result<(), RowError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        each(row.get(1)?, row.get_ref(0)?.as_blob()?)?;
    }
    Ok(())
}

/// Visits pages, whose columns are account, row, times and body.
fn each_page(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    each: &mut EachPage<'_>,
) -> Result<(), RowError> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let page = Page {
            account: AccountId::from_bytes(row.get(0)?),
            row: row.get(1)?,
            at_min: row.get(2).map(Timestamp::from_micros)?,
            at_max: row.get(3).map(Timestamp::from_micros)?,
            body: row.get_ref(4)?.as_blob()?,
        };
        if each(page)?.is_break() {
            break;
        }
    }
    Ok(())
}

impl Rows for Connection {
    fn bodies(&self, which: JournalRows, each: &mut EachBody<'_>) -> Result<(), RowError> {
        match which {
            JournalRows::All => {
                each_body(self, "SELECT body, id FROM journal ORDER BY id", [], each)
            }
            JournalRows::Posted => each_body(self, POSTED, [], each),
            JournalRows::Unposted => each_body(self, UNPOSTED, [], each),
            JournalRows::OfNode(node) => each_body(
                self,
                "SELECT body, id FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id",
                commit_id::range(node),
                each,
            ),
            JournalRows::UnpostedOfNode(node) => {
                let (first, last) = commit_id::range(node);
                each_body(
                    self,
                    "SELECT body, id FROM journal
                     WHERE id BETWEEN ?1 AND ?2 AND id > (SELECT posted FROM nodes WHERE id = ?3) ORDER BY id",
                    params![first, last, node],
                    each,
                )
            }
        }
    }

    fn newest_bodies(
        &self,
        node: i64,
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), RowError> {
        let mut statement =
            self.prepare("SELECT body FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC")?;
        let mut rows = statement.query(commit_id::range(node))?;
        while let Some(row) = rows.next()? {
            if each(row.get_ref(0)?.as_blob()?).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn commits(&self, each: &mut dyn FnMut(BatchRows)) -> Result<(), RowError> {
        each_row(self, ALL, [], batch_rows, each)
    }

    fn commit_ids(&self) -> Result<Vec<i64>, RowError> {
        let mut ids = Vec::new();
        let read = |row: &Row<'_>| Ok(row.get(0)?);
        let sql = "SELECT id FROM journal ORDER BY id";
        each_row(self, sql, [], read, &mut |id| ids.push(id))?;
        Ok(ids)
    }

    fn commit(&self, id: i64) -> Result<Option<BatchRows>, RowError> {
        let mut found = None;
        let sql = "SELECT body, id, entries, sum_avail, sum_held, prev, hash, at FROM journal WHERE id = ?1";
        each_row(self, sql, [id], batch_rows, &mut |row| found = Some(row))?;
        Ok(found)
    }

    fn last_hash(&self, node: i64) -> Result<Option<[u8; 32]>, RowError> {
        let sql = "SELECT hash FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
        let hash = self
            .prepare_cached(sql)?
            .query_row(commit_id::range(node), |row| row.get(0))
            .optional()?;
        Ok(hash)
    }

    fn posted_marks(&self, each: &mut dyn FnMut(i64, i64)) -> Result<(), RowError> {
        let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
        let sql = "SELECT id, posted FROM nodes ORDER BY id";
        each_row(self, sql, [], read, &mut |(node, row)| each(node, row))
    }

    fn posted_holds(&self, each: &mut dyn FnMut(OpenHold)) -> Result<(), RowError> {
        let sql =
            "SELECT id, account_id, amount, node_id, epoch, created_at, expires_at FROM holds";
        each_row(self, sql, [], hold, each)
    }

    fn posted_accounts(
        &self,
        which: Accounts,
        each: &mut dyn FnMut(AccountRow),
    ) -> Result<(), RowError> {
        match which {
            Accounts::All => posted_accounts(self, "", [], each),
            Accounts::One(id) => posted_accounts(self, "WHERE id = ?1", [id.as_bytes()], each),
            Accounts::After(after, limit) => posted_accounts(
                self,
                "WHERE id > ?1 ORDER BY id LIMIT ?2",
                params![
                    after.as_ref().map_or(&[][..], |id| &id.as_bytes()[..]),
                    rows_max(limit)
                ],
                each,
            ),
        }
    }

    fn posted_balance(&self, account: AccountId) -> Result<Option<Balance>, RowError> {
        let read = self
            .prepare_cached(
                "SELECT available, held, credit_limit, updated_at FROM accounts WHERE id = ?1",
            )?
            .query_row([account.as_bytes()], |row| {
                Ok(Balance {
                    available: row.get(0)?,
                    held: row.get(1)?,
                    credit_limit: row.get(2)?,
                    at: row.get(3).map(Timestamp::from_micros)?,
                })
            })
            .optional()?;
        Ok(read)
    }

    fn pages(&self, which: PageRange, each: &mut EachPage<'_>) -> Result<(), RowError> {
        const NO_ORDER: &str = "SELECT account_id, id, at_min, at_max, body FROM postings
             WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3";
        const NEWEST_FIRST: &str = "SELECT account_id, id, at_min, at_max, body FROM postings
             WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3 ORDER BY at_max DESC, id DESC";
        const OLDEST_FIRST: &str = "SELECT account_id, id, at_min, at_max, body FROM postings
             WHERE account_id = ?1 AND at_max >= ?2 AND at_min < ?3 ORDER BY at_max, id";
        let sql = match which.order {
            PageOrder::None => NO_ORDER,
            PageOrder::NewestFirst => NEWEST_FIRST,
            PageOrder::OldestFirst => OLDEST_FIRST,
        };
        let times = (which.from.as_micros(), which.to.as_micros());
        each_page(
            self,
            sql,
            params![which.account.as_bytes(), times.0, times.1],
            each,
        )
    }

    fn all_pages(&self, each: &mut EachPage<'_>) -> Result<(), RowError> {
        let sql = "SELECT account_id, id, at_min, at_max, body FROM postings";
        each_page(self, sql, [], each)
    }

    fn usage_days(&self, which: DayRange, each: &mut EachDay<'_>) -> Result<(), RowError> {
        usage_days::read(self, which, each)
    }

    fn are_days_posted(&self) -> Result<bool, RowError> {
        Ok(usage_days::are_posted(self)?)
    }

    fn bookings(&self, each: &mut dyn FnMut(Booking<'_>)) -> Result<(), RowError> {
        let sql = "SELECT account_id, reference, op_id, kind, amount FROM credit_references";
        let mut statement = self.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            each(Booking {
                account: AccountId::from_bytes(row.get(0)?),
                reference: row.get_ref(1)?.as_str()?,
                operation: OperationId::from_bytes(row.get(2)?),
                kind: row.get(3)?,
                amount: Micros::new(row.get(4)?),
            });
        }
        Ok(())
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

    fn account_of_login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<AccountId>, RowError> {
        let id = self
            .prepare_cached("SELECT account_id FROM logins WHERE kind = ?1 AND address = ?2")?
            .query_row(params![kind.code(), address], |row| row.get(0))
            .optional()?;
        Ok(id.map(AccountId::from_bytes))
    }

    fn logins(&self, account: AccountId, each: &mut dyn FnMut(LoginRow)) -> Result<(), RowError> {
        let sql = "SELECT id, account_id, kind, address, verified_at, created_at FROM logins WHERE account_id = ?1 ORDER BY id";
        each_row(self, sql, [account.as_bytes()], login, each)
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
                [now.as_micros()],
                each,
            ),
            Credentials::OfAccount(account) => all_credentials(
                self,
                "WHERE account_id = ?1 ORDER BY created_at, id",
                [account.as_bytes()],
                each,
            ),
            Credentials::WithHash(hash) => all_credentials(self, "WHERE hash = ?1", [hash], each),
        }
    }

    fn idempotency(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRow>, RowError> {
        Ok(keys::read(self, key)?)
    }

    fn begin_set(&self) -> Result<(), RowError> {
        let sql = "CREATE TEMP TABLE key_set (key BLOB PRIMARY KEY) STRICT, WITHOUT ROWID";
        Ok(self.execute_batch(sql)?)
    }

    fn add_to_set(&self, key: &[u8]) -> Result<bool, RowError> {
        let sql = "INSERT OR IGNORE INTO temp.key_set (key) VALUES (?1)";
        Ok(self.prepare_cached(sql)?.execute([key])? == 1)
    }

    fn end_set(&self) -> Result<(), RowError> {
        Ok(self.execute_batch("DROP TABLE temp.key_set")?)
    }
}

impl WriteRows for Connection {
    fn begin_unit(&self) -> Result<(), EngineError> {
        self.prepare_cached("SAVEPOINT unit")?.execute([])?;
        Ok(())
    }

    fn keep_unit(&self) -> Result<(), EngineError> {
        self.prepare_cached("RELEASE unit")?.execute([])?;
        Ok(())
    }

    fn undo_unit(&self) -> Result<(), EngineError> {
        self.prepare_cached("ROLLBACK TO unit")?.execute([])?;
        self.prepare_cached("RELEASE unit")?.execute([])?;
        Ok(())
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
            Part::TopUp(part) => topup::write(self, part),
            Part::Checkout(part) => checkout::write(self, part),
            Part::Mandate(part) => mandate::write(self, part),
            Part::Signin(part) => signin::write(self, part),
            Part::RecordRefusals(rows) => refusals::write(self, rows),
            Part::Ledger(_) => unreachable!("a part of the ledger is packed into the journal"),
        }
    }

    fn insert_change(
        &self,
        id: [u8; 16],
        at: Timestamp,
        kind: ChangeKind,
        subject: &[u8; 16],
    ) -> Result<(), EngineError> {
        self.prepare_cached("INSERT INTO changes (id, at, kind, subject) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![id, at.as_micros(), kind.code(), subject])?;
        Ok(())
    }

    fn account_exists(&self, account: AccountId) -> Result<bool, EngineError> {
        Ok(parts::account_exists(self, account)?)
    }

    fn booked(
        &self,
        account: AccountId,
        reference: &str,
    ) -> Result<Option<(OperationId, i64, Micros)>, EngineError> {
        let sql = "SELECT op_id, kind, amount FROM credit_references WHERE account_id = ?1 AND reference = ?2";
        let booked = self
            .prepare_cached(sql)?
            .query_row(params![account.as_bytes(), reference], |row| {
                Ok((
                    OperationId::from_bytes(row.get(0)?),
                    row.get(1)?,
                    Micros::new(row.get(2)?),
                ))
            })
            .optional()?;
        Ok(booked)
    }

    fn book(&self, booking: Booking<'_>) -> Result<(), EngineError> {
        let sql = "INSERT INTO credit_references (account_id, reference, op_id, kind, amount) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.prepare_cached(sql)?.execute(params![
            booking.account.as_bytes(),
            booking.reference,
            booking.operation.as_bytes(),
            booking.kind,
            booking.amount.get()
        ])?;
        Ok(())
    }

    fn post_balances(&self, balances: &[(AccountId, Balance)]) -> Result<(), EngineError> {
        let mut update = self.prepare_cached(
            // Without a savepoint, which would copy each page: an error here rolls back the whole transaction.
            "UPDATE OR FAIL accounts SET available = ?2, held = ?3, updated_at = max(updated_at, ?4) WHERE id = ?1",
        )?;
        for (account, balance) in balances {
            update.execute(params![
                account.as_bytes(),
                balance.available,
                balance.held,
                balance.at.as_micros()
            ])?;
        }
        Ok(())
    }

    fn remove_holds(&self, ended: &[OperationId]) -> Result<(), EngineError> {
        let mut delete = self.prepare_cached("DELETE FROM holds WHERE id = ?1")?;
        for operation in ended {
            delete.execute([operation.as_bytes()])?;
        }
        Ok(())
    }

    fn insert_holds<'h>(
        &self,
        begun: impl Iterator<Item = &'h OpenHold>,
    ) -> Result<(), EngineError> {
        let mut insert = self.prepare_cached(
            "INSERT INTO holds (id, account_id, amount, node_id, epoch, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        for hold in begun {
            insert.execute(params![
                hold.operation.as_bytes(),
                hold.account.as_bytes(),
                hold.amount.get(),
                hold.node,
                hold.epoch,
                hold.created_at.as_micros(),
                hold.expires_at.as_micros(),
            ])?;
        }
        Ok(())
    }

    fn insert_page(&self, page: Page<'_>) -> Result<(), EngineError> {
        let sql = "INSERT INTO postings (account_id, at_max, id, at_min, body) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.prepare_cached(sql)?.execute(params![
            page.account.as_bytes(),
            page.at_max.as_micros(),
            page.row,
            page.at_min.as_micros(),
            page.body
        ])?;
        Ok(())
    }

    fn add_usage_days(&self, totals: &DayTotals) -> Result<(), EngineError> {
        Ok(usage_days::add(self, totals)?)
    }

    fn remove_usage_days(&self) -> Result<(), EngineError> {
        Ok(self.execute_batch("DELETE FROM usage_days")?)
    }

    fn set_days_posted(&self) -> Result<(), EngineError> {
        Ok(self.execute_batch("UPDATE nodes SET days_posted = posted")?)
    }

    fn set_posted(&self, node: i64, row: i64) -> Result<(), EngineError> {
        self.prepare_cached("UPDATE nodes SET posted = ?2, days_posted = ?2 WHERE id = ?1")?
            .execute([node, row])?;
        Ok(())
    }
}

impl RecoverRows for Connection {
    fn remove_derived(&self) -> Result<(), EngineError> {
        self.execute_batch(
            "UPDATE accounts SET available = 0, held = 0;
             DELETE FROM holds; DELETE FROM postings; DELETE FROM credit_references;
             DELETE FROM usage_days; UPDATE nodes SET posted = 0, days_posted = 0",
        )?;
        Ok(())
    }

    fn put_commit(&self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), EngineError> {
        let sql = "INSERT OR REPLACE INTO journal (id, entries, sum_avail, sum_held, prev, hash, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        self.prepare_cached(sql)?.execute(params![
            id,
            seal.entries,
            seal.sum_available.get(),
            seal.sum_held.get(),
            seal.previous,
            seal.hash,
            seal.at.as_micros(),
            body
        ])?;
        Ok(())
    }

    fn remove_commit(&self, id: i64) -> Result<(), EngineError> {
        self.prepare_cached("DELETE FROM journal WHERE id = ?1")?
            .execute([id])?;
        Ok(())
    }

    fn raise_epoch(&self, run: &NewRun<'_>) -> Result<i64, WriteError> {
        file::raise_epoch_within(self, run).map(|raised| raised.epoch)
    }

    fn put_node(&self, node: i64, epoch: i64) -> Result<(), EngineError> {
        self.prepare_cached(
            "INSERT INTO nodes (id, epoch, name, lease_until, started_at) VALUES (?1, ?2, 'repair', 0, 0)
             ON CONFLICT (id) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
        )?
        .execute([node, epoch])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::Options;
    use super::*;
    use crate::rows::RootSecret;

    #[test]
    fn posted_and_unposted_rows_are_read_without_a_sort() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
        let path = folder.path().join("t.db");
        file::create_if_missing(&path, &options).expect("a store");
        let connection = file::connect(&path, &options).expect("it opens");
        //   the query    its query plan
        for (sql, way) in [
            (UNPOSTED, "SEARCH j USING INTEGER PRIMARY KEY"),
            (POSTED, "SEARCH j USING INTEGER PRIMARY KEY"),
            (ALL, "SCAN journal"),
        ] {
            let plan: Vec<String> = connection
                .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
                .expect("a plan")
                .query_map([], |row| row.get(3))
                .and_then(Iterator::collect)
                .expect("its steps");
            assert!(plan.iter().any(|step| step.starts_with(way)), "{plan:#?}");
            let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE"));
            assert!(!sorts, "`{sql}`: {plan:#?}");
        }
    }
}
