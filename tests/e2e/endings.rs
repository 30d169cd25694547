//! Endings of a request at a model with a request price: the rows of the meter's table in need of several provider scripts.

use serde_json::{Value, json};
use tollgate_clock::{Clock, Entropy};
use tollgate_identity::{NewAccount, create_account};
use tollgate_money::Micros;
use tollgate_testing::provider::{Failure, UsageReport};
use tollgate_testing::{Client, Ended, RawClient, Script};

use crate::rig::{CHAT, IN, OUT, Rig, chat};

/// `small` with a price per successful request.
pub(crate) const WITH_REQUEST_PRICE: &str =
    "[[model]]\nprice = { input = \"150\", output = \"600\", request = \"0.01\" }\n";

/// The price of a request, in micro-credits.
const REQUEST: i64 = 10_000;

/// More bytes than the sockets between gateway and client hold.
const LARGE: usize = 7 << 20;

/// A stream or a whole body, with a reported usage of 5 and 1 tokens. The last piece does not fit the sockets.
fn large(stream: bool) -> Script {
    let text = "x".repeat(LARGE);
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6});
    let (kind, body) = match stream {
        true => {
            let choice = json!({"index": 0, "delta": {"content": text}, "finish_reason": "stop"});
            let chunk = json!({"choices": [choice], "usage": usage});
            (
                "text/event-stream",
                format!("data: {chunk}\n\ndata: [DONE]\n\n"),
            )
        }
        false => {
            let choice = json!({"index": 0, "message": {"content": text}, "finish_reason": "stop"});
            let body = json!({"choices": [choice], "usage": usage});
            ("application/json", body.to_string())
        }
    };
    Script {
        headers: vec![("content-type".to_owned(), kind.to_owned())],
        ..Script::failure(Failure::Text(body))
    }
}

#[tokio::test]
async fn a_client_that_disconnects_within_the_last_piece_has_paid_for_all() {
    let rig = Rig::with(WITH_REQUEST_PRICE).await;
    for stream in [false, true] {
        rig.provider.script(large(stream).once());
        let raw = RawClient::connect_narrow(rig.plain, None).await;
        let mut raw = raw.expect("a connection");
        raw.post(CHAT, &rig.key, &chat(stream).to_string()).await;
        // The head of the answer comes with the last piece, and the last piece after the settlement.
        assert_eq!(raw.read_head().await.status(), 200, "{stream}");
        let left = rig.available(rig.account);
        raw.reset();
        rig.provider.calls_when_ended().await;
        rig.quiet().await;
        let charge = 5 * IN + OUT + REQUEST;
        rig.add_expected_charge(charge);
        assert_eq!(rig.available(rig.account), left, "{stream}: charged before");
    }
    assert_eq!(rig.finish().await.endings(), ["gone_during"; 2]);
}

#[tokio::test]
async fn a_client_that_stops_reading_pays_for_what_was_relayed_without_reported_usage() {
    let settings =
        format!("[server]\nwrite_secs = 1\n[meter]\ndrain_secs = 0\n{WITH_REQUEST_PRICE}");
    let rig = Rig::with(&settings).await;
    let mut body = chat(true);
    // The bound of the charge, far below the capacity of the sockets.
    body["max_tokens"] = 16.into();
    let endless = Script {
        endless: true,
        event_bytes: Some(1024),
        usage: UsageReport::Forgotten,
        ..Script::default()
    };
    rig.provider.script(endless.once());
    let raw = RawClient::connect_narrow(rig.plain, None).await;
    let mut raw = raw.expect("a connection");
    raw.post(CHAT, &rig.key, &body.to_string()).await;
    raw.read_head().await;
    let calls = rig.provider.calls_when_ended().await;
    assert_eq!(
        calls.last().and_then(|call| call.ended),
        Some(Ended::PeerGone)
    );
    rig.quiet().await;
    // The client's part is over, and not for a failure: the request price is due.
    rig.add_expected_charge(9 * IN + 16 * OUT + REQUEST);
    drop(raw);
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["gone_during"]);
    assert_eq!(after.log[0]["usage_estimated"], true);
}

/// Sends a chat capped at 16 tokens. Returns the status, and the charge of the answer.
async fn charged(client: &Client, stream: bool) -> (u16, Value) {
    let mut body = chat(stream);
    body["max_tokens"] = 16.into();
    let mut answer = client.stream(CHAT, &body).await;
    let status = answer.status;
    if !stream || status != 200 {
        return (status, answer.whole().await.json());
    }
    let (events, _) = answer.rest().await;
    let [.., last, done] = &events[..] else {
        panic!("too few events: {events:?}");
    };
    assert!(done.is_done(), "{done:?}");
    (status, last.json())
}

#[tokio::test]
async fn usage_beyond_the_hold_is_charged_down_to_the_credit_limit() {
    const COST: i64 = 100 * IN + 16 * OUT + REQUEST;
    let rig = Rig::with(WITH_REQUEST_PRICE).await;
    // credits, limit, charged: the whole charge, down to zero, down to the limit
    for (credits, limit, charge) in [
        (COST, 0, COST),
        (COST - 2_000, 0, COST - 2_000),
        (COST - 2_000, 500, COST - 1_500),
        (COST - 2_000, 5_000, COST),
    ] {
        for stream in [false, true] {
            for http2 in [false, true] {
                let account = NewAccount {
                    logins: Vec::new(),
                    class: "pro".into(),
                    credit_limit: Micros::new(limit),
                    cache_scope: tollgate_store::CacheScope::Shared,
                    created_at: Clock::system().now(),
                };
                let entropy = Entropy::system();
                let made = create_account(&*rig.books.store, account, |out| entropy.fill(out));
                let account = made.await.expect("an account");
                rig.grant(account, credits).await;
                let (_, key) = rig.new_key(account, |_| {}).await;
                let client = Client::new(&rig.url()).with_key(&key);
                let client = if http2 { client.with_http2() } else { client };
                let usage = UsageReport::Exactly {
                    prompt_tokens: 100,
                    completion_tokens: 16,
                };
                rig.provider.script(Script::usage(usage).once());
                let case = format!("{credits} and {limit}, {stream}, {http2}");
                let (status, answer) = charged(&client, stream).await;
                assert_eq!(status, 200, "{case}: {answer}");
                assert_eq!(rig.record_charge(&answer), charge, "{case}");
                rig.add_expected_write_off(COST - charge);
                assert_eq!(rig.available(account), credits - charge, "{case}");
                if charge < COST {
                    let (status, answer) = charged(&client, stream).await;
                    assert_eq!(status, 402, "{case}: {answer}");
                }
            }
        }
    }
    rig.finish().await;
}
