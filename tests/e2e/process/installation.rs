//! An installation: a folder with settings and a database, for repeated runs of the real program.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use serde_json::Value;
use tollgate_clock::Timestamp;
use tollgate_store::postgres::{self, DatabaseUrl};
use tollgate_store::{Reader, RootSecret, sqlite};
use tollgate_testing::{Client, Process, Provider, TempDir, within};

use crate::rig::{PROVIDER_KEY, SECRETS, Setup, database};

/// Errors of a command that the database did not answer in time.
const UNANSWERED: [&str; 2] = [
    "the database does not answer; try again when it does",
    "terminating connection due to idle-in-transaction timeout",
];

/// The folder, a provider, and an account with a key.
pub(super) struct Installation {
    pub(super) folder: TempDir,
    pub(super) config: PathBuf,
    pub(super) provider: Provider,
    pub(super) account: String,
    pub(super) key: String,
    pub(super) ca_pem: String,
    /// The address of the PostgreSQL database; `None` for a file.
    pub(super) postgres: Option<String>,
    /// The program to run.
    pub(super) program: PathBuf,
    /// The environment variables of the settings besides the provider's key.
    pub(super) variables: Vec<(&'static str, &'static str)>,
}

/// The running gateway.
pub(super) struct Serving {
    pub(super) process: Process,
    /// The plain listener.
    pub(super) url: String,
    /// The TLS listener.
    pub(super) tls_url: String,
    /// The admin address.
    pub(super) admin_url: String,
}

impl Installation {
    /// The usual settings with `settings` over the usual settings, and an account made by the program's commands.
    pub(super) async fn new(settings: &str) -> Installation {
        Installation::of(Setup::with(settings)).await
    }

    /// An installation on the PostgreSQL database at `url`.
    pub(super) async fn on_postgres(url: &str, settings: &str) -> Installation {
        let setup = Setup::with(&format!("{settings}\n[store]\nurl = '{url}'"));
        let mut installation = Installation::of(setup).await;
        installation.postgres = Some(url.to_owned());
        installation
    }

    pub(super) async fn of(setup: Setup) -> Installation {
        let folder = tollgate_testing::tempdir().expect("a folder");
        let provider = setup.provider(folder.path()).await;
        let (config, certificate) = setup.write(folder.path(), &provider);
        let mut installation = Installation {
            folder,
            config,
            provider,
            account: String::new(),
            key: String::new(),
            ca_pem: certificate.ca_pem,
            postgres: None,
            program: PathBuf::from(env!("CARGO_BIN_EXE_tollgate")),
            variables: Vec::new(),
        };
        (installation.account, installation.key) = installation.account("1000").await;
        installation
    }

    /// Creates an account with `credits` credits, and a key; returns the account and the key.
    pub(super) async fn account(&self, credits: &str) -> (String, String) {
        let account = self.ask(&["account", "create", "--class", "pro"]).await;
        let account = text(&account["id"]);
        let grant = [
            "credits",
            "grant",
            "--account",
            &account,
            "--amount",
            credits,
            "--reference",
            "test",
        ];
        if credits != "0" {
            self.ask(&grant).await;
        }
        let key = self
            .ask(&["key", "create", "--account", &account, "--name", "test"])
            .await;
        let key = text(&key["secret"]);
        SECRETS.used("an API key", &key);
        (account, key)
    }

    /// The program with the arguments `words`, not started yet.
    pub(super) fn command(&self, words: &[&str]) -> Command {
        self.command_with(&self.config, words)
    }

    /// The program with the settings file `config`, not started yet.
    pub(super) fn command_with(&self, config: &Path, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        self.complete(&mut command, config, words);
        command
    }

