//! Spending caps of keys at several gateways on one database: exactly the cap is spent, at any node.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tollgate_clock::{Clock, Month};
use tollgate_testing::mailbox::{self, Mailbox};
use tollgate_testing::{Client, EventStream, Postgres, Script, within};

use super::balancer::Balancer;
use super::flows::{edit_of, signed_in};
use super::nodes::{Cluster, NAMES};
use super::scarce;
use crate::credits::field;
use crate::oauth::support::BASE;
use crate::rig::{Browser, CHAT, PRICE_OF_A_CHAT, SECRETS, chat};

/// A chat with the charge [`PRICE_OF_A_CHAT`]. The answer is not shortened for a smaller rest of the cap.
fn body() -> Value {
    let mut body = chat(true);
    body["max_tokens"] = 16.into();
    body
}

/// An amount in the form of commands and forms.
fn credits(micros: i64) -> String {
    format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
}

/// Sends a request again while the node asks other nodes for their part of the cap.
async fn decided(client: &Client) -> EventStream {
    loop {
        let stream = client.stream(CHAT, &body()).await;
        match stream.status {
            503 => {
                // Five seconds where the node does not reach its database for a moment.
                assert!(matches!(stream.header("retry-after"), Some("1" | "5")));
                let answer = stream.whole().await;
                scarce::assert_may_be_repeated(&answer);
            }
            _ => return stream,
        }
    }
}

/// The allowed streams of `count` streams at once, over the nodes in turn. The remaining streams are refused for the cap.
async fn allowed(cluster: &Cluster, key: &str, count: usize) -> Vec<EventStream> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        let client = cluster.client(number).with_key(key);
        tasks.spawn(async move { decided(&client).await });
    }
    let mut allowed = Vec::new();
    for stream in within("the decisions", tasks.join_all()).await {
        match stream.status {
            200 => allowed.push(stream),
            _ => refused(stream).await,
        }
    }
    allowed
}

