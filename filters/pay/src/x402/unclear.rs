//! Payments of which nobody knows yet what became: asked about again, looked up on the chain, and closed with proof only.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tollgate_purchase::once::Claim;
use tollgate_purchase::plan::{DAYS, PRICE, Paid, PayOutcome, Period, PlanError, TakenBack};
use tollgate_store::{AuthorizationPart, AuthorizationRow, AuthorizationState, Route};

use super::answer::Settled;
use super::counters::Counters;
use super::desk::{Broken, Inner, Told, broken, part};
use super::hex::{Address, Nonce};
use super::look::{Sight, Wanted, look};
use super::offer::Terms;
use super::rows::{self, FINAL, GRACE, MINUTE, SECOND};

/// Tries at writing a payment that has moved money, before it is left to the next look.
const TRIES: u32 = 6;

/// The most that a payment can have been used before it was brought here: as long as authorizations are signed for, and an hour.
const BEFORE: i64 = 75 * MINUTE;

/// What was sent to the facilitator, and what a payment is judged by.
struct Sent {
    body: Bytes,
    terms: Terms,
}

impl Inner {
    /// Looks at a payment whose time has come.
    pub(super) async fn look_again(self: Arc<Self>, seen: AuthorizationRow) -> Told {
        let looked = async {
            let key = seen.key.clone();
            let (standing, row) = self.read(seen.account, &key).await?;
            match row {
                Some(row) if rows::state(row.state).is_open() => {
                    self.find_out(row, Vec::new()).await
                }
                Some(row) if row.state == AuthorizationState::Settled => {
                    let told = standing.subscription.as_ref().map(|subscription| {
                        Told::Done(self.answer(subscription, row.receipt.as_deref(), true))
                    });
                    if row.look_at.is_some_and(|at| at <= self.now()) {
                        self.look_final(row).await?;
                    }
                    Ok(told.unwrap_or(Told::Processing))
                }
                _ => Ok(Told::Processing),
            }
        };
        looked.await.unwrap_or_else(|error| broken(&error))
    }

    /// Finds out what became of a payment, as far as that can be said now.
    pub(super) async fn find_out(
        &self,
        row: AuthorizationRow,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        let sent = self.open(&row);
        let mut transaction = row.transaction.map(Nonce::from_bytes);
        let mut why = row.note.as_deref().unwrap_or_default().to_owned();
        // The same words again: a facilitator that has sent them waits for the same transaction, and the token takes them once.
        if let Some(sent) = &sent {
            match self.settle(&row, sent.body.clone(), false).await {
                Settled::Done { transaction, .. } => {
                    return self.settle_books(row, transaction, claims).await;
                }
                Settled::Refused(said) => why = said,
                Settled::Unclear {
                    transaction: hash,
                    why: said,
                } => {
                    transaction = hash.or(transaction);
                    why = said;
                }
            }
        }
        let terms = sent.as_ref().map_or(&self.parts.terms, |sent| &sent.terms);
        match self.sight(&row, terms, transaction).await {
            None => {}
            Some(Sight::Paid(hash)) => return self.settle_books(row, hash, claims).await,
            Some(Sight::Canceled) => return self.bury(row, "the wallet has made it void").await,
            Some(Sight::Elsewhere) => {
                let why = "its number was used for another transfer";
                return self.bury(row, why).await;
            }
            Some(Sight::Unspent { until }) if self.is_over(&row, until) => {
                return self.bury(row, "it was not sent in its time").await;
            }
            Some(Sight::Unspent { .. }) => {}
            Some(Sight::Spent) => why = "it was used, and what for was not found".to_owned(),
        }
        let row = self.note_unclear(row, transaction, &why).await?;
        if self.now() > row.valid_before + GRACE {
            self.call_for_help(&row);
        }
        Ok(Told::Processing)
    }

    /// Whether the chain takes a payment no more: by its own clock, and by ours, which may lag.
    fn is_over(&self, row: &AuthorizationRow, until: u64) -> bool {
        let until = i64::try_from(until)
            .unwrap_or(i64::MAX)
            .saturating_mul(SECOND);
        until >= row.valid_before && self.now() > row.valid_before + GRACE
    }

