//! One of several nodes, handed over to its next run with open requests. Another node recalls the account.

use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::thread::JoinHandle;

use tollgate_clock::Clock;
use tollgate_store::entries::LedgerPart;
use tollgate_store::postgres::{Submitter, open_intercepted};
use tollgate_store::{AllotmentPart, Successor as _, SuccessorLink, flush};

use super::refusals::{decided, is_refused};
use super::support::answer_with_lost_claim;
use super::*;

/// The units queued by a ledger, as far as the units move the credit of an account.
#[derive(Debug, PartialEq, Eq)]
enum Queued {
    End,
    Return(i64),
}

/// The next run of a node. The requests of the predecessor hold the whole credit of the account.
struct Next {
    node: Node,
    link: SuccessorLink<UnixStream>,
    /// Ends with the connection; returns the number of orphans.
    served: JoinHandle<usize>,
    queued: Arc<Mutex<Vec<Queued>>>,
}

/// An account with a credit of 100. Holds of the predecessor have 60 and 40. Another node needs the credit.
fn handed_over(url: &str, b: &Node) -> (Next, AccountId) {
    let first = node(url, "a");
    let account = account_with(&first.store, &first.ledger, 1, 100, 0);
    for (number, amount) in [(1, 60), (2, 40)] {
        let hold = first.acquire(account, number, amount);
        std::mem::forget(hold.expect("there is credit"));
    }
    b.has_account(account);
    let refused = b.acquire(account, 3, 1);
    assert!(is_refused(&refused), "all is held: {refused:?}");
    first.ledger.hand_over();
    first.store.close();
    let queued = Arc::<Mutex<Vec<Queued>>>::default();
    let seen = Arc::clone(&queued);
    let submitter: Submitter = Arc::new(move |store, unit, done| {
        let units = unit.parts().iter().filter_map(|part| match part {
            Part::Ledger(LedgerPart::Settle { .. } | LedgerPart::Release { .. }) => {
                Some(Queued::End)
            }
            Part::Allotment(AllotmentPart::Return { amount, .. }) if amount.is_positive() => {
                Some(Queued::Return(amount.get()))
            }
            _ => None,
        });
        seen.lock().expect("no panic").extend(units);
        store.submit(unit, done)
    });
    let options = Options {
        predecessor: Some(first.store.epoch()),
        ..options(url, "a", NodeRole::OneOfMany)
    };
    let store = open_intercepted(options, submitter).expect("the next run opens it");
    let ledger = support::start(&store);
    store.follow_changes();
    let (here, there) = UnixStream::pair().expect("a connection");
    let serving = ledger.clone();
    let served = std::thread::spawn(move || {
        let served = serving.serve_predecessor(&mut { there }, |_| Ok(true));
        served.expect("the connection is closed between two messages");
        serving.release_adopted(None, &Clock::system())
    });
    let next = Next {
        node: Node { store, ledger },
        link: SuccessorLink(here),
        served,
        queued,
    };
    (next, account)
}

impl Next {
    /// Ends the predecessor with `orphans` open holds.
    fn ends(self, orphans: usize) -> Node {
        drop(self.link);
        assert_eq!(self.served.join().expect("no panic"), orphans);
        wait(flush(&*self.node.store)).expect("everything is durable");
        self.node
    }
}

/// The credit of orphans stayed at the node, although the node had answered the recall. Other nodes returned 402 for up to a minute.
#[test]
fn what_holds_had_that_the_predecessor_has_left_is_returned_to_a_node_that_needs_it() {
    let url = Postgres::shared().database();
    let b = node(&url, "b");
    let (next, account) = handed_over(&url, &b);
    let node = next.ends(2);
    let all = decided(&b, account, 1, 100);
    assert!(all.as_ref().is_some_and(Result::is_ok), "{all:?}");
    drop(all);
    assert_balanced(&b.store);
    node.close();
    b.close();
}

/// The first hold, settled for 10 of 60.
fn settled_hold(account: AccountId) -> Part {
    Part::Ledger(LedgerPart::Settle {
        operation: request(account, 1, 60).operation,
        account,
        held: Micros::new(60),
        charged: Micros::new(10),
        written_off: Micros::ZERO,
        price_version: None,
        usage: usage(),
        at: NOW,
    })
}

/// The return was queued first. In a separate commit the return would take held credit of the journal, and the node would stop.
#[test]
fn what_the_end_of_a_hold_of_the_predecessor_frees_is_returned_behind_it() {
    let url = Postgres::shared().database();
    let b = node(&url, "b");
    let (mut next, account) = handed_over(&url, &b);
    let unit = UnitOfWork::of(settled_hold(account), Admission::Always);
    let answers = next.link.commit(&[&unit]).expect("an answer");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(
        *next.queued.lock().expect("no panic"),
        [Queued::End, Queued::Return(50)]
    );
    let node = next.ends(1);
    assert_balanced(&b.store);
    node.close();
    b.close();
}

/// The credit was returned before the refusal was known, while the hold is open in the store: the node stopped.
#[test]
fn what_a_refused_end_of_a_hold_would_have_freed_is_returned_behind_its_release() {
    let url = Postgres::shared().database();
    let b = node(&url, "b");
    let (mut next, account) = handed_over(&url, &b);
    let parts = [settled_hold(account), answer_with_lost_claim(account)];
    let unit = UnitOfWork::of_all(parts, Admission::Always);
    let answers = next.link.commit(&[&unit]).expect("an answer");
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    let release = Part::Ledger(LedgerPart::Release {
        operation: request(account, 1, 60).operation,
        account,
        held: Micros::new(60),
        at: NOW,
    });
    let unit = UnitOfWork::of(release, Admission::Always);
    let answers = next.link.commit(&[&unit]).expect("an answer");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(
        *next.queued.lock().expect("no panic"),
        [Queued::End, Queued::End, Queued::Return(60)]
    );
    let node = next.ends(1);
    assert!(node.store.failure().is_none());
    assert_balanced(&b.store);
    node.close();
    b.close();
}
