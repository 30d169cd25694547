//! Retention by the real program: closed months are exported and removed, and the rest stays visible to owners and operators.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tollgate_clock::{Clock, Entropy};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::postgres::{self, DatabaseUrl};
use tollgate_store::sqlite::{self, Durability};
use tollgate_store::{
    Admission, CacheScope, Endpoint, EntryKind, NewAccount, Part, RootSecret, Store, UnitOfWork,
    UsageFlags, UsageRecord, commit,
};
use tollgate_testing::{Client, Postgres, within};

use super::installation::{Installation, Serving, ended};
use super::nodes::{Cluster, NAMES};
use crate::rig::{CHAT, audited_store, chat, poll};

const DAY: Duration = Duration::from_secs(86_400);

/// Days of requests up to now. The first days are in the second to fourth closed month before now.
const DAYS: u32 = 120;

/// The number of accounts with requests, and the requests of an account on a day. A request is a separate commit, as without load.
const ACCOUNTS: u64 = 3;
const REQUESTS: u64 = 12;

fn account(number: u64) -> AccountId {
    AccountId::from_bytes([number as u8 + 1; 16])
}

/// Books requests of the last months.
async fn fill(store: &Arc<dyn Store>, entropy: &Entropy) {
    let write = async |part: Part| {
        let unit = UnitOfWork::of(part, Admission::Always);
        commit(&**store, unit).await.expect("it is committed");
    };
    let now = Clock::system().now();
    let first = now - DAY * DAYS;
    for number in 0..ACCOUNTS {
        write(Part::CreateAccount(Box::new(NewAccount {
            id: account(number),
            class: Arc::from("pro"),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::ZERO,
            created_at: first,
        })))
        .await;
        write(Part::Ledger(LedgerPart::Credit {
            operation: OperationId::generate(first, entropy),
            account: account(number),
            kind: EntryKind::Grant,
            amount: Micros::new(1_000_000_000),
            reference: Arc::from("first"),
            at: first,
        }))
        .await;
    }
    for day in 0..DAYS {
        for request in 0..ACCOUNTS * REQUESTS {
            let at = first + DAY * day + Duration::from_secs(request);
            write(Part::Ledger(LedgerPart::Charge {
                operation: OperationId::generate(at, entropy),
                account: account(request % ACCOUNTS),
                charged: Micros::new(100 + request as i64),
                written_off: Micros::ZERO,
                price_version: None,
                usage: UsageRecord {
                    credential: None,
                    endpoint: Endpoint::Chat,
                    model: Arc::from("small"),
                    upstream: Some(Arc::from("provider")),
                    prompt_tokens: 7,
                    completion_tokens: 100,
                    flags: UsageFlags::NONE,
                    http_status: 200,
                    ttfb_us: Some(1000),
                    total_us: Some(2000),
                },
                at,
            }))
            .await;
        }
    }
    store.close();
}

/// A file with requests of the last months.
async fn filled_file(path: &Path) {
    let entropy = Entropy::system();
    let options = sqlite::Options {
        durability: Durability::Process,
        post_records: 4096,
        ..sqlite::Options::new(Clock::system().now(), RootSecret(entropy.bytes()))
    };
    let store = sqlite::open(path, options).expect("the store opens");
    fill(&store, &entropy).await;
}

/// An installation with the requests in the database.
async fn installation() -> Installation {
    let mut installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let folder = exports(&installation);
    std::fs::create_dir(&folder).expect("a folder");
    keep_a_month(&installation, &folder);
    let database = installation.database();
    for beside in ["", "-wal", "-shm", ".committed"] {
        let mut name = database.clone().into_os_string();
        name.push(beside);
        let _ = std::fs::remove_file(name);
    }
    filled_file(&database).await;
    (installation.account, installation.key) = installation.account("1000").await;
    installation
}

/// Sets a single kept month, and the folder of exports.
fn keep_a_month(installation: &Installation, folder: &Path) {
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let keep = format!("[store]\nkeep_months = 1\nexports = '{}'", folder.display());
    let text = text.replace("[store]", &keep);
    assert!(text.contains("keep_months"), "{text}");
    std::fs::write(&installation.config, text).expect("the folder takes files");
}

fn exports(installation: &Installation) -> PathBuf {
    installation.folder.path().join("exports")
}

/// The view of owners and operators: balances, and the usage of every day.
async fn seen(installation: &Installation) -> Vec<String> {
    let first = Clock::system().now() - DAY * (DAYS + 1);
    let first: String = first.rfc3339().chars().take(10).collect();
    let mut seen = vec![installation.run(&["account", "list"]).await];
    for number in 0..ACCOUNTS {
        let account = account(number).to_string();
        let words = ["usage", "--account", &account, "--from", &first];
        let usage = installation.run(&words).await;
        assert!(usage.lines().count() > DAYS as usize, "{usage}");
        seen.push(usage);
    }
    seen
}