    async fn sight(
        &self,
        row: &AuthorizationRow,
        terms: &Terms,
        hint: Option<Nonce>,
    ) -> Option<Sight> {
        let node = self.parts.node.as_deref()?;
        let wanted = Wanted {
            terms,
            from: Address::from_bytes(row.key.payer),
            nonce: Nonce::from_bytes(row.key.nonce),
            hint,
            between: (
                seconds(row.created_at.min(row.valid_before) - BEFORE),
                seconds(row.valid_before),
            ),
        };
        match look(node, &wanted).await {
            Ok(sight) => Some(sight),
            Err(error) => {
                tracing::warn!(%error, "the chain could not be read");
                None
            }
        }
    }

    /// Writes a payment that has moved money into the books, with the plan that it pays for.
    pub(super) async fn settle_books(
        &self,
        mut row: AuthorizationRow,
        transaction: Nonce,
        claims: Vec<Claim>,
    ) -> Result<Told, Broken> {
        let receipt: Arc<str> = Arc::from(rows::receipt(&row.key, transaction));
        let now = self.now();
        row = AuthorizationRow {
            state: AuthorizationState::Settled,
            version: row.version + 1,
            transaction: Some(*transaction.as_bytes()),
            receipt: Some(receipt.clone()),
            note: None,
            looks: 0,
            // Once more, when its block is one that stays; only a node can say.
            look_at: self.parts.node.as_ref().map(|_| now + FINAL),
            sealed: row.sealed.filter(|_| self.parts.node.is_some()),
            updated_at: now,
            ..row
        };
        let mut wait = Duration::from_millis(100);
        for attempt in 1.. {
            let paid = Paid {
                account: row.account,
                route: Route::X402,
                payment: rows::reference(&row.key).into(),
                reference: transaction.to_string().into(),
                amount: PRICE,
                period: Period::Days(DAYS),
                renews: false,
                receipt: Some(receipt.clone()),
                at: now,
            };
            let outcome = self.parts.plans.pay(paid, |subscription| {
                let answer = self.answer(subscription, Some(&receipt), false);
                let mut parts = vec![part(AuthorizationPart::Change(row.clone()))];
                parts.extend(claims.iter().map(|claim| claim.keep_part(&answer)));
                parts
            });
            match outcome.await {
                Ok(PayOutcome::New(subscription)) => {
                    Counters::one(&self.counters.settled);
                    return Ok(Told::Done(self.answer(
                        &subscription,
                        Some(&receipt),
                        false,
                    )));
                }
                // Given before, and the payment not noted as settled: it is now.
                Ok(PayOutcome::Repeated(subscription) | PayOutcome::Surplus(subscription)) => {
                    tracing::error!(payment = %rows::reference(&row.key), "a payment that was not noted as settled had given the plan");
                    self.write(part(AuthorizationPart::Change(row))).await?;
                    return Ok(Told::Done(self.answer(&subscription, Some(&receipt), true)));
                }
                Err(error @ PlanError::Beside(_)) => return Err(error.into()),
                Err(error) if attempt >= TRIES => {
                    tracing::error!(account = %row.account, payment = %rows::reference(&row.key), %transaction, %error,
                        "a payment has moved money and could not be noted; it is looked at again");
                    return Err(error.into());
                }
                Err(error) => {
                    tracing::warn!(%error, "a payment that has moved money could not be noted; again");
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
            }
        }
        unreachable!("the loop ends with an answer or an error")
    }

    /// Writes down that a payment can never move money any more.
    async fn bury(&self, row: AuthorizationRow, why: &str) -> Result<Told, Broken> {
        Counters::one(&self.counters.dead);
        let row = AuthorizationRow {
            state: AuthorizationState::Dead,
            version: row.version + 1,
            sealed: None,
            note: Some(Arc::from(why)),
            look_at: None,
            updated_at: self.now(),
            ..row
        };
        tracing::warn!(account = %row.account, payment = %rows::reference(&row.key), why, "a payment is over, and has moved nothing");
        let failure = rows::failure(&row.key, "authorization_over");
        self.write(part(AuthorizationPart::Change(row))).await?;
        Ok(Told::Refused {
            why: why.to_owned(),
            failure: Some(failure),
        })
    }

    /// The second look at a payment that was settled: is it still in a block?
    async fn look_final(&self, row: AuthorizationRow) -> Result<(), Broken> {
        let sent = self.open(&row);
        let terms = sent.as_ref().map_or(&self.parts.terms, |sent| &sent.terms);
        let hint = row.transaction.map(Nonce::from_bytes);
        let now = self.now();
        let mut next = AuthorizationRow {
            version: row.version + 1,
            looks: row.looks + 1,
            updated_at: now,
            ..row.clone()
        };
        match self.sight(&row, terms, hint).await {
            Some(Sight::Paid(hash)) => {
                next.transaction = Some(*hash.as_bytes());
                (next.look_at, next.sealed) = (None, None);
            }
            Some(Sight::Unspent { until }) if self.is_over(&row, until) => {
                return self.take_back(next, "its block did not stay").await;
            }
            Some(Sight::Canceled) => {
                return self.take_back(next, "the wallet has made it void").await;
            }
            Some(Sight::Elsewhere) => {
                let why = "its number was used for another transfer";
                return self.take_back(next, why).await;
            }
            Some(Sight::Unspent { .. }) => {
                tracing::error!(account = %row.account, payment = %rows::reference(&row.key),
                    "a settled payment is in no block any more; it is sent again");
                if let Some(sent) = &sent {
                    self.settle(&row, sent.body.clone(), false).await;
                }
                next.look_at = Some(now + MINUTE);
            }
            Some(Sight::Spent) => {
                Counters::one(&self.counters.stuck);
                tracing::error!(account = %row.account, payment = %rows::reference(&row.key),
                    "a payment that the facilitator called settled is not found on the chain; look at it, and at the facilitator");
                next.look_at = Some(rows::next_look(&next, now + FINAL));
            }
            None => next.look_at = Some(rows::next_look(&next, now + MINUTE)),
        }
        Ok(self.write(part(AuthorizationPart::Change(next))).await?)
    }

    /// Writes down that a payment that was called settled has moved nothing and never will, and takes back what it gave.
    async fn take_back(&self, mut row: AuthorizationRow, why: &str) -> Result<(), Broken> {
        Counters::one(&self.counters.vanished);
        let name = rows::reference(&row.key);
        tracing::error!(account = %row.account, payment = %name, why,
            "a settled payment is not on the chain and never will be: what it gave is taken back");
        row.state = AuthorizationState::Dead;
        row.note = Some(Arc::from(why));
        (row.look_at, row.sealed) = (None, None);
        let change = part(AuthorizationPart::Change(row));
        let taken = self
            .parts
            .plans
            .take_back(Route::X402, &name, vec![change.clone()])
            .await?;
        match taken {
            TakenBack::Nothing => Ok(self.write(change).await?),
            _ => Ok(()),
        }
    }

    fn call_for_help(&self, row: &AuthorizationRow) {
        Counters::one(&self.counters.stuck);
        let (payment, note) = (rows::reference(&row.key), row.note.as_deref());
        match self.parts.node {
            None => tracing::error!(account = %row.account, payment, note,
                "a payment is over and the facilitator cannot say what became of it; set `payments.x402.rpc_url`, and the chain is asked, or look it up and use `tollgate payment close`"),
            Some(_) => tracing::error!(account = %row.account, payment, note,
                "a payment is over, and neither the facilitator nor the chain says what became of it; look it up and use `tollgate payment close`"),
        }
    }

    fn open(&self, row: &AuthorizationRow) -> Option<Sent> {
        let name = rows::reference(&row.key);
        let body = self
            .sealer
            .open(name.as_bytes(), &row.digest, row.sealed.as_deref()?)?;
        let question: Value = serde_json::from_slice(&body).ok()?;
        Some(Sent {
            terms: Terms::read(question.get("paymentRequirements")?)?,
            body: body.into(),
        })
    }
}

fn seconds(micros: i64) -> u64 {
    u64::try_from(micros / SECOND).unwrap_or(0)
}
