//! The MPP route: challenges, credentials and receipts by the tables of the scheme, against an in-memory payment provider.

#[path = "../../../../crates/payments/purchase/tests/support/mod.rs"]
mod support;
mod testbed;

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use support::process::{CREDITS, DAY, OTHER_ACCOUNT};
use support::recurring_provider::{Fault, Funding};
use testbed::{Buy, Response, TestBed};
use tollgate_purchase::mandates::Status;

const SECOND: Duration = Duration::from_secs(1);

fn first(bed: &TestBed) -> Response {
    let response = bed.buy(Buy::default());
    assert_eq!(response.status, 402, "{:?}", response.body);
    response
}

fn with(credential: String) -> Buy {
    Buy {
        credential: Some(credential),
        ..Buy::default()
    }
}

/// The owner approves, and the first charge is pending.
fn agree(bed: &TestBed, offer: &Response) {
    let id = offer.subscription();
    bed.provider
        .change(&id, |made| made.funding = Funding::Slow);
    bed.provider.approve(id);
}

/// The faults of the coming calls: this one at call `at`.
fn crash_at(fault: Fault, at: usize) -> Vec<Fault> {
    let mut faults = vec![Fault::None; at];
    faults.push(fault);
    faults
}

/// A 402 as the scheme defines it: a problem and an envelope, a challenge, neither cacheable nor with a receipt.
fn check_problem(response: &Response, slug: &str, state: &str, action: &str) {
    assert_eq!(response.status, 402, "{:?}", response.body);
    let uri = format!("https://paymentauth.org/problems/{slug}");
    assert_eq!(response.word("/type"), uri, "{:?}", response.body);
    assert_eq!(response.word("/error/code"), slug);
    assert_eq!(response.word("/error/type"), "payment_required_error");
    assert_eq!(response.body["status"], 402);
    assert_eq!(response.word("/payment_state"), state, "{slug}");
    assert_eq!(response.word("/retry_action"), action, "{slug}");
    assert_eq!(
        response.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(response.header("cache-control"), Some("no-store"));
    assert_eq!(response.header("payment-receipt"), None);
    assert_eq!(response.challenges().len(), 1, "exactly one challenge");
    let url = response.word("/approval_url").to_owned();
    assert!(url.starts_with("https://paypal.example/approve/"), "{url}");
    assert_eq!(
        response.header("link"),
        Some(&*format!("<{url}>; rel=\"payment\""))
    );
}

fn check_granted(response: &Response, already: bool) {
    assert_eq!(response.status, 200, "{:?}", response.body);
    assert_eq!(response.body["success"], true);
    assert_eq!(response.body["already_active"], already);
    assert_eq!(response.word("/product/id"), "svc-pro-monthly");
    assert_eq!(response.word("/subscription/status"), "active");
    assert_eq!(response.word("/subscription/route"), "paypal");
    assert!(
        response
            .header("cache-control")
            .is_some_and(|value| value.contains("private"))
    );
}

#[test]
fn the_first_402_has_the_approval_url_in_three_places() {
    let bed = TestBed::new();
    let response = first(&bed);
    check_problem(
        &response,
        "payment-required",
        "required",
        "approve_then_retry",
    );
    let challenge = response.challenge();
    for (name, value) in [
        ("realm", "api.svc.example"),
        ("method", "paypal"),
        ("intent", "charge"),
    ] {
        assert_eq!(challenge[name], value);
    }
    assert_eq!(challenge["header"], "Payment-Authorization");
    assert_eq!(challenge.get("digest"), None);
    assert_eq!(bed.provider.all().len(), 1);
}

#[test]
fn a_paid_buyer_has_the_plan_and_the_same_receipt_on_every_request() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.advance(90 * SECOND);
    bed.provider.approve(offer.subscription());
    let bought = bed.buy(with(offer.credential()));
    check_granted(&bought, false);
    let receipt = bought.receipt();
    assert_eq!(receipt["status"], "success");
    assert_eq!(receipt["method"], "paypal");
    assert_eq!(receipt["reference"], json!(offer.subscription()));
    assert_eq!(receipt["subscriptionId"], json!(offer.subscription()));
    assert!(receipt["externalId"].is_string() && receipt["timestamp"].is_string());
    assert_eq!(bed.process().available(), CREDITS);

    bed.advance(DAY);
    for again in [with(offer.credential()), Buy::default()] {
        let again = bed.buy(again);
        check_granted(&again, true);
        assert_eq!(again.receipt(), receipt, "the stored one");
    }
    assert_eq!((bed.provider.kept().len(), bed.payments()), (1, 1));
    bed.process().check_books();
}

