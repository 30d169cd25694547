//! Answers to recalls within a commit.

use std::sync::Arc;

use tollgate_money::Micros;
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    AllotmentPart, Answer, Budget, CommitError, EntryKind, Part, Refusal, TakeResult,
};
use tollgate_testing::Postgres;

use super::nodes::{give, grant, node, numbered, take};
use super::sent::{submit, submit_all};
use super::suite::support::{account, new_account, stop_writer, time, write};

/// A unit that was refused let the answer to a recall be written that came before the credit of the same commit: other nodes said 402 right after a
/// payment.
#[test]
fn credit_that_is_booked_answers_no_recall_also_when_a_later_unit_of_its_commit_is_refused() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    write(&a, [new_account(1)]).expect("an account");
    write(&a, [grant(1, "first", 100)]).expect("credit");
    write(&a, [give(2, 100)]).expect("it is shared");
    let short = |number, amount| {
        let taken = write(&b, [take(number, amount)])
            .expect("it is decided")
            .taken;
        match taken {
            Some(TakeResult::Short {
                recall, is_pending, ..
            }) => (recall, is_pending),
            other => panic!("{other:?}"),
        }
    };
    let (recall, is_pending) = short(10, 101);
    assert!(is_pending, "the other node has credit booked");
    let answer = |number| {
        Part::Allotment(AllotmentPart::Return {
            operation: numbered(number),
            budget: Budget::Account(account(1)),
            amount: Micros::ZERO,
            answer: Answer::Held(recall),
            at: time(2),
        })
    };
    write(&a, [answer(3)]).expect("it is answered");
    assert_eq!(short(11, 101), (recall, false));
    let resume = stop_writer(&a);
    let unknown = LedgerPart::Credit {
        operation: numbered(5),
        account: account(9),
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::from("unknown"),
        at: time(2),
    };
    let booked = submit(&a, grant(4, "second", 10));
    let refused = submit_all(&a, [new_account(2), Part::Ledger(unknown)]);
    let answered = submit(&a, answer(6));
    drop(resume);
    booked.recv().expect("an answer").expect("it is booked");
    let refused = refused.recv().expect("an answer");
    assert!(
        matches!(refused, Err(CommitError::Refused(Refusal::NoAccount(_)))),
        "{refused:?}"
    );
    answered.recv().expect("an answer").expect("never refused");
    assert_eq!(short(12, 110), (recall, true), "the other node has 10");
}
