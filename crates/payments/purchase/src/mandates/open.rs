//! Opening a mandate: idempotent creation at the provider.

use std::sync::Arc;

use tollgate_money::AccountId;
use tollgate_store::{MandatePart, MandateRow, MandateState, Part, Route};

use super::context::MandateContext;
use super::counters::MandateEvent;
use super::current::part;
use super::decide::{is_past_due, is_stopped};
use super::error::OpenError;
use super::keys;
use super::mandate::{GONE, Mandate};
use super::recurring::NewSubscription;
use super::schedule::{DAY, RECURRING_OFFERED};
use crate::conflict::repeated;
use crate::plan::{PRICE, Question};
use crate::topups::FailureKind;

/// Rounds of reconciliation before something new is offered. Each round ends a mandate or the opening.
const RECONCILE_ROUNDS: usize = 4;

/// Mandates an account may create within a day: each is a subscription at the provider and a row reconciled for a month.
const CREATED_PER_DAY_MAX: usize = 10;

/// URLs that the provider redirects the buyer to. `{mandate}` stands for the mandate's id.
#[derive(Clone, Debug)]
pub struct Urls {
    /// After the approval page, whether or not the buyer has agreed.
    pub return_url: String,
    /// After the buyer has declined.
    pub cancel_url: String,
}

impl MandateContext {
    pub(super) async fn open(
        &self,
        account: AccountId,
        urls: &Urls,
    ) -> Result<MandateRow, OpenError> {
        // Before the lock: the other rail may be waiting for this rail's answer.
        let across = self
            .plans
            .state_across_rails(account, Route::PayPal, Question::Offer);
        let across = across.await.map_err(OpenError::Plan)?;
        if across.is_open_elsewhere && !across.is_active() {
            return Err(OpenError::Transfer);
        }
        let _lock = self.lock(account).await;
        repeated(|| self.open_locked(account, urls)).await
    }

    async fn open_locked(&self, account: AccountId, urls: &Urls) -> Result<MandateRow, OpenError> {
        for _ in 0..RECONCILE_ROUNDS {
            let state = self.plans.state(account);
            let state = state.await.map_err(OpenError::Plan)?;
            if let Some(active) = state.active() {
                return Err(OpenError::AlreadyActive(Box::new(active.clone())));
            }
            if state.authorization.is_some() {
                return Err(OpenError::Transfer);
            }
            let rows = self.of(account).await?;
            let in_state = |wanted: &[MandateState]| {
                let mut found = rows.iter().filter(|row| wanted.contains(&row.state));
                found.next().cloned()
            };
            let is_fresh = |row: &MandateRow| {
                let offered = row.created_at..row.created_at + RECURRING_OFFERED;
                offered.contains(&self.clock.now())
            };
            let offered = in_state(&[MandateState::Created, MandateState::Open]);
            if let Some(row) = offered.clone().filter(is_fresh) {
                return match row.state {
                    MandateState::Open => Ok(row),
                    _ => self.make(row).await,
                };
            }
            // Reconciled once more: a payment made meanwhile counts and ends this call. A mandate whose charge failed stays until another
            // is agreed to.
            if let Some(row) = in_state(&[
                MandateState::Agreed,
                MandateState::Active,
                MandateState::Resuming,
            ]) {
                let mut is_pending = false;
                let reconciled = self.reconcile_with(row, None, &mut is_pending).await?;
                match reconciled.state {
                    MandateState::Agreed if is_past_due(&reconciled) => {}
                    MandateState::Agreed => {
                        return Err(OpenError::Processing(Box::new(reconciled)));
                    }
                    MandateState::Active if self.runs(account).await? => continue,
                    MandateState::Active if is_pending => {
                        return Err(OpenError::Processing(Box::new(reconciled)));
                    }
                    MandateState::Active => {}
                    _ => continue,
                }
            }
            let dropped = || {
                let is_same = |row: &&MandateRow| {
                    row.state == MandateState::Dropped
                        && is_fresh(row)
                        && row.approve_url.is_some()
                        && row.note.as_deref() != Some(GONE)
                        && Some(&row.plan_id) == self.plan_id.as_ref()
                };
                rows.iter().find(is_same).cloned()
            };
            let Some(row) = offered.or_else(dropped) else {
                let row = self.begin(account, urls, &rows, None).await?;
                return self.make(row).await;
            };
            // The last reconciliation of an expired offer, the first of a new offer, or a check of a dropped offer for consent.
            let reconciled = self.reconcile_locked(row, None).await?;
            match reconciled.state {
                MandateState::Open => {
                    let row = self.begin(account, urls, &rows, Some(reconciled)).await?;
                    return self.make(row).await;
                }
                MandateState::Dropped => return self.offer_again(reconciled).await,
                _ => {}
            }
        }
        Err(OpenError::Closed(String::from(
            "the account's mandates keep changing; try again",
        )))
    }

