//! Integration tests of the filter, with a real store and ledger.

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_clock::Timestamp;
use tollgate_filter::{
    Catalog, ClientAddress, CredentialKind, ErrorCode, Exchange, Filter, Model, ModelAccess,
    ModelLimits, Outcome, PartCeilings, Principal, Protocol, ReplyBody, Request, Routing, Scopes,
    Step,
};
use tollgate_ledger::{Credit, Ledger};
use tollgate_models::Models;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId, Price, UsdPerCredit};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, CacheScope, NewAccount, Part, RootSecret, Store, UnitOfWork, commit,
};

/// A ledger with one account that has 41.498 credits.
struct TestLedger {
    ledger: Ledger,
    _store: Arc<dyn Store>,
    _folder: TempDir,
}

fn account() -> AccountId {
    AccountId::from_parts(1, [1; 10])
}

async fn test_ledger() -> TestLedger {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options {
        durability: Durability::Process,
        ..Options::new(Timestamp::from_micros(0), RootSecret([1; 32]))
    };
    let store = sqlite::open(&folder.path().join("tollgate.db"), options).expect("a store");
    let (ledger, _) = Ledger::start(Arc::clone(&store), Timestamp::UNIX_EPOCH).expect("books");
    let part = Part::CreateAccount(Box::new(NewAccount {
        id: account(),
        class: "free".into(),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: Timestamp::UNIX_EPOCH,
    }));
    commit(&*store, UnitOfWork::of(part, Admission::Always))
        .await
        .expect("an account");
    let credit = Credit {
        operation: OperationId::from_parts(0, [9; 10]),
        account: account(),
        amount: Micros::new(41_498_000),
        reference: "start".into(),
        at: Timestamp::UNIX_EPOCH,
    };
    ledger.grant(credit).await.expect("credit");
    TestLedger {
        ledger,
        _store: store,
        _folder: folder,
    }
}

fn model(id: &str) -> Model {
    Model {
        id: id.into(),
        name: None,
        owned_by: "svc".into(),
        created: None,
        price: Price {
            input: "0.15".parse().expect("a price"),
            output: "0.6".parse().expect("a price"),
            request: Micros::new(500),
        },
        price_version: 1,
        limits: ModelLimits {
            context_length: None,
            output_tokens_default: NonZeroU64::MIN,
            output_tokens_bound: false,
        },
        output_modalities: vec!["text".into()],
        part_ceilings: PartCeilings::default(),
        token_factor_ppm: 1_000_000,
        providers: Vec::new(),
        system_as_chat: false,
        cap_member: tollgate_filter::CapMember::MaxTokens,
        routing: Routing::default(),
        after_leaving: None,
        working: AtomicBool::new(true),
    }
}

fn exchange(models: ModelAccess) -> Exchange {
    let mut exchange = Exchange::new(Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::GET,
        path: "/v1/models".into(),
        query: None,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        client: ClientAddress::direct(Ipv4Addr::LOCALHOST.into()),
        tls: false,
        protocol: Protocol::Http11,
    });
    exchange.put(Principal {
        account: account(),
        credential: CredentialId::from_bytes([1; 16]),
        kind: CredentialKind::ApiKey,
        scopes: Scopes::API,
        class: "free".into(),
        models,
        sharing: tollgate_filter::CacheSharing::Shared,
        spending_cap: None,
    });
    exchange
}

fn body(filter: &Models, exchange: &mut Exchange) -> String {
    let Step::Now(Ok(Outcome::Reply(reply))) = filter.on_request(exchange) else {
        panic!("it always replies");
    };
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["content-type"], "application/json");
    let ReplyBody::Whole(body) = reply.body else {
        panic!("a list is not a stream");
    };
    String::from_utf8(body.to_vec()).expect("UTF-8")
}

fn ids(body: &str) -> Vec<String> {
    let list: Value = serde_json::from_str(body).expect("JSON");
    let data = list["data"].as_array().expect("a list").iter();
    data.map(|model| model["id"].as_str().expect("an id").to_owned())
        .collect()
}

