//! Subscriptions and payments. Rare, so their statements are prepared on use.

use std::sync::LazyLock;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, PaymentId, SubscriptionId, Usd};

use super::columns::{duration, duration_micros, each_row, optional_time, rows_max, word};
use super::failure::key_conflict;
use super::read::SqliteStore;
use super::versioned::VersionedTable;
use crate::codes::{PaymentStatus, Route, SubscriptionStatus};
use crate::engine::{RowError, WriteError};
use crate::error::{ReadError, Refusal};
use crate::plan::{PaymentRow, PlanPart, ReadPlans, SubscriptionRow};

static SUBSCRIPTIONS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "subscriptions",
        "id, account_id, route, reference, status, period_start, period_end, extra, renews, version, created_at, updated_at",
        "account_id",
        &[],
    )
});

const PAYMENT: &str = "id, account_id, subscription_id, route, provider_ref, amount, credits, period_start, period_end, status, receipt, at,
    returned_at, owed, looks, look_at";

pub(crate) fn write(connection: &Connection, part: &PlanPart) -> Result<(), WriteError> {
    match part {
        PlanPart::Put { row, class } => {
            let moved = || Refusal::SubscriptionConflict(row.account);
            let values = params![
                row.id.as_bytes(),
                row.account.as_bytes(),
                row.route.code(),
                row.reference,
                row.status.code(),
                row.period_start.as_micros(),
                row.period_end.as_micros(),
                duration_micros(row.extra),
                row.renews,
                row.version,
                row.created_at.as_micros(),
                row.updated_at.as_micros(),
            ];
            let written = match row.version {
                0 => SUBSCRIPTIONS.insert(connection, values).map(|()| true),
                _ => SUBSCRIPTIONS.update(connection, values),
            };
            let written = written.map_err(|error| key_conflict(error, moved))?;
            if !written {
                return Err(WriteError::Refused(moved()));
            }
            let accounts = connection
                .prepare_cached("UPDATE accounts SET plan_class = ?2, plan_until = ?3, updated_at = ?4 WHERE id = ?1")?
                .execute(params![row.account.as_bytes(), class, row.period_end.as_micros(), row.updated_at.as_micros()])?;
            if accounts == 0 {
                return Err(WriteError::Refused(Refusal::NoAccount(row.account)));
            }
        }
        PlanPart::Pay(row) => {
            connection
                .prepare_cached(&format!(
                    "INSERT INTO payments ({PAYMENT}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)"
                ))?
                .execute(params![
                    row.id.as_bytes(),
                    row.account.as_bytes(),
                    row.subscription.as_bytes(),
                    row.route.code(),
                    row.provider_ref,
                    row.amount.cents(),
                    row.credits.get(),
                    row.period_start.as_micros(),
                    row.period_end.as_micros(),
                    row.status.code(),
                    row.receipt,
                    row.at.as_micros(),
                    row.returned_at.map(Timestamp::as_micros),
                    row.owed.map(Micros::get),
                    row.attempts,
                    row.next_attempt_at.map(Timestamp::as_micros),
                ])
                .map_err(|error| key_conflict(error, || Refusal::PaymentKnown))?;
        }
        PlanPart::ChangePayment {
            row,
            before: (status, owed),
        } => {
            let changed = connection
                .prepare_cached(
                    "UPDATE payments SET status = ?3, returned_at = ?4, owed = ?5, looks = ?6, look_at = ?7
                     WHERE route = ?1 AND provider_ref = ?2 AND status = ?8 AND owed IS ?9",
                )?
                .execute(params![
                    row.route.code(),
                    row.provider_ref,
                    row.status.code(),
                    row.returned_at.map(Timestamp::as_micros),
                    row.owed.map(Micros::get),
                    row.attempts,
                    row.next_attempt_at.map(Timestamp::as_micros),
                    status.code(),
                    owed.map(Micros::get),
                ])?;
            if changed == 0 {
                return Err(WriteError::Refused(Refusal::PaymentKnown));
            }
        }
    }
    Ok(())
}

