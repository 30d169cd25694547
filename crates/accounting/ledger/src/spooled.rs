//! Charges in the spool of an earlier run of this node: committed at the start, before holds of the earlier run are released.
//!
//! A charge whose hold is still open is settled as decided. If another node has recovered this node, the hold was released, and its credit
//! may be spent: the charge is *late*. A late charge is booked under its own reference, so that repeated starts book the charge once. The
//! booking goes down to the account's floor, and the rest is written off. The answer of an idempotency key is stored together with the late
//! charge. If the client has repeated the request under its key, the repeat was charged, and the late charge is written off. A running
//! repeat is awaited: if the repeat fails, the late charge is the only charge.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, sleep_until};
use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, CommitError, Done, EntryKind, IdempotencyPart, IdempotencyRow, OpenHold, Part,
    Refusal, SpooledUnit, Store, UnitOfWork, UsageRow, block_on, reading,
};

use crate::accounts::Ledger;
use crate::charge::{Charge, Started};
use crate::credit::Credit;
use crate::hold::Hold;
use crate::hold_request::{HoldError, HoldRequest, rest};
use crate::settlement::{AttachedPart, SettleError};
use crate::units::{charge_of_key, is_claim_lost, log_refusal};

/// Maximum time of retries at the start for credit of other nodes. The node answers no recall meanwhile.
const WAITED_MAX: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

/// Concurrent attempts. An attempt takes a quarter of a second when another node does not answer.
const ATTEMPTS_AT_ONCE: usize = 32;

/// Open holds of earlier runs, in the order of their operations.
pub(crate) type Orphans = BTreeMap<OperationId, OpenHold>;

/// A charge whose credit is no longer held.
#[derive(Debug)]
pub(crate) struct LateCharge {
    charge: LateKind,
    /// The answer of the request's idempotency key, if the request had a key.
    answer: Option<IdempotencyPart>,
}

#[derive(Debug)]
enum LateKind {
    /// A charge whose hold was released: the operation has ended in the journal.
    Released {
        operation: OperationId,
        account: AccountId,
        amount: Micros,
    },
    /// A charge of an operation without an end in the journal.
    Charge(Charge),
}

impl LateCharge {
    fn of(&self) -> (OperationId, AccountId) {
        match &self.charge {
            LateKind::Released {
                operation, account, ..
            } => (*operation, *account),
            LateKind::Charge(charge) => (charge.operation, charge.account),
        }
    }

    fn amount(&self) -> Micros {
        match &self.charge {
            LateKind::Released { amount, .. } => *amount,
            LateKind::Charge(charge) => charge.amount,
        }
    }
}

/// The end of an operation from the spool.
enum Replayed {
    /// The credit is still there: the end is committed as decided.
    InTime(LedgerPart),
    Late(LateKind),
}

/// Why a late charge stays unbooked.
enum NotBooked {
    /// Other nodes have not returned the credit of the account yet.
    Unavailable,
    /// A repeat of the request under its idempotency key is running. Only one of the two requests is charged.
    UnderWay,
    Failed(String),
}

/// The end of an operation in the spool.
struct SpooledEnd {
    part: LedgerPart,
    /// The node was recovered meanwhile: the hold of the operation was released.
    is_released: bool,
    /// Whether the request has an idempotency key, whose answer is stored with the charge.
    has_answer: bool,
}

/// The result of an attempt to book a late charge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The charge is booked, up to the credit of the account.
    Booked,
    /// An earlier start has booked the charge.
    Repeated,
    /// The charge is not booked: the request has lost the claim of its idempotency key.
    ClaimLost,
}

impl From<String> for NotBooked {
    fn from(error: String) -> NotBooked {
        NotBooked::Failed(error)
    }
}

