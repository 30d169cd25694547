//! Kills between the use of an authorization code and the response.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use serde_json::{Value, json};
use tollgate_money::AccountId;
use tollgate_store::{CredentialKind, sqlite};
use tollgate_testing::{Client, within};

use super::credits::sign_in;
use super::installation::{Installation, ended};
use crate::oauth::support::{CHALLENGE, VERIFIER, encoded, parameter};
use crate::rig::{Browser, SECRETS, poll};

const ROUNDS: usize = 6;
const CODES: usize = 4;
const REDIRECT: &str = "https://app.example/cb";

/// A code for the app, allowed in `browser`.
async fn code(browser: &mut Browser, client: &str) -> String {
    let query = encoded(&[
        ("client_id", client),
        ("redirect_uri", REDIRECT),
        ("response_type", "code"),
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "S256"),
    ]);
    let answer = browser.get(&format!("/oauth/authorize?{query}")).await;
    let path = answer.header("location").expect("a way on").to_owned();
    let page = browser.get(&path).await;
    assert_eq!(page.status, 200, "{}", page.text());
    let answer = browser.submit(&path, &[("decision", "allow")]).await;
    let address = answer.header("location").expect("a way on");
    parameter(address, "code").expect("a code")
}

/// The access token for a code, or the status of a refusal; `None` without a response.
async fn exchange(url: &str, client: &str, code: &str) -> Option<Result<String, u16>> {
    let tokens = exchange_for_tokens(url, client, code).await?;
    Some(tokens.map(|tokens| tokens["access_token"].as_str().expect("a text").to_owned()))
}

/// The whole answer to the exchange of a code.
async fn exchange_for_tokens(url: &str, client: &str, code: &str) -> Option<Result<Value, u16>> {
    let body = encoded(&[
        ("grant_type", "authorization_code"),
        ("code", code),
        ("redirect_uri", REDIRECT),
        ("client_id", client),
        ("code_verifier", VERIFIER),
    ]);
    let caller = Client::new(url);
    let mut request = caller.request("POST", "/oauth/token", Bytes::from(body));
    let kind = "application/x-www-form-urlencoded";
    let kind = kind.parse().expect("a value");
    request.headers_mut().insert("content-type", kind);
    let answer = caller.try_send(request).await.ok()?;
    Some(match answer.status {
        200 => Ok(answer.json()),
        status => Err(status),
    })
}

/// A delivered token stays valid. A client without an answer retries. With an unused code, the client gets a token. With a used code, the
/// code's token is revoked, because the retry cannot be distinguished from an attack. No undelivered token is valid.
#[tokio::test]
async fn a_kill_during_a_code_exchange_leaves_no_undelivered_token() {
    let installation = Installation::new("").await;
    let account: AccountId = installation.account.parse().expect("an id");
    let session = sign_in(&installation.database(), account).await;
    let mut serving = installation.serve().await;
    let metadata = json!({"redirect_uris": [REDIRECT]});
    let client = Client::new(&serving.url)
        .post("/oauth/register", &metadata)
        .await;
    let client: Arc<str> = client.json()["client_id"].as_str().expect("an id").into();
    let mut given: HashSet<String> = HashSet::new();
    for round in 0..ROUNDS {
        let mut browser = Browser::holding(&serving.url, &session);
        let mut codes = Vec::new();
        for _ in 0..CODES {
            codes.push(code(&mut browser, &client).await);
        }
        let answered = Arc::new(AtomicUsize::new(0));
        let tries: Vec<_> = codes
            .iter()
            .map(|code| {
                let (url, client, code) = (serving.url.clone(), client.clone(), code.clone());
                let answered = answered.clone();
                tokio::spawn(async move {
                    let got = exchange(&url, &client, &code).await;
                    answered.fetch_add(1, Ordering::SeqCst);
                    got
                })
            })
            .collect();
        let enough = || answered.load(Ordering::SeqCst) >= round % CODES;
        within("some answers", poll(enough)).await;
        serving.process.kill();
        let mut cut_off = Vec::new();
        for (one, code) in tries.into_iter().zip(&codes) {
            match one.await.expect("no panic") {
                Some(Ok(token)) => {
                    given.insert(token);
                }
                Some(Err(status)) => panic!("a sound exchange was refused with {status}"),
                None => cut_off.push(code.clone()),
            }
        }
        ended(&mut serving.process).await;
        serving = installation.serve().await;
        for code in cut_off {
            match exchange(&serving.url, &client, &code).await {
                Some(Ok(token)) => {
                    given.insert(token);
                }
                other => assert_eq!(other, Some(Err(400)), "round {round}"),
            }
        }
        for token in &given {
            let answer = Client::new(&serving.url)
                .with_key(token)
                .get("/v1/models")
                .await;
            assert_eq!(
                answer.status, 200,
                "round {round}: a token that was given is lost"
            );
        }
        let store = sqlite::open_read(&installation.database()).expect("the store opens");
        let rows = store.account_credentials(account).expect("readable");
        let alive = rows
            .iter()
            .filter(|row| row.made.kind == CredentialKind::AccessToken && row.revoked_at.is_none());
        assert_eq!(
            alive.count(),
            given.len(),
            "round {round}: an undelivered token is alive"
        );
    }
    given.iter().for_each(|token| {
        SECRETS.used("an access token", token);
    });
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
}

