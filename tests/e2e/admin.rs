//! The admin API: every operation over a real socket, every answer checked against the OpenAPI document, and the audit log of the changes.

use std::collections::BTreeSet;
use std::sync::Mutex;

use serde_json::{Value, json};
use tollgate_testing::{Client, within};

use crate::rig::{CHAT, Rig, SECRETS, chat};

const MONITOR: &str = "9d1b7f0a5c3e48d2a6b4c8e0f1a2b3c4";
const READ: &str = "2f6c1e6c9a5f4b8e93d07c1ab54e6f70";
const OPERATE: &str = "c0a1b2d3e4f5061728394a5b6c7d8e9f";

/// The settings of the tests: a token in a file of `folder`, and a token by digest.
fn settings(folder: &std::path::Path) -> String {
    let file = folder.join("token");
    SECRETS.used("a token of the admin API", OPERATE);
    std::fs::write(&file, OPERATE).expect("the folder takes files");
    let digest = |token: &str| -> String {
        let digest = tollgate_identity::Digest::of(token.as_bytes());
        let bytes = digest.as_bytes().iter();
        bytes.map(|byte| format!("{byte:02x}")).collect()
    };
    format!(
        "[[admin.token]]\nname = 'ops'\nrole = 'operate'\ntoken_file = '{}'\n\
         [[admin.token]]\nname = 'support'\ndigest = 'sha256:{}'\n\
         [[admin.token]]\nname = 'monitoring'\nrole = 'monitor'\ndigest = 'sha256:{}'\n\
         [store]\nkeep_months = 1200\nexports = '{}'\n",
        file.display(),
        digest(READ),
        digest(MONITOR),
        folder.display()
    )
}

/// A client of the admin API. The client validates every answer against the document.
struct Api {
    client: Client,
    document: Value,
    /// The operations with a successful answer.
    done: Mutex<BTreeSet<String>>,
}

/// The answer of an operation.
struct Answered {
    status: u16,
    body: Value,
    request: String,
}

impl Api {
    async fn of(rig: &Rig) -> Api {
        let document = rig.admin_get("/admin/v1/openapi.json").await;
        assert_eq!(document.status, 200);
        Api {
            client: rig.operator(),
            document: document.json(),
            done: Mutex::default(),
        }
    }

    /// Calls an operation by its method and the template of its path, with values for the names in the path, and a query.
    async fn call(
        &self,
        token: &str,
        (method, template): (&str, &str),
        (values, query): (&[&str], &str),
        (key, body): (Option<&str>, Value),
    ) -> Answered {
        let mut path = template.to_owned();
        for value in values {
            let (before, rest) = path.split_once('{').expect("a name");
            let (_, after) = rest.split_once('}').expect("a name");
            path = format!("{before}{value}{after}");
        }
        let body = match body {
            Value::Null => String::new(),
            body => body.to_string(),
        };
        let path = format!("/admin/v1{path}{query}");
        let mut request = self.client.request(method, &path, body.into());
        let headers = request.headers_mut();
        let bearer = format!("Bearer {token}").parse().expect("a field");
        headers.insert("authorization", bearer);
        if let Some(key) = key {
            headers.insert("idempotency-key", key.parse().expect("a field"));
        }
        let answer = self.client.send(request).await;
        let operation =
            &self.document["paths"][format!("/admin/v1{template}")][method.to_lowercase()];
        let id = operation["operationId"].as_str();
        let id = id.unwrap_or_else(|| panic!("{method} {template} is in the document"));
        let mut described = &operation["responses"][answer.status.to_string()];
        if let Some(reference) = described["$ref"].as_str() {
            described = self.pointer(reference);
        }
        let schema = &described["content"]["application/json"]["schema"];
        assert!(!schema.is_null(), "{id}: {} is described", answer.status);
        let whole = json!({ "allOf": [schema], "components": self.document["components"] });
        let validator = jsonschema::validator_for(&whole).expect("a schema");
        let value = answer.json();
        if let Err(error) = validator.validate(&value) {
            panic!("{id} {}: {error}: {value}", answer.status);
        }
        if answer.status < 300 {
            self.done.lock().expect("no panic").insert(id.to_owned());
        }
        let request = answer.header("x-request-id").expect("an id").to_owned();
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        Answered {
            status: answer.status,
            body: value,
            request,
        }
    }

