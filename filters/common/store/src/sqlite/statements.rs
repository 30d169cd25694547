//! The statements of the writer, prepared once.

use rusqlite::{Connection, Statement, params};
use tollgate_money::{AccountId, Micros, OperationId};

use crate::books::{Entry, Seal};
use crate::rows::UsageRecord;

/// What a request costs in statements. Everything rarer is prepared where it stands and kept by the connection.
pub(crate) struct Statements<'c> {
    insert_entry: Statement<'c>,
    insert_hold: Statement<'c>,
    delete_hold: Statement<'c>,
    insert_usage: Statement<'c>,
    move_balance: Statement<'c>,
    insert_seal: Statement<'c>,
    pub(crate) begin: Statement<'c>,
    pub(crate) commit: Statement<'c>,
}

impl<'c> Statements<'c> {
    pub(crate) fn prepare(connection: &'c Connection) -> rusqlite::Result<Statements<'c>> {
        Ok(Statements {
            insert_entry: connection.prepare(
                "INSERT INTO entries (op_id, phase, kind, account_id, d_avail, d_held, contra, ref, price_ver, node_id, epoch, batch, at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?,
            insert_hold: connection.prepare(
                "INSERT INTO holds (id, account_id, amount, node_id, epoch, created_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?,
            delete_hold: connection
                .prepare("DELETE FROM holds WHERE id = ?1 AND account_id = ?2 AND amount = ?3")?,
            insert_usage: connection.prepare(
                "INSERT INTO usage (op_id, account_id, credential_id, endpoint, model, upstream, prompt_tokens, completion_tokens,
                                    flags, cost, writeoff, http_status, ttfb_us, total_us, at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            )?,
            move_balance: connection.prepare(
                "UPDATE accounts SET available = available + ?2, held = held + ?3, updated_at = ?4 WHERE id = ?1",
            )?,
            insert_seal: connection.prepare(
                "INSERT INTO seals (node_id, epoch, n, entries, sum_avail, sum_held, prev, hash, at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?,
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            commit: connection.prepare("COMMIT")?,
        })
    }

    pub(crate) fn insert_entry(&mut self, entry: &Entry) -> rusqlite::Result<()> {
        self.insert_entry
            .execute(params![
                entry.operation.as_bytes(),
                entry.phase(),
                entry.kind.code(),
                entry.account.as_bytes(),
                entry.d_available.get(),
                entry.d_held.get(),
                entry.contra.code(),
                entry.reference.as_deref(),
                entry.price_version,
                entry.node,
                entry.epoch,
                entry.batch,
                entry.at,
            ])
            .map(|_| ())
    }

    /// The row of a hold, owned by the node and epoch of its entry.
    pub(crate) fn insert_hold(&mut self, entry: &Entry, expires_at: i64) -> rusqlite::Result<()> {
        self.insert_hold
            .execute(params![
                entry.operation.as_bytes(),
                entry.account.as_bytes(),
                entry.d_held.get(),
                entry.node,
                entry.epoch,
                entry.at,
                expires_at,
            ])
            .map(|_| ())
    }

    /// Takes the hold away; `false` when it is not there as described.
    pub(crate) fn delete_hold(
        &mut self,
        operation: OperationId,
        account: AccountId,
        amount: Micros,
    ) -> rusqlite::Result<bool> {
        self.delete_hold
            .execute(params![
                operation.as_bytes(),
                account.as_bytes(),
                amount.get()
            ])
            .map(|changed| changed == 1)
    }

    pub(crate) fn insert_usage(
        &mut self,
        operation: OperationId,
        account: AccountId,
        usage: &UsageRecord,
        cost: Micros,
        written_off: Micros,
        at: i64,
    ) -> rusqlite::Result<()> {
        // Counts beyond 63 bits come only from an upstream that lies; the cost was computed from what it said.
        let stored = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        self.insert_usage
            .execute(params![
                operation.as_bytes(),
                account.as_bytes(),
                usage.credential.as_ref().map(|id| id.as_bytes()),
                usage.endpoint.code(),
                &*usage.model,
                usage.upstream.as_deref(),
                stored(usage.prompt_tokens),
                stored(usage.completion_tokens),
                usage.flags.bits(),
                cost.get(),
                written_off.get(),
                usage.http_status,
                usage.ttfb_us.map(stored),
                usage.total_us.map(stored),
                at,
            ])
            .map(|_| ())
    }

    /// Moves both fields of an account; `false` when there is no such account.
    pub(crate) fn move_balance(
        &mut self,
        account: AccountId,
        available: i64,
        held: i64,
        at: i64,
    ) -> rusqlite::Result<bool> {
        self.move_balance
            .execute(params![account.as_bytes(), available, held, at])
            .map(|changed| changed == 1)
    }

    pub(crate) fn insert_seal(&mut self, seal: &Seal) -> rusqlite::Result<()> {
        self.insert_seal
            .execute(params![
                seal.node,
                seal.epoch,
                seal.number,
                seal.entries,
                seal.sum_available.get(),
                seal.sum_held.get(),
                &seal.previous[..],
                &seal.hash[..],
                seal.at,
            ])
            .map(|_| ())
    }
}