#[tokio::test]
async fn the_list_matches_the_readme() {
    let test_ledger = test_ledger().await;
    let full = Model {
        name: Some("Small".into()),
        created: Some(Timestamp::from_secs(1_798_761_600)),
        limits: ModelLimits {
            context_length: NonZeroU64::new(8_192),
            output_tokens_default: NonZeroU64::MIN,
            output_tokens_bound: false,
        },
        ..model("m-small")
    };
    let catalog = Catalog::new(vec![Arc::new(full)], None).expect("a catalog");
    let rate = UsdPerCredit::from_micro_dollars(10_000);
    let filter = Models::new("svc", &catalog, rate, test_ledger.ledger.clone());
    let mut exchange = exchange(ModelAccess::All);
    let expected = format!(
        r#"{{"object":"list","data":[{{"id":"m-small","object":"model","created":1798761600,"owned_by":"svc","name":"Small","context_length":8192,"cost":{{"input":0.15,"output":0.6,"request":0.0005}},"pricing":{{"prompt":"0.0000000015","completion":"0.000000006","request":"0.000005"}},"output_modalities":["text"]}}],"x_svc":{{"owner":"{}","credits_remaining":41.498}}}}"#,
        account()
    );
    assert_eq!(body(&filter, &mut exchange), expected);
    assert_eq!(exchange.take_reply_headers()["cache-control"], "no-store");
}

#[tokio::test]
async fn missing_settings_are_null_or_omitted() {
    let test_ledger = test_ledger().await;
    let odd = Model {
        name: Some("a \"quoted\" name".into()),
        output_modalities: vec!["text".into(), "image".into()],
        ..model("org/m\u{e9}")
    };
    let catalog = Catalog::new(vec![Arc::new(odd)], None).expect("a catalog");
    let filter = Models::new("toll", &catalog, None, test_ledger.ledger.clone());
    let body = body(&filter, &mut exchange(ModelAccess::All));
    let list: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(
        list["data"][0],
        json!({
            "id": "org/m\u{e9}", "object": "model", "created": 0, "owned_by": "svc", "name": "a \"quoted\" name", "context_length": null,
            "cost": {"input": 0.15, "output": 0.6, "request": 0.0005}, "pricing": null, "output_modalities": ["text", "image"],
        })
    );
    assert!(list["x_toll"].is_object());
}

#[tokio::test]
async fn only_available_models_that_the_credential_may_use_are_listed() {
    let test_ledger = test_ledger().await;
    let models: Vec<_> = ["c", "a", "b"].map(|id| Arc::new(model(id))).to_vec();
    let catalog = Catalog::new(models.clone(), None).expect("a catalog");
    let filter = Models::new("svc", &catalog, None, test_ledger.ledger.clone());
    let list = |access: ModelAccess| ids(&body(&filter, &mut exchange(access)));
    let only = |ids: &[&str]| ModelAccess::Only(ids.iter().map(|&id| Arc::from(id)).collect());

    assert_eq!(
        list(ModelAccess::All),
        ["c", "a", "b"],
        "the order of the settings"
    );
    assert_eq!(list(only(&["b", "c", "x"])), ["c", "b"]);
    assert!(list(only(&[])).is_empty());
    models[0].working.store(false, Ordering::Relaxed);
    assert_eq!(list(ModelAccess::All), ["a", "b"]);
    models[0].working.store(true, Ordering::Relaxed);
    assert_eq!(list(ModelAccess::All), ["c", "a", "b"], "it works again");
}

#[tokio::test]
async fn without_a_principal_there_is_no_list() {
    let test_ledger = test_ledger().await;
    let catalog = Catalog::new(Vec::new(), None).expect("a catalog");
    let filter = Models::new("svc", &catalog, None, test_ledger.ledger.clone());
    let mut anonymous = exchange(ModelAccess::All);
    anonymous.take::<Principal>();
    let mut unknown = exchange(ModelAccess::All);
    let principal = unknown.get_mut::<Principal>().expect("put above");
    principal.account = AccountId::from_parts(2, [2; 10]);
    for mut exchange in [anonymous, unknown] {
        let listed = filter.on_request(&mut exchange).finish().await;
        let error = listed.expect_err("there is no list without a principal");
        assert_eq!(error.answer.code, ErrorCode::InternalError);
    }
}