    fn pointer(&self, reference: &str) -> &Value {
        let found = self.document.pointer(reference.trim_start_matches('#'));
        found.expect("a definition")
    }

    /// A read with the expected status 200.
    async fn get(&self, template: &str, values: &[&str], query: &str) -> Value {
        let nothing = (None, Value::Null);
        let answer = self.call(READ, ("GET", template), (values, query), nothing);
        let answer = answer.await;
        assert_eq!(answer.status, 200, "{template}: {}", answer.body);
        answer.body
    }

    /// A change; returns status and answer.
    async fn change(&self, method: &str, template: &str, values: &[&str], body: Value) -> Answered {
        let operation = (method, template);
        self.call(OPERATE, operation, (values, ""), (None, body))
            .await
    }
}

#[tokio::test]
async fn every_operation_answers_as_its_document_says_and_is_recorded() {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let rig = Rig::with(&settings(folder.path())).await;
    let api = Api::of(&rig).await;

    let created = api
        .change(
            "POST",
            "/accounts",
            &[],
            json!({ "emails": ["grace@example.net"], "class": "pro" }),
        )
        .await;
    assert_eq!(created.status, 201, "{}", created.body);
    let account = created.body["id"].as_str().expect("an id");
    assert_eq!(created.body["emails"], json!(["grace@example.net"]));
    let taken = json!({ "emails": ["GRACE@example.net"] });
    let taken = api.change("POST", "/accounts", &[], taken).await;
    assert_eq!(taken.status, 409);
    assert_eq!(taken.body["error"]["code"], "admin.conflict");
    let page = api.get("/accounts", &[], "?limit=1").await;
    let next = page["next"].as_str().expect("a further page");
    let page = api.get("/accounts", &[], &format!("?after={next}")).await;
    assert_eq!(page["data"][0]["id"], account);
    assert_eq!(page["next"], Value::Null);
    let found = api.get("/accounts", &[], "?email=grace@example.net").await;
    assert_eq!(found["data"].as_array().map(Vec::len), Some(1));

    let key = json!({ "name": "laptop", "models": ["small"], "spend_max": "10", "expires_at": "2099-01-31T00:00:00Z" });
    let key = api
        .change("POST", "/accounts/{account}/keys", &[account], key)
        .await;
    assert_eq!(key.status, 201, "{}", key.body);
    let (id, secret) = (key.body["id"].as_str(), key.body["secret"].as_str());
    let (id, secret) = (id.expect("an id"), secret.expect("a secret"));
    SECRETS.used("a key of the admin API", secret);

    // A key found in a public place is sent in a body, because proxies log paths.
    let status = |answer: Answered| (answer.status, answer.body["error"]["code"].clone());
    let leaked = json!({ "secret": secret });
    let found = api
        .call(READ, ("POST", "/keys/find"), (&[], ""), (None, leaked))
        .await;
    assert_eq!(
        (&found.body["account"], &found.body["key"]["id"]),
        (&json!(account), &json!(id))
    );
    let unknown = json!({ "secret": format!("{secret}0") });
    let unknown = api
        .call(READ, ("POST", "/keys/find"), (&[], ""), (None, unknown))
        .await;
    assert_eq!(status(unknown), (404, json!("admin.not_found")));
    // Passed where the id belongs, the secret is refused and not recorded.
    let wrong = ("DELETE", "/keys/{key}");
    let nothing = (None, Value::Null);
    let wrong = api.call(OPERATE, wrong, (&[secret], ""), nothing).await;
    assert_eq!(status(wrong), (400, json!("admin.invalid")));
    let log = api.get("/audit-log", &[], "?limit=1").await;
    assert_eq!(log["data"][0]["action"], "key_revoke", "{log}");
    assert_eq!(log["data"][0]["subject"], Value::Null, "{log}");

    let credits = "/accounts/{account}/credits";
    let grant = |amount: &str| (Some("invoice-1"), json!({ "amount": amount }));
    let book = ("POST", credits);
    let granted = api.call(OPERATE, book, (&[account], ""), grant("5")).await;
    assert_eq!(
        (granted.status, &granted.body["repeated"]),
        (200, &json!(false))
    );
    let again = api.call(OPERATE, book, (&[account], ""), grant("5")).await;
    assert_eq!(again.body["repeated"], true);
    assert_eq!(again.body["operation"], granted.body["operation"]);
    let other = api.call(OPERATE, book, (&[account], ""), grant("6")).await;
    assert_eq!(other.status, 409, "{}", other.body);
    let keyless = api
        .change("POST", credits, &[account], json!({ "amount": "1" }))
        .await;
    assert_eq!(keyless.status, 400);
    let correction = json!({ "kind": "correction", "amount": "-1.5" });
    let corrected = api
        .call(OPERATE, book, (&[account], ""), (Some("c-1"), correction))
        .await;
    assert_eq!(corrected.body["available"], 3.5);

    // The key works, and the key's account pays.
    let answer = Client::new(&rig.url())
        .with_key(secret)
        .post(CHAT, &chat(false))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    let balance = api.get(credits, &[account], "?limit=2").await;
    assert_eq!(balance["lines"].as_array().map(Vec::len), Some(2));
    let next = balance["next"].as_str().expect("a further page");
    let rest = api
        .get(credits, &[account], &format!("?before={next}"))
        .await;
    assert_eq!(rest["lines"][0]["reference"], "invoice-1");
    assert_eq!(rest["next"], Value::Null);
    let usage = api.get("/accounts/{account}/usage", &[account], "").await;
    assert_eq!(usage["data"][0]["requests"], 1);

    let class = json!({ "class": "free" });
    let changed = api
        .change("PUT", "/accounts/{account}/class", &[account], class)
        .await;
    assert_eq!(changed.body["class"], "free", "{}", changed.body);
    let scope = json!({ "cache_scope": "off" });
    let changed = api
        .change("PUT", "/accounts/{account}/cache-scope", &[account], scope)
        .await;
    assert_eq!(changed.body["cache_scope"], "off");
    let status = json!({ "status": "suspended" });
    let suspended = api
        .change("PUT", "/accounts/{account}/status", &[account], status)
        .await;
    assert_eq!(suspended.body["status"], "suspended");
    let refused = Client::new(&rig.url())
        .with_key(secret)
        .post(CHAT, &chat(false))
        .await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    let revoked = api
        .change("DELETE", "/keys/{key}", &[id], Value::Null)
        .await;
    assert_eq!(revoked.status, 200, "{}", revoked.body);
    let refused = Client::new(&rig.url())
        .with_key(secret)
        .post(CHAT, &chat(false))
        .await;
    assert_eq!(refused.status, 401, "{}", refused.text());
    let keys = api.get("/accounts/{account}/keys", &[account], "").await;
    assert_eq!(keys["data"][0]["status"], "revoked");
    let ended = api
        .change(
            "DELETE",
            "/accounts/{account}/plan",
            &[account],
            Value::Null,
        )
        .await;
    assert_eq!(ended.status, 200, "{}", ended.body);
    let shown = api.get("/accounts/{account}", &[account], "").await;
    assert_eq!(shown["status"], "suspended");

    assert_eq!(api.get("/payments", &[], "").await["data"], json!([]));
    let closing = json!({ "payment": "eip155:8453/x", "outcome": "not_moved" });
    let unknown = api.change("POST", "/payments/close", &[], closing).await;
    assert_eq!(unknown.status, 404, "{}", unknown.body);
    let providers = api.get("/providers", &[], "").await;
    assert_eq!(providers["data"].as_array().map(Vec::len), Some(1));
    api.get("/cache", &[], "").await;
    let purge = ("DELETE", "/cache");
    let all = (None, Value::Null);
    let purged = api.call(OPERATE, purge, (&[], "?model=small"), all).await;
    assert_eq!(purged.status, 200, "{}", purged.body);
    let unclear = api.change("DELETE", "/cache", &[], Value::Null).await;
    assert_eq!(unclear.status, 400);
    let differences = api.get("/settings/differences", &[], "").await;
    assert_eq!(differences["data"], json!([]));
    let reloaded = api
        .change("POST", "/settings/reload", &[], Value::Null)
        .await;
    assert_eq!(reloaded.body["version"], 2, "{}", reloaded.body);

    // A file has one node.
    assert_eq!(api.get("/nodes", &[], "").await["data"], json!([]));
    let recover = ("POST", "/nodes/{node}/recover");
    let nothing = (None, Value::Null);
    let none = api.call(OPERATE, recover, (&["b"], ""), nothing).await;
    assert_eq!(none.status, 404, "{}", none.body);
    let audit = api.change("POST", "/audit", &[], Value::Null).await;
    assert_eq!(audit.body["clean"], true, "{}", audit.body);
    assert_eq!(audit.body["sums"]["total"], 0, "{}", audit.body);
    let checks = api.change("POST", "/doctor", &[], Value::Null).await;
    let found = checks.body["data"].as_array().expect("a list").iter();
    let mut found = found.map(|one| (one["check"].as_str().expect("a name"), &one["status"]));
    for check in ["settings", "gateway", "durable write", "database"] {
        let is_ok = found.any(|one| one == (check, &json!("ok")));
        assert!(is_ok, "{check}, in this order: {}", checks.body);
    }
    // One of two simultaneous runs is refused, unless the second run arrives after the end of the first run.
    let is_refused = async {
        loop {
            let check = || api.change("POST", "/doctor", &[], Value::Null);
            let (one, other) = tokio::join!(check(), check());
            if [one.status, other.status].contains(&409) {
                return;
            }
        }
    };
    within("one of two checks at once", is_refused).await;

    let log = api.get("/audit-log", &[], "?limit=5").await;
    let next = log["next"].as_str().expect("a further page");
    let rest = api.get("/audit-log", &[], &format!("?before={next}")).await;
    let pages = [&log, &rest].map(|page| page["data"].as_array().expect("a page"));
    let records: Vec<&Value> = pages.into_iter().flatten().collect();
    let acts = records.iter().rev().map(|record| {
        assert_eq!(record["actor"], "token ops", "{record}");
        let words = ["action", "outcome"].map(|key| record[key].as_str().expect("a word"));
        words.join(" ")
    });
    assert_eq!(
        acts.collect::<Vec<_>>(),
        [
            "account_create done",
            "account_create refused",
            "key_create done",
            "key_revoke refused",
            "credits_grant done",
            "credits_grant repeated",
            "credits_grant refused",
            "credits_correct done",
            "account_class done",
            "account_cache_scope done",
            "account_suspend done",
            "key_revoke done",
            "account_end_plan done",
            "payment_close refused",
            "cache_purge done",
            "settings_reload done",
            "node_recover refused",
        ]
    );
    let of_grant = records
        .iter()
        .find(|record| record["request"] == granted.request);
    let of_grant = of_grant.expect("the record of the grant");
    assert_eq!(of_grant["subject"], account);
    assert_eq!(
        of_grant["detail"],
        json!({ "amount": "5", "reference": "invoice-1" })
    );

    let export = ("GET", "/accounts/{account}/export");
    let nothing = (None, Value::Null);
    let exported = api.call(OPERATE, export, (&[account], ""), nothing).await;
    let exported = exported.body;
    assert_eq!(exported["account"]["emails"][0], "grace@example.net");
    assert_eq!(exported["keys"][0]["name"], "laptop");
    assert_eq!(exported["entries"].as_array().map(Vec::len), Some(3));
    let delete = ("DELETE", "/accounts/{account}");
    let with_credit = api
        .call(OPERATE, delete, (&[account], ""), (None, Value::Null))
        .await;
    assert_eq!(with_credit.status, 409, "{}", with_credit.body);
    let forfeit = (&[account][..], "?forfeit=true");
    let deleted = api
        .call(OPERATE, delete, forfeit, (None, Value::Null))
        .await;
    assert_eq!(deleted.body["status"], "closed", "{}", deleted.body);
    assert_eq!(deleted.body["emails"], json!([]));
    let retained = api.change("POST", "/retention", &[], Value::Null).await;
    assert_eq!(retained.body, json!({ "is_elsewhere": false }));

    let mut left: BTreeSet<String> = api.document["paths"]
        .as_object()
        .expect("paths")
        .values()
        .flat_map(|path| path.as_object().expect("operations").values())
        .map(|operation| operation["operationId"].as_str().expect("an id").to_owned())
        .collect();
    left.retain(|id| !api.done.lock().expect("no panic").contains(id));
    // No payment to close, and no second node: `process::nodes_admin` recovers a node.
    let without_success = ["closePayment", "recoverNode"].map(str::to_owned);
    assert_eq!(left, BTreeSet::from(without_success));
    rig.finish().await;
}

