//! Cache scopes: sharing of responses among accounts.

use tollgate_clock::Clock;
use tollgate_identity::set_cache_scope;
use tollgate_money::AccountId;
use tollgate_store::CacheScope;
use tollgate_testing::{Answer, Client, Script};

use super::{metadata, rig, setup, status};
use crate::rig::{CHAT, Rig, chat, micros};

/// A client of a new account.
async fn other_account(rig: &Rig, class: &str) -> (AccountId, Client) {
    let account = rig.new_account(class, 10_000_000).await;
    let (_, key) = rig.new_key(account, |_| {}).await;
    (account, Client::new(&rig.url()).with_key(&key))
}

async fn ask(rig: &Rig, client: &Client) -> Answer {
    let answer = client.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    answer
}

#[tokio::test]
async fn cache_scopes_restrict_sharing_between_accounts() {
    const KEYED: &str = "partition = \"keyed\"\nsalts = { free = \"a\", pro = \"a\", mcp = \"b\" }";
    // The first account is of the class pro.
    for (settings, class, expected) in [
        ("", "free", "hit"),
        ("partition = \"none\"", "mcp", "hit"),
        ("partition = \"account\"", "pro", "stored"),
        (KEYED, "free", "hit"),
        (KEYED, "mcp", "stored"),
        (
            "partition = \"keyed\"\nsalts = { free = \"a\" }",
            "pro",
            "stored",
        ),
    ] {
        let rig = Rig::with(&format!("[cache]\nenabled = true\n{settings}")).await;
        let first = ask(&rig, &rig.client()).await;
        assert_eq!(status(&first), "stored");
        let (_, other) = other_account(&rig, class).await;
        let answer = ask(&rig, &other).await;
        assert_eq!(status(&answer), expected, "{settings}: {class}");
        // An account's own stored answers are hits for the account in any case.
        assert_eq!(status(&ask(&rig, &rig.client()).await), "hit", "{settings}");
        assert_eq!(
            status(&ask(&rig, &other).await),
            "hit",
            "{settings}: {class}"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn an_account_scope_neither_shares_nor_uses_shared_entries() {
    let rig = rig("").await;
    ask(&rig, &rig.client()).await;
    let (account, own) = other_account(&rig, "pro").await;
    let now = Clock::system().now();
    set_cache_scope(&*rig.books.store, account, CacheScope::Account, now)
        .await
        .expect("changed");
    for expected in ["stored", "hit"] {
        assert_eq!(status(&ask(&rig, &own).await), expected);
    }
    set_cache_scope(&*rig.books.store, account, CacheScope::Off, now)
        .await
        .expect("changed");
    for _ in 0..2 {
        let answer = ask(&rig, &own).await;
        assert_eq!(status(&answer), "bypass");
        assert!(metadata(&answer)["cache_entry_id"].is_null());
    }
    set_cache_scope(&*rig.books.store, account, CacheScope::Shared, now)
        .await
        .expect("changed");
    assert_eq!(
        status(&ask(&rig, &own).await),
        "hit",
        "from the next request on"
    );
    assert_eq!(rig.provider.call_count(), 4);
    rig.finish().await;
}

#[tokio::test]
async fn a_hit_needs_a_balance_above_zero() {
    let rig = rig("").await;
    ask(&rig, &rig.client()).await;
    let empty = rig.new_account("pro", 0).await;
    let (_, key) = rig.new_key(empty, |_| {}).await;
    let client = Client::new(&rig.url()).with_key(&key);
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 402);
    rig.grant(empty, 1).await;
    let answer = client.post(CHAT, &chat(false)).await;
    assert_eq!(status(&answer), "hit", "one micro-credit will do");
    rig.record_charge(&answer.json());
    assert_eq!(rig.available(empty), 1);
    rig.finish().await;
}

#[tokio::test]
async fn uncached_models_and_requests_with_plugins_are_not_stored() {
    let rig = setup("[[model]]\n[[model]]\ncache = false").start().await;
    let mut dear = chat(false);
    dear["model"] = "dear".into();
    dear["max_tokens"] = 50.into();
    let mut plugins = chat(false);
    plugins["plugins"] = serde_json::json!([{"id": "web"}]);
    for body in [dear, plugins] {
        for _ in 0..2 {
            let answer = rig.client().post(CHAT, &body).await;
            assert_eq!(status(&answer), "uncacheable", "{body}");
            rig.record_charge(&answer.json());
        }
    }
    assert_eq!(rig.provider.call_count(), 4);
    rig.finish().await;
}

#[tokio::test]
async fn an_answer_that_stopped_below_a_lowered_limit_is_stored_and_one_cut_by_it_is_not() {
    // The default limit of 4096 tokens costs 2.46 credits: the account can pay some 160 tokens.
    let rig = setup("").credits(100_000).start().await;
    for stream in [false, true] {
        for (words, expected) in [(16, "stored"), (16, "hit"), (500, "uncacheable")] {
            rig.provider.clear_scripts();
            rig.provider.script(Script {
                words: Some(words),
                ..Script::default()
            });
            let mut body = chat(stream);
            // Texts different from the texts of the other form: equal texts would share the entry.
            body["messages"][0]["content"] = format!("Halt! {stream} {words}").into();
            let answer = rig.client().post(CHAT, &body).await;
            let text = answer.text();
            assert_eq!(answer.status, 200, "{text}");
            if expected != "hit" {
                let sent = rig.provider.last_call().json();
                assert!(
                    sent["max_tokens"].as_u64().is_some_and(|cap| cap < 200),
                    "{sent}"
                );
            }
            assert_eq!(text.contains("\"length\""), words == 500, "{text}");
            assert_eq!(status(&answer), expected, "stream {stream}, {words} words");
            rig.add_expected_charge(micros(&metadata(&answer)["credits_used"]));
            // The cut answer took the rest.
            let spent = 100_000 - rig.available(rig.account);
            if spent > 0 {
                rig.grant(rig.account, spent).await;
            }
        }
    }
    rig.finish().await;
}
