//! Accounts loaded at their first use, and changed by other nodes meanwhile.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};

use tollgate_store::{ChangeRow, Effect, Observer, ReadError};
use tollgate_testing::DatabaseLink;

use super::*;

impl Node {
    fn return_idle(&self) {
        (0..Ledger::PARTS).for_each(|part| self.ledger.return_idle(part, NOW));
    }

    /// Removes idle accounts from memory, once idle; returns the number of accounts.
    fn evict(&self) -> usize {
        self.return_idle();
        self.return_idle();
        // A change of the account, read by the node meanwhile, counts as a use.
        let mut removed = 0;
        for _ in 0..20 {
            removed += self.ledger.evict_idle();
            if removed > 0 {
                break;
            }
            wait(flush(&*self.store)).expect("everything is durable");
        }
        removed
    }

    /// Holds an amount. Repeats while other nodes are asked for their credit.
    pub(super) fn acquire(
        &self,
        account: AccountId,
        number: u64,
        amount: i64,
    ) -> Result<Hold, HoldError> {
        loop {
            wait(self.ledger.load(account)).expect("it can be loaded");
            match wait(
                self.ledger
                    .hold(request(account, number, amount), |_| None)
                    .finish(),
            ) {
                Err(HoldError::CreditUnavailable { .. }) => {}
                placed => return placed,
            }
        }
    }

    /// Blocks the writer until the returned sender is dropped.
    pub(super) fn stop_writer(&self) -> Sender<()> {
        let (resume, stopped) = self.queue_stop();
        stopped.recv().expect("the writer stops");
        resume
    }

    /// Queues a unit whose callback blocks the writer until the returned sender is dropped.
    pub(super) fn queue_stop(&self) -> (Sender<()>, Receiver<()>) {
        let (resume, wait_for) = channel::<()>();
        let (stopped, wait_stopped) = channel();
        let done = Box::new(move |_: Result<_, _>| {
            let _ = stopped.send(());
            let _ = wait_for.recv();
        });
        let unit = UnitOfWork::of_all([], Admission::Always);
        self.store.submit(unit, done).expect("the queue is open");
        (resume, wait_stopped)
    }
}

/// Credit booked by another caller: the account need not be in the node's memory.
fn book(node: &Node, account: AccountId, amount: i64, kind: EntryKind, number: u64) {
    let credit = credit_of(account, amount, &number.to_string(), number);
    let part = credit.part(kind).expect("a credit");
    let unit = UnitOfWork::of(part, Admission::Normal);
    wait(commit(&*node.store, unit)).expect("it is durable");
}

#[test]
fn credit_that_a_node_receives_without_the_account_in_memory_is_spent_at_another_one() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    book(&b, account, 50, EntryKind::Grant, 900);
    assert_eq!(b.ledger.resident_accounts(), 0);
    let hold = a.acquire(account, 1, 150).expect("all of it");
    wait(hold.settle(settle(140))).expect("it is durable");
    // Also while the account is recalled, and at a node that has removed the account from memory.
    let refused = b.acquire(account, 2, 11);
    assert!(
        matches!(refused, Err(HoldError::InsufficientCredit { available, .. }) if available.get() == 10),
        "{refused:?}"
    );
    assert_eq!(b.evict(), 1);
    book(&b, account, 5, EntryKind::Grant, 901);
    let hold = a.acquire(account, 3, 15).expect("all of it");
    let refused = a.acquire(account, 4, 1);
    assert!(
        matches!(refused, Err(HoldError::InsufficientCredit { .. })),
        "{refused:?}"
    );
    drop(hold);
    assert_balanced(&a.store);
}

/// The credit arrives during the load of the account: the loaded balance has the credit, and the credit goes to the shared balance once.
#[test]
fn credit_that_a_node_receives_while_it_loads_the_account_is_spent_at_another_one() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    let resume = b.stop_writer();
    let credit = credit_of(account, 50, "meanwhile", 900);
    let part = credit.part(EntryKind::Grant).expect("a credit");
    let unit = UnitOfWork::of(part, Admission::Normal);
    let ignored = Box::new(|_: Result<_, _>| ());
    b.store.submit(unit, ignored).expect("it is queued");
    let ledger = b.ledger.clone();
    let loading = std::thread::spawn(move || wait(ledger.load(account)));
    eventually("the load is queued", || {
        b.store.gauges().queue_depth.load(Relaxed) == 2
    });
    drop(resume);
    let loaded = loading.join().expect("no panic");
    loaded.expect("it can be loaded");
    assert_eq!(b.ledger.allotted(), Micros::ZERO, "it is shared");
    let hold = a.acquire(account, 1, 150).expect("all of it");
    wait(hold.settle(settle(150))).expect("it is durable");
    assert_balanced(&a.store);
}