/// A token for monitoring sees no account, and a token for reads takes no copy of a person's data. Every copy is in the audit log.
#[tokio::test]
async fn a_role_opens_its_operations_and_no_other_and_exports_are_recorded() {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let rig = Rig::with(&settings(folder.path())).await;
    let api = Api::of(&rig).await;
    let account = rig.account.to_string();
    let export = ("GET", "/accounts/{account}/export");
    let paths = api.document["paths"].as_object().expect("paths");
    let mut checked = 0;
    for (path, operations) in paths {
        let template = path.strip_prefix("/admin/v1").expect("the prefix");
        let count = template.matches('{').count();
        let values = vec![account.as_str(); count];
        for method in operations.as_object().expect("operations").keys() {
            let verb = method.to_uppercase();
            let line = (&*verb, template);
            if line.1 == "/openapi.json" {
                continue;
            }
            let role = operations[method]["description"].as_str().expect("a role");
            let is_refused = |answer: &Answered| {
                answer.status == 403 && answer.body["error"]["code"] == "admin.role"
            };
            let call = |token| api.call(token, line, (&values, ""), (None, Value::Null));
            let monitored = call(MONITOR).await;
            assert_eq!(
                is_refused(&monitored),
                line != ("GET", "/providers"),
                "{line:?}"
            );
            let needs_operate = line == export || (line.0 != "GET" && template != "/keys/find");
            if needs_operate {
                assert!(is_refused(&call(READ).await), "{line:?}");
                assert!(role.contains("`operate`"), "{line:?}: {role}");
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} operations");
    let exports = || async {
        let log = api.get("/audit-log", &[], "?limit=1000").await;
        let records = log["data"].as_array().expect("a list").iter();
        let exports = records.filter(|one| one["action"] == "account_export");
        exports.cloned().collect::<Vec<Value>>()
    };
    assert!(exports().await.is_empty());
    let unknown = format!("acct_{}", "0".repeat(32));
    for (id, status) in [(&account, 200), (&unknown, 404)] {
        let nothing = (None, Value::Null);
        let answer = api.call(OPERATE, export, (&[id], ""), nothing).await;
        assert_eq!(answer.status, status);
    }
    let recorded = exports().await;
    assert_eq!(recorded.len(), 1, "{recorded:?}");
    let act = ["actor", "subject", "outcome"].map(|key| recorded[0][key].clone());
    assert_eq!(act, [json!("token ops"), json!(account), json!("done")]);
    rig.finish().await;
}

#[tokio::test]
async fn roles_tokens_and_malformed_requests() {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let rig = Rig::with(&settings(folder.path())).await;
    let api = Api::of(&rig).await;
    let nothing = || (None, Value::Null);

    let accounts = ("GET", "/accounts");
    let status = |answer: Answered| (answer.status, answer.body["error"]["code"].clone());
    let guess = "0".repeat(32);
    let refused = api.call(&guess, accounts, (&[], ""), nothing()).await;
    assert_eq!(status(refused), (401, json!("invalid_credential")));
    let creation = ("POST", "/accounts");
    let refused = api.call(READ, creation, (&[], ""), (None, json!({}))).await;
    assert_eq!(status(refused), (403, json!("admin.role")));
    let refused = api
        .change("POST", "/accounts", &[], json!({ "email": "a" }))
        .await;
    assert_eq!(status(refused), (400, json!("invalid_json")));
    let refused = api.call(READ, accounts, (&[], "?page=2"), nothing()).await;
    assert_eq!(status(refused), (400, json!("admin.invalid")));
    let refused = api.call(READ, accounts, (&[], "?limit=0"), nothing()).await;
    assert_eq!(status(refused), (400, json!("admin.invalid")));
    let one = ("GET", "/accounts/{account}");
    let refused = api.call(READ, one, (&["acct_1"], ""), nothing()).await;
    assert_eq!(status(refused), (400, json!("admin.invalid")));
    let missing = "acct_00000000000000000000000000000000";
    let refused = api.call(READ, one, (&[missing], ""), nothing()).await;
    assert_eq!(status(refused), (404, json!("admin.not_found")));
    let class = json!({ "class": "free" });
    let refused = api
        .change("PUT", "/accounts/{account}/class", &[missing], class)
        .await;
    assert_eq!(status(refused), (404, json!("admin.not_found")));
    let large = json!({ "class": "x".repeat(70_000) });
    let refused = api.change("POST", "/accounts", &[], large).await;
    assert_eq!(status(refused), (413, json!("body_too_large")));

    // Outside the document.
    let bearer = || rig.operator().with_key(READ);
    let answer = bearer().get("/admin/v1/nothing").await;
    assert_eq!(answer.status, 404);
    let answer = bearer()
        .send(bearer().request("PATCH", "/admin/v1/accounts", Default::default()))
        .await;
    assert_eq!(
        (answer.status, answer.header("allow")),
        (405, Some("GET, POST"))
    );
    let answer = rig.admin_get("/admin/v1/accounts").await;
    assert_eq!(answer.status, 401);
    assert_eq!(
        answer.header("www-authenticate"),
        Some("Bearer realm=\"admin\"")
    );
    let mut text =
        rig.operator()
            .with_key(OPERATE)
            .request("POST", "/admin/v1/accounts", "{}".into());
    text.headers_mut()
        .insert("content-type", "text/plain".parse().expect("a field"));
    assert_eq!(rig.operator().send(text).await.status, 415);
    // As before, without a token.
    assert_eq!(rig.admin_get("/ready").await.status, 200);
    assert_eq!(rig.admin_get("/metrics").await.status, 200);

    for _ in 0..20 {
        api.call(&guess, accounts, (&[], ""), nothing()).await;
    }
    let refused = api.call(&guess, accounts, (&[], ""), nothing()).await;
    assert_eq!(status(refused), (429, json!("rate_limit_exceeded")));
    api.get("/accounts", &[], "").await;
    rig.finish().await;
}

#[tokio::test]
async fn a_token_is_rotated_by_a_reload() {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let rig = Rig::with(&settings(folder.path())).await;
    let (before, after) = (OPERATE, "9e8d7c6b5a493827161504f3e2d1c0ba");
    SECRETS.used("a token of the admin API after its rotation", after);
    let reload = |token: &str| {
        let client = rig.operator().with_key(token);
        async move {
            client
                .post("/admin/v1/settings/reload", &json!({}))
                .await
                .status
        }
    };
    std::fs::write(folder.path().join("token"), after).expect("the folder takes files");
    assert_eq!(reload(after).await, 401, "it is not reloaded yet");
    assert_eq!(reload(before).await, 200);
    assert_eq!(reload(before).await, 401);
    assert_eq!(reload(after).await, 200);
    // An unreadable token file keeps the tokens.
    std::fs::remove_file(folder.path().join("token")).expect("it is there");
    let client = rig.operator().with_key(after);
    let refused = client.post("/admin/v1/settings/reload", &json!({})).await;
    assert_eq!(refused.status, 409, "{}", refused.text());
    assert!(
        refused.text().contains("admin.token.0.token_file"),
        "{}",
        refused.text()
    );
    assert_eq!(client.get("/admin/v1/accounts").await.status, 200);
    rig.finish().await;
}