/// Commits in the journal, and the used bytes of the database.
fn size(database: &Path) -> (u64, u64) {
    let file = rusqlite::Connection::open(database).expect("the database");
    let number = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0));
    let number = |sql| number(sql).expect("a number").unsigned_abs();
    let used =
        number("SELECT page_count - freelist_count FROM pragma_page_count, pragma_freelist_count");
    (
        number("SELECT count(*) FROM journal"),
        used * number("PRAGMA page_size"),
    )
}

/// The seconds for which months have waited for their removal, after the gateway's first read.
async fn overdue(serving: &Serving) -> u64 {
    let read = async {
        loop {
            let page = Client::new(&serving.admin_url).get("/metrics").await;
            let mut lines = page.text().lines();
            let number =
                lines.find_map(|line| line.strip_prefix("tollgate_retention_overdue_seconds "));
            if let Some(number) = number {
                return number.parse().expect("a whole number");
            }
        }
    };
    within("the first look at the journal", read).await
}

async fn audit(installation: &Installation) {
    let folder = exports(installation);
    let folder = folder.to_str().expect("a path");
    let audit = installation.ask(&["audit", "--exports", folder]).await;
    assert_eq!(audit["clean"], true, "{audit}");
}

fn commits(exported: &Value) -> u64 {
    let files = exported["exported"].as_array().expect("a list").iter();
    files
        .map(|file| file["commits"].as_u64().expect("a number"))
        .sum()
}

#[tokio::test]
async fn closed_months_are_exported_and_removed_while_the_gateway_serves() {
    let installation = installation().await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    // At most the four months of requests, and at least a whole month beyond the kept month.
    let days = overdue(&serving).await / DAY.as_secs();
    assert!((28..=124).contains(&days), "{days} days");
    let before = seen(&installation).await;
    let (all, bytes) = size(&installation.database());
    audit(&installation).await;
    let planned = installation.ask(&["retention", "--dry-run"]).await;
    let serve = async {
        loop {
            let answer = client.post(CHAT, &chat(false)).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
        }
    };
    let done = tokio::select! {
        done = installation.ask(&["retention"]) => done,
        () = serve => unreachable!("it does not end"),
    };
    assert_eq!(commits(&done), commits(&planned), "{done}");
    assert!(
        done["exported"]
            .as_array()
            .is_some_and(|files| files.len() >= 2),
        "{done}"
    );
    audit(&installation).await;
    let after = seen(&installation).await;
    assert_eq!(after[1..], before[1..], "the usage of each day stays");
    // The account with requests in between is the last.
    let balances = |lists: &[String]| -> Vec<String> {
        let own = |line: &&str| !line.contains(&installation.account);
        lists[0].lines().filter(own).map(str::to_owned).collect()
    };
    assert_eq!(balances(&after), balances(&before));
    let (left, bytes_left) = size(&installation.database());
    assert!(left < all - commits(&done) / 2, "{left} of {all}");
    assert!(bytes_left < bytes * 2 / 3, "{bytes_left} of {bytes}");

    let again = installation.ask(&["retention"]).await;
    assert_eq!(commits(&again), 0, "{again}");
    let log = installation.run(&["audit-log"]).await;
    let acts = log
        .lines()
        .filter(|line| line.contains("retention_run"))
        .count();
    assert_eq!(
        Some(acts),
        done["exported"].as_array().map(Vec::len),
        "{log}"
    );

    // A changed file and a missing file are found.
    let file = done["exported"][0]["file"].as_str().expect("a file");
    let whole = std::fs::read(file).expect("the file");
    for content in [Some(whole[..whole.len() / 2].to_vec()), None] {
        match content {
            Some(content) => std::fs::write(file, content).expect("the file"),
            None => std::fs::remove_file(file).expect("the file"),
        }
        let folder = exports(&installation);
        let words = ["audit", "--exports", folder.to_str().expect("a path")];
        let mut process = installation.spawn(installation.command(&words));
        let status = ended(&mut process).await;
        assert_eq!(status.code(), Some(1), "{}", process.output());
    }
    std::fs::write(file, whole).expect("the file");
    // The last file: the remaining files are in sequence.
    let files = done["exported"].as_array().expect("a list");
    let file = files.last().and_then(|last| last["file"].as_str());
    let file = Path::new(file.expect("a file"));
    let aside = file.with_extension("aside");
    std::fs::rename(file, &aside).expect("the folder takes files");
    let folder = exports(&installation);
    let words = ["audit", "--exports", folder.to_str().expect("a path")];
    let mut process = installation.spawn(installation.command(&words));
    let status = ended(&mut process).await;
    assert_eq!(status.code(), Some(1), "{}", process.output());
    std::fs::rename(&aside, file).expect("the folder takes files");
    drop(serving);

    // Derived data is derived again from the remaining commits.
    let rebuilt = installation.ask(&["audit", "--fix-derived"]).await;
    assert_eq!(rebuilt["clean"], true, "{rebuilt}");
    assert_eq!(seen(&installation).await[1..], before[1..]);
    let serving = installation.serve().await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(overdue(&serving).await, 0, "nothing waits to be removed");
    drop(serving);
    audit(&installation).await;
}

