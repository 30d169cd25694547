//! The real program on a PostgreSQL database: commands, one gateway at a time, failover, and a crashing or missing database.

use std::path::PathBuf;

use tollgate_testing::{Certificate, Postgres, Process, within};

use super::installation::{Installation, ended};
use super::reload::{edit, element};
use super::spool::linked_database;
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited_store, chat, micros};

const QUIET: &str = "[telemetry]\naccess_log = \"none\"";

/// A server whose role `gateway` has the password `first-word`.
pub(super) fn with_password() -> Postgres {
    let certificate = Certificate::for_names(&["localhost"]);
    let server = Postgres::start_with_tls(&certificate.cert_pem, &certificate.key_pem);
    server.run("postgres", "ALTER ROLE gateway PASSWORD 'first-word'");
    server
}

/// Writes settings with a role and a password for the server. Returns the file of the password.
pub(super) fn log_in(installation: &Installation, server: &Postgres) -> PathBuf {
    let name = installation
        .postgres
        .as_deref()
        .and_then(|url| url.rsplit('/').next());
    let name = name.expect("a database");
    let url = format!("postgres://gateway@127.0.0.1:{}/{name}", server.port());
    edit(installation, |table| {
        let store = table["store"].as_table_mut().expect("a table");
        store.insert("url".to_owned(), url.into());
        store.insert("password_file".to_owned(), "database.password".into());
    });
    let file = installation.config.with_file_name("database.password");
    std::fs::write(&file, "first-word").expect("the folder takes files");
    file
}

/// A `tollgate serve` in wait for the database.
async fn waiting(installation: &Installation) -> Process {
    let process = installation.spawn(installation.command(&["serve"]));
    let waiting = tokio::task::spawn_blocking(move || {
        let is_it = |line: &str| line.contains("database cannot be reached, waiting for it");
        process.line_where("that it waits", is_it);
        process
    });
    waiting.await.expect("it waits")
}