#[test]
fn repeated_requests_create_one_subscription_at_the_provider() {
    let bed = TestBed::new();
    let offer = first(&bed);
    for _ in 0..5 {
        let again = first(&bed);
        assert_eq!(again.subscription(), offer.subscription());
        assert_eq!(again.word("/approval_url"), offer.word("/approval_url"));
        assert_ne!(again.challenge()["id"], offer.challenge()["id"]);
    }
    assert_eq!(bed.provider.all().len(), 1);
}

#[test]
fn a_credential_is_pending_until_the_owner_has_approved_and_paid() {
    let bed = TestBed::new();
    let offer = first(&bed);
    for _ in 0..3 {
        let waits = bed.buy(with(offer.credential()));
        check_problem(
            &waits,
            "payment-action-required",
            "approval_pending",
            "approve_then_retry",
        );
        assert_eq!(waits.header("retry-after"), Some("5"));
        assert_eq!(waits.word("/approval_url"), offer.word("/approval_url"));
    }
    agree(&bed, &offer);
    for _ in 0..2 {
        let unpaid = bed.buy(with(offer.credential()));
        check_problem(
            &unpaid,
            "payment-action-required",
            "processing",
            "retry_same",
        );
        assert!(unpaid.header("retry-after").is_some());
    }
    let asked_anew = bed.buy(Buy::default());
    check_problem(&asked_anew, "payment-required", "processing", "retry_same");
    assert_eq!(asked_anew.subscription(), offer.subscription());
    bed.provider.resolve(offer.subscription(), true);
    check_granted(&bed.buy(with(offer.credential())), false);
    assert_eq!(bed.provider.all().len(), 1);
}

#[test]
fn a_cancelled_payment_is_followed_by_a_new_challenge() {
    for status in [Status::Cancelled, Status::Expired, Status::Suspended] {
        let bed = TestBed::new();
        let offer = first(&bed);
        bed.provider
            .change(offer.subscription(), |made| made.status = status);
        let over = bed.buy(with(offer.credential()));
        check_problem(&over, "verification-failed", "failed", "pay_again");
        assert_ne!(over.subscription(), offer.subscription(), "{status:?}");
        // The failed challenge is consumed.
        let again = bed.buy(with(offer.credential()));
        check_problem(&again, "invalid-challenge", "refused", "pay");
        assert_eq!(again.subscription(), over.subscription());
        bed.provider.approve(over.subscription());
        check_granted(&bed.buy(with(over.credential())), false);
    }
}

#[test]
fn a_charge_on_other_terms_is_refused_and_refunded() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    bed.provider
        .change(offer.subscription(), |made| made.is_changed = true);
    let refused = bed.buy(with(offer.credential()));
    check_problem(&refused, "verification-failed", "failed", "pay_again");
    bed.reconcile_due();
    assert_eq!(bed.provider.kept().len(), 0, "the money went back");
    assert_eq!(bed.provider.charging(), 0);
    assert_eq!(bed.payments(), 0);
}

#[test]
fn while_the_provider_is_unavailable_no_challenge_is_consumed_and_no_outcome_guessed() {
    let bed = TestBed::new();
    bed.provider.faults([Fault::Unavailable; 40]);
    let down = bed.buy(Buy::default());
    check_unavailable(&down, "unavailable");
    bed.provider.faults([]);
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    bed.provider.faults([Fault::Unavailable; 40]);
    for _ in 0..3 {
        check_unavailable(&bed.buy(with(offer.credential())), "processing");
    }
    bed.provider.faults([]);
    check_granted(&bed.buy(with(offer.credential())), false);
    assert_eq!(bed.provider.all().len(), 1);
}

