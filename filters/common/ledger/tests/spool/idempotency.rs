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

fn answer_of(account: AccountId, token: i64) -> Part {
    Part::Idempotency(Box::new(IdempotencyPart::Keep {
        key: key_of(account),
        token,
        answer: KeptAnswer {
            status: 200,
            headers: Arc::from("1"),
            body: Some(Arc::from(&b"an answer"[..])),
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

/// A repeat got no answer: it ran again and was charged beside the late charge.
#[test]
fn a_late_charge_is_booked_with_its_answer_or_written_off_where_its_request_was_made_again() {
    for is_repeated in [false, true] {
        let fixture = Fixture::new();
        let node = fixture.start(NodeRole::OneOfMany);
        let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
        let number = node.store.node();
        let token = claim(&*node.store, account);
        let hold = node.hold(account, 1, 100);
        fixture.link.cut();
        let kept = AttachedPart::new(move |_| answer_of(account, token));
        let settled = wait(async {
            let settled = hold.settle_with(settle(70), Some(kept));
            tokio::time::timeout(Duration::from_secs(20), settled).await
        });
        settled.expect("the answer ends").expect("in the spool");
        node.die();

        fixture.recover(number);
        if is_repeated {
            let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
            claim(&*b.store, account);
            b.ledger.return_all();
            b.store.close();
        }

        fixture.link.restore();
        for _ in 0..2 {
            let node = fixture.start(NodeRole::OneOfMany);
            let key = node.store.idempotency(&key_of(account)).expect("a read");
            let answer = key.expect("it is there").answer;
            assert_eq!(answer.is_none(), is_repeated, "{answer:?}");
            node.ledger.return_all();
            let left = if is_repeated { 1_000 } else { 930 };
            assert_books(&node.store, account, left);
            node.store.close();
        }
    }
}