    /// Reopens a recently dropped mandate instead of creating a new one.
    async fn offer_again(&self, row: MandateRow) -> Result<MandateRow, OpenError> {
        if let Some(why) = self.closed().await {
            return Err(OpenError::Closed(why));
        }
        let row = Mandate::stored(row).offered_again(self.clock.now());
        self.write(vec![row.part()])
            .await
            .map_err(OpenError::Store)?;
        Ok(row.into_row())
    }

    async fn runs(&self, account: AccountId) -> Result<bool, OpenError> {
        let state = self.plans.state(account).await;
        Ok(state.map_err(OpenError::Plan)?.is_active())
    }

    /// Stores a new mandate and the changes of the replaced mandates in one unit of work.
    async fn begin(
        &self,
        account: AccountId,
        urls: &Urls,
        others: &[MandateRow],
        replaced: Option<MandateRow>,
    ) -> Result<MandateRow, OpenError> {
        if let Some(why) = self.closed().await {
            return Err(OpenError::Closed(why));
        }
        let Some(plan_id) = self.plan_id.clone() else {
            return Err(OpenError::Closed(String::from("the settings name no plan")));
        };
        let now = self.clock.now();
        let of_a_day = others.iter().filter(|row| row.created_at > now - DAY);
        if of_a_day.count() >= CREATED_PER_DAY_MAX {
            return Err(OpenError::Closed(String::from(
                "the account has created too many mandates within a day",
            )));
        }
        let mut parts: Vec<Part> = Vec::new();
        // The provider may resume a suspended mandate, which would charge beside the new mandate.
        let stopped = others.iter().filter(|row| is_stopped(row));
        for row in stopped.cloned().chain(replaced) {
            parts.push(Mandate::stored(row).replaced(now).part());
        }
        let id = self.new_id();
        let named = |url: &str| Arc::from(url.replace("{mandate}", &id.to_string()));
        let row = MandateRow {
            id,
            account,
            state: MandateState::Created,
            version: 0,
            plan_id,
            price: PRICE,
            create_key: Arc::from(keys::create(&self.environment, account, id)),
            provider_ref: None,
            approve_url: None,
            return_url: named(&urls.return_url),
            cancel_url: named(&urls.cancel_url),
            agreed_at: None,
            activated_at: None,
            payment: None,
            paid_at: None,
            paid_until: None,
            advanced_for: None,
            cancel_requested_at: None,
            note: None,
            attempts: 0,
            next_attempt_at: Some(now + RECURRING_OFFERED),
            notifications: 0,
            acknowledged: 0,
            created_at: now,
            updated_at: now,
        };
        parts.push(part(MandatePart::Begin(row.clone())));
        self.write(parts).await.map_err(OpenError::Store)?;
        self.counters.inc(MandateEvent::Begun);
        Ok(row)
    }

    /// Creates the subscription of a stored mandate; idempotent by its stored key.
    async fn make(&self, row: MandateRow) -> Result<MandateRow, OpenError> {
        let new = NewSubscription {
            key: &row.create_key,
            mandate: row.id,
            plan_id: &row.plan_id,
            return_url: &row.return_url,
            cancel_url: &row.cancel_url,
        };
        match self.recurring.create(&new).await {
            Ok(made) => {
                let now = self.clock.now();
                let row = Mandate::stored(row);
                let row = row.offered(&made.subscription, &made.approve_url, now);
                self.write(vec![row.part()])
                    .await
                    .map_err(OpenError::Store)?;
                Ok(row.into_row())
            }
            Err(error) => {
                tracing::warn!(mandate = %row.id, kind = ?error.kind, cause = %error, "creating subscription failed");
                match error.kind {
                    FailureKind::OutcomeUnknown => self.counters.inc(MandateEvent::Unclear),
                    FailureKind::Misconfigured => self.invalidate_plan_check(),
                    // A definite refusal: the buyer has no approval link, and another attempt may succeed.
                    FailureKind::Refused | FailureKind::Declined => {
                        let row = Mandate::stored(row).refused(self.clock.now());
                        self.write(vec![row.part()])
                            .await
                            .map_err(OpenError::Store)?;
                    }
                    // The next call to open retries with the same key.
                    _ => {}
                }
                Err(OpenError::Provider(error))
            }
        }
    }
}
