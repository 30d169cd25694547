//! The plan, sold for an answered challenge: every row of the scheme's tables, against a provider in memory.

mod provider;
mod testbed;

use proptest::prelude::*;
use provider::{DAY, Fault};
use serde_json::{Value, json};
use testbed::{Buy, CREDITS, OTHER_ACCOUNT, Response, TestBed};
use tollgate_purchase::mandates::Status;

const SECOND: i64 = 1_000_000;

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
fn the_first_request_is_told_where_to_agree_in_three_places() {
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
    assert_eq!(challenge.get("header"), None);
    assert_eq!(challenge.get("digest"), None);
    assert_eq!(bed.world.made(), 1);
}

#[test]
fn whoever_pays_has_the_plan_and_the_same_receipt_whenever_they_ask() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.advance(90 * SECOND);
    bed.world.pay(&offer.subscription());
    let bought = bed.buy(with(offer.credential()));
    check_granted(&bought, false);
    let receipt = bought.receipt();
    assert_eq!(receipt["status"], "success");
    assert_eq!(receipt["method"], "paypal");
    assert_eq!(receipt["reference"], json!(offer.subscription()));
    assert_eq!(receipt["subscriptionId"], json!(offer.subscription()));
    assert!(receipt["externalId"].is_string() && receipt["timestamp"].is_string());
    assert_eq!(bed.available(), CREDITS);

    bed.advance(DAY);
    for again in [with(offer.credential()), Buy::default()] {
        let again = bed.buy(again);
        check_granted(&again, true);
        assert_eq!(again.receipt(), receipt, "the stored one");
    }
    assert_eq!((bed.world.takings(), bed.payments()), (1, 1));
    bed.check_books();
}

#[test]
fn many_questions_are_one_subscription_at_the_provider() {
    let bed = TestBed::new();
    let offer = first(&bed);
    for _ in 0..5 {
        let again = first(&bed);
        assert_eq!(again.subscription(), offer.subscription());
        assert_eq!(again.word("/approval_url"), offer.word("/approval_url"));
        assert_ne!(again.challenge()["id"], offer.challenge()["id"]);
    }
    assert_eq!(bed.world.made(), 1);
}

#[test]
fn until_the_owner_has_agreed_and_paid_the_same_credential_waits() {
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
    bed.world.agree(&offer.subscription());
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
    bed.world.charge(&offer.subscription());
    check_granted(&bed.buy(with(offer.credential())), false);
    assert_eq!(bed.world.made(), 1);
}

#[test]
fn a_payment_that_was_ended_leads_to_a_new_one() {
    for status in [Status::Cancelled, Status::Expired, Status::Suspended] {
        let bed = TestBed::new();
        let offer = first(&bed);
        bed.world
            .change(&offer.subscription(), |kept| kept.status = status);
        let over = bed.buy(with(offer.credential()));
        check_problem(&over, "verification-failed", "failed", "pay_again");
        assert_ne!(over.subscription(), offer.subscription(), "{status:?}");
        // The failed challenge is consumed.
        let again = bed.buy(with(offer.credential()));
        check_problem(&again, "invalid-challenge", "refused", "pay");
        assert_eq!(again.subscription(), over.subscription());
        bed.world.pay(&over.subscription());
        check_granted(&bed.buy(with(over.credential())), false);
    }
}

#[test]
fn other_terms_than_those_that_were_agreed_are_refused_and_given_back() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.world.pay(&offer.subscription());
    bed.world
        .change(&offer.subscription(), |kept| kept.is_changed = true);
    let refused = bed.buy(with(offer.credential()));
    check_problem(&refused, "verification-failed", "failed", "pay_again");
    bed.sweep();
    assert_eq!(bed.world.takings(), 0, "the money went back");
    assert_eq!(bed.world.running(), 0);
    assert_eq!(bed.payments(), 0);
}