fn check_unavailable(response: &Response, state: &str) {
    assert_eq!(response.status, 503, "{:?}", response.body);
    assert_eq!(response.word("/error/type"), "unavailable_error");
    assert_eq!(response.word("/error/code"), "payment_route_unavailable");
    assert_eq!(response.word("/payment_state"), state);
    assert_eq!(response.word("/retry_action"), "retry_same");
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert_eq!(response.header("www-authenticate"), None);
    assert!(response.header("retry-after").is_some());
}

#[test]
fn an_invalid_credential_gets_a_challenge_and_never_a_server_error() {
    let bed = TestBed::new();
    let offer = first(&bed);
    let change = |pointer: &str, value: Value| changed(&offer.credential(), pointer, value);
    let theirs = bed.buy(Buy {
        account: Some(OTHER_ACCOUNT),
        ..Buy::default()
    });
    for (credential, slug) in [
        (String::new(), "malformed-credential"),
        ("%%%".to_owned(), "malformed-credential"),
        ("e30".to_owned(), "malformed-credential"),
        (change("/payload", json!([])), "malformed-credential"),
        (change("/challenge/id", json!("")), "invalid-challenge"),
        (change("/challenge/realm", json!("x")), "invalid-challenge"),
        (
            change("/challenge/expires", json!("2099-01-01T00:00:00Z")),
            "invalid-challenge",
        ),
        (theirs.credential(), "invalid-challenge"),
        (offer.credential_for("I-9"), "invalid-payload"),
        (change("/payload/type", json!("x")), "invalid-payload"),
    ] {
        let refused = bed.buy(with(credential));
        check_problem(&refused, slug, "refused", "pay");
        assert_eq!(refused.subscription(), offer.subscription());
    }
    for (pointer, word) in [
        ("/challenge/method", "tempo"),
        ("/challenge/intent", "session"),
    ] {
        let refused = bed.buy(with(change(pointer, json!(word))));
        assert_eq!(refused.status, 400);
        assert_eq!(refused.word("/error/code"), "method-unsupported");
        assert_eq!(refused.word("/title"), "Method Unsupported");
    }
    bed.advance(30 * 60 * SECOND);
    let late = bed.buy(with(offer.credential()));
    check_problem(&late, "payment-expired", "refused", "pay");
    bed.provider.approve(late.subscription());
    check_granted(&bed.buy(with(late.credential())), false);
}

/// A credential with another value at a JSON path.
fn changed(credential: &str, pointer: &str, value: Value) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let json = URL_SAFE_NO_PAD.decode(credential).expect("base64url");
    let mut whole: Value = serde_json::from_slice(&json).expect("JSON");
    *whole.pointer_mut(pointer).expect("it is there") = value;
    URL_SAFE_NO_PAD.encode(whole.to_string())
}

#[test]
fn of_twenty_equal_requests_one_buys_and_the_others_are_already_active() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    let all = bed.buy_at_once(20, &with(offer.credential()));
    let bought = |response: &&Response| response.body["already_active"] == false;
    assert!(all.iter().all(|response| response.status == 200));
    assert_eq!(all.iter().filter(bought).count(), 1);
    assert!(
        all.iter()
            .all(|response| response.receipt() == all[0].receipt())
    );
    assert_eq!((bed.provider.kept().len(), bed.payments()), (1, 1));
    assert_eq!(bed.process().available(), CREDITS);
}

#[test]
fn twenty_first_requests_at_once_are_one_subscription() {
    let bed = TestBed::new();
    let all = bed.buy_at_once(20, &Buy::default());
    assert!(all.iter().all(|response| response.status == 402));
    assert_eq!(bed.provider.all().len(), 1);
}