/// A node that has used the account, and has no credit of the account any more, must not make other nodes wait: agents pay on a 402, and
/// repeat a 503.
#[test]
fn a_recall_is_answered_by_a_node_that_has_removed_the_account_from_memory() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    let hold = b.acquire(account, 1, 100).expect("all of it");
    wait(hold.settle(settle(100))).expect("it is durable");
    assert_eq!(b.evict(), 1, "it has nothing of it");
    assert_eq!(b.ledger.resident_accounts(), 0);
    a.has_account(account);
    let mut tries = 0;
    let refused = loop {
        tries += 1;
        match wait(a.ledger.hold(request(account, 2, 1), |_| None).finish()) {
            Err(HoldError::CreditUnavailable { .. }) if tries < 20 => {}
            other => break other,
        }
    };
    assert!(
        matches!(refused, Err(HoldError::InsufficientCredit { .. })),
        "{refused:?}"
    );
    assert_eq!(b.ledger.resident_accounts(), 0, "no request uses it there");
    assert_balanced(&a.store);
}

#[test]
fn an_account_stays_in_memory_until_its_credit_is_returned() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    let hold = a.acquire(account, 1, 100).expect("a hold");
    wait(hold.settle(settle(100))).expect("it is durable");
    assert!(a.ledger.allotted().is_positive(), "it has taken ahead");
    for _ in 0..3 {
        a.ledger.evict_idle();
        wait(flush(&*a.store)).expect("everything is durable");
    }
    assert_eq!(a.ledger.resident_accounts(), 1);
    assert_eq!(a.evict(), 1);
    let hold = a.acquire(account, 2, 999_900).expect("all of it");
    drop(hold);
    assert_balanced(&a.store);
}

#[test]
fn a_node_that_starts_again_loads_the_accounts_of_which_it_has_credit() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let accounts: Vec<AccountId> = (0..20)
        .map(|number| account_with(&a.store, &a.ledger, number, 1_000, 0))
        .collect();
    let hold = a.acquire(accounts[3], 1, 100).expect("a hold");
    wait(hold.settle(settle(40))).expect("it is durable");
    let held = a.acquire(accounts[5], 2, 100).expect("a hold");
    std::mem::forget(held);
    // Like a kill, without a return of credit.
    a.store.close();
    let a = node(&url, "a");
    assert_eq!(a.ledger.resident_accounts(), 2);
    for (number, left) in [(3, 960), (5, 1_000), (7, 1_000)] {
        let hold = a.acquire(accounts[number], 10 + number as u64, left);
        drop(hold.expect("all of it"));
    }
    assert_balanced(&a.store);
    a.close();
    let alone = open(&url, "alone", NodeRole::Alone);
    assert_eq!(alone.ledger.resident_accounts(), 0);
    assert_eq!(
        balance_of(&alone.ledger, accounts[3]).available,
        Micros::new(960)
    );
    assert_balanced(&alone.store);
}

/// The number of changes read by a node.
#[derive(Default)]
struct Read(Mutex<usize>);

impl Observer for Read {
    fn committed(&self, _: &Part, _: Effect) {}

    fn changed(&self, _: &ChangeRow) -> Result<(), ReadError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Ok(())
    }
}

/// The database was read before the change, and the account is in memory after the change. The feed has come in between.
#[test]
fn an_account_that_another_node_changes_while_it_is_loaded_is_read_again() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    let b = node(&url, "b");
    let read = Arc::new(Read::default());
    b.store.observe(Arc::clone(&read) as Arc<dyn Observer>);
    let resume_all = b.stop_writer();
    let (resume_load, is_read) = b.queue_stop();
    let ledger = b.ledger.clone();
    let loading = std::thread::spawn(move || wait(ledger.load(account)));
    eventually("the load is queued", || {
        b.store.gauges().queue_depth.load(Relaxed) == 2
    });
    drop(resume_all);
    // From the commit of the load.
    is_read.recv().expect("it is committed");
    let before = *read.0.lock().expect("no panic");
    book(&a, account, 50, EntryKind::TopUp, 900);
    eventually("the change is read", || {
        *read.0.lock().expect("no panic") > before
    });
    drop(resume_load);
    let loaded = loading.join().expect("no panic");
    loaded.expect("it can be loaded");
    let balance = b.ledger.balance(account).expect("it is loaded");
    assert!(balance.has_paid, "{balance:?}");
    assert_eq!(balance.available, Micros::new(150));
}

