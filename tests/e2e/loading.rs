//! Accounts in memory only during use.

use tollgate_store::flush;

use crate::rig::{Browser, CHAT, PRICE_OF_A_CHAT, Rig, chat};

/// Removes every idle account from memory, like an hour without requests.
async fn forget_accounts(rig: &Rig) {
    rig.quiet().await;
    for _ in 0..2 {
        rig.books.ledger.evict_idle();
        let flushed = flush(&*rig.books.store).await;
        flushed.expect("everything is durable");
    }
    assert_eq!(rig.books.ledger.resident_accounts(), 0);
    assert_eq!(rig.metric("tollgate_accounts").await, 0);
}

#[tokio::test]
async fn an_account_that_is_not_in_memory_is_charged_as_any_other() {
    let rig = Rig::start().await;
    for client in [rig.client(), rig.client()] {
        for stream in [false, true] {
            forget_accounts(&rig).await;
            let answer = client.stream(CHAT, &chat(stream)).await.whole().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            rig.add_expected_charge(PRICE_OF_A_CHAT);
        }
    }
    rig.quiet().await;
    assert_eq!(
        rig.available(rig.account),
        crate::rig::CREDITS - 4 * PRICE_OF_A_CHAT
    );
    assert_eq!(
        rig.metric("tollgate_account_loads_total{result=\"found\"}")
            .await,
        4
    );
    rig.finish().await;
}

#[tokio::test]
async fn an_account_without_credit_is_refused_and_granted_some_while_it_is_not_in_memory() {
    let rig = crate::rig::Setup::default().credits(0).start().await;
    forget_accounts(&rig).await;
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 402, "{}", answer.text());
    forget_accounts(&rig).await;
    rig.grant(rig.account, 1_000_000).await;
    forget_accounts(&rig).await;
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    rig.finish().await;
}

#[tokio::test]
async fn the_balance_of_an_account_that_is_not_in_memory_is_shown() {
    let rig = Rig::start().await;
    let mut browser = Browser::signed_in(&rig).await;
    forget_accounts(&rig).await;
    let listed = rig.client().get("/v1/models").await;
    assert_eq!(listed.status, 200, "{}", listed.text());
    assert!(listed.text().contains("credits_remaining"));
    let before = browser.get("/").await;
    forget_accounts(&rig).await;
    let page = browser.get("/").await;
    assert_eq!((page.status, page.text()), (200, before.text()));
    rig.finish().await;
}