/// Kills the program during the write of a file, before the first removal, and between two removals; with a gateway and without a gateway.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_is_killed_anywhere_is_continued_by_the_next() {
    let installation = installation().await;
    let before = seen(&installation).await;
    let (database, folder) = (installation.database(), exports(&installation));
    let original = installation.folder.path().join("original.db");
    sqlite::backup(&database, &original).expect("a copy");
    let (all, _) = size(&original);
    let mut cut = 0;
    for has_gateway in [false, true] {
        for removed in [0, 1, 600, 1500] {
            for beside in ["", "-wal", "-shm", ".committed"] {
                let mut name = database.clone().into_os_string();
                name.push(beside);
                let _ = std::fs::remove_file(name);
            }
            std::fs::remove_dir_all(&folder).expect("the folder");
            std::fs::create_dir(&folder).expect("a folder");
            sqlite::backup(&original, &database).expect("a copy");
            let mut serving = match has_gateway {
                true => Some(installation.serve().await),
                false => None,
            };
            let mut run = installation.spawn(installation.command(&["retention"]));
            let has_file =
                || std::fs::read_dir(&folder).is_ok_and(|mut files| files.next().is_some());
            let is_there = || match removed {
                0 => has_file(),
                removed => size(&database).0 + removed <= all,
            };
            within("the moment", poll(is_there)).await;
            match &mut serving {
                Some(serving) => serving.process.kill(),
                None => run.kill(),
            }
            ended(&mut run).await;
            drop(serving);
            let (left, _) = size(&database);
            let what = format!("gateway: {has_gateway}, {} of {all} removed", all - left);
            assert_eq!(seen(&installation).await, before, "{what}");
            audit(&installation).await;
            cut += u64::from(
                left < all && commits(&installation.ask(&["retention", "--dry-run"]).await) > 0,
            );
            installation.run(&["retention"]).await;
            assert_eq!(seen(&installation).await, before, "{what}, and the rest");
            audit(&installation).await;
        }
    }
    assert!(cut >= 2, "only {cut} kills were between two removals");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_nodes_one_exports_and_removes_while_all_serve() {
    let url = Postgres::shared().database();
    let entropy = Entropy::system();
    let options = postgres::Options::new(
        DatabaseUrl::parse(&url).expect("an address"),
        Clock::system().now(),
        RootSecret(entropy.bytes()),
    );
    let store = postgres::open(postgres::Options {
        post_records: 4096,
        ..options
    })
    .expect("the store opens");
    fill(&store, &entropy).await;
    drop(store);
    let folder = tollgate_testing::tempdir().expect("a folder");
    let mut cluster = Cluster::stopped(&url, "", "", &[]).await;
    keep_a_month(&cluster.installation, folder.path());
    cluster.serve_all().await;
    let before = seen(&cluster.installation).await;
    let planned = cluster.ask("b", &["retention", "--dry-run"]).await;
    let clients: Vec<Client> = (0..NAMES.len()).map(|node| cluster.client(node)).collect();
    let serve = async {
        loop {
            for client in &clients {
                let answer = client.post(CHAT, &chat(false)).await;
                // A part of the credit may be with another node for a moment.
                let is_served = matches!(answer.status, 200 | 503);
                assert!(is_served, "{}", answer.text());
            }
        }
    };
    let runs = async {
        let mut all: u64 = 0;
        // A new node may not be the leader yet.
        while all == 0 {
            let runs = NAMES.map(|name| cluster.ask(name, &["retention"]));
            let done = futures_util::future::join_all(runs).await;
            let ran: Vec<&Value> = done
                .iter()
                .filter(|one| one["is_elsewhere"] == false)
                .collect();
            assert!(ran.len() <= 1, "{done:?}");
            all += done.iter().map(commits).sum::<u64>();
        }
        all
    };
    let removed = tokio::select! {
        removed = within("a run", runs) => removed,
        () = serve => unreachable!("it does not end"),
    };
    assert_eq!(removed, commits(&planned), "{planned}");
    assert_eq!(seen(&cluster.installation).await[1..], before[1..]);
    cluster.audit();
    let store = cluster.installation.store();
    let replayed = tollgate_store::retention::verify_exports(&store, folder.path());
    let replayed = replayed.expect("the files are whole");
    assert!(replayed.is_carried, "{replayed:?}");
    assert_eq!(replayed.commits, removed);
    audited_store(&store);
}
