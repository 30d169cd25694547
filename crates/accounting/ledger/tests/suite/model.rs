//! Model-based test: the ledger against a simple reference, a map of balances changed step by step.
//!
//! Random sequences of all operations on an account, restarts included. After each step the ledger and the reference agree on the result
//! and on the balance. At the end the stored ledger balances and has the values of the reference.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{database, open as open_store};
use crate::support::*;
use proptest::prelude::*;
use tollgate_clock::{Deadline, Reading};
use tollgate_ledger::{
    Charge, ChargeError, CreditError, Hold, HoldError, Ledger, SettleError, Settled,
};
use tollgate_money::{AccountId, Micros};
use tollgate_store::{Store, flush};

const ACCOUNTS: u64 = 3;

#[derive(Clone, Debug)]
enum Step {
    Hold {
        account: u64,
        amount: i64,
        lifetime: u64,
        /// Whether the hold is queued for the disk at once, or only on request.
        written: bool,
    },
    Durable {
        hold: usize,
    },
    HoldAgain {
        hold: usize,
    },
    Settle {
        hold: usize,
        actual: i64,
    },
    Release {
        hold: usize,
    },
    Drop {
        hold: usize,
    },
    Charge {
        account: u64,
        amount: i64,
    },
    Credit {
        account: u64,
        amount: i64,
        reference: u8,
    },
    Correct {
        account: u64,
        amount: i64,
        reference: u8,
    },
    Sweep {
        after: u64,
    },
    Flush,
    /// Removes idle accounts from memory. A step loads its accounts.
    Evict {
        is_flushed: bool,
    },
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let account = 0..ACCOUNTS;
    prop_oneof![
        6 => (account.clone(), 0..60i64, 1..100u64, any::<bool>()).prop_map(
            |(account, amount, lifetime, written)| Step::Hold { account, amount, lifetime, written },
        ),
        1 => (0..8usize).prop_map(|hold| Step::Durable { hold }),
        1 => (0..8usize).prop_map(|hold| Step::HoldAgain { hold }),
        5 => (0..8usize, 0..120i64).prop_map(|(hold, actual)| Step::Settle { hold, actual }),
        2 => (0..8usize).prop_map(|hold| Step::Release { hold }),
        1 => (0..8usize).prop_map(|hold| Step::Drop { hold }),
        2 => (account.clone(), 0..60i64).prop_map(|(account, amount)| Step::Charge { account, amount }),
        2 => (account.clone(), 1..80i64, 0..4u8)
            .prop_map(|(account, amount, reference)| Step::Credit { account, amount: amount / 20 * 20 + 1, reference }),
        1 => (account, -50..50i64, 4..8u8)
            .prop_map(|(account, amount, reference)| Step::Correct { account, amount, reference }),
        1 => (0..100u64).prop_map(|after| Step::Sweep { after }),
        2 => Just(Step::Flush),
        4 => any::<bool>().prop_map(|is_flushed| Step::Evict { is_flushed }),
        1 => Just(Step::Crash),
    ]
}

/// The reference: the expected state of the ledger.
#[derive(Default)]
struct Reference {
    accounts: BTreeMap<AccountId, (i64, i64, i64)>,
    references: HashMap<(AccountId, u8), i64>,
}

impl Reference {
    fn spendable(&self, account: AccountId) -> i64 {
        let (available, _, limit) = self.accounts[&account];
        (available + limit).max(0)
    }

    fn add(&mut self, account: AccountId, available: i64, held: i64) {
        let fields = self.accounts.get_mut(&account).expect("an account");
        fields.0 += available;
        fields.1 += held;
    }
}

/// A hold of the ledger, with the state of the reference.
struct Open {
    hold: Hold,
    expired: bool,
    written: bool,
}

struct Run {
    store: Arc<dyn Store>,
    ledger: Ledger,
    folder: tempfile::TempDir,
    reference: Reference,
    open: Vec<Open>,
    next: u64,
}

