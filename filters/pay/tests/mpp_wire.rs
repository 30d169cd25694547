//! The MPP wire formats, against vectors on which three implementations agree: two published libraries and one computed by hand.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_clock::Timestamp;
use tollgate_filter::{ErrorCode, PaymentField};
use tollgate_pay::mpp::{
    Binding, Challenge, Credential, CredentialError, Expected, Intent, Receipt, Secrets,
    Subscription,
};

const SECRET: &[u8] = b"tollgate-test-secret-0123456789abcdef";
const REALM: &str = "api.tollgate.example";
const MINIMAL: &str = "eyJhbW91bnQiOiIxOTkwMCIsImN1cnJlbmN5IjoiVVNEIn0";
const FULL: &str = "eyJhbW91bnQiOiIxOTkwMCIsImN1cnJlbmN5IjoiVVNEIiwiZGVzY3JpcHRpb24iOiJQcm8gcGxhbiwgbW9udGhseSIsImV4dGVybmFsSWQiOiJwcF8wMUo5WkszVjVRIiwibWV0aG9kRGV0YWlscyI6eyJhcHByb3ZhbFVybCI6Imh0dHBzOi8vd3d3LnNhbmRib3gucGF5cGFsLmNvbS93ZWJhcHBzL2JpbGxpbmcvc3Vic2NyaXB0aW9ucz9iYV90b2tlbj1CQS03WDIiLCJwZXJpb2RDb3VudCI6IjEiLCJwZXJpb2RVbml0IjoibW9udGgiLCJwbGFuSWQiOiJQLTVNTDQyNzEyNDQ0NTQzNjJXWE5XVTVOUSIsInN1YnNjcmlwdGlvbklkIjoiSS1CVzQ1MkdMTEVQMUcifSwicmVjaXBpZW50IjoiTUVSQ0hBTlQwMSJ9";
const OPAQUE: &str = "eyJvd25lciI6ImFjY3RfNDIiLCJwdXJjaGFzZSI6InBwXzAxSjlaSzNWNVEifQ";
const EXPIRES: &str = "2026-12-01T12:00:00Z";
const DIGEST: &str = "sha-256=:gOEeFzfLYGqL+Mkt2yjilTA5KAqdLyvQ8O6gx3nszVs=:";
const CREDENTIAL: &str = "eyJjaGFsbGVuZ2UiOnsiZXhwaXJlcyI6IjIwMjYtMTItMDFUMTI6MDA6MDBaIiwiaWQiOiIxZkxoZ0RGYVJNT3F0Ukhnb3RyR0NzUzUxOW1pLURFaUJuTHRlbUlfdTNvIiwiaW50ZW50IjoiY2hhcmdlIiwibWV0aG9kIjoicGF5cGFsIiwib3BhcXVlIjoiZXlKdmQyNWxjaUk2SW1GalkzUmZORElpTENKd2RYSmphR0Z6WlNJNkluQndYekF4U2psYVN6TldOVkVpZlEiLCJyZWFsbSI6ImFwaS50b2xsZ2F0ZS5leGFtcGxlIiwicmVxdWVzdCI6ImV5SmhiVzkxYm5RaU9pSXhPVGt3TUNJc0ltTjFjbkpsYm1ONUlqb2lWVk5FSWl3aVpHVnpZM0pwY0hScGIyNGlPaUpRY204Z2NHeGhiaXdnYlc5dWRHaHNlU0lzSW1WNGRHVnlibUZzU1dRaU9pSndjRjh3TVVvNVdrc3pWalZSSWl3aWJXVjBhRzlrUkdWMFlXbHNjeUk2ZXlKaGNIQnliM1poYkZWeWJDSTZJbWgwZEhCek9pOHZkM2QzTG5OaGJtUmliM2d1Y0dGNWNHRnNMbU52YlM5M1pXSmhjSEJ6TDJKcGJHeHBibWN2YzNWaWMyTnlhWEIwYVc5dWN6OWlZVjkwYjJ0bGJqMUNRUzAzV0RJaUxDSndaWEpwYjJSRGIzVnVkQ0k2SWpFaUxDSndaWEpwYjJSVmJtbDBJam9pYlc5dWRHZ2lMQ0p3YkdGdVNXUWlPaUpRTFRWTlREUXlOekV5TkRRME5UUXpOakpYV0U1WFZUVk9VU0lzSW5OMVluTmpjbWx3ZEdsdmJrbGtJam9pU1MxQ1Z6UTFNa2RNVEVWUU1VY2lmU3dpY21WamFYQnBaVzUwSWpvaVRVVlNRMGhCVGxRd01TSjkifSwicGF5bG9hZCI6eyJzdWJzY3JpcHRpb25JZCI6IkktQlc0NTJHTExFUDFHIiwidHlwZSI6InN1YnNjcmlwdGlvbiJ9fQ";
const RECEIPT: &str = "eyJleHRlcm5hbElkIjoicHBfMDFKOVpLM1Y1USIsIm1ldGhvZCI6InBheXBhbCIsInJlZmVyZW5jZSI6IkktQlc0NTJHTExFUDFHIiwic3RhdHVzIjoic3VjY2VzcyIsInN1YnNjcmlwdGlvbklkIjoiSS1CVzQ1MkdMTEVQMUciLCJ0aW1lc3RhbXAiOiIyMDI2LTEyLTAxVDExOjQyOjA3WiJ9";