#[test]
fn a_request_with_an_idempotency_key_is_answered_once_and_replayed() {
    let bed = TestBed::new();
    let named = |credential: Option<String>, body| Buy {
        credential,
        body,
        ..Buy::default()
    };
    const BODY: &str = r#"{"idempotency_key":"k"}"#;
    // An answer without a purchase is not stored.
    let offer = bed.buy(named(None, BODY));
    check_problem(&offer, "payment-required", "required", "approve_then_retry");
    bed.provider.approve(offer.subscription());
    let bought = bed.buy(named(Some(offer.credential()), BODY));
    check_granted(&bought, false);
    for credential in [Some(offer.credential()), None] {
        let again = bed.buy(named(credential, BODY));
        assert_eq!(again.body, bought.body, "word for word");
        assert_eq!(again.receipt(), bought.receipt());
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
    }
    let in_field = bed.buy(Buy {
        key: Some("\"k\""),
        body: BODY,
        ..Buy::default()
    });
    assert_eq!(in_field.body, bought.body);
    let other = bed.buy(named(
        None,
        r#"{"idempotency_key":"k","product_id":"svc-pro-monthly"}"#,
    ));
    assert_eq!(other.status, 409);
    assert_eq!(other.word("/error/code"), "idempotency_conflict");
    assert_eq!(other.word("/title"), "Conflict");
    let twice = bed.buy(Buy {
        key: Some("other"),
        body: BODY,
        ..Buy::default()
    });
    assert_eq!(twice.status, 400);
    let theirs = bed.buy(Buy {
        account: Some(OTHER_ACCOUNT),
        body: BODY,
        ..Buy::default()
    });
    assert_eq!(theirs.status, 402, "a name means something to one account");
}

#[test]
fn a_stored_answer_is_written_with_the_payment() {
    let mut bed = TestBed::new();
    const BODY: &str = r#"{"idempotency_key":"k"}"#;
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    let buy = Buy {
        body: BODY,
        ..with(offer.credential())
    };
    // Twenty concurrent requests under one idempotency key: one answer, byte for byte.
    let all = bed.buy_at_once(20, &buy);
    assert!(all.iter().all(|response| response.body == all[0].body));
    bed.restart();
    let again = bed.buy(buy);
    assert_eq!(again.body, all[0].body);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
}

#[test]
fn an_invalid_body_is_refused_before_any_provider_call() {
    let bed = TestBed::new();
    for body in [r#"{"x":1}"#, "[]", "{", r#"{"product_id":"other"}"#] {
        let refused = bed.buy(Buy {
            body,
            ..Buy::default()
        });
        assert_eq!(refused.status, 400, "{body}");
        assert_eq!(refused.word("/error/type"), "invalid_request_error");
        assert_eq!(refused.header("www-authenticate"), None);
    }
    assert_eq!(bed.provider.all().len(), 0);
}

#[test]
fn a_payment_that_reconciliation_found_first_is_answered_with_its_receipt() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    bed.advance(600 * SECOND);
    bed.reconcile_due();
    assert_eq!(bed.payments(), 1, "without the buyer's doing");
    let response = bed.buy(with(offer.credential()));
    check_granted(&response, false);
    let receipt = response.receipt();
    assert_eq!(receipt["reference"], json!(offer.subscription()));
    for again in [with(offer.credential()), Buy::default()] {
        let again = bed.buy(again);
        check_granted(&again, true);
        assert_eq!(again.receipt(), receipt);
    }
}

/// The keys stay claimed until the node that has claimed them is recovered, which takes minutes.
#[test]
fn a_recorded_payment_is_answered_although_another_node_has_claimed_the_key_and_is_gone() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    let without_key = with(offer.credential());
    let buy = Buy {
        key: Some("key"),
        ..without_key.clone()
    };
    let answered = bed.buy_elsewhere(buy.clone(), |bed| {
        for buy in [&buy, &without_key] {
            assert_eq!(bed.buy(buy.clone()).status, 409);
        }
        bed.advance(600 * SECOND);
        bed.reconcile_due();
        assert_eq!(bed.payments(), 1);
        for buy in [&buy, &without_key, &buy] {
            let response = bed.buy(buy.clone());
            check_granted(&response, false);
            assert_eq!(response.receipt()["reference"], json!(offer.subscription()));
        }
        let unpaid = Buy {
            credential: None,
            ..buy.clone()
        };
        assert_eq!(bed.buy(unpaid).status, 409);
    });
    check_granted(&answered, false);
    check_granted(&bed.buy(buy), false);
    assert_eq!(bed.payments(), 1);
}

