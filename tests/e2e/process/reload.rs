//! Reload of the settings: a reload takes effect as a whole or not at all, and touches no request or stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use tollgate_testing::paypal::PayPal;
use tollgate_testing::{Certificate, Client, RawClient, Script, within};
use toml::Table;

use super::installation::{Installation, Serving, ended};
use super::spool::{admitted, linked_database};
use crate::pay::mpp::{Offer, ask, secrets, selling, submit};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, SECRETS, audited, chat, micros};

const VERSION: &str = "tollgate_settings_version";
const RELOADED: &str = "tollgate_settings_reloads_total{result=\"ok\"}";
const FAILED: &str = "tollgate_settings_reloads_total{result=\"failed\"}";

/// Rewrites the settings file.
pub(super) fn edit(installation: &Installation, change: impl FnOnce(&mut Table)) {
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let mut table: Table = text.parse().expect("TOML");
    change(&mut table);
    let text = toml::to_string(&table).expect("tables are TOML");
    std::fs::write(&installation.config, text).expect("the folder takes files");
}

/// The table of a list at an index.
pub(super) fn element<'t>(table: &'t mut Table, list: &str, at: usize) -> &'t mut Table {
    let list = table[list].as_array_mut().expect("a list");
    list[at].as_table_mut().expect("a table")
}

pub(super) fn set_price(installation: &Installation, output: i64) {
    edit(installation, |table| {
        let price = element(table, "model", 0)["price"].as_table_mut();
        let price = price.expect("a price");
        price.insert("output".into(), output.to_string().into());
    });
}

pub(super) fn toml_of(text: &str) -> toml::Value {
    toml::Value::Table(text.parse().expect("TOML"))
}

/// A line of the log, read without blocking the stand-ins.
async fn line(serving: Serving, words: &'static [&'static str]) -> (Serving, String) {
    let read = tokio::task::spawn_blocking(move || {
        let is_it = |line: &str| words.iter().all(|word| line.contains(word));
        let line = serving
            .process
            .line_where("the result of the reload", is_it);
        (serving, line)
    });
    read.await.expect("the line comes")
}

fn charged(answer: &Value) -> i64 {
    micros(&answer["x_svc"]["credits_used"])
}

