//! Subscriptions and payments. Rare: the statements are prepared on use.

use std::sync::LazyLock;

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use super::changed;
use super::versioned::VersionedTable;
use crate::codes::Route;
use crate::engine::{RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::plan::{PaymentRow, PlanPart, SubscriptionRow};
use crate::reader::Reader;

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

pub(crate) fn write(connection: &dyn Sql, part: &PlanPart) -> Result<(), WriteError> {
    match part {
        PlanPart::Put { row, class } => {
            let moved = Refusal::SubscriptionConflict(row.account);
            match row.version {
                0 => SUBSCRIPTIONS.insert(connection, &values_of(row), moved)?,
                _ => SUBSCRIPTIONS.replace(connection, &values_of(row), moved.clone(), moved)?,
            }
            let sql = "UPDATE accounts SET plan_class = ?2, plan_until = ?3, updated_at = ?4 WHERE id = ?1";
            let accounts = connection.execute(
                sql,
                values![row.account, class, row.period_end, row.updated_at],
            )?;
            changed(accounts, || Refusal::NoAccount(row.account))?;
        }
        PlanPart::Pay(row) => {
            let sql = format!(
                "INSERT INTO payments ({PAYMENT}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)
                 ON CONFLICT DO NOTHING"
            );
            let inserted = connection.execute(
                &sql,
                values![
                    row.id,
                    row.account,
                    row.subscription,
                    row.route,
                    row.provider_ref,
                    row.amount,
                    row.credits,
                    row.period_start,
                    row.period_end,
                    row.status,
                    row.receipt,
                    row.at,
                    row.returned_at,
                    row.owed,
                    row.attempts,
                    row.next_attempt_at,
                ],
            )?;
            changed(inserted, || Refusal::PaymentKnown)?;
        }
        PlanPart::ChangePayment {
            row,
            before: (status, owed),
        } => {
            let sql = "UPDATE payments SET status = ?3, returned_at = ?4, owed = ?5, looks = ?6, look_at = ?7
                     WHERE route = ?1 AND provider_ref = ?2 AND status = ?8 AND owed IS NOT DISTINCT FROM ?9";
            let updated = connection.execute(
                sql,
                values![
                    row.route,
                    row.provider_ref,
                    row.status,
                    row.returned_at,
                    row.owed,
                    row.attempts,
                    row.next_attempt_at,
                    status,
                    owed,
                ],
            )?;
            changed(updated, || Refusal::PaymentKnown)?;
        }
    }
    Ok(())
}

fn values_of(row: &SubscriptionRow) -> [Value<'_>; 12] {
    *values![
        row.id,
        row.account,
        row.route,
        row.reference,
        row.status,
        row.period_start,
        row.period_end,
        row.extra,
        row.renews,
        row.version,
        row.created_at,
        row.updated_at,
    ]
}

fn subscription(row: &dyn SqlRow) -> Result<SubscriptionRow, RowError> {
    Ok(SubscriptionRow {
        id: row.get(0)?,
        account: row.get(1)?,
        route: row.get(2)?,
        reference: row.get(3)?,
        status: row.get(4)?,
        period_start: row.get(5)?,
        period_end: row.get(6)?,
        extra: row.get(7)?,
        renews: row.get(8)?,
        version: row.get(9)?,
        created_at: row.get(10)?,
        updated_at: row.get(11)?,
    })
}

fn payment(row: &dyn SqlRow) -> Result<PaymentRow, RowError> {
    Ok(PaymentRow {
        id: row.get(0)?,
        account: row.get(1)?,
        subscription: row.get(2)?,
        route: row.get(3)?,
        provider_ref: row.get(4)?,
        amount: row.get(5)?,
        credits: row.get(6)?,
        period_start: row.get(7)?,
        period_end: row.get(8)?,
        status: row.get(9)?,
        receipt: row.get(10)?,
        at: row.get(11)?,
        returned_at: row.get(12)?,
        owed: row.get(13)?,
        attempts: row.get(14)?,
        next_attempt_at: row.get(15)?,
    })
}

/// Visits every payment for the plan.
pub(crate) fn all_payments(
    connection: &dyn Sql,
    each: &mut dyn FnMut(PaymentRow),
) -> Result<(), RowError> {
    let sql = format!("SELECT {PAYMENT} FROM payments");
    connection.each(&sql, values![], payment, each)
}

/// Visits every subscription.
pub(crate) fn all_subscriptions(
    connection: &dyn Sql,
    each: &mut dyn FnMut(SubscriptionRow),
) -> Result<(), RowError> {
    let sql = format!("SELECT {} FROM subscriptions", SUBSCRIPTIONS.columns);
    connection.each(&sql, values![], subscription, each)
}

impl Reader {
    fn some_payments(
        &self,
        which: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<PaymentRow>, ReadError> {
        self.with("payments", |connection| {
            connection.all(
                &format!("SELECT {PAYMENT} FROM payments {which}"),
                values,
                payment,
            )
        })
    }
}

impl Reader {
    /// The subscription of an account, ended or not.
    pub fn subscription(&self, account: AccountId) -> Result<Option<SubscriptionRow>, ReadError> {
        self.with("a subscription", |connection| {
            let sql = format!(
                "SELECT {} FROM subscriptions WHERE account_id = ?1",
                SUBSCRIPTIONS.columns
            );
            connection.first(&sql, values![account], subscription)
        })
    }

    /// A payment.
    pub fn payment(
        &self,
        route: Route,
        provider_ref: &str,
    ) -> Result<Option<PaymentRow>, ReadError> {
        let found = self.some_payments(
            "WHERE route = ?1 AND provider_ref = ?2",
            values![route, provider_ref],
        )?;
        Ok(found.into_iter().next())
    }

    /// At most `limit` payments of an account, newest first.
    pub fn payments_of(
        &self,
        account: AccountId,
        limit: usize,
    ) -> Result<Vec<PaymentRow>, ReadError> {
        self.some_payments(
            "WHERE account_id = ?1 ORDER BY at DESC, id DESC LIMIT ?2",
            values![account, limit],
        )
    }

    /// At most `limit` payments whose owed credits are to be taken back by `now`, the longest due first.
    pub fn payments_due(&self, now: Timestamp, limit: usize) -> Result<Vec<PaymentRow>, ReadError> {
        self.some_payments(
            "WHERE look_at <= ?1 ORDER BY look_at LIMIT ?2",
            values![now, limit],
        )
    }

    /// Number of subscriptions that give access at `now`.
    pub fn subscriptions_active(&self, now: Timestamp) -> Result<u64, ReadError> {
        self.with("subscriptions", |connection| {
            Ok(connection
                .number(
                    "SELECT count(*) FROM subscriptions WHERE period_end > ?1",
                    values![now],
                )?
                .unsigned_abs())
        })
    }
}
