//! Reconciliation by the worker of due work. Each payment of unknown outcome is looked up on the chain, submitted again where safe, and
//! closed only by proof. A settled payment is looked up once more when the block is final.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use tollgate_flight::value;
use tollgate_money::AccountId;
use tollgate_purchase::plan::{Question, Rail, Reversal};
use tollgate_purchase::{Due, DueWork, DueWorker};
use tollgate_store::{
    AuthorizationKey, AuthorizationRow, AuthorizationState, ReadError, Route, reading,
};

use super::chain_lookup::OnChainStatus;
use super::context::X402;
use super::counters::X402Event;
use super::decide::is_open;
use super::payment_outcome::{ChainEvidence, PaymentOutcome};
use super::purchase::{PurchaseOutcome, Stop, StoreFailure};
use super::rows::{self, FINAL, MINUTE};
use super::settle::Cause;
use super::single_flight::{Completion, FlightKey, Joined};
use super::transfer::{Transfer, deletion};

/// Open payments of an earlier run that are read and reconciled at once.
const PAGE: usize = 8;

/// Retention, after the expiry, of a payment refused after submission, for the operator.
const REFUSED_RETENTION: Duration = Duration::from_hours(30 * 24);

/// Why a payment is reconciled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    /// It is due.
    Due,
    /// Another rail asks: no attempt of the schedule.
    Asked,
}

/// The payments to reconcile.
pub(super) struct Reconciliation(pub(super) Arc<X402>);

#[async_trait]
impl DueWork for Reconciliation {
    type Key = AuthorizationKey;
    const NAME: &'static str = "x402 payments";

    async fn due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<Due<AuthorizationKey>>, ReadError> {
        let rows = reading(&self.0.deps.store, move |store| {
            store.authorizations_due(now, limit)
        });
        let due = rows.await?.into_iter().map(|row| Due {
            key: row.key,
            version: row.version,
            notifications: 0,
            next_attempt_at: row.next_attempt_at,
        });
        Ok(due.collect())
    }

    async fn reconcile(&self, key: AuthorizationKey) -> bool {
        let wanted = key.clone();
        let row = reading(&self.0.deps.store, move |store| {
            store.authorization(&wanted)
        });
        match row.await {
            Ok(Some(row)) => self.reconcile_alone(row, Occasion::Due).await,
            Ok(None) => true,
            Err(error) => {
                tracing::error!(%error, "reading due payment failed");
                false
            }
        }
    }
}

#[async_trait]
impl Rail for Reconciliation {
    fn route(&self) -> Route {
        Route::X402
    }

    async fn has_open(
        &self,
        account: AccountId,
        _: Question,
    ) -> Result<bool, Box<dyn Error + Send + Sync>> {
        let open = || {
            reading(&self.0.deps.store, move |store| {
                store.authorization_open(account)
            })
        };
        let Some(row) = open().await? else {
            return Ok(false);
        };
        // An attempt in progress may be waiting for this answer.
        if self.0.single_flight.has(&row.key)
            || rows::is_fresh(&row, self.0.now())
            || self.0.is_submitted_elsewhere(&row)
        {
            return Ok(true);
        }
        self.reconcile_alone(row, Occasion::Asked).await;
        Ok(open().await?.is_some())
    }
}

impl Reconciliation {
    /// Reconciles all payments left open by an earlier run, a few at a time. Payments due meanwhile are reconciled in between.
    pub(super) async fn recover(&self, worker: &DueWorker<Reconciliation>) {
        let context = &self.0;
        let has_node = context.deps.node.is_some();
        let (mut last, mut payments) = (None::<AuthorizationRow>, 0);
        loop {
            let Some(_background) = context.deps.runtime.background() else {
                return;
            };
            let after = last.take();
            let open = reading(&context.deps.store, move |store| {
                store.authorizations_open(after.as_ref(), PAGE)
            });
            let rows = match open.await {
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
            let can_look_up = |row: &AuthorizationRow| {
                has_node || row.state != AuthorizationState::RefusedAfterSubmit
            };
            let ends: Vec<_> = rows
                .into_iter()
                .filter(can_look_up)
                .map(|row| self.start(row, Occasion::Due))
                .collect();
            payments += ends.len();
            for end in ends {
                value(end).await;
            }
            worker.run_once().await;
        }
        if payments > 0 {
            tracing::warn!(
                payments,
                "reconciled payments that an earlier run left open"
            );
        }
    }

    /// Reconciles a payment, or waits for the payment's attempt in progress; `false` without a decision.
    async fn reconcile_alone(&self, row: AuthorizationRow, occasion: Occasion) -> bool {
        let outcome = value(self.start(row, occasion)).await;
        !matches!(
            outcome,
            None | Some(PurchaseOutcome::StoreUnavailable | PurchaseOutcome::Unavailable)
        )
    }

    fn start(&self, row: AuthorizationRow, occasion: Occasion) -> Completion<PurchaseOutcome> {
        let flight_key = FlightKey {
            account: row.account,
            digest: row.digest,
        };
        let (context, key) = (Arc::clone(&self.0), row.key.clone());
        let joined = self.0.single_flight.join(&key, flight_key, || async move {
            let reconciled = context.reconcile_row(&row, occasion).await;
            reconciled.unwrap_or_else(Stop::into_outcome)
        });
        match joined {
            Joined::Started(end) | Joined::Same(end) | Joined::Other(end) => end,
        }
    }
}

impl X402 {
    /// Deletes expired payments without submission, and refused payments at the end of their retention.
    pub(super) async fn delete_expired(&self) {
        let now = self.now();
        let deletion = deletion(now - 60 * MINUTE, now - REFUSED_RETENTION);
        if let Err(error) = self.write(deletion).await {
            tracing::warn!(%error, "deleting expired payments failed");
        }
    }

    /// Reconciles a payment by the stored row.
    async fn reconcile_row(
        &self,
        due: &AuthorizationRow,
        occasion: Occasion,
    ) -> Result<PurchaseOutcome, Stop> {
        let (plan_state, row) = self.read(due.account, &due.key).await?;
        match row {
            Some(row) if self.is_submitted_elsewhere(&row) => Ok(self.open_outcome(&row)),
            Some(row) if is_open(row.state) => {
                let row = match occasion {
                    Occasion::Due => row,
                    Occasion::Asked => row.asked(),
                };
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

    /// Looks up a payment refused after submission, without another submission: an earlier run had no node, and this run may have a node.
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
            return Ok(PurchaseOutcome::Processing);
        }
        // No lookup was made, and the row stays due.
        Ok(PurchaseOutcome::Unavailable)
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

    /// Records that a settled payment has moved no money and never will, and revokes the grant.
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
