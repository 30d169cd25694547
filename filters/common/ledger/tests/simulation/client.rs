//! The requests of clients at a node: completions, payments, and credit that is taken back.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate_clock::{Deadline, Timestamp};
use tollgate_ledger::{CreditError, HoldError, HoldRequest, Ledger, Settle, SettleError};
use tollgate_money::{AccountId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::simulation::{SimulatedProcess, Simulation};
use tollgate_store::{
    Admission, CacheScope, EntryKind, NewAccount, Part, Read, Store, UnitOfWork, commit, flush,
};

use super::book::{Book, REPEATED_US, State};
use super::faults::Fault;
use crate::support::{credit_of, operation, usage};

/// What a request needs.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) sim: Simulation,
    pub(crate) process: SimulatedProcess,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Ledger,
    pub(crate) book: Arc<Mutex<Book>>,
    /// Reads the database as it is now.
    pub(crate) reader: Arc<dyn Read>,
    pub(crate) run: usize,
    pub(crate) name: &'static str,
    pub(crate) fault: Option<Fault>,
}

/// A completion that a client asks for.
#[derive(Clone, Copy)]
pub(crate) struct Completion {
    pub(crate) number: u64,
    pub(crate) account: AccountId,
    pub(crate) amount: i64,
    /// Decides how it goes on.
    pub(crate) kind: u64,
}

/// What is known at the beginning of a request.
struct Asked {
    at_us: u64,
    free: Option<i64>,
    is_settled: bool,
}