impl Run {
    fn begin() -> Run {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open_store(folder.path());
        let ledger = start(&store);
        let mut reference = Reference::default();
        for number in 0..ACCOUNTS {
            let limit = 25 * number as i64;
            let id = account_with(&store, &ledger, number, 100, limit);
            reference.accounts.insert(id, (100, 0, limit));
        }
        Run {
            store,
            ledger,
            folder,
            reference,
            open: Vec::new(),
            next: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn take(&mut self, hold: usize) -> Option<Open> {
        (!self.open.is_empty()).then(|| self.open.swap_remove(hold % self.open.len()))
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Hold {
                account: number,
                amount,
                lifetime,
                written,
            } => {
                let id = self.loaded(number);
                let mut request = request(id, self.next(), amount);
                request.deadline = Deadline::after(ELAPSED, Duration::from_micros(lifetime));
                let spendable = self.reference.spendable(id);
                let held = if written {
                    self.ledger
                        .hold(request, |_| None)
                        .now()
                        .expect("it is alone")
                } else {
                    self.ledger
                        .hold(request.in_memory(), |_| None)
                        .now()
                        .expect("it is alone")
                };
                match held {
                    Ok(hold) => {
                        assert!(amount <= spendable, "{amount} were held out of {spendable}");
                        self.reference.add(id, -amount, amount);
                        self.open.push(Open {
                            hold,
                            expired: false,
                            written,
                        });
                    }
                    Err(HoldError::InsufficientCredit { available, .. }) => {
                        assert!(
                            amount > spendable,
                            "{amount} were refused out of {spendable}"
                        );
                        assert_eq!(available, Micros::new(spendable));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Durable { hold } => {
                if self.open.is_empty() {
                    return;
                }
                let at = hold % self.open.len();
                let open = &mut self.open[at];
                wait(open.hold.durable()).expect("the hold is durable");
                open.written |= !open.expired;
            }
            Step::HoldAgain { hold } => {
                if self.open.is_empty() {
                    return;
                }
                let open = &self.open[hold % self.open.len()];
                // The account of an expired hold may have left memory.
                wait(self.ledger.load(open.hold.account())).expect("it can be read");
                let mut again = request(open.hold.account(), 0, 0);
                again.operation = open.hold.operation();
                match self
                    .ledger
                    .hold(again, |_| None)
                    .now()
                    .expect("it is alone")
                {
                    Err(HoldError::Repeated { .. }) => {}
                    // An expired hold is no longer in memory. The store remembers a stored hold.
                    Ok(mut hold) => {
                        assert!(open.expired, "an open operation was held twice");
                        if !open.written {
                            return;
                        }
                        let refused = wait(hold.durable());
                        assert!(
                            matches!(refused, Err(HoldError::Repeated { .. })),
                            "{refused:?}"
                        );
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            Step::Settle { hold, actual } => self.settle(hold, actual),
            Step::Release { hold } => {
                if let Some(open) = self.take(hold) {
                    self.give_back(&open);
                    open.hold.release(NOW);
                }
            }
            Step::Drop { hold } => {
                if let Some(open) = self.take(hold) {
                    self.give_back(&open);
                }
            }
            Step::Charge {
                account: number,
                amount,
            } => {
                let id = self.loaded(number);
                let charge = Charge {
                    operation: operation(self.next()),
                    account: id,
                    amount: Micros::new(amount),
                    price_version: None,
                    usage: usage(),
                    at: NOW,
                };
                let charged = amount.min(self.reference.spendable(id));
                self.reference.add(id, -charged, 0);
                let settlement = self.ledger.charge(charge);
                let settlement = settlement.map_err(|error: ChargeError| error.to_string());
                let settled = settlement.expect("a charge is booked").settled();
                assert_eq!(settled, self.settled(id, charged, amount - charged));
            }
            Step::Credit {
                account: number,
                amount,
                reference,
            } => {
                let id = account(number);
                let credit = credit_of(id, amount, &reference.to_string(), 2_000 + self.next());
                let earlier = self.reference.references.get(&(id, reference)).copied();
                match (wait(self.ledger.top_up(credit)), earlier) {
                    (Ok(credited), None) => {
                        assert!(!credited.repeated);
                        self.reference.add(id, amount, 0);
                        self.reference.references.insert((id, reference), amount);
                    }
                    (Ok(credited), Some(earlier)) => {
                        assert!(credited.repeated, "the reference had been booked");
                        assert_eq!(earlier, amount, "another amount is another thing");
                    }
                    (Err(CreditError::Conflict(_)), Some(earlier)) => assert_ne!(earlier, amount),
                    (other, earlier) => panic!("{other:?} after {earlier:?}"),
                }
            }
            Step::Correct {
                account: number,
                amount,
                reference,
            } => {
                let id = account(number);
                let credit = credit_of(id, amount, &reference.to_string(), 2_000 + self.next());
                let spendable = self.reference.spendable(id);
                let earlier = self.reference.references.get(&(id, reference)).copied();
                match (wait(self.ledger.correct(credit)), earlier) {
                    (Err(CreditError::Amount { .. }), _) => assert_eq!(amount, 0),
                    (Err(CreditError::InsufficientCredit { .. }), _) => {
                        assert!(-amount > spendable)
                    }
                    (Err(CreditError::Conflict(_)), Some(earlier)) => assert_ne!(earlier, amount),
                    (Ok(credited), Some(earlier)) => {
                        assert!(credited.repeated);
                        assert_eq!(earlier, amount);
                    }
                    (Ok(_), None) => {
                        assert!(-amount <= spendable);
                        self.reference.add(id, amount, 0);
                        self.reference.references.insert((id, reference), amount);
                    }
                    (other, earlier) => panic!("{other:?} after {earlier:?}"),
                }
            }
            Step::Sweep { after } => {
                let now = Reading {
                    elapsed: ELAPSED + Duration::from_micros(after),
                    now: NOW,
                };
                let mut expired = 0;
                let mut moved = Vec::new();
                for open in &mut self.open {
                    if !open.expired && open.hold.deadline().has_passed(now.elapsed) {
                        open.expired = true;
                        expired += 1;
                        moved.push((open.hold.account(), open.hold.amount().get()));
                    }
                }
                for (id, amount) in moved {
                    self.reference.add(id, amount, -amount);
                }
                assert_eq!(self.ledger.sweep(now), expired);
            }
            Step::Evict { is_flushed } => {
                self.ledger.evict_idle();
                if is_flushed {
                    wait(flush(&*self.store)).expect("everything is durable");
                }
                self.ledger.evict_idle();
                let open = self.open.iter().filter(|open| !open.expired);
                let kept: HashSet<AccountId> = open.map(|open| open.hold.account()).collect();
                if is_flushed {
                    assert_eq!(self.ledger.resident_accounts(), kept.len());
                }
            }
            Step::Flush => wait(flush(&*self.store)).expect("everything is durable"),
            Step::Crash => self.crash(),
        }
    }

    fn loaded(&self, number: u64) -> AccountId {
        let id = account(number);
        wait(self.ledger.load(id)).expect("it can be read");
        id
    }

    fn settle(&mut self, hold: usize, actual: i64) {
        let Some(open) = self.take(hold) else { return };
        let (id, held) = (open.hold.account(), open.hold.amount().get());
        let settlement = open.hold.settle(settle(actual));
        if open.expired {
            let refused = wait(settlement);
            assert!(
                matches!(refused, Err(SettleError::Expired { .. })),
                "{refused:?}"
            );
            return;
        }
        self.reference.add(id, held, -held);
        let charged = actual.min(self.reference.spendable(id));
        self.reference.add(id, -charged, 0);
        let expected = self.settled(id, charged, actual - charged);
        assert_eq!(settlement.settled(), expected);
        if actual % 2 == 0 {
            assert_eq!(
                wait(settlement).expect("the settlement is durable"),
                expected
            );
        }
    }

    fn settled(&self, account: AccountId, charged: i64, written_off: i64) -> Settled {
        Settled {
            charged: Micros::new(charged),
            written_off: Micros::new(written_off),
            available: Micros::new(self.reference.accounts[&account].0),
        }
    }

    fn give_back(&mut self, open: &Open) {
        if !open.expired {
            let amount = open.hold.amount().get();
            self.reference.add(open.hold.account(), amount, -amount);
        }
    }

    /// The holds are never dropped, as in a killed process; the next run releases the holds.
    fn crash(&mut self) {
        let open = std::mem::take(&mut self.open);
        let orphans = open
            .iter()
            .filter(|open| open.written && !open.expired)
            .count();
        for open in &open {
            self.give_back(open);
        }
        std::mem::forget(open);
        self.store.close();
        self.store = open_store(self.folder.path());
        let (ledger, started) =
            Ledger::start(Arc::clone(&self.store), NOW).expect("the ledger starts");
        assert_eq!(started.orphans, orphans, "every open hold is an orphan now");
        self.ledger = ledger;
    }

    fn compare(&self) {
        let mut held_sum = 0;
        for (id, (available, held, _)) in &self.reference.accounts {
            held_sum += held;
            let Some(balance) = self.ledger.balance(*id) else {
                continue;
            };
            assert_eq!(
                (balance.available.get(), balance.held.get()),
                (*available, *held),
                "available and held of {id}"
            );
        }
        let totals = self.ledger.totals();
        let open = self.open.iter().filter(|open| !open.expired).count();
        assert_eq!(totals.open_holds, open as u64);
        assert_eq!(totals.held.get(), held_sum);
    }

    fn compare_stored(&self) {
        wait(flush(&*self.store)).expect("everything is durable");
        for (id, (available, held, _)) in &self.reference.accounts {
            let row = self
                .store
                .account(*id)
                .expect("a read")
                .expect("an account");
            // The disk does not know a hold in memory only.
            let unwritten = self
                .open
                .iter()
                .filter(|open| !open.written && !open.expired);
            let unwritten: i64 = unwritten
                .filter(|open| open.hold.account() == *id)
                .map(|open| open.hold.amount().get())
                .sum();
            assert_eq!(
                (row.available.get(), row.held.get()),
                (*available + unwritten, *held - unwritten)
            );
        }
        assert_ledger_balances(&self.store);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: database::MODEL_RUNS, ..ProptestConfig::default() })]

    #[test]
    fn every_sequence_agrees_with_the_reference(steps in prop::collection::vec(step(), 1..60)) {
        let mut run = Run::begin();
        for step in steps {
            run.step(step);
            run.compare();
        }
        run.compare_stored();
        run.crash();
        run.compare();
        run.compare_stored();
    }
}