/// A second before the challenge of the vectors expires.
const NOW: Timestamp = Timestamp::from_secs(1_796_126_399);

fn secrets() -> Secrets {
    Secrets::new(SECRET, None).expect("long enough")
}

fn expected(secrets: &Secrets) -> Expected<'_> {
    Expected {
        secrets,
        owner: "acct_42",
        now: NOW,
        field: PaymentField::Authorization,
        body: b"",
    }
}

fn read(token: &str) -> Result<Credential, CredentialError> {
    Credential::read(token, &expected(&secrets()))
}

#[test]
fn challenge_ids_match_other_implementations() {
    for (request, expires, digest, opaque, header, id) in [
        (
            MINIMAL,
            "",
            "",
            "",
            "",
            "zRFSYvH9QjhvIOQ-Hn-uSEZY9Apmm33oAFLxlZsLvIk",
        ),
        (
            MINIMAL,
            EXPIRES,
            "",
            "",
            "",
            "XveQCzpjbJQRxfjGFMbyJUjNJd6V04NNupZpao3-UCQ",
        ),
        (
            MINIMAL,
            EXPIRES,
            DIGEST,
            "",
            "",
            "NxBUBRgvLfZ8pG15FVC8ud0-Q7whKITfGYcSNCqm174",
        ),
        (
            FULL,
            EXPIRES,
            "",
            OPAQUE,
            "",
            "1fLhgDFaRMOqtRHgotrGCsS519mi-DEiBnLtemI_u3o",
        ),
        (
            FULL,
            EXPIRES,
            DIGEST,
            OPAQUE,
            "",
            "OlXJpE7tpNg8VnpDhwEdu1t_NBDq_3lr5WzEnx8V7Us",
        ),
        (
            FULL,
            EXPIRES,
            "",
            OPAQUE,
            "Payment-Authorization",
            "6S8qCPxmo1OuSorkH32olG6r041ZYkykG0vz-QC93AA",
        ),
    ] {
        let binding = Binding {
            realm: REALM,
            method: "paypal",
            intent: "charge",
            request,
            expires,
            digest,
            opaque,
            header,
        };
        assert_eq!(binding.id(&secrets()), id);
        assert!(binding.holds(id, &secrets()));
        // Rotation of the secret does not void challenges of the previous one.
        let other = [7_u8; 32];
        let rotated = Secrets::new(&other, Some(SECRET)).expect("long enough");
        assert!(binding.holds(id, &rotated));
        let forgotten = Secrets::new(&other, None).expect("long enough");
        assert!(!binding.holds(id, &forgotten));
    }
    assert!(Secrets::new(&[1; 31], None).is_none());
}

#[test]
fn slots_that_would_join_to_the_same_text_are_refused() {
    let honest = Binding {
        realm: "a",
        method: "b",
        ..Binding::default()
    };
    let id = honest.id(&secrets());
    assert!(honest.holds(&id, &secrets()));
    let forged = Binding {
        realm: "a|b",
        intent: "",
        ..Binding::default()
    };
    assert!(!forged.holds(&forged.id(&secrets()), &secrets()));
}