async fn refused(stream: EventStream) {
    let answer = stream.whole().await;
    assert_eq!(answer.status, 403, "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "key_spending_cap");
}

async fn whole(streams: Vec<EventStream>) {
    for mut stream in streams {
        let (events, _) = stream.rest().await;
        assert!(events.len() > 1, "the stream ends whole");
    }
}

impl Cluster {
    /// Stops every later stream in the middle of the answer.
    fn hold_at(&self, gate: &str) {
        let provider = &self.installation.provider;
        provider.clear_scripts();
        provider.script(Script::hold(2, gate));
    }

    /// The hold of a stream.
    async fn hold_of_a_stream(&self) -> i64 {
        let provider = &self.installation.provider;
        provider.script(Script::hold(2, "measured").once());
        let stream = self.client(0).stream(CHAT, &body()).await;
        assert_eq!(stream.status, 200);
        let (_, hold) = self.balance(&self.installation.account).await;
        provider.gate("measured").open();
        whole(vec![stream]).await;
        assert!(hold >= PRICE_OF_A_CHAT, "it holds what it costs");
        hold
    }

    /// A key of an account with the monthly cap `max`, after every node knows the key.
    async fn capped_key(&self, account: &str, max: i64) -> String {
        let max = credits(max);
        let words = [
            "key",
            "create",
            "--account",
            account,
            "--name",
            "capped",
            "--spend-max",
            &max,
            "--spend-period",
            "month",
        ];
        let made = self.ask("c", &words).await;
        let key = made["secret"].as_str().expect("a secret").to_owned();
        SECRETS.used("an API key", &key);
        for node in 0..NAMES.len() {
            self.becomes(node, &key, "/v1/models", |status| status == 200)
                .await;
        }
        key
    }

    /// Waits until a node answers a request with `key` with an expected status.
    async fn becomes(&self, node: usize, key: &str, path: &str, is_so: impl Fn(u16) -> bool) {
        let client = self.client(node).with_key(key);
        let polled = async {
            while !is_so(client.get(path).await.status) {
                tokio::task::yield_now().await;
            }
        };
        within("what a node is to know", polled).await;
    }

    async fn settled(&self, account: &str, left: i64) {
        let polled = async {
            while self.balance(account).await != (left, 0) {
                tokio::task::yield_now().await;
            }
        };
        within("the charges", polled).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_times_the_streams_that_a_key_may_pay_exactly_as_many_run_as_it_may() {
    const COUNT: usize = 12;
    let cluster = Cluster::start().await;
    let hold = cluster.hold_of_a_stream().await;
    let cap = hold * COUNT as i64;
    for (round, _beside) in scarce::rounds() {
        let (account, _) = cluster.installation_account("1000").await;
        let key = cluster.capped_key(&account, cap).await;
        let mut left = cap;
        let mut charged = 0;
        // The second part spends the unspent reservations of the first part.
        for part in ["first", "second"] {
            let gate = format!("{part} of round {round}");
            let expected = (left / hold) as usize;
            cluster.hold_at(&gate);
            let streams = allowed(&cluster, &key, 5 * COUNT).await;
            assert_eq!(streams.len(), expected, "{gate}");
            let spent = streams.len() as i64 * PRICE_OF_A_CHAT;
            cluster.installation.provider.gate(&gate).open();
            whole(streams).await;
            (left, charged) = (left - spent, charged + spent);
            cluster.settled(&account, 1_000_000_000 - charged).await;
        }
    }
    cluster.audit();
}

#[tokio::test]
async fn what_a_killed_node_had_of_a_cap_is_no_reason_for_a_refusal_and_is_recovered() {
    const COUNT: usize = 3;
    let mut cluster = Cluster::start().await;
    let hold = cluster.hold_of_a_stream().await;
    let (account, _) = cluster.installation_account("1000").await;
    let key = cluster.capped_key(&account, hold * COUNT as i64).await;
    cluster.hold_at("killed");
    let lost = decided(&cluster.client(1).with_key(&key)).await;
    assert_eq!(lost.status, 200);
    cluster.nodes[1].process.kill();
    cluster.hold_at("middle");
    let client = cluster.client(0).with_key(&key);
    let mut held = Vec::new();
    loop {
        let stream = client.stream(CHAT, &body()).await;
        match stream.status {
            200 => held.push(stream),
            503 => break,
            other => panic!("{other}: the killed node may have spent nothing"),
        }
    }
    assert!(held.len() < COUNT, "the killed node had a part");
    cluster.ask("a", &["nodes", "recover", "b"]).await;
    for _ in held.len()..COUNT {
        let stream = decided(&cluster.client(2).with_key(&key)).await;
        assert_eq!(stream.status, 200, "what it had is there again");
        held.push(stream);
    }
    refused(decided(&client).await).await;
    cluster.installation.provider.gate("middle").open();
    whole(held).await;
    let left = 1_000_000_000 - COUNT as i64 * PRICE_OF_A_CHAT;
    cluster.settled(&account, left).await;
    cluster.installation.provider.gate("killed").open();
    cluster.audit();
}

#[tokio::test]
async fn a_cap_that_is_changed_on_a_page_counts_at_every_node_what_all_have_spent() {
    let mailbox = Mailbox::start(mailbox::Settings::default()).expect("free ports");
    let service = format!("[service]\nbase_url = '{BASE}'");
    let mail = format!(
        "[signin.mail]\nsmtp_url = 'smtp://{}'\nfrom = 'Tolls <codes@example.net>'",
        mailbox.smtp()
    );
    let database = Postgres::shared().database();
    let cluster = Cluster::with(&database, &service, &mail, &[]).await;
    let balancer = Balancer::start(&cluster.nodes).await;
    let hold = cluster.hold_of_a_stream().await;
    let address = "ada@example.com";
    let words = ["account", "create", "--class", "pro", "--email", address];
    let made = cluster.ask("a", &words).await;
    let account = made["id"].as_str().expect("an id").to_owned();
    let grant = ["credits", "grant", "--account", &account];
    let grant = [&grant[..], &["--amount", "1000", "--reference", "test"]].concat();
    cluster.ask("b", &grant).await;
    let key = cluster.capped_key(&account, 2 * hold).await;
    let mut browser = signed_in(&balancer.url, &mailbox, address).await;
    let clients: Vec<_> = (0..NAMES.len())
        .map(|node| cluster.client(node).with_key(&key))
        .collect();
    let status = |node: usize| decided(&clients[node]);

    // Raised while the whole cap is reserved.
    cluster.hold_at("middle");
    let mut held = vec![status(0).await, status(1).await];
    refused(status(2).await).await;
    set_cap(&mut browser, &credits(3 * hold)).await;
    let raised = async {
        loop {
            let stream = status(2).await;
            match stream.status {
                200 => return stream,
                _ => refused(stream).await,
            }
        }
    };
    held.push(within("a higher cap", raised).await);
    for node in 0..NAMES.len() {
        refused(status(node).await).await;
    }

    // Lowered below the running streams: the streams end whole, and count.
    set_cap(&mut browser, &credits(3 * PRICE_OF_A_CHAT)).await;
    cluster.installation.provider.gate("middle").open();
    for stream in &held {
        assert_eq!(stream.status, 200);
    }
    whole(held).await;
    let spent = 3 * PRICE_OF_A_CHAT;
    cluster.settled(&account, 1_000_000_000 - spent).await;
    for node in 0..NAMES.len() {
        refused(status(node).await).await;
    }

    // Without a cap first. Next a cap with room for a single request after the charges in between.
    set_cap(&mut browser, "").await;
    for node in 0..NAMES.len() {
        let free = async {
            loop {
                let stream = status(node).await;
                match stream.status {
                    200 => return stream,
                    _ => refused(stream).await,
                }
            }
        };
        let free = within("a key without a cap", free).await;
        whole(vec![free]).await;
    }
    set_cap(&mut browser, "0.000001").await;
    for node in 0..NAMES.len() {
        let capped = async {
            loop {
                let stream = status(node).await;
                match stream.status {
                    200 => whole(vec![stream]).await,
                    _ => return refused(stream).await,
                }
            }
        };
        within("a key with a cap", capped).await;
    }
    let (available, _) = cluster.balance(&account).await;
    let spent = 1_000_000_000 - available;
    assert!(spent >= 6 * PRICE_OF_A_CHAT, "{spent} were charged");
    cluster.hold_at("last");
    set_cap(&mut browser, &credits(spent + hold)).await;
    let raised = async {
        loop {
            let stream = status(1).await;
            match stream.status {
                200 => return stream,
                _ => refused(stream).await,
            }
        }
    };
    let last = within("a cap that leaves one more", raised).await;
    for node in 0..NAMES.len() {
        refused(status(node).await).await;
    }
    cluster.installation.provider.gate("last").open();
    whole(vec![last]).await;
    let spent = spent + PRICE_OF_A_CHAT;
    cluster.settled(&account, 1_000_000_000 - spent).await;

    // Every node shows the charges of every node.
    for _ in 0..NAMES.len() {
        let list = browser.get("/keys").await;
        let shown = list.text().split(">capped<").nth(1).expect("the key's row");
        let row = shown.split("</tr>").next().expect("its end");
        let expected = format!("{:.2}", spent as f64 / 1e6);
        assert!(row.contains(&expected), "{expected} in {row}");
    }
    cluster.audit();
}

/// Changes the cap of the key on the key's page; empty for no cap.
async fn set_cap(browser: &mut Browser, cap: &str) {
    let list = browser.get("/keys").await;
    let path = edit_of(&list, "capped");
    let page = browser.get(&path).await;
    let version = field(&page, "version");
    let fields = [
        ("version", &*version),
        ("name", "capped"),
        ("cap", cap),
        ("cap_period", "month"),
    ];
    let saved = browser.submit(&path, &fields).await;
    assert_eq!(saved.status, 303, "{}", saved.text());
}

/// Sets the time of day of the nodes.
struct MovedClock {
    library: PathBuf,
    ahead: PathBuf,
}

impl MovedClock {
    /// Builds the library loaded into the nodes.
    fn new(folder: &std::path::Path) -> MovedClock {
        let (library, ahead) = (folder.join("moved_clock.so"), folder.join("clock-ahead"));
        let source = tollgate_testing::package_folder().join("tests/e2e/process/moved_clock.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]);
        compiler.arg(&library).arg(source).arg("-ldl");
        let compiled = compiler.status().expect("a C compiler");
        assert!(compiled.success(), "{compiled}");
        MovedClock { library, ahead }
    }

    fn set(&self, seconds: i64) {
        // Replaced atomically: a node may read the file at any moment.
        let new = self.ahead.with_extension("new");
        std::fs::write(&new, seconds.to_string()).expect("written");
        std::fs::rename(&new, &self.ahead).expect("replaced");
    }
}

/// A request begun in the earlier month counts in the earlier month, although the charge comes in the new month.
#[tokio::test]
async fn a_key_has_its_whole_cap_again_for_what_begins_in_the_next_month() {
    const MINUTES: i64 = 60;
    let database = Postgres::shared().database();
    let mut cluster = Cluster::stopped(&database, "", "", &[]).await;
    let clock = MovedClock::new(cluster.installation.folder.path());
    let now = Clock::system().now();
    let to_the_end = Month::of(now).next().start().as_secs() - now.as_secs();
    clock.set(to_the_end - 20 * MINUTES);
    for name in NAMES {
        let mut command = cluster.command(name, &["serve"]);
        command
            .env("LD_PRELOAD", &clock.library)
            .env("CLOCK_AHEAD", &clock.ahead);
        let serving = cluster.installation.serve_as(command).await;
        cluster.nodes.push(serving);
    }
    let hold = cluster.hold_of_a_stream().await;
    let (account, _) = cluster.installation_account("1000").await;
    let cap = 6 * hold;
    let key = cluster.capped_key(&account, cap).await;
    let provider = &cluster.installation.provider;
    cluster.hold_at("over");
    let over = allowed(&cluster, &key, 9).await;
    assert_eq!(over.len() as i64, cap / hold);
    clock.set(to_the_end + 20 * MINUTES);
    // The whole cap of the new month is free before the first charge in the new month.
    let new = allowed(&cluster, &key, 9).await;
    assert_eq!(new.len() as i64, cap / hold);
    provider.gate("over").open();
    let of_the_month = new.len() as i64 * PRICE_OF_A_CHAT;
    let spent = over.len() as i64 * PRICE_OF_A_CHAT + of_the_month;
    whole(over).await;
    whole(new).await;
    cluster.settled(&account, 1_000_000_000 - spent).await;
    cluster.hold_at("rest");
    let expected = (cap - of_the_month) / hold;
    let rest = allowed(&cluster, &key, 9).await;
    assert_eq!(rest.len() as i64, expected);
    provider.gate("rest").open();
    whole(rest).await;
    cluster.audit();
}