#[tokio::test]
async fn commands_and_completions_work_on_a_postgresql_database_as_on_a_file() {
    let url = Postgres::shared().database();
    // Commands without a gateway made the account and the key.
    let installation = Installation::on_postgres(&url, QUIET).await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    for stream in [false, true] {
        let answer = client.post(CHAT, &chat(stream)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    // By the control socket.
    let (_, other) = installation.account("5").await;
    let other = serving.client(&installation).with_key(&other);
    let answer = other.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let charged = micros(&answer.json()["x_svc"]["credits_used"]);
    assert_eq!(charged, PRICE_OF_A_CHAT);
    let audit = installation.audit().await;
    assert_eq!(audit["clean"], true, "{audit}");
    let usage = installation
        .run(&["usage", "--account", &installation.account])
        .await;
    assert!(usage.contains("small"), "{usage}");
    for words in [&["backup", "copy.db"][..], &["repair"]] {
        let mut process = installation.spawn(installation.command(words));
        assert!(!ended(&mut process).await.success());
        let output = process.output();
        assert!(output.contains("works on an SQLite file"), "{output}");
    }
    drop(serving);
    let rebuilt = installation.ask(&["audit", "--fix-derived"]).await;
    assert_eq!(rebuilt["clean"], true, "{rebuilt}");
}

#[tokio::test]
async fn a_second_gateway_is_refused_and_takes_over_when_the_first_is_killed() {
    let url = Postgres::shared().database();
    let installation = Installation::on_postgres(&url, QUIET).await;
    let mut first = installation.serve().await;
    let (status, output) = installation.fail().await;
    assert!(!status.success());
    let holder = format!("is in use by process {}", first.process.id());
    assert!(output.contains(&holder), "{output}");

    installation
        .provider
        .script(tollgate_testing::Script::hold(2, "middle").once());
    let client = first.client(&installation);
    let mut stream = client.stream(CHAT, &chat(true)).await;
    stream.next_event().await.expect("an event before the gate");
    first.process.kill();
    let second = installation.serve().await;
    installation.provider.gate("middle").open();
    let report = audited_store(&installation.store());
    assert_eq!(
        report.open_holds, 0,
        "the hold of the killed gateway is released"
    );
    let answer = second.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn a_standby_takes_over_when_the_gateway_ends_or_is_killed() {
    let url = Postgres::shared().database();
    let installation = Installation::on_postgres(&url, QUIET).await;
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let text = text.replace("[store]", "[store]\nstandby = true");
    std::fs::write(&installation.config, text).expect("the folder takes files");
    let standby = || async {
        let process = installation.spawn(installation.command(&["serve"]));
        let waiting = tokio::task::spawn_blocking(move || {
            let is_it =
                |line: &str| line.contains("standing by") && line.contains("has the database");
            process.line_where("that it waits", is_it);
            process
        });
        waiting.await.expect("it waits")
    };
    let mut serving = installation.serve().await;
    for signal in ["TERM", "KILL"] {
        let next = standby().await;
        let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        serving.process.signal(signal);
        serving = installation.listening(next).await;
        let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let mut stopped = standby().await;
    stopped.signal("TERM");
    let status = super::installation::ended(&mut stopped).await;
    assert_eq!(status.code(), Some(0), "{}", stopped.output());
}

/// A reload with a price that cannot be stored has no effect: neither the price nor any further change is used.
#[tokio::test]
async fn a_reload_whose_prices_cannot_be_stored_keeps_the_earlier_settings() {
    const FAILED: &str = "tollgate_settings_reloads_total{result=\"failed\"}";
    const VERSION: &str = "tollgate_settings_version";
    let (link, url, _) = linked_database();
    let installation = Installation::on_postgres(&url, QUIET).await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    let models = async || {
        let listed = client.get("/v1/models").await.json();
        listed["data"].as_array().expect("a list").len()
    };
    let charged = async || {
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        micros(&answer.json()["x_svc"]["credits_used"])
    };
    assert_eq!(models().await, 2);
    edit(&installation, |table| {
        let price = element(table, "model", 0)["price"].as_table_mut();
        price
            .expect("a price")
            .insert("output".into(), "700".into());
        table["model"].as_array_mut().expect("a list").truncate(1);
    });
    link.cut();
    let mut failing = installation.spawn(installation.command(&["reload"]));
    assert_eq!(ended(&mut failing).await.code(), Some(1));
    assert_eq!(serving.metric(FAILED).await, 1);
    assert_eq!(serving.metric(VERSION).await, 1);
    link.restore();
    serving.metric_becomes("tollgate_store_cut_off", 0).await;
    assert_eq!(models().await, 2, "the model stays");
    assert_eq!(charged().await, PRICE_OF_A_CHAT);

    installation.run(&["reload"]).await;
    assert_eq!(models().await, 1);
    assert_eq!(charged().await, 150 + 16 * 700);
    assert_eq!(serving.metric(VERSION).await, 2);
}

/// A charge received by a client is in the ledger, whatever happened to the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_under_load_delays_requests_and_loses_none() {
    let mut server = Postgres::start();
    let url = server.database();
    let installation = Installation::on_postgres(&url, QUIET).await;
    let mut serving = installation.serve().await;
    let loads: Vec<_> = (0..4)
        .map(|_| {
            let client = serving.client(&installation);
            tokio::spawn(async move {
                let mut charged = 0;
                for _ in 0..30 {
                    let answer = client.post(CHAT, &chat(false)).await;
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    charged += micros(&answer.json()["x_svc"]["credits_used"]);
                }
                charged
            })
        })
        .collect();
    let some = async {
        while serving.metric("tollgate_commit_seconds_count").await < 20 {
            tokio::task::yield_now().await;
        }
    };
    within("commits", some).await;
    let server = tokio::task::spawn_blocking(move || {
        server.crash_and_restart();
        server
    });
    let server = server.await.expect("no panic");
    let mut charged = 0;
    for load in loads {
        charged += load.await.expect("no panic");
    }
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let store = installation.store();
    audited_store(&store);
    let account = installation.account.parse().expect("an id");
    let row = store
        .account(account)
        .expect("a read")
        .expect("it is there");
    assert_eq!(row.available.get(), 1_000_000_000 - charged);
    drop(store);
    drop(server);
}

#[tokio::test]
async fn a_database_that_is_not_there_is_named_with_what_to_do() {
    let url = Postgres::shared().database();
    let installation = Installation::on_postgres(&url, QUIET).await;
    let gone = url
        .replace("%2Fdev%2Fshm", "%2Fnowhere")
        .replace("%2Ftmp", "%2Fnowhere");
    let settings = std::fs::read_to_string(&installation.config).expect("a text");
    std::fs::write(&installation.config, settings.replace(&url, &gone)).expect("a file");
    let mut process = installation.spawn(installation.command(&["audit"]));
    assert_eq!(ended(&mut process).await.code(), Some(2));
    let output = process.output();
    assert!(output.contains("check that the database runs"), "{output}");
    assert!(output.contains("No such file or directory"), "{output}");
}

/// The service manager would restart a failed start a few times only.
#[tokio::test]
async fn a_start_waits_for_a_database_that_does_not_run_yet() {
    let mut server = Postgres::start();
    let url = server.database();
    let installation = Installation::on_postgres(&url, QUIET).await;
    server.crash();
    let mut stopped = waiting(&installation).await;
    stopped.signal("TERM");
    assert_eq!(ended(&mut stopped).await.code(), Some(0));
    let process = waiting(&installation).await;
    for output in [stopped.output(), process.output()] {
        assert!(output.contains("No such file or directory"), "{output}");
        assert!(!output.contains("listening"), "{output}");
    }
    let started = tokio::task::spawn_blocking(move || {
        server.crash_and_restart();
        server
    });
    let _server = started.await.expect("no panic");
    let serving = installation.listening(process).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let output = serving.process.output();
    assert!(output.contains("reached the database"), "{output}");
    let causes = output
        .lines()
        .filter_map(|line| line.split("waiting for it").nth(1));
    let causes: Vec<_> = causes.collect();
    let is_each_another = causes.windows(2).all(|pair| pair[0] != pair[1]);
    assert!(is_each_another, "each cause is logged once:\n{output}");
}

#[tokio::test]
async fn a_start_with_a_refused_password_does_not_wait() {
    let server = with_password();
    let installation = Installation::on_postgres(&server.database(), QUIET).await;
    let file = log_in(&installation, &server);
    std::fs::write(file, "another-word").expect("the folder takes files");
    let (status, output) = installation.fail().await;
    assert_eq!(status.code(), Some(1));
    assert!(
        output.contains("password authentication failed"),
        "{output}"
    );
    assert!(!output.contains("waiting for it"), "{output}");
}
