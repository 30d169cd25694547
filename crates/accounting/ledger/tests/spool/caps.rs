//! One of several nodes whose process ended with charges of a key in the spool. The next start read the allotment of the key's cap, and
//! committed the charges afterwards, without counting the charges. The node granted or returned the amount again, and the cap was exceeded.
//! Now the charges count.

use std::time::Duration;

use tollgate_ledger::{CapHold, HoldError, HoldRequest, Settle};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, SpendingCap};
use tollgate_store::postgres::NodeRole;
use tollgate_store::{Admission, UnitOfWork, UsageRecord, commit, flush};

use super::support::{NOW, account_with, key_of, request, settle, usage};
use super::{Fixture, Node, assert_books, eventually, start, wait};

const KEY: CredentialId = CredentialId::from_bytes([9; 16]);

fn key_with_cap(node: &Node, account: AccountId, max: i64) {
    let cap = SpendingCap {
        max: Micros::new(max),
        period: CapPeriod::Month,
    };
    let part = key_of(KEY, account, Some(cap));
    let unit = UnitOfWork::of(part, Admission::Normal);
    wait(commit(&*node.store, unit)).expect("the key is made");
}

impl Node {
    fn reserve(&self, account: AccountId, number: u64, amount: i64) -> Result<CapHold, HoldError> {
        wait(self.reserved(account, number, amount))
    }

    async fn reserved(
        &self,
        account: AccountId,
        number: u64,
        amount: i64,
    ) -> Result<CapHold, HoldError> {
        let wanted = HoldRequest {
            // A refusal is cached for a moment.
            at: NOW + Duration::from_millis(200 * number),
            ..request(account, number, amount)
        };
        let cap = SpendingCap {
            max: Micros::ZERO,
            period: CapPeriod::Month,
        };
        self.ledger
            .hold_cap((KEY, cap), wanted, |_| None)
            .finish()
            .await
    }

    /// Charges the reserved amount to the key, like a request with or without a durable hold.
    fn charge_spooled(
        &self,
        (account, number, amount): (AccountId, u64, i64),
        is_written: bool,
        cut: impl FnOnce(),
    ) {
        let reserved = self.reserve(account, number, amount).expect("within");
        self.charge_unreserved((account, number, amount), is_written, cut);
        reserved.settle(Micros::new(amount), NOW);
    }

    /// [`Self::charge_spooled`] for a request begun before the key had a cap.
    fn charge_unreserved(
        &self,
        (account, number, amount): (AccountId, u64, i64),
        is_written: bool,
        cut: impl FnOnce(),
    ) {
        let hold = match is_written {
            true => self.hold(account, number, amount),
            false => {
                let wanted = request(account, number, amount);
                wait(self.ledger.load(account)).expect("it can be loaded");
                wait(self.ledger.hold(wanted.in_memory(), |_| None).finish())
                    .expect("there is credit")
            }
        };
        cut();
        let usage = UsageRecord {
            credential: Some(KEY),
            ..usage()
        };
        let settle = Settle {
            usage,
            ..settle(amount)
        };
        self.settled_as(hold, settle).expect("it is in the spool");
    }

    /// Waits until the remainder of the cap is `left`, by requests above the cap. Returns of other nodes may be on their way.
    fn leaves(&self, account: AccountId, left: i64) {
        let mut last = None;
        let polled = async {
            let mut often = tokio::time::interval(Duration::from_millis(10));
            for number in 1_000.. {
                often.tick().await;
                match self.reserved(account, number, 1_000_000).await {
                    Err(HoldError::InsufficientCredit { available, .. }) => {
                        last = Some(available.get());
                    }
                    Err(HoldError::CreditUnavailable { .. }) => {}
                    other => panic!("{other:?}"),
                }
                if last == Some(left) {
                    break;
                }
            }
        };
        let found = wait(async { tokio::time::timeout(Duration::from_secs(240), polled).await });
        assert!(found.is_ok(), "the cap leaves {last:?}, not {left}");
    }
}

#[test]
fn charges_of_the_spool_count_against_what_the_node_has_of_the_cap_of_their_key() {
    for is_written in [true, false] {
        let fixture = Fixture::new();
        let node = fixture.start(NodeRole::OneOfMany);
        let account = account_with(&node.store, &node.ledger, 1, 10_000, 0);
        key_with_cap(&node, account, 1_000);
        node.charge_spooled((account, 1, 300), is_written, || fixture.link.cut());
        node.die();
        fixture.link.restore();

        let node = fixture.start(NodeRole::OneOfMany);
        let again = node.reserve(account, 2, 701);
        assert!(
            matches!(again, Err(HoldError::InsufficientCredit { .. })),
            "300 of 1000 are spent: {again:?}"
        );
        let rest = node.reserve(account, 3, 700).expect("what is left");
        drop(rest);
        node.ledger.return_all();
        node.store.close();
        let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
        b.leaves(account, 700);
        assert_books(&b.store, account, 9_700);
        b.store.close();
    }
}

#[test]
fn a_late_charge_counts_against_the_cap_of_its_key() {
    let fixture = Fixture::new();
    let node = fixture.start(NodeRole::OneOfMany);
    let account = account_with(&node.store, &node.ledger, 1, 10_000, 0);
    key_with_cap(&node, account, 1_000);
    let number = node.store.node();
    // Without a durable hold, the journal does not have the release of the hold.
    node.charge_spooled((account, 1, 300), false, || fixture.link.cut());
    node.die();
    fixture.recover(number);

    fixture.link.restore();
    let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
    let node = fixture.start(NodeRole::OneOfMany);
    assert_eq!(node.late(), (1, 0));
    eventually("the spool is empty", || node.spooled() == (0, 0));
    b.leaves(account, 700);
    node.ledger.return_all();
    b.ledger.return_all();
    assert_books(&node.store, account, 9_700);
    b.store.close();
    node.store.close();
}

/// The node has no row of the cap. The other node has begun to count without the charge.
#[test]
fn a_charge_of_the_spool_counts_against_a_cap_of_which_the_node_has_nothing() {
    for is_recovered in [false, true] {
        let fixture = Fixture::new();
        let node = fixture.start(NodeRole::OneOfMany);
        let account = account_with(&node.store, &node.ledger, 1, 10_000, 0);
        key_with_cap(&node, account, 1_000);
        let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
        drop(b.reserve(account, 2, 10).expect("it is allowed"));
        let number = node.store.node();
        node.charge_unreserved((account, 1, 300), false, || fixture.link.cut());
        node.die();
        if is_recovered {
            fixture.recover(number);
        }
        fixture.link.restore();
        let node = fixture.start(NodeRole::OneOfMany);
        eventually("the spool is empty", || node.spooled() == (0, 0));
        wait(flush(&*node.store)).expect("everything is durable");
        let again = b.reserve(account, 3, 701);
        assert!(
            matches!(again, Err(HoldError::InsufficientCredit { .. })),
            "300 of 1000 are spent: {again:?}"
        );
        b.leaves(account, 700);
        node.ledger.return_all();
        b.ledger.return_all();
        assert_books(&node.store, account, 9_700);
        b.store.close();
        node.store.close();
    }
}