#[test]
fn while_the_provider_cannot_be_asked_nothing_is_consumed_and_nothing_guessed() {
    let bed = TestBed::new();
    bed.world.fault(Fault::Down, 0);
    let down = bed.buy(Buy::default());
    check_unavailable(&down, "unavailable");
    bed.world.fault(Fault::None, 0);
    let offer = first(&bed);
    bed.world.pay(&offer.subscription());
    bed.world.fault(Fault::Down, 0);
    for _ in 0..3 {
        check_unavailable(&bed.buy(with(offer.credential())), "processing");
    }
    bed.world.fault(Fault::None, 0);
    check_granted(&bed.buy(with(offer.credential())), false);
    assert_eq!(bed.world.made(), 1);
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
fn a_credential_that_is_none_gets_a_challenge_and_never_a_failure() {
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
    bed.world.pay(&late.subscription());
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
fn of_twenty_equal_requests_one_buys_and_the_others_are_told() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.world.pay(&offer.subscription());
    let all = bed.buy_at_once(20, &with(offer.credential()));
    let bought = |response: &&Response| response.body["already_active"] == false;
    assert!(all.iter().all(|response| response.status == 200));
    assert_eq!(all.iter().filter(bought).count(), 1);
    assert!(
        all.iter()
            .all(|response| response.receipt() == all[0].receipt())
    );
    assert_eq!((bed.world.takings(), bed.payments()), (1, 1));
    assert_eq!(bed.available(), CREDITS);
}

#[test]
fn twenty_first_requests_at_once_are_one_subscription() {
    let bed = TestBed::new();
    let all = bed.buy_at_once(20, &Buy::default());
    assert!(all.iter().all(|response| response.status == 402));
    assert_eq!(bed.world.made(), 1);
}

#[test]
fn a_request_with_a_name_is_answered_once_and_told_again() {
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
    bed.world.pay(&offer.subscription());
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
fn what_is_kept_under_a_name_is_kept_with_the_payment() {
    let mut bed = TestBed::new();
    const BODY: &str = r#"{"idempotency_key":"k"}"#;
    let offer = first(&bed);
    bed.world.pay(&offer.subscription());
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
fn a_body_that_is_not_ours_is_refused_before_anything_is_done() {
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
    assert_eq!(bed.world.made(), 0);
}

#[test]
fn what_was_seen_by_the_desk_first_is_told_with_its_receipt() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.world.pay(&offer.subscription());
    bed.advance(600 * SECOND);
    bed.sweep();
    assert_eq!(bed.payments(), 1, "without the buyer's doing");
    let told = bed.buy(with(offer.credential()));
    check_granted(&told, true);
    assert_eq!(told.receipt()["reference"], json!(offer.subscription()));
}

#[test]
fn a_new_secret_does_not_void_what_is_under_way() {
    const NEW: &[u8] = b"another-secret-of-the-same-length-32";
    let old = b"tollgate-test-secret-0123456789abcdef";
    let mut bed = TestBed::new();
    let offer = first(&bed);
    bed.world.pay(&offer.subscription());
    bed.restart_with(NEW, None);
    let refused = bed.buy(with(offer.credential()));
    check_problem(&refused, "invalid-challenge", "refused", "pay");
    bed.restart_with(NEW, Some(old));
    check_granted(&bed.buy(with(offer.credential())), false);
}

#[test]
fn a_challenge_in_a_field_of_its_own_is_answered_there() {
    let mut bed = TestBed::new();
    let before = first(&bed);
    bed.own_field = true;
    bed.restart();
    let offer = first(&bed);
    assert_eq!(offer.challenge()["header"], "Payment-Authorization");
    assert_eq!(offer.subscription(), before.subscription());
    bed.world.agree(&offer.subscription());
    let elsewhere = bed.buy(with(offer.credential()));
    check_problem(&elsewhere, "invalid-challenge", "refused", "pay");
    bed.world.charge(&offer.subscription());
    let there = Buy {
        own_field: true,
        ..with(offer.credential())
    };
    check_granted(&bed.buy(there), false);
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
    bed.world.pay(&offer.subscription());
    let other = bed.buy(asked(Some(offer.credential()), "{}"));
    check_problem(&other, "invalid-challenge", "refused", "pay");
    check_granted(&bed.buy(asked(Some(offer.credential()), BODY)), false);
}

#[test]
fn a_monthly_charge_is_offered_to_those_who_name_it() {
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
    bed.world.pay(&both.subscription());
    let bought = bed.buy(with(both.credential()));
    check_granted(&bought, false);
    assert_eq!(
        bought.receipt()["subscriptionId"],
        json!(both.subscription())
    );
}

#[test]
fn while_a_transfer_may_be_moving_nobody_is_shown_how_to_pay() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.transfer_may_move(true);
    for asks in [
        Buy::default(),
        with(offer.credential()),
        with("x".to_owned()),
    ] {
        check_unavailable(&bed.buy(asks), "processing");
    }
    // The owner's payment is not applied until the transfer's outcome is known: one of the two would be refunded.
    bed.world.pay(&offer.subscription());
    check_unavailable(&bed.buy(with(offer.credential())), "processing");
    bed.transfer_may_move(false);
    check_granted(&bed.buy(with(offer.credential())), false);

    let bed = TestBed::new();
    bed.transfer_may_move(true);
    check_unavailable(&bed.buy(Buy::default()), "processing");
    assert_eq!(bed.world.made(), 0, "the provider was not asked");
    bed.transfer_may_move(false);
    assert_eq!(first(&bed).status, 402);
}

#[test]
fn a_plan_that_a_transfer_has_paid_for_is_told_and_a_mandate_beside_it_is_given_back() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.transfer();
    // The owner approves the old offer all the same.
    bed.world.pay(&offer.subscription());
    for asks in [Buy::default(), with(offer.credential())] {
        let told = bed.buy(asks);
        assert_eq!(told.status, 200, "{:?}", told.body);
        assert_eq!(told.body["already_active"], true);
        assert_eq!(told.word("/subscription/route"), "x402");
        assert_eq!(
            told.header("payment-receipt"),
            None,
            "it was not bought here"
        );
    }
    bed.advance(600 * SECOND);
    bed.sweep();
    assert_eq!(bed.world.takings(), 0, "the money went back");
    assert_eq!(bed.world.running(), 0, "and nothing more is charged");
    assert_eq!(bed.payments(), 1);
    bed.check_books();
}