    /// The program with the arguments `words`, started by a shell after the command `first`.
    pub(super) fn command_after(&self, first: &str, words: &[&str]) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{first}; exec \"$0\" \"$@\"")]);
        command.arg(&self.program);
        self.complete(&mut command, &self.config, words);
        command
    }

    fn complete(&self, command: &mut Command, config: &Path, words: &[&str]) {
        command.args(words).arg("--config").arg(config);
        command
            .envs(self.variables.iter().copied())
            .env("PROVIDER_KEY", PROVIDER_KEY)
            .env("RUST_BACKTRACE", "0");
    }

    /// Runs a command, expects success and returns the output.
    pub(super) async fn run(&self, words: &[&str]) -> String {
        let (status, output) = self.until_answered(|| self.command(words)).await;
        assert!(status.success(), "`{}` failed:\n{output}", words.join(" "));
        output
    }

    /// Runs a command until the database has answered it, and returns the status and the output. A busy machine misses the seconds that the
    /// program grants the database, or the database an idle transaction. The command has changed nothing then.
    pub(super) async fn until_answered(
        &self,
        command: impl Fn() -> Command,
    ) -> (ExitStatus, String) {
        let answered = async {
            loop {
                let mut process = self.spawn(command());
                let status = ended(&mut process).await;
                let output = process.output();
                let is_answered = !UNANSWERED.iter().any(|text| output.contains(text));
                if status.success() || is_answered {
                    return (status, output);
                }
            }
        };
        within("an answer of the database", answered).await
    }

    /// Runs a command that prints JSON.
    pub(super) async fn ask(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat()).await;
        let line = output.lines().find(|line| line.starts_with(['{', '[']));
        let line =
            line.unwrap_or_else(|| panic!("`{}` printed no JSON:\n{output}", words.join(" ")));
        serde_json::from_str(line).expect("JSON")
    }

    /// Waits until the audit log has exactly the expected acts, besides acts of users of the machine. An act is actor, action and outcome;
    /// oldest first.
    pub(super) async fn acts(&self, expected: &[[&str; 3]]) {
        let recorded = async {
            loop {
                let log = self.ask(&["audit-log"]).await;
                let records = log.as_array().expect("a list").iter().rev();
                let acts = records.map(|one| ["actor", "action", "outcome"].map(|key| &one[key]));
                let is_of_user =
                    |actor: &Value| actor.as_str().is_some_and(|it| it.starts_with("uid "));
                let acts: Vec<_> = acts.filter(|[actor, ..]| !is_of_user(actor)).collect();
                assert!(acts.len() <= expected.len(), "{log}");
                if acts == expected {
                    return;
                }
            }
        };
        within("the acts in the audit log", recorded).await;
    }

    pub(super) fn spawn(&self, mut command: Command) -> Process {
        Process::spawn(&mut command).expect("the program starts")
    }

    /// Starts `tollgate serve` and waits until the gateway listens.
    pub(super) async fn serve(&self) -> Serving {
        self.serve_as(self.command(&["serve"])).await
    }

    /// Starts a gateway by `command` and waits until the gateway listens.
    pub(super) async fn serve_as(&self, command: Command) -> Serving {
        self.listening(self.spawn(command)).await
    }

    /// Waits until a started gateway listens.
    pub(super) async fn listening(&self, process: Process) -> Serving {
        // The stand-in has to run during the wait, so the current thread must not block.
        let waiting = tokio::task::spawn_blocking(move || {
            let line = |words: [&str; 2]| {
                let is_it = |line: &str| words.iter().all(|word| line.contains(word));
                let line = process.line_where("where it listens", is_it);
                let address = line.split("address=").nth(1).expect("an address");
                address.split(' ').next().expect("a word").to_owned()
            };
            let (plain, tls) = (
                line(["listening", "tls=false"]),
                line(["listening", "tls=true"]),
            );
            let admin = line(["health and metrics", ""]);
            (process, plain, tls, admin)
        });
        let (process, plain, tls, admin) = waiting.await.expect("the program listens");
        let port = tls.rsplit(':').next().expect("a port");
        Serving {
            process,
            url: format!("http://{plain}"),
            tls_url: format!("https://localhost:{port}"),
            admin_url: format!("http://{admin}"),
        }
    }

    /// Runs `tollgate serve` and expects a failed start: exit status and output.
    pub(super) async fn fail(&self) -> (ExitStatus, String) {
        let mut process = self.spawn(self.command(&["serve"]));
        let status = ended(&mut process).await;
        (status, process.output())
    }

    /// The output of the program's own audit; fails unless the audit passes.
    pub(super) async fn audit(&self) -> Value {
        self.ask(&["audit"]).await
    }

    pub(super) fn database(&self) -> PathBuf {
        database(self.folder.path())
    }

    /// The store of the installation, with either engine.
    pub(super) fn store(&self) -> Arc<Reader> {
        let store = match &self.postgres {
            None => sqlite::open_read(&self.database()),
            Some(url) => {
                let url = DatabaseUrl::parse(url).expect("an address");
                let random = RootSecret([0; 32]);
                let options = postgres::Options::new(url, Timestamp::from_micros(0), random);
                postgres::open_read(&options)
            }
        };
        store.expect("the store opens")
    }
}

impl Serving {
    /// With PostgreSQL it repeats a request while its node does not know the newest revocations: on a slow machine the feed of changes is at
    /// times older than the two seconds after which a node refuses.
    pub(super) fn client(&self, installation: &Installation) -> Client {
        let client = Client::new(&self.url).with_key(&installation.key);
        match installation.postgres {
            Some(_) => client.repeating("which credentials other nodes have revoked"),
            None => client,
        }
    }

    /// A number of the metrics, by name with labels.
    pub(super) async fn metric(&self, name: &str) -> u64 {
        metric(&self.admin_url, name).await
    }

    /// Waits until a metric has a value: a request is counted after the answer.
    pub(super) async fn metric_becomes(&self, name: &str, value: u64) {
        let is_so = async { while metric_if_there(&self.admin_url, name).await != Some(value) {} };
        within("the value of a metric", is_so).await;
    }
}

/// A number of the metrics at an admin address.
pub(super) async fn metric(admin_url: &str, name: &str) -> u64 {
    let number = metric_if_there(admin_url, name).await;
    number.unwrap_or_else(|| panic!("no metric `{name}`"))
}

async fn metric_if_there(admin_url: &str, name: &str) -> Option<u64> {
    let page = Client::new(admin_url).get("/metrics").await;
    let mut lines = page.text().lines();
    let number = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(number.parse().expect("a whole number"))
}

/// Waits for the end of a process, without blocking tasks of the thread.
pub(super) async fn ended(process: &mut Process) -> ExitStatus {
    let mut status = None;
    let wait = crate::rig::poll_mut(|| {
        status = process.has_ended();
        status.is_some()
    });
    within("the end of the program", wait).await;
    // The process has ended: `wait` reads the rest of the output.
    process.wait()
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}
