//! Locks and fencing of one database under several names: a second gateway is refused. Without working locks, the first gateway stops
//! serving. Afterwards: the repair of a database written by two processes.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tollgate_clock::{Deadline, Timestamp};
use tollgate_ledger::{Hold, HoldRequest, Ledger, Settle};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::sqlite::{self, Lock, Options};
use tollgate_store::{Endpoint, RootSecret, Store, UsageFlags, UsageRecord};
use tollgate_testing::Script;

use super::installation::{Installation, ended};
use crate::rig::{CHAT, audited, chat, micros};

/// A time in no particular year.
const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Settings like the installation's, with the name `name` for the database.
fn settings_for(installation: &Installation, name: &str) -> PathBuf {
    let text = fs::read_to_string(&installation.config).expect("the settings");
    let other = text.replace("sqlite:tollgate.db", &format!("sqlite:{name}"));
    assert_ne!(text, other, "the settings name the database");
    let file = installation.folder.path().join("other.toml");
    fs::write(&file, other).expect("written");
    file
}

/// Runs the program with the settings `config`: exit code and output.
async fn run_with(
    installation: &Installation,
    config: &Path,
    words: &[&str],
) -> (Option<i32>, String) {
    let mut process = installation.spawn(installation.command_with(config, words));
    let status = ended(&mut process).await;
    (status.code(), process.output())
}

/// A store on the file as on a file system without locks.
fn open_unlocked(path: &Path, fenced: bool) -> Arc<dyn Store> {
    let options = Options {
        lock: Some(Lock::disabled()),
        fenced,
        ..Options::new(NOW, RootSecret([7; 32]))
    };
    sqlite::open(path, options).expect("nothing keeps it off")
}

#[tokio::test]
async fn a_second_gateway_is_refused_whatever_name_it_uses() {
    let installation = Installation::new("").await;
    let folder = installation.folder.path();
    let mut serving = installation.serve().await;
    let database = fs::canonicalize(installation.database()).expect("it is there");
    symlink("tollgate.db", folder.join("linked.db")).expect("a link");
    symlink(folder, folder.join("elsewhere")).expect("a link");
    fs::hard_link(&database, folder.join("hard.db")).expect("a hard link");
    let named = format!(
        "`{}` is in use by process {}; stop that gateway first",
        database.display(),
        serving.process.id()
    );
    let second = "has 2 names (hard links)";
    // the name, and the error for the name while the file has another name, and without another name
    for (name, with_link, alone) in [
        ("linked.db", named.as_str(), named.as_str()),
        ("elsewhere/tollgate.db", &named, &named),
        ("hard.db", second, ""),
    ] {
        let config = settings_for(&installation, name);
        let (code, output) = run_with(&installation, &config, &["serve"]).await;
        assert_eq!(code, Some(1), "{name}:\n{output}");
        assert!(output.contains(with_link), "{name}:\n{output}");
        if alone.is_empty() {
            fs::remove_file(folder.join(name)).expect("it goes");
        }
    }
    for name in ["linked.db", "elsewhere/tollgate.db"] {
        let config = settings_for(&installation, name);
        let (code, output) = run_with(&installation, &config, &["serve"]).await;
        assert!(
            code == Some(1) && output.contains(&named),
            "{name}:\n{output}"
        );
        // The socket is beside the file, so a command finds the gateway by every name of the file.
        let words = ["credits", "grant", "--account", &installation.account];
        let words = [&words[..], &["--amount", "1", "--reference", name]].concat();
        let (code, output) = run_with(&installation, &config, &words).await;
        assert_eq!(code, Some(0), "{name}:\n{output}");
    }
    // The database file itself is locked: without the lock file beside the database, a second gateway is refused as well.
    fs::remove_file(folder.join("tollgate.db.lock")).expect("it is removed");
    let (status, output) = installation.fail().await;
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("is in use by another process"), "{output}");
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let report = audited(&installation.database());
    assert_eq!(report.sums.granted, Micros::new(-1_002_000_000));
}

/// How the second process names the file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Name {
    Same,
    Symbolic,
    Hard,
}

