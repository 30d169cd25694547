//! The worker's reconciliation: each payment of unknown outcome is looked up on the chain, submitted again where that is safe, and closed
//! only by proof; a settled one is looked up once more when its block is final.

use std::sync::Arc;
use std::time::Duration;

use tollgate_purchase::plan::Reversal;
use tollgate_store::{AuthorizationPart, AuthorizationRow, AuthorizationState, Route, reading};

use super::chain_lookup::OnChainStatus;
use super::context::Context;
use super::counters::X402Event;
use super::payment_outcome::{ChainEvidence, PaymentOutcome};
use super::purchase::{PurchaseOutcome, Stop, StoreFailure};
use super::rows::{self, FINAL, MINUTE};
use super::settle::Cause;
use super::single_flight::{FlightKey, Joined, finished};
use super::transfer::{Transfer, part};

/// Interval at which the processor reads the due payments from the store.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);

/// Payments reconciled concurrently.
const CONCURRENT_MAX: usize = 8;

/// How long after its expiry a payment that was refused after submission is kept for the operator.
const REFUSED_RETENTION: Duration = Duration::from_hours(30 * 24);

/// Passes of reconciliation between two deletions of expired payments.
const DELETE_EVERY: u32 = 600;

impl Context {
    pub(super) async fn run_reconciliation(self: &Arc<Self>) {
        self.recover().await;
        let mut passes = 0u32;
        loop {
            self.reconcile_due().await;
            if passes.is_multiple_of(DELETE_EVERY) {
                self.delete_expired().await;
            }
            passes = passes.wrapping_add(1);
            tokio::time::sleep(RECONCILE_INTERVAL).await;
        }
    }

    /// Reconciles all payments that an earlier run left open, a few at a time. Payments that fall due meanwhile are reconciled in between.
    pub(super) async fn recover(self: &Arc<Self>) {
        let has_node = self.deps.node.is_some();
        let (mut last, mut payments) = (None::<AuthorizationRow>, 0);
        loop {
            let Some(_background) = self.deps.runtime.background() else {
                return;
            };
            let after = last.take();
            let open = reading(&self.deps.store, move |store| {
                store.authorizations_open(after.as_ref(), CONCURRENT_MAX)
            });
            let mut rows = match open.await {
                Ok(rows) => rows,
                Err(error) => {
                    tracing::error!(%error, "reading open payments failed");
                    return;
                }
            };
            last = rows.last().cloned();
            if last.is_none() {
                break;
            }
            // Without a node a refused payment cannot be looked up.
            rows.retain(|row| has_node || row.state != AuthorizationState::RefusedAfterSubmit);
            if rows.is_empty() {
                continue;
            }
            payments += self.reconcile_all(rows).await;
            self.reconcile_due().await;
        }
        if payments > 0 {
            tracing::warn!(
                payments,
                "reconciled payments that an earlier run left open"
            );
        }
    }

    /// Reconciles all due payments once and returns their number.
    pub(super) async fn reconcile_due(self: &Arc<Self>) -> usize {
        let Some(_background) = self.deps.runtime.background() else {
            return 0;
        };
        let now = self.now();
        let due = reading(&self.deps.store, move |store| {
            store.authorizations_due(now, CONCURRENT_MAX)
        });
        match due.await {
            Ok(rows) => self.reconcile_all(rows).await,
            Err(error) => {
                tracing::error!(%error, "reading due payments failed");
                0
            }
        }
    }

    async fn reconcile_all(self: &Arc<Self>, rows: Vec<AuthorizationRow>) -> usize {
        let mut ends = Vec::new();
        for row in rows {
            // A payment with an attempt in progress is skipped: the attempt decides it.
            if self.single_flight.has(&row.key) {
                continue;
            }
            let flight_key = FlightKey {
                account: row.account,
                digest: row.digest,
            };
            let (context, key) = (Arc::clone(self), row.key.clone());
            let joined = self.single_flight.join(&key, flight_key, || async move {
                let reconciled = context.reconcile_row(&row).await;
                reconciled.unwrap_or_else(Stop::into_outcome)
            });
            if let Joined::Started(end) | Joined::Same(end) = joined {
                ends.push(end);
            }
        }
        let count = ends.len();
        for end in ends {
            finished(end).await;
        }
        count
    }

