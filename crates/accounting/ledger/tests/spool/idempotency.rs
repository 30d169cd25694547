//! Late charges of requests with an idempotency key.

use std::sync::Arc;
use std::time::Duration;

use tollgate_ledger::AttachedPart;
use tollgate_money::AccountId;
use tollgate_store::postgres::NodeRole;
use tollgate_store::{
    Admission, Endpoint, IdempotencyKey, IdempotencyPart, KeptAnswer, Part, Store, UnitOfWork,
    commit, first_token,
};

use super::*;

fn key_of(account: AccountId) -> IdempotencyKey {
    IdempotencyKey {
        account,
        endpoint: Endpoint::Chat,
        key: Arc::from("order 1"),
    }
}

fn answer_of(account: AccountId, token: i64, body: &str) -> Part {
    Part::Idempotency(Box::new(IdempotencyPart::Keep {
        key: key_of(account),
        token,
        answer: KeptAnswer {
            status: 200,
            headers: Arc::from("1"),
            body: Some(Arc::from(body.as_bytes())),
        },
    }))
}

/// The first claim of a run.
fn claim(store: &dyn Store, account: AccountId) -> i64 {
    let token = first_token(store.node(), store.epoch());
    let claim = IdempotencyPart::Claim {
        key: key_of(account),
        request_hash: [1; 32],
        token,
        at: NOW,
        expires_at: NOW + Duration::from_secs(86_400),
        limits: None,
    };
    let unit = UnitOfWork::of(Part::Idempotency(Box::new(claim)), Admission::Normal);
    wait(commit(store, unit)).expect("the key is free");
    token
}

/// The state of a repeat of the request at the next start of the node.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Repeat {
    None,
    Answered,
    Failed,
    /// The node of the repeat has ended, and was recovered.
    Lapsed,
    /// The repeat fails between the first start and the second start.
    UnderWay,
}

/// A repeat was charged besides the late charge. A failed repeat also had the late charge written off.
#[test]
fn a_late_charge_is_booked_with_its_answer_unless_a_repeat_of_its_request_was_answered() {
    use Repeat::{Answered, Failed, Lapsed, UnderWay};
    for repeat in [Repeat::None, Answered, Failed, Lapsed, UnderWay] {
        let fixture = Fixture::new();
        let node = fixture.start(NodeRole::OneOfMany);
        let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
        let number = node.store.node();
        let token = claim(&*node.store, account);
        let hold = node.hold(account, 1, 100);
        fixture.link.cut();
        let kept = AttachedPart::new(move |_| answer_of(account, token, "an answer"));
        let settled = wait(async {
            let settled = hold.settle_with(settle(70), Some(kept));
            tokio::time::timeout(Duration::from_secs(240), settled).await
        });
        settled.expect("the answer ends").expect("in the spool");
        node.die();

        fixture.recover(number);
        let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
        let write = |part| {
            let unit = UnitOfWork::of(part, Admission::Normal);
            wait(commit(&*b.store, unit)).expect("it is durable");
        };
        let ended = |token, has_failed| {
            let key = key_of(account);
            Part::Idempotency(Box::new(match has_failed {
                true => IdempotencyPart::Free { key, token },
                false => IdempotencyPart::Lapse { key, token },
            }))
        };
        let repeated = (repeat != Repeat::None).then(|| claim(&*b.store, account));
        match (repeat, repeated) {
            (Answered, Some(token)) => write(answer_of(account, token, "another")),
            (Failed | Lapsed, Some(token)) => write(ended(token, repeat == Failed)),
            _ => {}
        }

        fixture.link.restore();
        for round in 0..2 {
            let node = fixture.start(NodeRole::OneOfMany);
            let key = node.store.idempotency(&key_of(account)).expect("a read");
            let answer = key.and_then(|key| key.answer).and_then(|it| it.body);
            let expected = match repeat {
                Repeat::None => Some("an answer"),
                Answered => Some("another"),
                Failed | Lapsed | UnderWay => None,
            };
            assert_eq!(answer.as_deref(), expected.map(str::as_bytes), "{repeat:?}");
            node.ledger.return_all();
            let is_charged = match repeat {
                Answered => false,
                UnderWay => round == 1,
                Repeat::None | Failed | Lapsed => true,
            };
            let left = if is_charged { 930 } else { 1_000 };
            assert_books(&node.store, account, left);
            node.store.close();
            if let (UnderWay, 0, Some(token)) = (repeat, round, repeated) {
                write(ended(token, true));
            }
        }
        b.ledger.return_all();
        b.store.close();
    }
}
