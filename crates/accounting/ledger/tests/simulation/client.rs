//! Requests of clients at a node: completions, payments, and credit taken back.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::{Deadline, Timestamp};
use tollgate_ledger::{
    CapHold, CreditError, Hold, HoldError, HoldRequest, Ledger, Settle, SettleError,
};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId, SpendingCap};
use tollgate_simulation::{SimulatedProcess, Simulation};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, Budget, CacheScope, CredentialChange, EntryKind, KeyCap, NewAccount, Part, Reader,
    Store, UnitOfWork, UsageRecord, commit, flush,
};

use super::book::{Book, Owner, REPEATED_US, State};
use super::faults::Fault;
use super::keys::{Known, Setting};
use super::node::Changes;
use crate::support::{credit_of, key_of, operation, operation_at, usage};

/// The environment of a request.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) sim: Simulation,
    pub(crate) process: SimulatedProcess,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Ledger,
    pub(crate) book: Arc<Mutex<Book>>,
    /// Changes of other nodes, as read by the node.
    pub(crate) changes: Arc<Changes>,
    /// Reads the current database.
    pub(crate) reader: Arc<Reader>,
    pub(crate) run: usize,
    pub(crate) name: &'static str,
    pub(crate) fault: Option<Fault>,
}

/// A completion requested by a client.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) number: u64,
    pub(crate) id: OperationId,
    pub(crate) account: AccountId,
    /// The key of the request, and the key's cap as known to the node.
    pub(crate) key: Option<(CredentialId, Option<SpendingCap>)>,
    pub(crate) amount: i64,
    /// Selects the course of the completion.
    pub(crate) kind: u64,
}

/// Facts at the beginning of a request.
struct Asked {
    budget: Budget,
    known: Known,
    /// Minimum credit of the budget; `None` while credit is being freed.
    free: Option<i64>,
}

/// A refusal for lack of credit.
struct Refusal {
    number: u64,
    amount: i64,
}

/// Owners of credit freed by a request, possibly not durably.
type Freed = BTreeSet<Owner>;