/// Registers a client with refresh tokens; returns the client's id and grant types.
async fn register(url: &str) -> (String, Value) {
    let metadata = json!({
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"],
    });
    let client = Client::new(url).post("/oauth/register", &metadata).await;
    let client = client.json();
    let id = client["client_id"].as_str().expect("an id").to_owned();
    (id, client["grant_types"].clone())
}

#[tokio::test]
async fn clients_and_grants_from_before_refresh_tokens_were_switched_on_get_none() {
    let installation = Installation::new("oauth.refresh_tokens = false").await;
    let account: AccountId = installation.account.parse().expect("an id");
    let session = sign_in(&installation.database(), account).await;
    let mut serving = installation.serve().await;
    let (known, grant_types) = register(&serving.url).await;
    assert_eq!(grant_types, json!(["authorization_code"]));
    let mut browser = Browser::holding(&serving.url, &session);
    let allowed = code(&mut browser, &known).await;
    serving.process.signal("TERM");
    ended(&mut serving.process).await;

    // The default.
    let settings = std::fs::read_to_string(&installation.config).expect("settings");
    let switched = settings.replace("refresh_tokens = false", "");
    assert_ne!(settings, switched);
    std::fs::write(&installation.config, switched).expect("the folder takes files");
    let mut serving = installation.serve().await;
    let mut browser = Browser::holding(&serving.url, &session);
    let (new, grant_types) = register(&serving.url).await;
    assert_eq!(grant_types, json!(["authorization_code", "refresh_token"]));
    let again = code(&mut browser, &known).await;
    let for_new = code(&mut browser, &new).await;
    for (client, code, refreshes) in [
        (&known, &allowed, false),
        (&known, &again, false),
        (&new, &for_new, true),
    ] {
        let tokens = exchange_for_tokens(&serving.url, client, code).await;
        let tokens = tokens.expect("an answer").expect("tokens");
        for name in ["access_token", "refresh_token"] {
            if let Some(token) = tokens[name].as_str() {
                SECRETS.used("a token", token);
            }
        }
        assert_eq!(tokens["refresh_token"].is_string(), refreshes, "{client}");
    }
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
}

/// A proxy would resolve the host by itself, and could reach addresses forbidden to the gateway.
#[tokio::test]
async fn a_client_document_is_never_fetched_by_a_proxy() {
    let installation = Installation::new("").await;
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    proxy.set_nonblocking(true).expect("a mode");
    let url = format!("http://{}", proxy.local_addr().expect("it is bound"));
    let mut command = installation.command(&["serve"]);
    for name in [
        "HTTPS_PROXY",
        "https_proxy",
        "ALL_PROXY",
        "all_proxy",
        "HTTP_PROXY",
    ] {
        command.env(name, &url);
    }
    command.env_remove("NO_PROXY").env_remove("no_proxy");
    let mut serving = installation.serve_as(command).await;
    // A nonexistent name (RFC 6761 section 6.4): only a proxy could get a request for the name.
    let query = encoded(&[
        ("client_id", "https://app.invalid/client.json"),
        ("redirect_uri", REDIRECT),
    ]);
    let page = Client::new(&serving.url)
        .get(&format!("/oauth/authorize?{query}"))
        .await;
    assert_eq!(page.status, 400);
    let reason = "the document at client_id cannot be fetched";
    assert!(page.text().contains(reason), "{}", page.text());
    // The answer waited for the fetch: a connection would have arrived.
    assert!(proxy.accept().is_err(), "the proxy was asked");
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
}