    /// Deletes payments that were never submitted and have expired, and refused ones at the end of their retention.
    pub(super) async fn delete_expired(&self) {
        let deletion = part(AuthorizationPart::Forget {
            before: self.now() - 60 * rows::MINUTE,
            refused_before: self.now() - REFUSED_RETENTION,
            limit: 10_000,
        });
        if let Err(error) = self.write(deletion).await {
            tracing::warn!(%error, "deleting expired payments failed");
        }
    }

    /// Reconciles a due payment.
    async fn reconcile_row(&self, due: &AuthorizationRow) -> Result<PurchaseOutcome, Stop> {
        let (plan_state, row) = self.read(due.account, &due.key).await?;
        match row {
            Some(row) if rows::state(row.state).is_open() => {
                let paid = self.settle_again(row, Cause::Scheduled).await?;
                self.grant(paid, &[]).await
            }
            Some(row) if row.state == AuthorizationState::RefusedAfterSubmit => {
                self.look_up_refused(row).await
            }
            Some(row) if row.state == AuthorizationState::Settled => {
                let answer = plan_state.subscription.as_ref().map(|subscription| {
                    PurchaseOutcome::Done(self.answer(subscription, row.receipt.as_deref(), true))
                });
                if row.next_attempt_at.is_some_and(|at| at <= self.now()) {
                    self.check_finality(row).await?;
                }
                Ok(answer.unwrap_or(PurchaseOutcome::Processing))
            }
            _ => Ok(PurchaseOutcome::Processing),
        }
    }

    /// Looks up a payment that was refused after submission, without submitting it again: an earlier run had no node, and this one may have
    /// one.
    async fn look_up_refused(&self, row: Transfer) -> Result<PurchaseOutcome, Stop> {
        let chain = self.read_chain(&row, None).await;
        if let Some(outcome) = chain.outcome() {
            let paid = self.record_outcome(row, outcome).await?;
            return self.grant(paid, &[]).await;
        }
        if chain != ChainEvidence::NoNode {
            let now = self.now();
            let looked_up = row.looked_up(now, |row| rows::next_attempt_at(row, now))?;
            self.store(looked_up).await?;
        }
        Ok(PurchaseOutcome::Processing)
    }

    /// The second lookup of a settled payment, once its block is final: the transfer may have been reorganized out.
    async fn check_finality(&self, row: Transfer) -> Result<(), StoreFailure> {
        let now = self.now();
        let chain = self.read_chain(&row, None).await;
        let status = match chain {
            ChainEvidence::Read { status, .. } => Some(status),
            ChainEvidence::NoNode | ChainEvidence::Unreadable => None,
        };
        match chain.outcome() {
            Some(PaymentOutcome::Paid { transaction, .. }) => {
                self.store(row.confirmed(transaction, now)?).await?;
                return Ok(());
            }
            Some(PaymentOutcome::Void(why) | PaymentOutcome::VoidAtLatest { why, .. }) => {
                return self.revoke(&row, why).await;
            }
            _ => {}
        }
        let looked_up = match status {
            Some(OnChainStatus::Spent) => {
                self.counters.inc(X402Event::Stuck);
                tracing::error!(account = %row.account, payment = %row,
                    "settled payment not found on the chain: check its transaction, and the facilitator");
                row.looked_up(now, |row| rows::next_attempt_at(row, now + FINAL))?
            }
            Some(_) => {
                tracing::error!(account = %row.account, payment = %row,
                    "settled payment was reorganized out of the chain, submitting it again");
                if let Some(sent) = self.unseal(&row) {
                    self.call_settle(&row, sent.body, false).await;
                }
                row.looked_up(now, |_| now + MINUTE)?
            }
            None => row.looked_up(now, |row| rows::next_attempt_at(row, now + MINUTE))?,
        };
        self.store(looked_up).await?;
        Ok(())
    }

    /// Records that a settled payment has moved no money and never will, and revokes what it granted.
    async fn revoke(&self, row: &Transfer, why: &str) -> Result<(), StoreFailure> {
        self.counters.inc(X402Event::Vanished);
        let payment = row.to_string();
        tracing::error!(account = %row.account, payment, why,
            "revoking settled payment: it is not on the chain and can no longer be included");
        let (change, _) = row.revoked(why, self.now())?.into_parts();
        let plans = &self.deps.plans;
        let reversed = plans.reverse_payment(Route::X402, &payment, vec![change.clone()]);
        match reversed.await? {
            Reversal::Nothing => Ok(self.write(change).await?),
            _ => Ok(()),
        }
    }
}