#[test]
fn secret_rotation_does_not_void_outstanding_challenges() {
    const NEW: &[u8] = b"another-secret-of-the-same-length-32";
    let old = b"tollgate-test-secret-0123456789abcdef";
    let mut bed = TestBed::new();
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    bed.restart_with(NEW, None);
    let refused = bed.buy(with(offer.credential()));
    check_problem(&refused, "invalid-challenge", "refused", "pay");
    bed.restart_with(NEW, Some(old));
    check_granted(&bed.buy(with(offer.credential())), false);
}

#[test]
fn a_challenge_that_names_its_field_is_answered_in_either() {
    for own_field in [true, false] {
        let bed = TestBed::new();
        let offer = first(&bed);
        assert_eq!(offer.challenge()["header"], "Payment-Authorization");
        agree(&bed, &offer);
        bed.provider.resolve(offer.subscription(), true);
        let answer = Buy {
            own_field,
            ..with(offer.credential())
        };
        check_granted(&bed.buy(answer), false);
    }
}

#[test]
fn a_challenge_without_a_field_is_answered_in_authorization_after_the_upgrade_too() {
    let mut bed = TestBed::new();
    bed.own_field = false;
    bed.restart();
    let before = first(&bed);
    assert_eq!(before.challenge().get("header"), None);
    bed.own_field = true;
    bed.restart();
    let after = first(&bed);
    assert_eq!(after.subscription(), before.subscription());
    agree(&bed, &before);
    bed.provider.resolve(before.subscription(), true);
    let elsewhere = Buy {
        own_field: true,
        ..with(before.credential())
    };
    check_problem(&bed.buy(elsewhere), "invalid-challenge", "refused", "pay");
    check_granted(&bed.buy(with(before.credential())), false);
}

#[test]
fn a_digest_binds_a_challenge_to_its_body() {
    let mut bed = TestBed::new();
    bed.digest = true;
    bed.restart();
    const BODY: &str = r#"{"product_id":"svc-pro-monthly"}"#;
    let asked = |credential, body| Buy {
        credential,
        body,
        ..Buy::default()
    };
    let offer = bed.buy(asked(None, BODY));
    assert_eq!(
        offer.challenge()["digest"],
        "sha-256=:gOEeFzfLYGqL+Mkt2yjilTA5KAqdLyvQ8O6gx3nszVs=:"
    );
    bed.provider.approve(offer.subscription());
    let other = bed.buy(asked(Some(offer.credential()), "{}"));
    check_problem(&other, "invalid-challenge", "refused", "pay");
    check_granted(&bed.buy(asked(Some(offer.credential()), BODY)), false);
}

#[test]
fn the_subscription_intent_is_offered_to_clients_that_name_it() {
    let bed = TestBed::new();
    let both = bed.buy(Buy {
        accept: Some("paypal/subscription, paypal/charge;q=0.5"),
        ..Buy::default()
    });
    let intents: Vec<_> = both
        .challenges()
        .into_iter()
        .map(|one| one["intent"].clone())
        .collect();
    assert_eq!(intents, ["subscription", "charge"]);
    bed.provider.approve(both.subscription());
    let bought = bed.buy(with(both.credential()));
    check_granted(&bought, false);
    assert_eq!(
        bought.receipt()["subscriptionId"],
        json!(both.subscription())
    );
}

#[test]
fn no_challenge_is_issued_while_a_transfer_may_be_moving() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.submit_transfer();
    for asks in [
        Buy::default(),
        with(offer.credential()),
        with("x".to_owned()),
    ] {
        check_unavailable(&bed.buy(asks), "processing");
    }
    // The owner's payment is not applied until the transfer's outcome is known: one of the two would be refunded.
    bed.provider.approve(offer.subscription());
    check_unavailable(&bed.buy(with(offer.credential())), "processing");
    bed.void_transfer();
    check_granted(&bed.buy(with(offer.credential())), false);

    let bed = TestBed::new();
    bed.submit_transfer();
    check_unavailable(&bed.buy(Buy::default()), "processing");
    assert_eq!(bed.provider.all().len(), 0, "the provider was not asked");
    bed.void_transfer();
    assert_eq!(first(&bed).status, 402);
}