fn subscription(row: &Row<'_>) -> Result<SubscriptionRow, RowError> {
    Ok(SubscriptionRow {
        id: SubscriptionId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        route: word(row, 2, "a route of payment", Route::from_code)?,
        reference: row.get(3)?,
        status: word(
            row,
            4,
            "a subscription's status",
            SubscriptionStatus::from_code,
        )?,
        period_start: row.get(5).map(Timestamp::from_micros)?,
        period_end: row.get(6).map(Timestamp::from_micros)?,
        extra: row.get(7).map(duration)?,
        renews: row.get(8)?,
        version: row.get(9)?,
        created_at: row.get(10).map(Timestamp::from_micros)?,
        updated_at: row.get(11).map(Timestamp::from_micros)?,
    })
}

fn payment(row: &Row<'_>) -> Result<PaymentRow, RowError> {
    Ok(PaymentRow {
        id: PaymentId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        subscription: SubscriptionId::from_bytes(row.get(2)?),
        route: word(row, 3, "a route of payment", Route::from_code)?,
        provider_ref: row.get(4)?,
        amount: Usd::from_cents(row.get(5)?),
        credits: Micros::new(row.get(6)?),
        period_start: row.get(7).map(Timestamp::from_micros)?,
        period_end: row.get(8).map(Timestamp::from_micros)?,
        status: word(row, 9, "a payment's status", PaymentStatus::from_code)?,
        receipt: row.get(10)?,
        at: row.get(11).map(Timestamp::from_micros)?,
        returned_at: optional_time(row, 12)?,
        owed: row.get::<_, Option<i64>>(13)?.map(Micros::new),
        attempts: row.get(14)?,
        next_attempt_at: optional_time(row, 15)?,
    })
}

pub(crate) fn all_payments(
    connection: &Connection,
    each: &mut dyn FnMut(PaymentRow),
) -> Result<(), RowError> {
    let sql = format!("SELECT {PAYMENT} FROM payments");
    each_row(connection, &sql, [], payment, each)
}

pub(crate) fn all_subscriptions(
    connection: &Connection,
    each: &mut dyn FnMut(SubscriptionRow),
) -> Result<(), RowError> {
    let sql = format!("SELECT {} FROM subscriptions", SUBSCRIPTIONS.columns);
    each_row(connection, &sql, [], subscription, each)
}

impl<W> SqliteStore<W> {
    fn some_payments(
        &self,
        which: &str,
        params: impl rusqlite::Params,
    ) -> Result<Vec<PaymentRow>, ReadError> {
        self.with("payments", |connection| {
            let mut found = Vec::new();
            let sql = format!("SELECT {PAYMENT} FROM payments {which}");
            each_row(connection, &sql, params, payment, &mut |row| {
                found.push(row)
            })?;
            Ok(found)
        })
    }
}

impl<W> ReadPlans for SqliteStore<W> {
    fn subscription(&self, account: AccountId) -> Result<Option<SubscriptionRow>, ReadError> {
        self.with("a subscription", |connection| {
            let mut found = None;
            let sql = format!(
                "SELECT {} FROM subscriptions WHERE account_id = ?1",
                SUBSCRIPTIONS.columns
            );
            each_row(
                connection,
                &sql,
                [account.as_bytes()],
                subscription,
                &mut |row| found = Some(row),
            )?;
            Ok(found)
        })
    }

    fn payment(&self, route: Route, provider_ref: &str) -> Result<Option<PaymentRow>, ReadError> {
        let found = self.some_payments(
            "WHERE route = ?1 AND provider_ref = ?2",
            params![route.code(), provider_ref],
        )?;
        Ok(found.into_iter().next())
    }

    fn payments_of(&self, account: AccountId, limit: usize) -> Result<Vec<PaymentRow>, ReadError> {
        self.some_payments(
            "WHERE account_id = ?1 ORDER BY at DESC, id DESC LIMIT ?2",
            params![account.as_bytes(), rows_max(limit)],
        )
    }

    fn payments_due(&self, now: Timestamp, limit: usize) -> Result<Vec<PaymentRow>, ReadError> {
        self.some_payments(
            "WHERE look_at <= ?1 ORDER BY look_at LIMIT ?2",
            params![now.as_micros(), rows_max(limit)],
        )
    }

    fn subscriptions_active(&self, now: Timestamp) -> Result<u64, ReadError> {
        self.with("subscriptions", |connection| {
            let count: Option<i64> = connection
                .prepare_cached("SELECT count(*) FROM subscriptions WHERE period_end > ?1")?
                .query_row([now.as_micros()], |row| row.get(0))
                .optional()?;
            Ok(count.unwrap_or_default().unsigned_abs())
        })
    }
}