impl Ledger {
    /// Commits the units whose credit is still there, and returns the late charges.
    pub(crate) fn replay(
        &self,
        spooled: Vec<SpooledUnit>,
        orphans: &mut Orphans,
    ) -> Vec<LateCharge> {
        let mut late = Vec::new();
        let mut charged = BTreeMap::new();
        for SpooledUnit { unit, is_released } in spooled {
            let charge = unit.parts().iter().find_map(|part| match part {
                Part::Ledger(part) => Some(part.clone()),
                _ => None,
            });
            let Some(part) = charge else {
                replay(&self.store, unit);
                continue;
            };
            let answer = unit.parts().iter().find_map(|part| match part {
                Part::Idempotency(part) => Some((**part).clone()),
                _ => None,
            });
            let end = SpooledEnd {
                part,
                is_released,
                has_answer: answer.is_some(),
            };
            match self.replayed(end, orphans) {
                None => {}
                Some(Replayed::Late(charge)) => late.push(LateCharge { charge, answer }),
                Some(Replayed::InTime(part)) => {
                    let others = unit
                        .parts()
                        .iter()
                        .filter(|part| !matches!(part, Part::Ledger(_)));
                    let counted = charge_of_key(&part);
                    let parts = std::iter::once(Part::Ledger(part)).chain(others.cloned());
                    replay(&self.store, UnitOfWork::of_all(parts, Admission::Always));
                    if let Some((credential, amount, of)) = counted {
                        // This node's allotments of the key's caps were read before the commit of the charge.
                        self.count_charge(credential, amount, of, None);
                        charged.insert((credential, Month::of(of.0.began_at())), of);
                    }
                }
            }
        }
        // Once for each key and month, behind the charges of the key.
        for ((credential, _), of) in charged {
            self.announce_charges(credential, of);
        }
        late
    }

    /// Decides the end of an operation; `None` for an end without cost.
    fn replayed(&self, end: SpooledEnd, orphans: &mut Orphans) -> Option<Replayed> {
        let SpooledEnd {
            part,
            is_released,
            has_answer,
        } = end;
        let (operation, account) = (part.operation(), part.account());
        // An open hold is released together with the other orphans.
        let UsageRow {
            cost: charged,
            written_off,
            price_version,
            usage,
            at,
            ..
        } = part.usage()?;
        let mut shard = self.shard(account);
        if let LedgerPart::Settle { held, .. } = part
            && let Some(hold) = orphans.get(&operation)
            && (hold.account, hold.amount) == (account, held)
            && let Some(balance) = shard.accounts.get_mut(&account)
            && balance.held >= held
        {
            orphans.remove(&operation);
            let taken = balance.settle(held, charged);
            self.wrote_off(taken.written_off);
            return Some(Replayed::InTime(LedgerPart::Settle {
                operation,
                account,
                held,
                charged: taken.charged,
                written_off: written_off + taken.written_off,
                price_version,
                usage,
                at,
            }));
        }
        if is_released {
            return Some(Replayed::Late(LateKind::Released {
                operation,
                account,
                amount: charged,
            }));
        }
        Some(match shard.accounts.get_mut(&account) {
            // Without a hold two facts are unknown: whether the node was recovered, and whether the request was repeated under its
            // idempotency key.
            Some(balance) if balance.spendable() >= charged && !has_answer => {
                balance.charge(charged);
                Replayed::InTime(LedgerPart::Charge {
                    operation,
                    account,
                    charged,
                    written_off,
                    price_version,
                    usage,
                    at,
                })
            }
            _ => Replayed::Late(LateKind::Charge(Charge {
                operation,
                account,
                amount: charged,
                price_version,
                usage,
                at,
            })),
        })
    }

    fn wrote_off(&self, amount: Micros) {
        let written_off = &self.store.gauges().late_written_off;
        written_off.fetch_add(amount.get().unsigned_abs(), Relaxed);
    }

    /// Books late charges on a separate thread; blocks until the thread has ended. Undecided charges stay in the spool for the next start.
    pub(crate) fn book_late(&self, late: Vec<LateCharge>, now: Timestamp, started: &mut Started) {
        if late.is_empty() {
            return self.store.spooled_is_durable();
        }
        started.late = late.len();
        let booked = block_on(self.book_all(late, now));
        match booked {
            Ok(true) => self.store.spooled_is_durable(),
            Ok(false) => {}
            Err(error) => {
                tracing::error!(
                    error,
                    "booking late charges failed, the next start books them"
                );
            }
        }
    }