/// The guarantee without locks: no response decided by the first process on stale balances is delivered.
#[tokio::test]
async fn a_gateway_that_another_process_has_overtaken_acknowledges_nothing_and_ends() {
    for name in [Name::Same, Name::Symbolic, Name::Hard] {
        let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
        let mut serving = installation.serve().await;
        let client = serving.client(&installation);
        let mut delivered = 0;
        if name != Name::Hard {
            // Through a hard link the charges would be in a log invisible to the second process.
            let answer = client.post(CHAT, &chat(false)).await;
            delivered += micros(&answer.json()["x_svc"]["credits_used"]);
        }
        // A whole answer with a hold in memory alone, and an unfinished stream with a hold released by the second process.
        installation
            .provider
            .script(Script::hold(0, "whole").once());
        let whole = client.request("POST", CHAT, chat(false).to_string().into());
        let asking = serving.client(&installation);
        let whole = tokio::spawn(async move { asking.try_send(whole).await });
        installation.provider.gate("whole").reached_by(1).await;
        installation
            .provider
            .script(Script::hold(9, "middle").once());
        let mut stream = client.stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("the role");
        installation.provider.gate("middle").reached_by(1).await;

        let path = installation.database();
        let other = match name {
            Name::Same => path.clone(),
            Name::Symbolic | Name::Hard => installation.folder.path().join("other.db"),
        };
        match name {
            Name::Same => {}
            Name::Symbolic => symlink(&path, &other).expect("a link"),
            Name::Hard => fs::hard_link(&path, &other).expect("a hard link"),
        }
        let second = open_unlocked(&other, true);
        Ledger::start(Arc::clone(&second), NOW).expect("the books open");
        installation.provider.gate("whole").open();
        installation.provider.gate("middle").open();
        // The process may have ended by itself before.
        if let Ok(answer) = whole.await.expect("clients do not panic") {
            assert_eq!(answer.status, 503, "{name:?}: {}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "store_unavailable");
        }
        let (events, _) = stream.rest().await;
        assert!(
            events.iter().all(|event| !event.is_done()),
            "{name:?}: a stream whose charge is nowhere looks whole"
        );
        let request = client.request("POST", CHAT, chat(false).to_string().into());
        let late = client.try_send(request).await;
        assert!(!late.is_ok_and(|it| it.status == 200), "{name:?}");
        assert_eq!(
            ended(&mut serving.process).await.code(),
            Some(1),
            "{name:?}"
        );
        let output = serving.process.output();
        let epochs = format!(
            "in epoch {} of node 1, and this process has epoch",
            second.epoch()
        );
        for word in [
            "store failed",
            &epochs,
            "Leave one process on this database",
        ] {
            assert!(output.contains(word), "{name:?}: no `{word}` in:\n{output}");
        }
        second.close();
        if name == Name::Hard {
            // The log of the first process was not checkpointed into the file when it ended. The two names are one file, so a rename to the
            // second name would have no effect.
            fs::remove_file(&path).expect("one name is left");
            fs::rename(&other, &path).expect("and is the one of the settings");
            for beside in ["-wal", "-shm"] {
                let _ = fs::remove_file(
                    installation
                        .folder
                        .path()
                        .join(format!("tollgate.db{beside}")),
                );
            }
        }
        let report = audited(&path);
        assert_eq!(
            report.sums.spent.get(),
            delivered,
            "{name:?}: the charges that clients received"
        );
        // The holds of the first process are lost with the process's log.
        let accepted = installation.ask(&["repair", "--accept-loss"]).await;
        assert_eq!(
            accepted["is_loss_accepted"],
            name == Name::Hard,
            "{accepted}"
        );
        let mut serving = installation.serve().await;
        let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{name:?}: {}", answer.text());
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    }
}

/// Holds credits for a request, like a gateway.
fn hold(
    ledger: &Ledger,
    account: AccountId,
    number: u8,
    credits: i64,
    price_version: Option<i64>,
) -> Hold {
    let request = HoldRequest {
        operation: OperationId::from_parts(1_700_000_000_000, [number; 10]),
        account,
        amount: Micros::new(credits * 1_000_000),
        price_version,
        at: NOW,
        deadline: Deadline::after(Duration::ZERO, Duration::from_secs(1)),
        expires_at: NOW + Duration::from_secs(1),
        is_written: true,
    };
    let loaded = tollgate_store::block_on(ledger.load(account));
    loaded.expect("no panic").expect("it can be loaded");
    ledger
        .hold(request, |_| None)
        .now()
        .expect("it is alone")
        .expect("there is credit")
}

/// Charges `credits` credits for the hold.
async fn settle(hold: Hold, credits: i64) {
    let usage = UsageRecord {
        credential: None,
        endpoint: Endpoint::Chat,
        model: Arc::from("small"),
        upstream: None,
        prompt_tokens: 1,
        completion_tokens: 1,
        flags: UsageFlags::NONE,
        http_status: 200,
        ttfb_us: None,
        total_us: None,
    };
    let settled = hold.settle(Settle {
        actual: Micros::new(credits * 1_000_000),
        usage,
        at: NOW,
    });
    settled.await.expect("it is acknowledged");
}

#[tokio::test]
async fn books_that_two_processes_have_damaged_are_repaired_and_served_again() {
    let installation = Installation::new("").await;
    let path = installation.database();
    let account: AccountId = installation.account.parse().expect("an account");
    // Two gateways of a release before the fence, through two names: the gateways sell 600 and 700 of 1000 credits. The second gateway
    // gives back a hold, and the first gateway still settles the hold.
    let first_store = open_unlocked(&path, false);
    let (first, _) = Ledger::start(Arc::clone(&first_store), NOW).expect("the books open");
    let mut open = hold(&first, account, 1, 100, None);
    open.durable().await.expect("it is durable");
    let second_store = open_unlocked(&path, false);
    let (second, _) = Ledger::start(Arc::clone(&second_store), NOW).expect("the books open");
    settle(hold(&first, account, 2, 500, None), 500).await;
    settle(hold(&second, account, 3, 700, None), 700).await;
    settle(open, 100).await;
    for store in [first_store, second_store] {
        store.close();
    }

    let config = installation.config.clone();
    let run = async |words: &[&str]| run_with(&installation, &config, words).await;
    let (code, output) = run(&["audit"]).await;
    assert_eq!(code, Some(1), "{output}");
    assert!(
        output.contains("does not follow the one before it"),
        "{output}"
    );
    assert!(output.contains("`tollgate repair` can keep"), "{output}");
    let (code, output) = run(&["audit", "--fix-derived"]).await;
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("`tollgate repair`"), "{output}");

    let before = fs::read(&path).expect("the file");
    let (code, output) = run(&["repair"]).await;
    assert_eq!(code, Some(1), "{output}");
    for word in [
        "does not follow the commit before it: two processes wrote at once",
        "kept and resealed",
        "ends its operation a second time: removed from the journal",
        ": release of 100",
        "corrected by 300, up to its credit limit",
        "become 0 and 0",
        "nothing was changed; the books balance after `tollgate repair --apply`",
    ] {
        assert!(output.contains(word), "no `{word}` in:\n{output}");
    }
    assert_eq!(fs::read(&path).expect("the file"), before, "it was a trial");
    let left: Vec<_> = fs::read_dir(installation.folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .filter(|name| name.to_string_lossy().contains("repair"))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    let (code, output) = run(&["repair", "--apply", "--json"]).await;
    assert_eq!(code, Some(0), "{output}");
    let line = output.lines().find(|line| line.starts_with('{'));
    let done: Value = serde_json::from_str(line.expect("JSON")).expect("JSON");
    assert_eq!(
        (&done["outcome"], &done["clean_after"]),
        (&"repaired".into(), &true.into())
    );
    assert_eq!(done["accounts"][0]["available_after"].to_string(), "0");
    let copy = PathBuf::from(done["copy"].as_str().expect("a copy was made"));
    let taken_out = PathBuf::from(done["quarantine"].as_str().expect("it is kept"));
    let taken_out = fs::read_to_string(taken_out).expect("a file");
    let row: Value = serde_json::from_str(taken_out.trim_end()).expect("a line of JSON");
    assert!(
        row["body"].as_str().is_some_and(|body| !body.is_empty()),
        "{row}"
    );
    let kept = sqlite::open_read(&copy).expect("it opens");
    let kept = tollgate_ledger::audit::audit(&kept).expect("the audit runs");
    assert!(!kept.clean(), "the copy is of what was there before");

    let audit = installation.audit().await;
    assert_eq!(audit["sums"]["spent"].to_string(), "1300", "{audit}");
    assert_eq!(
        audit["repairs"].as_array().map(Vec::len),
        Some(1),
        "{audit}"
    );
    let (code, output) = run(&["repair"]).await;
    assert_eq!(code, Some(0), "{output}");
    assert!(output.contains("nothing to repair"), "{output}");
    let words = ["credits", "grant", "--account", &installation.account];
    installation
        .run(&[&words[..], &["--amount", "5", "--reference", "after"]].concat())
        .await;
    let mut serving = installation.serve().await;
    let (code, output) = run(&["repair", "--apply"]).await;
    assert_eq!(code, Some(2), "{output}");
    assert!(output.contains("is in use by"), "{output}");
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    audited(&path);
}

/// A request was charged more than its tokens cost: the journal does not show whether the charge or the tokens are right.
#[tokio::test]
async fn books_that_a_repair_does_not_help_are_left_alone() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let path = installation.database();
    let account: AccountId = installation.account.parse().expect("an account");
    let store = open_unlocked(&path, true);
    let mut price = None;
    let small = &mut |row: tollgate_store::PriceRow| {
        price = price.or((&*row.model == "small").then_some(row.version));
    };
    store.prices(small).expect("a read");
    let (ledger, _) = Ledger::start(Arc::clone(&store), NOW).expect("the books open");
    let hold = hold(&ledger, account, 1, 100, price);
    settle(hold, 100).await;
    store.close();
    let before = fs::read(&path).expect("the file");
    for words in [&["repair"][..], &["repair", "--apply"]] {
        let (code, output) = run_with(&installation, &installation.config, words).await;
        assert_eq!(code, Some(1), "{output}");
        assert!(output.contains("after the repair: "), "{output}");
        assert!(output.contains("100 were asked for"), "{output}");
        assert!(
            output.contains("nothing was changed: 1 violations"),
            "{output}"
        );
        assert_eq!(
            fs::read(&path).expect("the file"),
            before,
            "it is left alone"
        );
    }
}
