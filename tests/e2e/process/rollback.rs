//! Rollback: an earlier release continues on the books of the current release, and the current release on the books of the earlier release.
//!
//! `TOLLGATE_EARLIER_PROGRAM` is the program of the earlier release, which `tests/rollback` builds from a revision. Without the variable,
//! the current build takes the place of the earlier program: only the way there and back, and the handover, are tested.

use std::path::PathBuf;

use tollgate_testing::{Client, EventStream, Postgres, Script, within};

use super::installation::{Installation, Serving, ended};
use super::nodes::{Cluster, settings_of};
use super::upgrade::{Successor, first_ended, spent};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, SECRETS, chat};

const PROGRAM: &str = "TOLLGATE_EARLIER_PROGRAM";

fn this() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_tollgate"))
}

#[expect(clippy::disallowed_methods, reason = "a test's own settings")]
fn earlier() -> PathBuf {
    std::env::var_os(PROGRAM).map_or_else(this, PathBuf::from)
}

pub(super) async fn stop(mut serving: Serving) {
    serving.process.signal("TERM");
    let status = ended(&mut serving.process).await;
    assert_eq!(status.code(), Some(0), "{}", serving.process.output());
}

/// Two answers: a whole answer and a stream.
async fn ask(client: &Client) -> i64 {
    for stream in [false, true] {
        let answer = client.post(CHAT, &chat(stream)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    2 * PRICE_OF_A_CHAT
}

async fn audit(installation: &Installation) {
    let audit = installation.audit().await;
    assert_eq!(audit["clean"], true, "{audit}");
    assert_eq!(audit["open_holds"], 0, "{audit}");
}

/// Starts a stream in wait for `gate`.
async fn paced(installation: &Installation, client: &Client, gate: &str) -> EventStream {
    installation.provider.script(Script::pace(gate).once());
    let stream = client.stream(CHAT, &chat(true)).await;
    assert_eq!(stream.status, 200);
    installation.provider.gate(gate).reached_by(1).await;
    stream
}

/// Serves, and is killed with a stream under way, whose hold the next start releases.
async fn serve_and_die(installation: &Installation, gate: &str) -> i64 {
    let mut serving = installation.serve().await;
    let client = serving.client(installation);
    let charges = ask(&client).await;
    let stream = paced(installation, &client, gate).await;
    serving.process.kill();
    ended(&mut serving.process).await;
    installation.provider.gate(gate).open();
    drop(stream);
    charges
}

/// A program starts on the books of the other program, after a stop and after a kill.
async fn there_and_back(mut installation: Installation) {
    let mut charges = 0;
    let mut keys: Vec<(String, PathBuf)> = Vec::new();
    // Keys revoked by a program.
    let mut revoked: Vec<String> = Vec::new();
    for round in 0..4 {
        installation.program = match round % 2 {
            0 => this(),
            _ => earlier(),
        };
        charges += serve_and_die(&installation, &format!("gate {round}")).await;
        let serving = installation.serve().await;
        charges += ask(&serving.client(&installation)).await;
        assert_eq!(spent(&installation).await, charges, "round {round}");
        // Accounts and keys of the other program, and new ones.
        for (key, program) in &keys {
            let answer = Client::new(&serving.url)
                .with_key(key)
                .post(CHAT, &chat(false))
                .await;
            let text = answer.text();
            assert_eq!(answer.status, 200, "{}: {text}", program.display());
        }
        for key in &revoked {
            let client = Client::new(&serving.url).with_key(key);
            let answer = client.get("/v1/models").await;
            assert_eq!(answer.status, 401, "round {round}");
        }
        let (_, key) = installation.account("5").await;
        keys.push((key, installation.program.clone()));
        let (account, key) = installation.account("5").await;
        let client = Client::new(&serving.url).with_key(&key);
        assert_eq!(client.get("/v1/models").await.status, 200);
        let words = ["key", "list", "--account", &account];
        let listed = installation.ask(&words).await;
        let id = listed[0]["id"].as_str().expect("an id");
        installation.run(&["key", "revoke", "--key", id]).await;
        revoked.push(key);
        stop(serving).await;
        audit(&installation).await;
    }
}

/// A program hands over to the other program. A stream is under way, and ends afterwards.
async fn handed_over(mut installation: Installation) {
    let mut charges = 0;
    for programs in [[this(), earlier()], [earlier(), this()]] {
        let [from, to] = programs;
        installation.program = from;
        let mut serving = installation.serve().await;
        let client = serving.client(&installation);
        charges += ask(&client).await;
        let gate = format!("gate of {}", charges);
        let mut stream = paced(&installation, &client, &gate).await;
        let to = to.to_str().expect("a path").to_owned();
        let upgraded = installation.ask(&["upgrade", "--program", &to]).await;
        let successor = Successor(upgraded["process"].as_u64().expect("a process"));
        charges += ask(&serving.client(&installation)).await;
        installation.provider.gate(&gate).open();
        let (events, end) = stream.rest().await;
        assert!(events.last().expect("events").is_done(), "{end:?}");
        charges += PRICE_OF_A_CHAT;
        drop(client);
        assert_eq!(first_ended(&mut serving).await, Some(0));
        installation.program = to.into();
        assert_eq!(spent(&installation).await, charges);
        successor.stop().await;
        audit(&installation).await;
    }
}

#[tokio::test]
async fn an_earlier_release_continues_and_this_one_after_it() {
    there_and_back(Installation::new("").await).await;
}

#[tokio::test]
async fn an_earlier_release_continues_and_this_one_after_it_on_postgresql() {
    let database = Postgres::shared().database();
    there_and_back(Installation::on_postgres(&database, "").await).await;
}

#[tokio::test]
async fn this_release_hands_over_to_an_earlier_one_and_back() {
    handed_over(Installation::new("").await).await;
}

#[tokio::test]
async fn this_release_hands_over_to_an_earlier_one_and_back_on_postgresql() {
    let database = Postgres::shared().database();
    handed_over(Installation::on_postgres(&database, "").await).await;
}

/// Gateways of two releases serve common accounts, like in a rolling upgrade or rollback.
#[tokio::test]
async fn nodes_of_an_earlier_release_serve_beside_nodes_of_this_one() {
    let url = Postgres::shared().database();
    let mut cluster = Cluster::stopped(&url, "", "", &[]).await;
    let programs = [this(), earlier(), this()];
    for (name, program) in ["a", "b", "c"].into_iter().zip(programs) {
        cluster.installation.program = program;
        let node = cluster.serve(name).await;
        cluster.nodes.push(node);
    }
    cluster.installation.program = this();
    let mut charges = 0;
    for round in 0..12 {
        let client = cluster.client(round);
        let answer = within("an answer with credit", async {
            loop {
                let answer = client.post(CHAT, &chat(round % 2 == 0)).await;
                // Another node may have the credit for a moment.
                if answer.status != 503 {
                    break answer;
                }
            }
        });
        let answer = answer.await;
        assert_eq!(answer.status, 200, "round {round}: {}", answer.text());
        charges += PRICE_OF_A_CHAT;
    }
    let account = cluster.installation.account.clone();
    let words = ["key", "create", "--account", &account, "--name", "second"];
    let made = cluster.ask("a", &words).await;
    let text = |name: &str| made[name].as_str().expect("a text").to_owned();
    let (id, key) = (text("id"), text("secret"));
    SECRETS.used("an API key", &key);
    // An earlier release may learn of the key a moment later.
    for node in &cluster.nodes {
        let client = Client::new(&node.url).with_key(&key);
        let known = async { while client.get("/v1/models").await.status != 200 {} };
        within("the key at each node", known).await;
    }
    cluster.ask("a", &["key", "revoke", "--key", &id]).await;
    for node in &cluster.nodes {
        let client = Client::new(&node.url).with_key(&key);
        let gone = async { while client.get("/v1/models").await.status != 401 {} };
        within("the revocation at each node", gone).await;
    }
    let (available, held) = cluster.balance(&cluster.installation.account).await;
    assert_eq!((available, held), (1_000_000_000 - charges, 0));
    cluster.audit();
    // The audit by the earlier program.
    cluster.installation.program = earlier();
    let config = settings_of(&cluster.installation.config, "b");
    let installation = &cluster.installation;
    let mut process = installation.spawn(installation.command_with(&config, &["audit"]));
    let status = ended(&mut process).await;
    assert_eq!(status.code(), Some(0), "{}", process.output());
}