impl Client {
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock()
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.process.clock().now()
    }

    fn note(&self, line: &str) {
        self.sim.note(&format!("{} {line}", self.name));
    }

    /// Lets simulated time pass.
    async fn pass(&self, us: u64) {
        let never = std::future::pending::<()>();
        let _ = tokio::time::timeout(Duration::from_micros(us), never).await;
    }

    /// Reads without taking part in the run.
    fn free_at_least(&self, budget: Budget, but: u64) -> Option<i64> {
        let _driving = self.sim.observe();
        self.book().free_at_least(&self.reader, budget, but)
    }

    fn known(&self) -> Known {
        Known {
            at_us: self.sim.now_us(),
            change: self.changes.last(),
        }
    }

    /// The cap of a key as known to the node; `None` when the node does not know the key.
    pub(crate) fn key(&self, credential: CredentialId) -> Option<Option<SpendingCap>> {
        let known = self.changes.last();
        let book = self.book();
        book.keys[&credential].known(known).map(|it| it.cap)
    }

    fn asked(&self, budget: Budget, number: u64) -> Asked {
        let known = self.known();
        let is_settled = self.book().is_settled(budget.into(), known.at_us);
        // The reads are the largest cost of a request in the simulation.
        let free = is_settled.then(|| self.free_at_least(budget, number));
        Asked {
            budget,
            known,
            free: free.flatten(),
        }
    }

    /// Checks a refusal: the refusal is right only when the budget really has less.
    fn refused(&self, refusal: &Refusal, asked: &Asked) {
        let Refusal { number, amount } = *refusal;
        let Asked {
            budget,
            known,
            free,
        } = *asked;
        let owner = Owner::from(budget);
        let now_us = self.sim.now_us();
        let (is_repeated, is_settled) = {
            let mut book = self.book();
            let is_repeated = book.is_repeated((self.run, owner), known.at_us, now_us);
            (is_repeated, book.is_settled(owner, known.at_us))
        };
        let has_enough = |free: Option<i64>| free.is_some_and(|free| free >= amount);
        if is_repeated || !is_settled || !has_enough(free) {
            return;
        }
        let still = self.free_at_least(budget, number);
        if has_enough(still) {
            let what = match budget {
                Budget::Account(account) => format!("account {account}"),
                Budget::Cap(cap) => format!("the cap of key {}", cap.credential),
            };
            self.book().violation(format!(
                "operation {number} of {amount} was refused at {} while {what} had {free:?} and {still:?}",
                self.name
            ));
        }
    }

    /// From now on the request may free credit of `owner`.
    fn frees(&self, freed: &mut Freed, owner: Owner) {
        if freed.insert(owner) {
            self.book().frees(owner, self.run);
        }
    }

    /// [`Client::frees`] for the reservation of the key's cap.
    fn unreserves(&self, completion: &Completion, freed: &mut Freed) {
        if let Some((credential, _)) = completion.key {
            self.frees(freed, Owner::Key(credential));
            self.book().unreserved(completion.number);
        }
    }

    /// After a request that may have freed credit: waits until every earlier unit is durable.
    async fn freed(&self, freed: Freed) -> bool {
        let is_durable = flush(&*self.store).await.is_ok();
        if is_durable {
            let mut book = self.book();
            for owner in freed {
                book.freed(owner, self.run, self.sim.now_us());
            }
        }
        is_durable
    }

    /// The fault: the hold is shortened to the credit of this node, as shown by a decision at once.
    fn hold_by_local_room(&self, mut wanted: HoldRequest) -> Result<Hold, HoldError> {
        let asked = wanted.amount;
        loop {
            if let Some(placed) = self.ledger.hold(wanted, |_| None).now() {
                return placed;
            }
            wanted.amount = Micros::new(wanted.amount.get() / 2);
            if !wanted.amount.is_positive() {
                return Err(HoldError::InsufficientCredit {
                    account: wanted.account,
                    available: Micros::ZERO,
                    requested: asked,
                });
            }
        }
    }

    fn request(&self, completion: &Completion) -> HoldRequest {
        HoldRequest {
            operation: completion.id,
            account: completion.account,
            amount: Micros::new(completion.amount),
            price_version: Some(1),
            at: self.now(),
            deadline: Deadline::NEVER,
            expires_at: self.now() + Duration::from_secs(600),
            is_written: true,
        }
    }

    /// A completion: a reservation of the key's cap, a hold, a wait, and the end of both.
    pub(crate) async fn complete(self, completion: Completion) {
        let number = completion.number;
        let mut freed = Freed::new();
        let state = self.completed(&completion, &mut freed).await;
        self.book().set(number, state);
        if !freed.is_empty() && self.freed(freed).await {
            let last_change = (self.sim).committed("SELECT number FROM cluster WHERE id = 1");
            let known = self.known();
            self.book().charge_counts(number, known, last_change);
        }
    }

    async fn completed(&self, completion: &Completion, freed: &mut Freed) -> State {
        let Completion {
            number,
            account,
            kind,
            ..
        } = *completion;
        let budget = Budget::Account(account);
        let asked = self.asked(budget, number);
        if let Err(error) = self.ledger.load(account).await {
            self.note(&format!("{number} not loaded: {error}"));
            return State::Free;
        }
        let mut wanted = self.request(completion);
        let is_shortened = kind % 5 == 0;
        let rest = move |room: Micros| (is_shortened && room.is_positive()).then_some(room);
        let mut kept = match self.reserved(completion, wanted, rest, freed).await {
            Ok(kept) => kept,
            Err(state) => return state,
        };
        if let Some(kept) = &kept {
            wanted.amount = kept.amount();
        }
        let amount = wanted.amount.get();
        let refusal = Refusal { number, amount };
        let placed = match self.fault {
            Some(Fault::ShorteningByLocalRoom) if is_shortened => self.hold_by_local_room(wanted),
            _ => {
                self.ledger
                    .hold(
                        HoldRequest {
                            is_written: kind % 3 != 0,
                            ..wanted
                        },
                        rest,
                    )
                    .finish()
                    .await
            }
        };
        let mut hold = match placed {
            Ok(hold) => hold,
            Err(error) => {
                self.note(&format!("{number} refused: {error}"));
                self.unreserves(completion, freed);
                if let HoldError::InsufficientCredit { .. } = error {
                    self.refused(&refusal, &asked);
                }
                return self.not_placed(number, budget, &error, freed);
            }
        };
        let held = hold.amount().get();
        self.note(&format!("{number} held {held} of {account}"));
        if held < amount {
            self.refused(&refusal, &asked);
        }
        self.set_amount(number, held);
        self.book().set(number, State::Held);
        let mut frees_now = || {
            self.frees(freed, Owner::Account(account));
            self.unreserves(completion, freed);
        };
        if kind % 4 == 1
            && let Err(error) = hold.durable().await
        {
            frees_now();
            return match error {
                HoldError::CutOff => State::Free,
                _ => State::Lost,
            };
        }
        self.pass(self.sim.below(400_000)).await;
        frees_now();
        let actual = match kind % 7 {
            0 => {
                self.note(&format!("{number} released"));
                hold.release(self.now());
                return State::Free;
            }
            1 => {
                drop(hold);
                return State::Free;
            }
            2 => held + held / 2,
            3 => held,
            _ => held - held / 3,
        };
        self.set_amount(number, held.max(actual));
        // The settlement frees the rest at once.
        self.book().set(number, State::Asked);
        hold.cover(Micros::new(actual), self.now()).await;
        if actual > held {
            // The account may have had less. The node remembers the shortage like a refused request.
            let now_us = self.sim.now_us();
            let of = (self.run, Owner::Account(account));
            self.book().is_repeated(of, now_us, now_us);
        }
        let at = self.now();
        let credential = completion.key.map(|(credential, _)| credential);
        let settlement = hold.settle(Settle {
            actual: Micros::new(actual),
            usage: UsageRecord {
                credential,
                ..usage()
            },
            at,
        });
        let charged = settlement.settled().charged;
        if let Some(credential) = credential {
            let counted = match kept.take() {
                Some(kept) => kept.settle(charged, at),
                None => (self.ledger).count_uncapped(credential, charged, (completion.id, at)),
            };
            counted.follow(&settlement);
        }
        let settled = settlement.await;
        self.note(&format!("{number} settled {actual}: {settled:?}"));
        match settled {
            Ok(_) => {
                self.acknowledged(number, charged.get());
                State::Charged(charged.get())
            }
            Err(SettleError::Refused { source, .. }) => {
                let text = format!("the charge of operation {number} was refused: {source}");
                self.book().violation(text);
                State::Lost
            }
            Err(_) => State::Lost,
        }
    }

    /// Reserves a part of the cap of the request's key, if the request has a key.
    async fn reserved(
        &self,
        completion: &Completion,
        wanted: HoldRequest,
        rest: impl FnOnce(Micros) -> Option<Micros> + Send,
        freed: &mut Freed,
    ) -> Result<Option<CapHold>, State> {
        let Completion { number, amount, .. } = *completion;
        let Some((credential, Some(cap))) = completion.key else {
            return Ok(None);
        };
        let period = cap.period;
        let budget = Budget::Cap(KeyCap::of(credential, period, completion.id));
        let asked = self.asked(budget, number);
        let refusal = Refusal { number, amount };
        let reserved = self
            .ledger
            .hold_cap((credential, cap), wanted, rest)
            .finish();
        match reserved.await {
            Ok(kept) => {
                let reserved = kept.amount().get();
                self.note(&format!("{number} reserved {reserved} of {budget:?}"));
                if reserved < amount {
                    self.refused(&refusal, &asked);
                }
                self.set_amount(number, reserved);
                let mut book = self.book();
                book.reserved(number, period, reserved, asked.known);
                Ok(Some(kept))
            }
            Err(error) => {
                self.note(&format!("{number} refused by its cap: {error}"));
                if let HoldError::InsufficientCredit { .. } = error {
                    self.refused(&refusal, &asked);
                }
                Err(self.not_placed(number, budget, &error, freed))
            }
        }
    }

    fn not_placed(
        &self,
        number: u64,
        budget: Budget,
        error: &HoldError,
        freed: &mut Freed,
    ) -> State {
        match error {
            // The take may still arrive, and its credit is free.
            HoldError::CutOff => self.frees(freed, budget.into()),
            HoldError::Store { .. } => return State::Lost,
            HoldError::NoAccount { .. } | HoldError::Repeated { .. } => {
                let text = format!("operation {number} was refused at {}: {error}", self.name);
                self.book().violation(text);
            }
            _ => {}
        }
        State::Free
    }

    fn set_amount(&self, number: u64, amount: i64) {
        let mut book = self.book();
        let operation = book.operations.get_mut(&number).expect("it was asked");
        operation.amount = amount;
    }

    /// Notes the acknowledgement of a charge, and whether the node was recovered before.
    fn acknowledged(&self, number: u64, charged: i64) {
        let sql = format!("SELECT epoch FROM nodes WHERE id = {}", self.store.node());
        let is_late = self.sim.committed(&sql) > self.store.epoch();
        let mut book = self.book();
        if !book.dead.contains(&self.run) {
            let operation = book.operations.get_mut(&number).expect("it was asked");
            (operation.acknowledged, operation.is_late) = (Some(charged), is_late);
        }
    }

    /// Makes an account and books its first credit.
    pub(crate) async fn make_account(self, number: u64, account: AccountId, credit: i64) {
        let limit = self.book().accounts[&account].limit;
        let made = NewAccount {
            id: account,
            class: Arc::from("free"),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::new(limit),
            created_at: self.now(),
        };
        let unit = UnitOfWork::of(Part::CreateAccount(Box::new(made)), Admission::Normal);
        if commit(&*self.store, unit).await.is_ok() {
            self.book_credit(number, account, credit).await;
        }
    }

    /// Makes a key with a cap.
    pub(crate) async fn make_key(self, credential: CredentialId) {
        let (account, cap) = {
            let book = self.book();
            let key = &book.keys[&credential];
            (key.account, key.settings[0].cap)
        };
        let unit = UnitOfWork::of(key_of(credential, account, cap), Admission::Normal);
        let made = commit(&*self.store, unit).await;
        self.cap_is_set(credential, made.is_ok());
    }

    /// Changes or removes the cap of a key.
    pub(crate) async fn change_cap(self, credential: CredentialId, cap: Option<SpendingCap>) {
        let row = {
            let _driving = self.sim.observe();
            self.reader.credential(credential).ok().flatten()
        };
        let Some(row) = row.filter(|_| self.begins_to_set(credential, cap)) else {
            return;
        };
        let mut freed = Freed::new();
        self.frees(&mut freed, Owner::Key(credential));
        let change = CredentialChange {
            id: credential,
            account: row.made.account,
            version: row.version,
            label: Arc::from("key"),
            models: None,
            spending_cap: cap,
            spent: Micros::ZERO,
            expires_at: None,
            at: self.now(),
        };
        let change = Part::ChangeCredential(Box::new(change));
        let changed = commit(&*self.store, UnitOfWork::of(change, Admission::Normal)).await;
        self.note(&format!("cap of {credential} is {cap:?}: {changed:?}"));
        if changed.is_ok() {
            self.cap_is_set(credential, true);
            _ = self.freed(freed).await;
        }
    }

    /// Notes a change of a cap, unless another change has an unknown outcome.
    fn begins_to_set(&self, credential: CredentialId, cap: Option<SpendingCap>) -> bool {
        let mut book = self.book();
        let key = book.keys.get_mut(&credential).expect("it is known");
        let begins = !key.is_changing();
        if begins {
            key.settings.push(Setting { cap, number: None });
        }
        begins
    }

    fn cap_is_set(&self, credential: CredentialId, is_durable: bool) {
        let number = (self.sim).committed("SELECT number FROM cluster WHERE id = 1");
        let mut book = self.book();
        let key = book.keys.get_mut(&credential).expect("it is known");
        if let Some(last) = key.settings.last_mut() {
            last.number = is_durable.then_some(number);
        }
    }

    /// Books or takes back credit, and repeats the booking once.
    pub(crate) async fn book_credit(self, number: u64, account: AccountId, amount: i64) {
        let mut credit = credit_of(account, amount, &format!("r{number}"), number);
        credit.at = self.now();
        let mut freed = Freed::new();
        let owner = Owner::Account(account);
        self.frees(&mut freed, owner);
        if amount > 0 {
            let mut book = self.book();
            let of = book.accounts.get_mut(&account).expect("it is known");
            of.at_most += amount;
        }
        let mut is_booked = false;
        for attempt in 0..2 {
            credit.operation = operation(number * 2 + 1_000_000_000 + attempt);
            let booked = match amount > 0 {
                true => self.ledger.top_up(credit.clone()).await,
                false => self.ledger.correct(credit.clone()).await,
            };
            self.note(&format!("credit {number} of {amount}: {booked:?}"));
            is_booked |= booked.is_ok();
            match booked {
                Ok(credited) if attempt == 1 && !credited.repeated => {
                    let text = format!("credit {number} of {amount} was booked twice");
                    self.book().violation(text);
                }
                Ok(credited) if credited.repeated => break,
                Ok(_) if amount < 0 => self.book().took(account, -amount),
                Ok(_) => {}
                Err(CreditError::Conflict(refusal)) => {
                    let text = format!("credit {number} was refused: {refusal}");
                    self.book().violation(text);
                }
                Err(CreditError::InsufficientCredit { .. }) => {
                    let now_us = self.sim.now_us();
                    self.book().is_repeated((self.run, owner), now_us, now_us);
                    break;
                }
                Err(_) => break,
            }
            if number.is_multiple_of(2) {
                break;
            }
        }
        // Acknowledged credit belongs to the account, at any node.
        match amount > 0 && is_booked {
            true => self.book().freed(owner, self.run, self.sim.now_us()),
            false => _ = self.freed(freed).await,
        }
    }

    /// Takes credit back without a check of this node's allotment.
    pub(crate) async fn refund_without_allotment(self, number: u64, account: AccountId) {
        let part = LedgerPart::Credit {
            operation: operation(number),
            account,
            kind: EntryKind::Correction,
            amount: Micros::new(-1 - self.sim.below(150) as i64),
            reference: Arc::from(format!("r{number}")),
            at: self.now(),
        };
        let unit = UnitOfWork::of(Part::Ledger(part), Admission::Normal);
        let booked = commit(&*self.store, unit).await;
        self.note(&format!("credit {number}: {:?}", booked.is_ok()));
    }

    /// Waits for the queue of the node. A stopped node has no queue.
    pub(crate) async fn flush(self) {
        let _ = flush(&*self.store).await;
    }

    /// Holds and releases the whole credit of an account, or reserves the whole remainder of a cap. Retries temporary errors.
    pub(crate) async fn use_all(self, all: Completion) {
        // A request for more is refused. Repeated answers about credit of other nodes have to end.
        for (amount, has_it, first) in [(all.amount, true, 0), (all.amount + 1, false, 100)] {
            for attempt in 0.. {
                if amount == 0 {
                    break;
                }
                let number = all.number + (first + attempt) * 10_000_000;
                let id = operation_at(all.id.began_at(), number);
                let placed = self.used(Completion { id, amount, ..all }).await;
                match placed {
                    Ok(()) if has_it => break,
                    Err(HoldError::InsufficientCredit { .. }) if !has_it => break,
                    Err(HoldError::CreditUnavailable { .. } | HoldError::CutOff)
                        if attempt < 100 =>
                    {
                        self.pass(100_000).await;
                    }
                    // The node may repeat an earlier refusal.
                    Err(HoldError::InsufficientCredit { .. }) if attempt == 0 => {
                        self.pass(REPEATED_US).await;
                    }
                    other => {
                        let what = match all.key {
                            Some((credential, _)) => format!("the cap of key {credential}"),
                            None => format!("account {}", all.account),
                        };
                        self.book().violation(format!(
                            "of {what}, {amount} is decided at {} as if it had {}: {other:?}",
                            self.name,
                            if has_it { "less" } else { "more" }
                        ));
                        break;
                    }
                }
            }
        }
    }

    async fn used(&self, completion: Completion) -> Result<(), HoldError> {
        let wanted = self.request(&completion);
        if let Some((credential, Some(cap))) = completion.key {
            let reserved = self
                .ledger
                .hold_cap((credential, cap), wanted, |_| None)
                .finish();
            return reserved.await.map(drop);
        }
        let loaded = self.ledger.load(completion.account).await;
        loaded.map_err(|_| HoldError::CutOff)?;
        let mut hold = self.ledger.hold(wanted, |_| None).finish().await?;
        let _ = hold.durable().await;
        hold.release(self.now());
        Ok(())
    }
}