    /// Books late charges; `false` if some charges are left. Accounts do not wait for each other. Each charge is tried at least once.
    async fn book_all(&self, late: Vec<LateCharge>, now: Timestamp) -> bool {
        let mut by_account = BTreeMap::<AccountId, Vec<LateCharge>>::new();
        for charge in late {
            by_account.entry(charge.of().1).or_default().push(charge);
        }
        let (attempts, give_up) = (
            Semaphore::new(ATTEMPTS_AT_ONCE),
            sleep(WAITED_MAX).deadline(),
        );
        let booked = by_account
            .into_values()
            .map(|charges| self.book_account(charges, &attempts, give_up, now));
        join_all(booked)
            .await
            .into_iter()
            .all(|is_booked| is_booked)
    }

    /// Books the late charges of an account, in order. A charge is retried until `give_up` while other nodes have the credit, or run a
    /// repeat of the request.
    async fn book_account(
        &self,
        charges: Vec<LateCharge>,
        attempts: &Semaphore,
        give_up: Instant,
        now: Timestamp,
    ) -> bool {
        let mut is_complete = true;
        for charge in charges {
            let (operation, account) = charge.of();
            loop {
                let attempt = attempts.acquire().await;
                let booked = self.book_or_write_off(&charge, now).await;
                drop(attempt);
                match booked {
                    Ok(()) => break,
                    Err(NotBooked::Unavailable | NotBooked::UnderWay) => {
                        tokio::select! {
                            biased;
                            () = sleep_until(give_up) => {
                                tracing::error!(%operation, %account, "waited too long for credit that other gateways have, or for a repeat of the request, the next start books the late charges of the account");
                                return false;
                            }
                            () = sleep(PAUSE) => {}
                        }
                    }
                    Err(NotBooked::Failed(error)) => {
                        is_complete = false;
                        tracing::error!(%operation, %account, error, "booking a late charge failed, the next start books it");
                        break;
                    }
                }
            }
        }
        is_complete
    }

    /// Books a late charge with the answer of its idempotency key. If the request has lost its key, the state of the repeat decides.
    /// Answered: the charge is written off. Running: the charge stays. Failed, or the key is forgotten: the charge is booked without an
    /// answer.
    async fn book_or_write_off(&self, late: &LateCharge, now: Timestamp) -> Result<(), NotBooked> {
        let attempt = self.book_one(late, late.answer.as_ref(), now).await?;
        let (Attempt::ClaimLost, Some(IdempotencyPart::Keep { key, answer, .. })) =
            (attempt, &late.answer)
        else {
            return Ok(());
        };
        let wanted = key.clone();
        let row = reading(&self.store, move |store| store.idempotency(&wanted)).await;
        let row = row.map_err(|error| error.to_string())?;
        if row.as_ref().is_some_and(IdempotencyRow::is_under_way) {
            return Err(NotBooked::UnderWay);
        }
        match row.and_then(|row| row.answer) {
            None => self.book_one(late, None, now).await.map(|_| ()),
            // An earlier start has stored the answer with the charge.
            Some(stored) if stored == *answer => Ok(()),
            Some(_) => {
                let ((operation, account), amount) = (late.of(), late.amount());
                self.wrote_off(amount);
                tracing::warn!(%operation, %account, %amount, "wrote off a late charge of the spool: its request was made again under its idempotency key");
                Ok(())
            }
        }
    }

    async fn book_one(
        &self,
        late: &LateCharge,
        answer: Option<&IdempotencyPart>,
        now: Timestamp,
    ) -> Result<Attempt, NotBooked> {
        let (operation, account) = late.of();
        let amount = late.amount();
        let answer = answer.map(|answer| Part::Idempotency(Box::new(answer.clone())));
        let loaded = self.load(account).await;
        loaded.map_err(|error| error.to_string())?;
        if !self.shard(account).accounts.contains_key(&account) {
            self.wrote_off(amount);
            tracing::error!(%operation, %account, %amount, "wrote off a charge of the spool: the database does not have its account");
            return Ok(Attempt::Booked);
        }
        let held = match self.hold_rest(account, amount, now).await {
            Err(HoldError::CreditUnavailable { .. }) => return Err(NotBooked::Unavailable),
            held => held.map_err(|error| error.to_string())?,
        };
        let booked = held.as_ref().map_or(Micros::ZERO, Hold::amount);
        let attempt = match &late.charge {
            LateKind::Released { .. } => self.book_released(operation, held, answer, now).await?,
            LateKind::Charge(charge) => self.book_charge(charge, held, answer).await?,
        };
        if attempt == Attempt::Booked {
            self.store.gauges().late_charges.fetch_add(1, Relaxed);
            self.wrote_off(amount - booked);
            tracing::warn!(%operation, %account, %amount, %booked, "booked a late charge of the spool");
        }
        Ok(attempt)
    }