#[test]
fn exactly_what_an_account_has_is_held_while_nodes_remove_it_from_memory() {
    const COUNT: usize = 30;
    const AMOUNT: i64 = 1_000;
    let url = Postgres::shared().database();
    let nodes = [node(&url, "a"), node(&url, "b"), node(&url, "c")];
    let credit = COUNT as i64 * AMOUNT + 1;
    let account = account_with(&nodes[0].store, &nodes[0].ledger, 1, credit, 0);
    let (over, is_over) = channel::<()>();
    let is_over = Mutex::new(is_over);
    let mut holds = Vec::new();
    std::thread::scope(|scope| {
        let over = over;
        scope.spawn(|| {
            let is_over = is_over.lock().expect("no panic");
            while is_over.try_recv() != Err(std::sync::mpsc::TryRecvError::Disconnected) {
                for node in &nodes {
                    node.return_idle();
                    node.ledger.evict_idle();
                    wait(flush(&*node.store)).expect("everything is durable");
                }
            }
        });
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let node = &nodes[worker];
                scope.spawn(move || {
                    let mut holds = Vec::new();
                    for step in 0..2 * COUNT as u64 {
                        let number = 1_000 * (worker as u64 + 1) + step;
                        loop {
                            wait(node.ledger.load(account)).expect("it can be loaded");
                            let wanted = request(account, number, AMOUNT);
                            match wait(node.ledger.hold(HoldRequest { is_written: step % 2 == 0, ..wanted }, |_| None).finish()) {
                                Ok(hold) => holds.push(hold),
                                Err(HoldError::InsufficientCredit { .. }) => {}
                                Err(
                                    HoldError::CreditUnavailable { .. }
                                    // The account was removed between the load and the hold.
                                    | HoldError::NoAccount { .. },
                                ) => continue,
                                Err(error) => panic!("{error}"),
                            }
                            break;
                        }
                    }
                    holds
                })
            })
            .collect();
        for worker in workers {
            holds.extend(worker.join().expect("no panic"));
        }
        drop(over);
    });
    assert_eq!(holds.len(), COUNT);
    for hold in holds {
        wait(hold.settle(settle(AMOUNT / 2))).expect("it is durable");
    }
    for node in &nodes {
        wait(flush(&*node.store)).expect("what the settlements have freed is returned");
    }
    let left = credit - COUNT as i64 * AMOUNT / 2;
    eventually("the charges are there", || {
        available(&nodes[0].store, account) == left
    });
    // In some runs the node has the account in memory. In other runs another node placed every hold, and the node does not have the
    // account. From here on the node never has the account.
    nodes[1].evict();
    wait(nodes[1].ledger.load(account)).expect("it can be loaded");
    let all = HoldRequest {
        // A refusal is cached for a moment.
        at: NOW + Duration::from_secs(1),
        ..request(account, 9_000, left)
    };
    let all = wait(nodes[1].ledger.hold(all, |_| None).finish());
    drop(all.expect("all of it"));
    assert_balanced(&nodes[2].store);
}

/// Each account was read separately, together with the unposted commits of every node, on the thread of the feed.
#[test]
fn credit_of_many_accounts_that_is_booked_elsewhere_is_read_at_once() {
    const ACCOUNTS: u64 = 50;
    let server = Postgres::shared();
    let url = server.database();
    let database = url.rsplit('/').next().expect("a name");
    let link = DatabaseLink::start(server.folder());
    let opened = |url: &str, name: &str| {
        let with_tail = Options {
            post_records: 1 << 20,
            ..options(url, name, NodeRole::OneOfMany)
        };
        let store = postgres::open(with_tail).expect("the store opens");
        let ledger = support::start(&store);
        Node { store, ledger }
    };
    let (a, b) = (opened(&link.url(database), "a"), opened(&url, "b"));
    let accounts: Vec<AccountId> = (1..=ACCOUNTS)
        .map(|number| account_with(&b.store, &b.ledger, number, 100, 0))
        .collect();
    for (account, number) in accounts.iter().zip(900..) {
        a.has_account(*account);
        wait(b.ledger.grant(credit_of(*account, 10, "more", number))).expect("it is booked");
    }
    let received = |act: &dyn Fn()| {
        let before = link.received();
        act();
        link.received() - before
    };
    let one = received(&|| assert_eq!(available(&a.store, accounts[0]), 110));
    let all = received(&|| {
        a.store.follow_changes();
        eventually("all is known", || {
            let known = |account: &AccountId| a.ledger.available(*account);
            let mut known = accounts.iter().map(known);
            known.all(|available| available == Some(Micros::new(110)))
        });
    });
    assert!(all < 10 * one, "{all} bytes, and {one} for one account");
    a.close();
    b.close();
}