#[tokio::test]
async fn ten_reloads_touch_no_stream_and_no_request() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    installation.provider.script(Script::pace("piece").once());
    installation.provider.gate("piece").release(1);
    let mut stream = serving
        .client(&installation)
        .stream(CHAT, &chat(true))
        .await;
    assert_eq!(stream.status, 200);
    let gate = installation.provider.gate("piece");
    gate.reached_by(1).await;

    let over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..4)
        .map(|_| {
            let (client, over) = (serving.client(&installation), over.clone());
            tokio::spawn(async move {
                let mut answers = 0;
                while !over.load(Ordering::Relaxed) {
                    let answer = client.post(CHAT, &chat(false)).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    for reload in 1..=10 {
        set_price(&installation, 600 + reload);
        let reloaded = installation.ask(&["reload"]).await;
        assert_eq!(reloaded["version"], reload + 1);
        assert_eq!(reloaded["changes"][0]["key"], "model[small].price.output");
        // A request begun after the reload has the new price.
        let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
        assert_eq!(charged(&answer.json()), 150 + 16 * (600 + reload));
        gate.release(1);
    }
    over.store(true, Ordering::Relaxed);
    for client in load {
        let answers: u32 = client.await.expect("no request fails");
        assert!(answers > 0, "there was load");
    }
    gate.open();
    let (events, end) = stream.rest().await;
    assert!(events.last().expect("events").is_done(), "{end:?}");
    let pieces = |event: &Value| {
        event["choices"][0]["delta"]["content"]
            .as_str()
            .map(str::len)
    };
    let events: Vec<Value> = events
        .iter()
        .filter(|one| !one.is_done())
        .map(|one| one.json())
        .collect();
    assert_eq!(
        events
            .iter()
            .filter_map(pieces)
            .filter(|len| *len > 0)
            .count(),
        16
    );
    let priced = events.iter().find(|event| event["x_svc"].is_object());
    let priced = priced.expect("the last event has the charge");
    assert_eq!(
        charged(priced),
        PRICE_OF_A_CHAT,
        "the price that it began with"
    );

    assert_eq!(serving.metric(VERSION).await, 11);
    assert_eq!(serving.metric(RELOADED).await, 10);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    audited(&installation.database());
}

#[tokio::test]
async fn settings_that_cannot_take_effect_leave_the_earlier_ones() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let good = std::fs::read_to_string(&installation.config).expect("the settings");

    // The price of the file does not count, because the rest of the file is wrong.
    set_price(&installation, 1);
    edit(&installation, |table| {
        element(table, "model", 1).insert("created".into(), "yesterday".into());
    });
    serving.process.signal("HUP");
    let words = [
        "reloading settings failed",
        "tollgate.toml:",
        "model.1.created",
        "write a whole number",
    ];
    let (mut serving, _) = line(serving, Vec::leak(words.to_vec())).await;
    assert_eq!(serving.metric(FAILED).await, 1);
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(charged(&answer.json()), PRICE_OF_A_CHAT);

    // A setting in need of a restart, beside a reloadable setting.
    std::fs::write(&installation.config, &good).expect("the folder takes files");
    set_price(&installation, 1);
    edit(&installation, |table| {
        let server = table["server"].as_table_mut().expect("a table");
        server.insert("workers".into(), 2.into());
    });
    let mut diff = installation.spawn(installation.command(&["settings", "diff"]));
    assert_eq!(
        ended(&mut diff).await.code(),
        Some(1),
        "one needs a restart"
    );
    let listed = diff.output();
    for difference in [
        "model[small].price.output: changed\n",
        "server.workers: changed, needs `tollgate upgrade`\n",
    ] {
        assert!(listed.contains(difference), "{listed}");
    }
    serving.process.signal("HUP");
    let words = [
        "reloading settings failed",
        "tollgate.toml:",
        "server.workers",
        "run `tollgate upgrade`, or restore",
    ];
    let (mut serving, _) = line(serving, Vec::leak(words.to_vec())).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(charged(&answer.json()), PRICE_OF_A_CHAT);
    assert_eq!(serving.metric(VERSION).await, 1);
    assert_eq!(serving.metric(FAILED).await, 2);

    std::fs::write(&installation.config, &good).expect("the folder takes files");
    set_price(&installation, 1);
    let mut diff = installation.spawn(installation.command(&["settings", "diff"]));
    assert_eq!(
        ended(&mut diff).await.code(),
        Some(0),
        "none needs a restart"
    );
    serving.process.signal("HUP");
    let (serving, _) = line(serving, &["reloaded settings", "version=2"]).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(charged(&answer.json()), 150 + 16);
    let reload = |outcome| ["signal SIGHUP", "settings_reload", outcome];
    let acts = [reload("refused"), reload("refused"), reload("done")];
    installation.acts(&acts).await;
}

#[tokio::test]
async fn a_reload_adds_models_providers_and_limits_and_changes_chains_and_keys() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    let key = installation.folder.path().join("key.txt");
    std::fs::write(&key, "sk-wrong").expect("the folder takes files");
    let url = installation.provider.base_url();
    let mut request = chat(false);
    request["model"] = "tiny".into();
    assert_eq!(
        client.post(CHAT, &request).await.status,
        400,
        "it is not there yet"
    );

    edit(&installation, |table| {
        let provider = format!("name = 'second'\nbase_url = '{url}'\napi_key_file = 'key.txt'");
        let providers = table["provider"].as_array_mut().expect("a list");
        providers.insert(0, toml_of(&provider));
        let model = "id = 'tiny'\nproviders = [{ provider = 'second' }]\nprice = { input = '1', output = '1' }";
        let models = table["model"].as_array_mut().expect("a list");
        models.push(toml_of(model));
        table["limits"]["classes"]["pro"]["quota"] = 7777.into();
        let change = "path = '/v1/models'\nmethods = ['GET']\nchain = ['auth', 'models']";
        table.insert("route_change".into(), vec![toml_of(change)].into());
    });
    installation.run(&["reload"]).await;
    let listed = client.get("/v1/models").await;
    assert!(listed.text().contains("\"tiny\""), "{}", listed.text());
    assert_eq!(
        listed.header("ratelimit-limit"),
        None,
        "its chain has no `rate-limit`"
    );
    let refused = client.post(CHAT, &request).await;
    assert!(
        refused.status >= 500,
        "the provider refuses the key: {}",
        refused.text()
    );
    assert_eq!(refused.header("ratelimit-limit"), Some("7777"));
    let with_model =
        "tollgate_tokens_total{direction=\"prompt\",model=\"tiny\",provider=\"second\"}";
    assert_eq!(serving.metric(with_model).await, 0, "it has its counters");

    // The key alone changes, not the name of the key's file.
    std::fs::write(&key, crate::rig::PROVIDER_KEY).expect("the folder takes files");
    let reloaded = installation.ask(&["reload"]).await;
    assert_eq!(
        reloaded["changes"][0]["key"],
        "provider[second].api_key_file"
    );
    assert_eq!(reloaded["changes"].as_array().map(Vec::len), Some(1));
    let answer = client.post(CHAT, &request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(
        client.post(CHAT, &chat(false)).await.status,
        200,
        "the first one works on"
    );

    edit(&installation, |table| {
        table["model"].as_array_mut().expect("a list").pop();
        table["provider"].as_array_mut().expect("a list").remove(0);
    });
    installation.run(&["reload"]).await;
    assert_eq!(client.post(CHAT, &request).await.status, 400, "it is gone");
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
}

#[tokio::test]
async fn a_handshake_after_a_reload_gets_the_new_certificate_and_log_level() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let https = |ca_pem: &str| {
        let client = Client::new(&serving.tls_url).with_key(&installation.key);
        client.with_tls(ca_pem)
    };
    let request = |client: &Client| client.request("GET", "/v1/models", Default::default());
    installation
        .provider
        .script(Script::hold(3, "middle").once());
    let old = https(&installation.ca_pem);
    let mut stream = old.stream(CHAT, &chat(true)).await;
    installation.provider.gate("middle").reached_by(1).await;

    let new = Certificate::for_localhost();
    let folder = installation.folder.path();
    std::fs::write(folder.join("certificate.pem"), &new.cert_pem).expect("written");
    let mut failing = installation.spawn(installation.command(&["reload"]));
    assert_eq!(ended(&mut failing).await.code(), Some(1));
    assert!(
        failing
            .output()
            .contains("is the key of another certificate"),
        "{}",
        failing.output()
    );
    std::fs::write(folder.join("key.pem"), &new.key_pem).expect("written");
    edit(&installation, |table| {
        table["telemetry"]["log_level"] = "debug".into()
    });
    installation.run(&["reload"]).await;

    let client = https(&new.ca_pem);
    let answer = client
        .try_send(request(&client))
        .await
        .expect("a handshake");
    assert_eq!(answer.status, 200);
    let client = https(&installation.ca_pem);
    client
        .try_send(request(&client))
        .await
        .expect_err("the old certificate is gone");
    installation.provider.gate("middle").open();
    let (events, end) = stream.rest().await;
    assert!(
        events.last().expect("events").is_done(),
        "the open connection stays: {end:?}"
    );

    let port = serving.tls_url.rsplit(':').next().expect("a port");
    let address = format!("127.0.0.1:{port}").parse().expect("an address");
    let mut plain = RawClient::connect(address).await;
    plain.send("GET / HTTP/1.1\r\n\r\n").await;
    let (_, _) = line(serving, &["DEBUG", "TLS handshake failed"]).await;
}

#[tokio::test]
async fn a_changed_file_is_reloaded_where_the_settings_say_so() {
    let installation = Installation::new("[server]\nwatch_settings = true").await;
    let serving = installation.serve().await;
    set_price(&installation, 700);
    let (serving, _) = line(serving, &["reloaded settings", "version=2"]).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(charged(&answer.json()), 150 + 16 * 700);
    let act = ["file watch", "settings_reload", "done"];
    installation.acts(&[act]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_file_is_reloaded_when_the_database_answers_again() {
    let (link, url, _) = linked_database();
    let installation = Installation::on_postgres(&url, "[server]\nwatch_settings = true").await;
    let serving = installation.serve().await;
    let is_warned = async || {
        let ready = Client::new(&serving.admin_url).get("/ready").await;
        ready.text().contains("differ from those in force")
    };
    assert!(!is_warned().await);
    link.cut();
    set_price(&installation, 700);
    let failed = async { while serving.metric(FAILED).await == 0 {} };
    within("a reload that fails", failed).await;
    within("a warning", async { while !is_warned().await {} }).await;
    link.restore();
    serving.metric_becomes(RELOADED, 1).await;
    let answer = admitted(&serving.client(&installation)).await;
    assert_eq!(charged(&answer.json()), 150 + 16 * 700);
    within("its end", async { while is_warned().await {} }).await;
}

#[tokio::test]
async fn an_open_circuit_stays_open_over_a_reload() {
    const STATE: &str = "tollgate_provider_state{provider=\"stand-in\"}";
    let settings = "[[provider]]\nhealth = { cooldown_secs = 3600 }";
    let installation = Installation::new(settings).await;
    let serving = installation.serve().await;
    installation.provider.stop_listening().await;
    for _ in 0..3 {
        let refused = serving.client(&installation).post(CHAT, &chat(false)).await;
        assert!(refused.status >= 500, "{}", refused.text());
    }
    assert_eq!(serving.metric(STATE).await, 2, "it is open");
    set_price(&installation, 700);
    installation.run(&["reload"]).await;
    assert_eq!(serving.metric(STATE).await, 2, "it is open still");
}

#[tokio::test]
async fn a_reload_adds_and_removes_routes_and_classes() {
    const ADDED: &str = "/v1/added";
    let counted = |path: &str| {
        format!("tollgate_requests_total{{ending=\"answered\",route=\"{path}\",status=\"200\"}}")
    };
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    assert_eq!(client.get(ADDED).await.status, 404);
    edit(&installation, |table| {
        let class = toml_of("quota = 4242\nwindow_secs = 60\ntokens_per_window = 9000");
        let limits = table.entry("limits").or_insert_with(|| toml_of(""));
        let limits = limits.as_table_mut().expect("a table");
        let classes = limits.entry("classes").or_insert_with(|| toml_of(""));
        let classes = classes.as_table_mut().expect("a table");
        classes.insert("gold".into(), class);
        let route = format!(
            "path = '{ADDED}'\nmethods = ['GET']\nscope = 'api:models'\nclass = 'gold'\nchain = ['auth', 'rate-limit', 'models']"
        );
        table.insert("route_change".into(), vec![toml_of(&route)].into());
    });
    installation.run(&["reload"]).await;
    let answer = client.get(ADDED).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("ratelimit-limit"), Some("4242"));
    assert_eq!(client.get("/v1/models").await.status, 200);
    serving.metric_becomes(&counted(ADDED), 1).await;
    serving.metric_becomes(&counted("/v1/models"), 1).await;
    let admitted = "tollgate_rate_limit_total{class=\"gold\",decision=\"admitted\"}";
    assert_eq!(serving.metric(admitted).await, 1);
    let gold = installation
        .ask(&["account", "create", "--class", "gold"])
        .await;
    let id = gold["id"].as_str().expect("an id");
    let shown = installation
        .ask(&["account", "show", "--account", id])
        .await;
    assert_eq!(shown["class"], "gold");

    edit(&installation, |table| {
        table.remove("route_change");
        table["limits"]["classes"]
            .as_table_mut()
            .expect("a table")
            .remove("gold");
    });
    installation.run(&["reload"]).await;
    let words = ["rate class of accounts is not configured", "gold"];
    let (serving, _) = line(serving, Vec::leak(words.to_vec())).await;
    assert_eq!(client.get(ADDED).await.status, 404);
    assert_eq!(client.get("/v1/models").await.status, 200);
    serving.metric_becomes(&counted("/v1/models"), 2).await;
    assert_eq!(serving.metric(&counted(ADDED)).await, 1, "it stays counted");
}

/// The variables of the environment come from a file, and a reload reads the file again.
#[tokio::test]
async fn the_secret_of_challenges_is_rotated_in_the_file_for_variables() {
    const NEXT: &str = "the-next-secret-that-challenges-are-bound-with";
    SECRETS.used("what challenges are bound with next", NEXT);
    let paypal = PayPal::start().await;
    let folder = tollgate_testing::tempdir().expect("a folder");
    let ca = folder.path().join("paypal-ca.pem");
    std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
    let installation = Installation::new("").await;
    let [(id, id_value), (secret, secret_value), (mpp, before)] = secrets();
    let variables = |mpp_secrets: &str| {
        let text = format!("# Secrets.\n{id}={id_value}\n{secret}='{secret_value}'\n{mpp_secrets}");
        let file = installation.folder.path().join("environment");
        std::fs::write(file, text).expect("the folder takes files");
    };
    variables(&format!("{mpp}={before}\n"));
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    std::fs::write(
        &installation.config,
        format!("{text}\n{}", selling(&paypal, &ca)),
    )
    .expect("the folder takes files");
    edit(&installation, |table| {
        let server = table["server"].as_table_mut().expect("a table");
        server.insert("environment_file".into(), "environment".into());
    });
    let serving = installation.serve().await;
    let client = Client::new(&serving.url);
    let challenge = async || Offer::of(&ask(&client, &installation.key).await);
    let state = async |offer: &Offer| {
        let answer = submit(&client, &installation.key, &offer.credential(), "").await;
        answer.json()["payment_state"].clone()
    };
    let first = challenge().await;
    assert_eq!(
        state(&first).await,
        "approval_pending",
        "it is good, and not approved"
    );

    // The previous secret beside the new one: earlier challenges stay valid.
    edit(&installation, |table| {
        let mpp = table["payments"]["mpp"].as_table_mut().expect("a table");
        mpp.insert("previous_secret_env".into(), "PREVIOUS".into());
    });
    variables(&format!("{mpp}='{NEXT}'\nPREVIOUS={before}\n"));
    let reloaded = installation.ask(&["reload"]).await;
    let keys: Vec<&str> = reloaded["changes"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|change| change["key"].as_str())
        .collect();
    assert_eq!(
        keys,
        [
            "payments.mpp.previous_secret_env",
            "payments.mpp.secret_env",
            "server.environment_file"
        ]
    );
    let second = challenge().await;
    assert_eq!(state(&first).await, "approval_pending");
    assert_eq!(state(&second).await, "approval_pending");
    // Without the previous secret, earlier challenges are invalid.
    edit(&installation, |table| {
        let mpp = table["payments"]["mpp"].as_table_mut().expect("a table");
        mpp.remove("previous_secret_env");
    });
    variables(&format!("{mpp}='{NEXT}'\n"));
    installation.run(&["reload"]).await;
    assert_ne!(state(&first).await, "approval_pending");
    assert_eq!(state(&second).await, "approval_pending");

    // A line without a variable leaves the earlier variables in force, and is not repeated in the output.
    variables(NEXT);
    let mut failing = installation.spawn(installation.command(&["reload"]));
    assert_eq!(ended(&mut failing).await.code(), Some(1));
    let output = failing.output();
    assert!(
        output.contains("environment:4:1: is no variable"),
        "{output}"
    );
    assert_eq!(state(&second).await, "approval_pending");
    // A variable of a fixed setting is named, too.
    variables(&format!("{mpp}='{NEXT}'\nTOLLGATE__SERVER__WORKERS=3\n"));
    let mut failing = installation.spawn(installation.command(&["reload"]));
    assert_eq!(ended(&mut failing).await.code(), Some(1));
    let output = failing.output();
    assert!(
        output.contains("server.workers: changed, needs `tollgate upgrade`"),
        "{output}"
    );
}