    async fn book_charge(
        &self,
        charge: &Charge,
        held: Option<Hold>,
        answer: Option<Part>,
    ) -> Result<Attempt, NotBooked> {
        let (credential, of) = (charge.usage.credential, (charge.operation, charge.at));
        let attached = answer.map(|part| AttachedPart::new(move |_| part));
        let settlement = self.decide_charge(charge.clone(), attached, held);
        let settlement = settlement.map_err(|error| error.to_string())?;
        let charged = match settlement.await {
            Ok(settled) => settled.charged,
            Err(SettleError::Refused { source, .. }) if is_claim_lost(&source) => {
                return Ok(Attempt::ClaimLost);
            }
            Err(error) => return Err(NotBooked::Failed(error.to_string())),
        };
        if let Some(credential) = credential {
            self.count_charge(credential, charged, of, None);
            self.announce_charges(credential, of);
        }
        Ok(Attempt::Booked)
    }

    /// Books the amount of the hold, with an answer. Without a hold the account has no credit, and no amount is booked.
    async fn book_released(
        &self,
        operation: OperationId,
        held: Option<Hold>,
        answer: Option<Part>,
        now: Timestamp,
    ) -> Result<Attempt, NotBooked> {
        let Some(held) = held else {
            if let Some(answer) = answer {
                replay(&self.store, UnitOfWork::of(answer, Admission::Always));
            }
            return Ok(Attempt::Booked);
        };
        let credit = Credit {
            operation: self.next_move(now),
            account: held.account(),
            amount: Micros::ZERO - held.amount(),
            reference: Arc::from(format!("late/{operation}")),
            at: now,
        };
        let part = credit.check(EntryKind::Correction);
        let part = part.map_err(|error| error.to_string())?;
        let parts = std::iter::once(part).chain(answer).collect();
        let wait = self.queue_decided(&credit, parts, Some(held), false);
        match wait.map_err(|error| error.to_string())?.await {
            Ok(Ok(receipt)) if receipt.repeated.is_none() => Ok(Attempt::Booked),
            // An earlier start booked another amount, because the account had another balance.
            Ok(Ok(_) | Err(CommitError::Refused(Refusal::ReferenceUsed { .. }))) => {
                Ok(Attempt::Repeated)
            }
            Ok(Err(CommitError::Refused(refusal))) if is_claim_lost(&refusal) => {
                Ok(Attempt::ClaimLost)
            }
            Ok(Err(error)) => Err(NotBooked::Failed(error.to_string())),
            Err(_) => Err(NotBooked::Failed(String::from("the store was closed"))),
        }
    }

    /// Holds an amount, or the smaller credit of the account, in memory.
    async fn hold_rest(
        &self,
        account: AccountId,
        amount: Micros,
        now: Timestamp,
    ) -> Result<Option<Hold>, HoldError> {
        if !amount.is_positive() {
            return Ok(None);
        }
        let request = HoldRequest::brief(self.next_move(now), account, amount, now);
        match self.hold(request, rest).finish().await {
            Err(HoldError::InsufficientCredit { .. } | HoldError::NoAccount { .. }) => Ok(None),
            held => held.map(Some),
        }
    }
}

/// Commits a unit. If the store refuses another part of the unit, the charge is committed alone.
fn replay(store: &Arc<dyn Store>, unit: UnitOfWork) {
    let is_charge = |part: &Part| matches!(part, Part::Ledger(_));
    let done: Done = match unit.parts().iter().any(is_charge) {
        true => Box::new(log_refusal),
        // The unit has no charge, and may be durable already.
        false => Box::new(|_| {}),
    };
    // After a stop of the store the unit stays in the spool.
    let _ = store.submit(unit.accepted(), done);
}