#[test]
fn a_challenge_says_in_one_line_what_its_id_is_bound_to() {
    let subscription = Subscription {
        id: "I-BW452GLLEP1G".to_owned(),
        plan: "P-5ML4271244454362WXNWU5NQ".to_owned(),
        approval_url:
            "https://www.sandbox.paypal.com/webapps/billing/subscriptions?ba_token=BA-7X2"
                .to_owned(),
    };
    let challenge = Challenge {
        realm: REALM,
        amount: 19_900,
        currency: "USD",
        subscription: &subscription,
        expires: EXPIRES,
        intent: Intent::Charge,
        description: "Pro \"plan\", monthly",
        owner: "acct_42",
        purchase: "pp_01J9ZK3V5Q",
        nonce: "",
        digest: None,
        own_field: false,
    };
    let header = challenge.header(&secrets());
    let parameter = |name: &str| {
        let start = header.find(&format!("{name}=\"")).expect("a parameter") + name.len() + 2;
        let rest = &header[start..];
        rest[..rest.find('"').expect("an end")].to_owned()
    };
    assert!(header.starts_with("Payment id=\""), "{header}");
    assert!(
        header.contains(r#"description="Pro \"plan\", monthly""#),
        "{header}"
    );
    assert_eq!(parameter("opaque"), OPAQUE);
    let request = URL_SAFE_NO_PAD
        .decode(parameter("request"))
        .expect("base64url");
    assert_eq!(
        String::from_utf8(request).expect("UTF-8"),
        r#"{"amount":"19900","currency":"USD","description":"Pro \"plan\", monthly","externalId":"pp_01J9ZK3V5Q","methodDetails":{"approvalUrl":"https://www.sandbox.paypal.com/webapps/billing/subscriptions?ba_token=BA-7X2","periodCount":"1","periodUnit":"month","planId":"P-5ML4271244454362WXNWU5NQ","subscriptionId":"I-BW452GLLEP1G"}}"#
    );
    // The credential that a client builds from it is accepted.
    let echoed = json!({
        "challenge": {
            "id": parameter("id"), "realm": REALM, "method": "paypal", "intent": "charge",
            "request": parameter("request"), "expires": EXPIRES, "opaque": parameter("opaque"), "description": "anything",
        },
        "payload": {"type": "subscription", "subscriptionId": "I-BW452GLLEP1G"},
    });
    let token = URL_SAFE_NO_PAD.encode(echoed.to_string());
    assert!(read(&token).is_ok());
}

#[test]
fn a_credential_is_read_and_believed() {
    let read = read(CREDENTIAL).expect("a credential");
    let id = URL_SAFE_NO_PAD.encode(read.id);
    assert_eq!(id, "1fLhgDFaRMOqtRHgotrGCsS519mi-DEiBnLtemI_u3o");
    assert_eq!(read.expires, NOW + Duration::from_secs(1));
    assert_eq!(read.purchase, "pp_01J9ZK3V5Q");
    assert_eq!(read.subscription, "I-BW452GLLEP1G");
}

#[test]
fn credential_errors_are_reported_in_the_order_of_the_scheme() {
    use ErrorCode::{
        InvalidChallenge, InvalidPayload, MalformedCredential, MethodUnsupported, PaymentExpired,
    };
    let large = URL_SAFE_NO_PAD.encode(vec![b' '; 13_000]);
    for (token, code) in [
        ("", MalformedCredential),
        ("not base64url", MalformedCredential),
        ("e30", MalformedCredential),
        ("W10", MalformedCredential),
        (&*large, MalformedCredential),
        (&*changed("/challenge", Value::Null), MalformedCredential),
        (&*changed("/payload", json!("x")), MalformedCredential),
        (
            &*changed("/challenge/opaque", json!({"owner": "acct_42"})),
            MalformedCredential,
        ),
        (
            &*changed("/challenge/method", json!("tempo")),
            MethodUnsupported,
        ),
        (
            &*changed("/challenge/intent", json!("session")),
            MethodUnsupported,
        ),
        (&*changed("/challenge/id", json!("AAAA")), InvalidChallenge),
        (
            &*changed("/challenge/header", json!("Payment-Authorization")),
            InvalidChallenge,
        ),
        (
            &*changed("/challenge/realm", json!("evil.example")),
            InvalidChallenge,
        ),
        (
            &*changed("/challenge/request", json!(MINIMAL)),
            InvalidChallenge,
        ),
        (
            &*changed("/challenge/expires", json!("2027-12-01T12:00:00Z")),
            InvalidChallenge,
        ),
        (
            &*changed("/challenge/digest", json!(DIGEST)),
            InvalidChallenge,
        ),
        (
            &*changed("/challenge/opaque", Value::Null),
            InvalidChallenge,
        ),
        (&*changed("/payload/type", json!("order")), InvalidPayload),
        (
            &*changed("/payload/subscriptionId", json!("I-OTHER")),
            InvalidPayload,
        ),
        (
            &*changed("/payload/subscriptionId", Value::Null),
            InvalidPayload,
        ),
    ] {
        let refused = read(token).expect_err("wrong");
        assert_eq!(refused.code, code, "{token:.80}: {refused}");
    }
    let secrets = secrets();
    let late = Expected {
        now: NOW + Duration::from_secs(1),
        ..expected(&secrets)
    };
    let late = Credential::read(CREDENTIAL, &late).expect_err("over");
    assert_eq!(late.code, PaymentExpired);
    let other = Expected {
        owner: "acct_43",
        ..expected(&secrets)
    };
    let other = Credential::read(CREDENTIAL, &other).expect_err("not theirs");
    assert_eq!(other.code, InvalidChallenge);
}

#[test]
fn what_a_challenge_asks_for_besides_is_bound_to_it() {
    use ErrorCode::InvalidChallenge;
    let subscription = Subscription {
        id: "I-1".to_owned(),
        plan: "P-1".to_owned(),
        approval_url: "https://paypal.example/approve".to_owned(),
    };
    let plain = Challenge {
        intent: Intent::Charge,
        realm: REALM,
        amount: 19_900,
        currency: "USD",
        subscription: &subscription,
        expires: EXPIRES,
        description: "Pro",
        owner: "acct_42",
        purchase: "pp_1",
        nonce: "",
        digest: None,
        own_field: false,
    };
    const BODY: &[u8] = br#"{"product_id":"svc-pro-monthly"}"#;
    let bound = Challenge {
        digest: Some(DIGEST),
        ..plain.clone()
    };
    let elsewhere = Challenge {
        own_field: true,
        ..plain.clone()
    };
    let monthly = Challenge {
        intent: Intent::Subscription,
        ..plain.clone()
    };
    let here = PaymentField::Authorization;
    let own = PaymentField::PaymentAuthorization;
    for (challenge, field, body, refused) in [
        (&plain, here, BODY, None),
        (&plain, own, b"".as_slice(), Some(InvalidChallenge)),
        (&bound, here, BODY, None),
        (&bound, here, b"{}", Some(InvalidChallenge)),
        (&bound, here, b"", Some(InvalidChallenge)),
        (&elsewhere, own, b"", None),
        (&elsewhere, here, b"", None),
        (&monthly, here, b"", None),
    ] {
        let header = challenge.header(&secrets());
        let token = answered(&header);
        let read = Credential::read(
            &token,
            &Expected {
                field,
                body,
                ..expected(&secrets())
            },
        );
        assert_eq!(read.err().map(|error| error.code), refused, "{header}");
    }
    let request = parameters(&monthly.header(&secrets()))["request"].clone();
    let request = URL_SAFE_NO_PAD
        .decode(request.as_str().expect("a text"))
        .expect("base64url");
    assert_eq!(
        String::from_utf8(request).expect("UTF-8"),
        r#"{"amount":"19900","currency":"USD","methodDetails":{"approvalUrl":"https://paypal.example/approve","planId":"P-1","subscriptionId":"I-1"},"periodCount":"1","periodUnit":"month"}"#
    );
}

/// The parameters of a challenge, as a client parses them.
fn parameters(header: &str) -> Value {
    let rest = header.strip_prefix("Payment ").expect("the scheme");
    let pairs = rest.split(", ").map(|pair| {
        let (name, value) = pair.split_once('=').expect("a pair");
        (name.to_owned(), json!(value.trim_matches('"')))
    });
    Value::Object(pairs.collect())
}

/// The credential that a client builds for a challenge.
fn answered(header: &str) -> String {
    let payload = json!({"type": "subscription", "subscriptionId": "I-1"});
    let whole = json!({"challenge": parameters(header), "payload": payload});
    URL_SAFE_NO_PAD.encode(whole.to_string())
}

proptest! {
    #[test]
    fn whatever_is_sent_for_a_credential_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), text in ".{0,200}") {
        let _ = read(&text);
        let _ = read(&URL_SAFE_NO_PAD.encode(&bytes));
    }

    #[test]
    fn no_change_of_a_credential_is_believed(at in 0_usize..1_000, with in any::<u8>()) {
        let mut json = URL_SAFE_NO_PAD.decode(CREDENTIAL).expect("base64url");
        let at = at % json.len();
        prop_assume!(json[at] != with);
        json[at] = with;
        if let Ok(believed) = read(&URL_SAFE_NO_PAD.encode(&json)) {
            // Only an unbound part can have changed: a member that is not read.
            prop_assert_eq!(believed, read(CREDENTIAL).expect("the vector"));
        }
    }
}

#[test]
fn a_receipt_is_written_as_clients_read_it() {
    let receipt = Receipt {
        timestamp: "2026-12-01T11:42:07Z",
        subscription: "I-BW452GLLEP1G",
        purchase: "pp_01J9ZK3V5Q",
    };
    assert_eq!(receipt.header(), RECEIPT);
}

/// The vector with another value at a JSON path.
fn changed(path: &str, value: Value) -> String {
    let json = URL_SAFE_NO_PAD.decode(CREDENTIAL).expect("base64url");
    let mut whole: Value = serde_json::from_slice(&json).expect("JSON");
    let (parent, name) = path.rsplit_once('/').expect("a path");
    whole.pointer_mut(parent).expect("it is there")[name] = value;
    URL_SAFE_NO_PAD.encode(whole.to_string())
}
