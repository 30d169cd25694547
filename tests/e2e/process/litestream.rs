//! Litestream by the description in `systemd/README.md`, beside a gateway under load.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use tollgate_store::{Reader, sqlite};
use tollgate_testing::{Process, within};

use super::chaos::print_line;
use super::installation::{Installation, Serving, ended};
use crate::rig::{CHAT, audited_store, chat, micros};

/// The replica of an installation's database.
struct Litestream {
    config: PathBuf,
}

impl Litestream {
    /// Writes the settings of Litestream: a folder in place of the object store.
    fn new(installation: &Installation) -> Litestream {
        let folder = installation.folder.path();
        let config = folder.join("litestream.yml");
        let text = format!(
            "dbs:\n  - path: {}\n    replicas:\n      - url: file://{}\n",
            installation.database().display(),
            folder.join("replica").display()
        );
        std::fs::write(&config, text).expect("the folder takes files");
        Litestream { config }
    }

    fn start(&self, words: &[&str]) -> Process {
        let mut command = Command::new("litestream");
        command.arg(words[0]).arg("-config").arg(&self.config);
        command.args(&words[1..]);
        Process::spawn(&mut command).expect("`tests/run` installs litestream")
    }

    /// Whether a copy of the database could be restored to `to`, and else why not.
    async fn restored(&self, to: &Path, installation: &Installation) -> Result<(), String> {
        let [to, database] = [to, &installation.database()].map(|path| path.display().to_string());
        let mut process = self.start(&["restore", "-o", &to, &database]);
        match ended(&mut process).await.success() {
            true => Ok(()),
            false => Err(process.output()),
        }
    }
}

/// The charges of clients, by request.
type Charges = Arc<Mutex<HashMap<String, i64>>>;

/// Clients with requests until the end of the gateway.
fn load(serving: &Serving, installation: &Installation, charges: &Charges) -> Load {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = serving.client(installation);
        let charges = Arc::clone(charges);
        tasks.spawn(async move {
            let body = chat(false).to_string();
            loop {
                let request = client.request("POST", CHAT, body.clone().into());
                let Ok(stream) = client.try_stream(request).await else {
                    return;
                };
                let id = stream.header("x-request-id").expect("an id").to_owned();
                let Ok(answer) = stream.try_whole().await else {
                    return;
                };
                assert_eq!(answer.status, 200, "{}", answer.text());
                let charge = micros(&answer.json()["x_svc"]["credits_used"]);
                let mut charges = charges.lock().expect("not poisoned");
                charges.insert(id, charge);
            }
        });
    }
    tasks
}

type Load = tokio::task::JoinSet<()>;

fn so_far(charges: &Charges) -> HashMap<String, i64> {
    charges.lock().expect("not poisoned").clone()
}

/// The number of client charges missing in a store. Asserts balanced books, and no charge with a different amount.
fn missing(store: &Reader, mut charges: HashMap<String, i64>) -> usize {
    let report = tollgate_ledger::audit::audit(store).expect("the store can be read");
    assert!(report.clean(), "{:?}", report.violations);
    let view = store.snapshot().expect("a view");
    let mut compare = |rows: tollgate_store::OperationRows| {
        let charge = charges.remove(&rows.id.to_string());
        if let (Some(charge), Some(usage)) = (charge, rows.usage) {
            assert_eq!(charge, usage.cost.get(), "{}", rows.id);
        }
    };
    view.operations(&mut compare).expect("the operations");
    charges.len()
}

/// Restores copies until a copy has every charge. Returns the number of charges.
async fn shipped(litestream: &Litestream, installation: &Installation, charges: &Charges) -> usize {
    let charges = so_far(charges);
    let mut attempt = 0;
    let is_shipped = async {
        loop {
            attempt += 1;
            let copy = installation.folder.path().join(format!("copy{attempt}.db"));
            // Before the first snapshot, no copy can be restored.
            if litestream.restored(&copy, installation).await.is_ok() {
                let store = sqlite::open_read(&copy).expect("the copy opens");
                if missing(&store, charges.clone()) == 0 {
                    return;
                }
            }
        }
    };
    within("a copy with what clients had been charged", is_shipped).await;
    charges.len()
}

/// By the documents: the database, the log and Litestream's own files are removed, and the copy takes the place of the database.
async fn restore(litestream: &Litestream, installation: &Installation) {
    let database = installation.database();
    for ending in ["", "-wal", "-shm"] {
        let mut name = database.clone().into_os_string();
        name.push(ending);
        // After a kill a file may be missing.
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
    let _ = std::fs::remove_dir_all(database.with_file_name(".tollgate.db-litestream"));
    let restored = litestream.restored(&database, installation).await;
    restored.expect("the copy is restored");
    installation.run(&["repair", "--accept-loss"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_litestream_has_shipped_is_restored_after_a_kill_under_load() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let litestream = Litestream::new(&installation);
    let mut replicating = litestream.start(&["replicate"]);
    let charges = Charges::default();
    let mut serving = installation.serve().await;

    // Only the gateway is killed: durable commits are shipped, and Litestream sends the rest at the end.
    let clients = load(&serving, &installation, &charges);
    crate::rig::poll(|| charges.lock().expect("not poisoned").len() > 200).await;
    shipped(&litestream, &installation, &charges).await;
    serving.process.kill();
    clients.join_all().await;
    replicating.signal("TERM");
    assert!(ended(&mut replicating).await.success());
    restore(&litestream, &installation).await;
    let store = sqlite::open_read(&installation.database()).expect("the copy opens");
    let all = so_far(&charges);
    print_line(format_args!("{} charges, all of them restored", all.len()));
    assert_eq!(missing(&store, all), 0);
    drop(store);
    let audit = installation.audit().await;
    assert_eq!(audit["clean"], true, "{audit}");

    // The machine is lost: gateway and Litestream end at once. The gateway serves from the copy, and is shipped like the first gateway.
    let mut replicating = litestream.start(&["replicate"]);
    let mut serving = installation.serve().await;
    let clients = load(&serving, &installation, &charges);
    let before = so_far(&charges).len();
    crate::rig::poll(|| charges.lock().expect("not poisoned").len() > before + 200).await;
    let keys = ["key", "list", "--account", &installation.account];
    let keys = installation.ask(&keys).await;
    let key = keys[0]["id"].as_str().expect("an id").to_owned();
    let kept = shipped(&litestream, &installation, &charges).await;
    replicating.kill();
    // The kill ends the load: later commits of the journal are not in the copy.
    serving.process.kill();
    clients.join_all().await;
    installation.run(&["key", "revoke", "--key", &key]).await;
    let copy = installation.folder.path().join("after.db");
    let restored = litestream.restored(&copy, &installation).await;
    restored.expect("the copy is restored");
    let store = sqlite::open_read(&copy).expect("the copy opens");
    let all = so_far(&charges);
    let (sent, lost) = (all.len(), missing(&store, all));
    print_line(format_args!(
        "{lost} of {sent} charges lost with the machine"
    ));
    assert!(lost <= sent - kept, "{lost} of {sent}");
    drop(store);
    let copy = copy.display().to_string();
    let undone = installation.ask(&["compare", &copy]).await;
    assert_eq!(undone[0]["effect"], "key_valid_again", "{undone}");
    assert_eq!(undone[0]["subject"], key, "{undone}");
    restore(&litestream, &installation).await;
    let serving = installation.serve().await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    drop(serving);
    installation.run(&["audit", "--fix-derived"]).await;
    audited_store(&installation.store());
}