#[test]
fn a_plan_paid_by_a_transfer_is_already_active_and_a_mandate_beside_it_is_refunded() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.transfer();
    // The owner approves the old offer all the same.
    bed.provider.approve(offer.subscription());
    for asks in [Buy::default(), with(offer.credential())] {
        let response = bed.buy(asks);
        assert_eq!(response.status, 200, "{:?}", response.body);
        assert_eq!(response.body["already_active"], true);
        assert_eq!(response.word("/subscription/route"), "x402");
        assert_eq!(
            response.header("payment-receipt"),
            None,
            "it was not bought here"
        );
    }
    bed.advance(600 * SECOND);
    bed.reconcile_due();
    assert_eq!(bed.provider.kept().len(), 0, "the money went back");
    assert_eq!(bed.provider.charging(), 0, "and nothing more is charged");
    assert_eq!(bed.payments(), 1);
    bed.process().check_books();
}

/// The process is killed at every call of a purchase in turn, before and after the call is carried out. The buyer follows the answers, and
/// has the plan once, for one payment of one subscription.
#[test]
fn after_a_crash_at_any_call_the_repeated_request_gets_the_plan() {
    for fault in [Fault::CrashBefore, Fault::CrashAfter] {
        for at in 0..3 {
            let mut bed = TestBed::new();
            let what = format!("{fault:?} at call {at}");
            bed.provider.faults(crash_at(fault, at));
            // Between the first request and the challenge.
            let offer = loop {
                if let Some(response) = bed.buy_until_crash(Buy::default()) {
                    break response;
                }
            };
            assert_eq!(offer.status, 402, "{what}: {:?}", offer.body);
            bed.provider.approve(offer.subscription());
            bed.restart();
            // Between the payment and the answer.
            bed.provider.faults(crash_at(fault, at));
            let buy = Buy {
                body: r#"{"idempotency_key":"k"}"#,
                ..with(offer.credential())
            };
            let bought = loop {
                if let Some(response) = bed.buy_until_crash(buy.clone()) {
                    break response;
                }
            };
            bed.provider.faults([]);
            assert_eq!(bought.status, 200, "{what}: {:?}", bought.body);
            bed.restart();
            check_granted(&bed.buy(Buy::default()), true);
            assert_eq!(bed.provider.all().len(), 1, "{what}");
            assert_eq!(
                (bed.provider.kept().len(), bed.payments()),
                (1, 1),
                "{what}"
            );
            assert_eq!(bed.process().available(), CREDITS, "{what}");
            bed.process().check_books();
        }
    }
}

#[test]
fn a_plan_that_has_ended_is_bought_again() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.provider.approve(offer.subscription());
    check_granted(&bed.buy(with(offer.credential())), false);
    bed.provider
        .change(offer.subscription(), |made| made.status = Status::Cancelled);
    bed.advance(40 * DAY);
    bed.reconcile_due();
    let anew = first(&bed);
    assert_ne!(anew.subscription(), offer.subscription());
    bed.provider.approve(anew.subscription());
    check_granted(&bed.buy(with(anew.credential())), false);
    assert_eq!(bed.payments(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_credential_causes_a_server_error(credential in "[ -~]{0,120}", json in "[{}\\[\\]\":,a-z0-9]{0,60}") {
        use base64::Engine as _;
        let bed = BED.with(std::rc::Rc::clone);
        for credential in [credential, base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(json)] {
            let response = bed.buy(with(credential));
            prop_assert!((400..500).contains(&response.status), "{:?}", response.body);
        }
    }
}

thread_local! {
    static BED: std::rc::Rc<TestBed> = std::rc::Rc::new(TestBed::new());
}