/// The process is killed at every call of a purchase in turn, before and after the call is carried out. The buyer follows the answers, and
/// has the plan once, for one payment of one subscription.
#[test]
fn whenever_the_process_dies_the_buyers_repeat_gets_the_plan() {
    for fault in [Fault::DeathBefore, Fault::DeathAfter] {
        for at in 0..3 {
            let mut bed = TestBed::new();
            let what = format!("{fault:?} at call {at}");
            bed.world.fault(fault, at);
            // Between the first request and the challenge.
            let offer = loop {
                if let Some(response) = bed.buy_until_death(Buy::default()) {
                    break response;
                }
            };
            assert_eq!(offer.status, 402, "{what}: {:?}", offer.body);
            bed.world.pay(&offer.subscription());
            bed.restart();
            // Between the payment and the answer.
            bed.world.fault(fault, at);
            let buy = Buy {
                body: r#"{"idempotency_key":"k"}"#,
                ..with(offer.credential())
            };
            let bought = loop {
                if let Some(response) = bed.buy_until_death(buy.clone()) {
                    break response;
                }
            };
            bed.world.fault(Fault::None, 0);
            assert_eq!(bought.status, 200, "{what}: {:?}", bought.body);
            bed.restart();
            check_granted(&bed.buy(Buy::default()), true);
            assert_eq!(bed.world.made(), 1, "{what}");
            assert_eq!((bed.world.takings(), bed.payments()), (1, 1), "{what}");
            assert_eq!(bed.available(), CREDITS, "{what}");
            bed.check_books();
        }
    }
}

#[test]
fn a_plan_that_has_ended_is_bought_anew() {
    let bed = TestBed::new();
    let offer = first(&bed);
    bed.world.pay(&offer.subscription());
    check_granted(&bed.buy(with(offer.credential())), false);
    bed.world.change(&offer.subscription(), |kept| {
        kept.status = Status::Cancelled
    });
    bed.advance(40 * DAY);
    bed.sweep();
    let anew = first(&bed);
    assert_ne!(anew.subscription(), offer.subscription());
    bed.world.pay(&anew.subscription());
    check_granted(&bed.buy(with(anew.credential())), false);
    assert_eq!(bed.payments(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whatever_is_sent_is_never_our_failure(credential in "[ -~]{0,120}", json in "[{}\\[\\]\":,a-z0-9]{0,60}") {
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