impl Client {
    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        self.process.clock().now()
    }

    fn note(&self, line: &str) {
        self.sim.note(&format!("{} {line}", self.name));
    }

    /// Lets time of the simulation pass.
    async fn pass(&self, us: u64) {
        let never = std::future::pending::<()>();
        let _ = tokio::time::timeout(Duration::from_micros(us), never).await;
    }

    /// Reads without taking part in the run.
    fn free_at_least(&self, account: AccountId, but: u64) -> Option<i64> {
        let _driving = self.sim.observe();
        self.book().free_at_least(&*self.reader, account, but)
    }

    fn asked(&self, completion: &Completion) -> Asked {
        let at_us = self.sim.now_us();
        Asked {
            at_us,
            free: self.free_at_least(completion.account, completion.number),
            is_settled: self.book().is_settled(completion.account, at_us),
        }
    }

    /// A refusal is right only when the account really has less.
    fn refused(&self, completion: &Completion, asked: &Asked) {
        let Completion {
            number,
            account,
            amount,
            ..
        } = *completion;
        let now_us = self.sim.now_us();
        let free = self.free_at_least(account, number);
        let mut book = self.book();
        let is_repeated = book.is_repeated((self.run, account), asked.at_us, now_us);
        let is_settled = asked.is_settled && book.is_settled(account, asked.at_us);
        let has_enough = |free: Option<i64>| free.is_some_and(|free| free >= amount);
        if is_settled && !is_repeated && has_enough(asked.free) && has_enough(free) {
            book.violation(format!(
                "operation {number} of {amount} was refused at {} while account {account} had {:?} and {free:?}",
                self.name, asked.free
            ));
        }
    }

    /// Waits until everything before is durable, after a request that may have freed something.
    async fn freed(&self, account: AccountId) {
        if flush(&*self.store).await.is_ok() {
            self.book().freed(account, self.run, self.sim.now_us());
        }
    }

    fn request(&self, completion: &Completion) -> HoldRequest {
        HoldRequest {
            operation: operation(completion.number),
            account: completion.account,
            amount: Micros::new(completion.amount),
            price_version: Some(1),
            at: self.now(),
            deadline: Deadline::NEVER,
            expires_at: self.now() + Duration::from_secs(600),
        }
    }

    /// A completion: a hold, a wait, and its end.
    pub(crate) async fn complete(self, completion: Completion) {
        let mut frees = false;
        let state = self.completed(&completion, &mut frees).await;
        self.book().set(completion.number, state);
        if frees {
            self.freed(completion.account).await;
        }
    }

    /// `frees` is whether something of the account is free by it, and perhaps not durably.
    async fn completed(&self, completion: &Completion, frees: &mut bool) -> State {
        let mut frees_now = || {
            *frees = true;
            self.book().frees(completion.account, self.run);
        };
        let Completion {
            number,
            account,
            amount,
            kind,
        } = *completion;
        let asked = self.asked(completion);
        if let Err(error) = self.ledger.load(account).await {
            self.note(&format!("{number} not loaded: {error}"));
            return State::Free;
        }
        let wanted = self.request(completion);
        let is_shortened = kind % 5 == 0;
        let rest = move |room: Micros| (is_shortened && room.is_positive()).then_some(room);
        let placed = match self.fault {
            Some(Fault::ShorteningByLocalRoom) if is_shortened => {
                self.ledger.hold_within(wanted, rest)
            }
            _ => self.ledger.acquire(wanted, kind % 3 != 0, rest).await,
        };
        let mut hold = match placed {
            Ok(hold) => hold,
            Err(error) => {
                self.note(&format!("{number} refused: {error}"));
                match error {
                    HoldError::InsufficientCredit { .. } => self.refused(completion, &asked),
                    HoldError::CutOff => frees_now(),
                    HoldError::Store { .. } => return State::Lost,
                    HoldError::NoAccount { .. } | HoldError::Repeated { .. } => {
                        let text =
                            format!("operation {number} was refused at {}: {error}", self.name);
                        self.book().violation(text);
                    }
                    _ => {}
                }
                return State::Free;
            }
        };
        let held = hold.amount().get();
        self.note(&format!("{number} held {held} of {account}"));
        if held < amount {
            self.refused(completion, &asked);
        }
        self.set_amount(number, held);
        self.book().set(number, State::Held);
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
        let settlement = hold.settle(Settle {
            actual: Micros::new(actual),
            usage: usage(),
            at: self.now(),
        });
        let charged = settlement.settled().charged.get();
        let settled = settlement.await;
        self.note(&format!("{number} settled {actual}: {settled:?}"));
        match settled {
            Ok(_) => {
                self.acknowledged(number, charged);
                State::Charged(charged)
            }
            Err(SettleError::Refused { source, .. }) => {
                let text = format!("the charge of operation {number} was refused: {source}");
                self.book().violation(text);
                State::Lost
            }
            Err(_) => State::Lost,
        }
    }

    fn set_amount(&self, number: u64, amount: i64) {
        let mut book = self.book();
        let operation = book.operations.get_mut(&number).expect("it was asked");
        operation.amount = amount;
    }

    /// Notes whether the node was recovered before it acknowledged a charge.
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

    /// Books or takes back credit, and repeats it once.
    pub(crate) async fn book_credit(self, number: u64, account: AccountId, amount: i64) {
        let mut credit = credit_of(account, amount, &format!("r{number}"), number);
        credit.at = self.now();
        self.book().frees(account, self.run);
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
                    self.book().is_repeated((self.run, account), now_us, now_us);
                    break;
                }
                Err(_) => break,
            }
            if number.is_multiple_of(2) {
                break;
            }
        }
        // Credit that was acknowledged is the account's, wherever it is.
        match amount > 0 && is_booked {
            true => self.book().freed(account, self.run, self.sim.now_us()),
            false => self.freed(account).await,
        }
    }

    /// Takes credit back without asking whether this node has it.
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

    /// Holds and releases all that an account has; repeats what is to be repeated.
    pub(crate) async fn use_all(self, number: u64, account: AccountId, amount: i64) {
        // More than it has is refused: repeated answers that other nodes have more have to end.
        for (amount, has_it, first) in [(amount, true, 0), (amount + 1, false, 100)] {
            for attempt in 0.. {
                let completion = Completion {
                    number: number + (first + attempt) * 10_000_000,
                    account,
                    amount,
                    kind: 0,
                };
                let placed = match self.ledger.load(account).await {
                    Ok(()) => {
                        let wanted = self.request(&completion);
                        self.ledger.acquire(wanted, true, |_| None).await
                    }
                    Err(_) => Err(HoldError::CutOff),
                };
                match placed {
                    Ok(mut hold) if has_it => {
                        let _ = hold.durable().await;
                        hold.release(self.now());
                        break;
                    }
                    Err(HoldError::InsufficientCredit { .. }) if !has_it => break,
                    Err(HoldError::CreditUnavailable { .. } | HoldError::CutOff)
                        if attempt < 40 =>
                    {
                        self.pass(100_000).await;
                    }
                    // It may repeat an earlier one.
                    Err(HoldError::InsufficientCredit { .. }) if attempt == 0 => {
                        self.pass(REPEATED_US).await;
                    }
                    other => {
                        self.book().violation(format!(
                            "of account {account}, {amount} is decided at {} as if it had {}: {other:?}",
                            self.name,
                            if has_it { "less" } else { "more" }
                        ));
                        break;
                    }
                }
            }
        }
    }
}
