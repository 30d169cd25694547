//! Commands on a temporary database, with a gateway's control socket and without.

mod audit_log;
mod backups;
mod compare;
mod deletion;
mod doctor;
pub(super) mod json;
mod machine;
mod nodes;
mod openapi;
mod payments;
mod reload;

use std::sync::Arc;

use serde_json::Value;
use tollgate_clock::{Clock, Entropy};
use tollgate_ledger::Ledger;
use tollgate_testing::Postgres;

use super::exit_code::{Exit, FAILURE};
use super::*;
use crate::Gateway;
use crate::admin::{Access, Admin, AdminService, Options, Ready, Workers};
use crate::telemetry::Telemetry;

const SETTINGS: &str = "
    [admin]
    address = '127.0.0.1:0'
    [telemetry]
    access_log = 'none'
    [[provider]]
    name = 'local'
    base_url = 'http://127.0.0.1:9/v1'
    [[model]]
    id = 'small'
    providers = [{ provider = 'local' }]
    price = { input = '1', output = '2' }
";

/// A folder with settings and, after the first write, a database.
struct Workspace {
    folder: tempfile::TempDir,
    /// The name of the PostgreSQL database; `None` for a file.
    database: Option<String>,
}

impl Workspace {
    fn new() -> Workspace {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("t.toml"), SETTINGS).expect("settings");
        Workspace {
            folder,
            database: None,
        }
    }

    /// A workspace on a file, and a workspace on a PostgreSQL database.
    fn on_each_engine() -> [Workspace; 2] {
        let mut other = Workspace::new();
        let url = Postgres::shared().database();
        let settings = format!("{SETTINGS}\n[store]\nurl = '{url}'");
        std::fs::write(other.file(), settings).expect("settings");
        other.database = url.rsplit('/').next().map(str::to_owned);
        [Workspace::new(), other]
    }

    /// Makes a backup by the means of the engine, and returns the argument for `tollgate compare`.
    fn backup(&self) -> String {
        match &self.database {
            Some(database) => Postgres::shared().restored(database),
            None => {
                let backup = self.folder.path().join("backup.db").display().to_string();
                self.good(&format!("backup {backup}"));
                backup
            }
        }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("t.toml")
    }

    /// Runs a command; returns the exit code and the output, or the error.
    fn run(&self, line: &str) -> Result<(u8, String), String> {
        let words = line.split_whitespace();
        let args = Args::try_parse_from(["tollgate"].into_iter().chain(words))
            .map_err(|error| error.to_string())?;
        let file = self.file();
        let environment = Environment::of([(CONFIG, file.to_str().expect("a plain path"))]);
        let mut out = Vec::new();
        let code = run(args, &Gateway::builder, &environment, &mut out)
            .map_err(|error| format!("{error:#}"))?;
        Ok((code, String::from_utf8(out).expect("text")))
    }

    fn good(&self, line: &str) -> String {
        match self.run(line) {
            Ok((0, text)) => text,
            other => panic!("`tollgate {line}` is good, not {other:?}"),
        }
    }

    fn json(&self, line: &str) -> Value {
        let text = self.good(&format!("{line} --json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{line}: {error}: {text}"))
    }

    fn word(&self, line: &str, key: &str) -> String {
        let answer = self.json(line);
        answer[key]
            .as_str()
            .unwrap_or_else(|| panic!("{line}: no `{key}` in {answer}"))
            .to_owned()
    }

    /// A store with an open control socket, as in a gateway.
    fn serve(&self) -> ControlServer {
        self.serve_with(|service, _| service)
    }

    /// Serves with additions to the service of the control socket.
    fn serve_with(
        &self,
        more: impl FnOnce(AdminService, Settings) -> AdminService,
    ) -> ControlServer {
        let settings = load(&self.file(), &Gateway::builder, &Environment::default())
            .expect("the settings are good");
        let client = ControlClient::new(settings.clone());
        let store = client.open().expect("the database is free");
        let clock = Clock::system();
        let (ledger, _) = Ledger::start(store.clone(), clock.now()).expect("the books open");
        let admin_service = AdminService::new(
            &settings,
            store.clone(),
            ledger.clone(),
            clock.clone(),
            Entropy::system(),
        )
        .with_cache(cache(&settings, &store))
        .with_providers(providers());
        let admin_service = more(admin_service, settings.clone());
        let admin = Admin::start(Options {
            adopted: None,
            address: settings.admin.address,
            socket: client.socket.clone(),
            telemetry: Telemetry::with_log(&settings, clock, None).expect("it starts"),
            liveness: Box::new(|| Box::pin(std::future::ready(Workers::default()))),
            readiness: Box::new(Ready::default),
            providers: providers(),
            service: Arc::new(admin_service),
            access: Arc::new(Access::new(&settings.admin, Clock::system())),
            api: None,
        })
        .expect("the admin thread starts");
        ControlServer {
            admin,
            ledger,
            store,
        }
    }
}

/// The cache of a new gateway.
fn cache(
    settings: &Settings,
    store: &Arc<dyn tollgate_store::Store>,
) -> Arc<tollgate_cache::Cache> {
    Arc::new(tollgate_cache::Cache::new(tollgate_cache::CacheDeps {
        bytes_max: 256 << 20,
        settings: settings.sections.find().expect("the section of the cache"),
        service: &settings.service.name,
        root: &store.root_secret().0,
        clock: Clock::system(),
        entropy: Entropy::system(),
    }))
}

/// A provider with an open circuit. The provider has asked for a pause of a model.
fn providers() -> crate::admin::JsonSource {
    Arc::new(|| {
        serde_json::json!([{
            "name": "local", "state": "resting", "rests_ms": 8200, "probe_failed": false, "calls": 3, "waiting": 2, "waited": 0,
            "waited_us": 0, "turned_away": 0, "followed": 0, "not_followed": 0, "hedges_won": 0, "hedges_lost": 0,
            "models": [{
                "model": "small", "provider_model": "llama3.2", "weight": 1, "state": "working",
                "rests_ms": 0, "accounts_open": 2, "closed_ms": 1000,
            }],
        }])
    })
}

struct ControlServer {
    admin: Admin,
    ledger: Ledger,
    store: Arc<dyn tollgate_store::Store>,
}

impl ControlServer {
    fn end(self) {
        drop(self.admin);
        self.store.close();
    }
}

/// Runs every command once, from the creation of an account to the audit and a backup.
fn run_every_command(workspace: &Workspace) -> String {
    let account = workspace.word("account create --email a@example.net --class pro", "id");
    assert!(account.starts_with("acct_"), "{account}");
    let taken = workspace.run("account create --email A@Example.NET");
    assert!(taken.expect_err("taken").contains("already signs in"));

    let key = workspace.json(&format!(
        "key create --account {account} --name laptop --scopes api:chat,api:models --models small --expires 90d \
         --spend-max 12.5 --spend-period month"
    ));
    let secret = key["secret"].as_str().expect("a secret");
    assert!(secret.starts_with("sk-svc-"), "the form of a key");
    let keys = workspace.json(&format!("key list --account {account}"));
    assert_eq!(keys[0]["id"], key["id"]);
    assert_eq!(keys[0]["status"], "active");
    assert_eq!(keys[0]["models"], serde_json::json!(["small"]));
    assert_eq!(keys[0]["spend_max"], "12.5");
    assert_eq!(keys[0]["spend_period"], "month");
    assert!(!keys.to_string().contains(secret), "shown once");

    let grant = format!("credits grant --account {account} --amount 12.5 --reference inv-1");
    assert_eq!(workspace.json(&grant)["available"].to_string(), "12.5");
    let again = workspace.json(&grant);
    assert_eq!(again["repeated"], true);
    assert_eq!(again["available"].to_string(), "12.5");
    let shown = workspace.json(&format!("credits show --account {account}"));
    assert_eq!(shown["lines"][0]["reference"], "inv-1");
    assert_eq!(shown["lines"][0]["amount"].to_string(), "12.5");

    let file = workspace.folder.path().join("leaked");
    std::fs::write(&file, format!("{secret}\n")).expect("written");
    let found = workspace.json(&format!("key find --secret-file {}", file.display()));
    assert_eq!(found["id"], key["id"]);
    assert_eq!(found["account"], account);
    assert_eq!(found["status"], "active");
    let shown = workspace.good(&format!("key find --secret-file {}", file.display()));
    assert!(!shown.contains(secret), "{shown}");
    workspace.good(&format!("key revoke --secret-file {}", file.display()));
    let keys = workspace.json(&format!("key list --account {account}"));
    assert_eq!(keys[0]["status"], "revoked");

    workspace.good(&format!("account suspend --account {account}"));
    workspace.good(&format!("account class --account {account} --class free"));
    workspace.good(&format!(
        "account cache-scope --account {account} --cache-scope off"
    ));
    let shown = workspace.json("account show --email a@example.net");
    assert_eq!(shown["status"], "suspended");
    assert_eq!(shown["class"], "free");
    assert_eq!(shown["cache_scope"], "off");
    assert_eq!(shown["available"].to_string(), "12.5");
    workspace.good(&format!("account suspend --account {account} --lift"));
    let list = workspace.json("account list");
    assert_eq!(list[0]["id"], account.as_str());
    assert_eq!(list[0]["status"], "active");

    assert_eq!(
        workspace.json(&format!("usage --account {account}")),
        serde_json::json!([])
    );
    let audit = workspace.json("audit");
    assert_eq!(audit["clean"], true, "{audit}");
    assert_eq!(audit["sums"]["granted"].to_string(), "-12.5");
    let copy = workspace.folder.path().join("copy.db");
    workspace.good(&format!("backup {}", copy.display()));
    assert!(copy.exists());
    account
}

#[test]
fn without_a_gateway_commands_write_to_the_database() {
    let workspace = Workspace::new();
    run_every_command(&workspace);
}

#[test]
fn with_a_gateway_commands_change_its_memory() {
    let workspace = Workspace::new();
    let server = workspace.serve();
    let account = run_every_command(&workspace);
    let id = account.parse().expect("an id");
    let loaded = tollgate_store::block_on(server.ledger.load(id));
    loaded.expect("no panic").expect("it can be loaded");
    let balance = server.ledger.available(id).expect("the account exists");
    assert_eq!(balance.to_string(), "12.5");
    server.end();
}

#[test]
fn cache_commands_need_a_running_gateway() {
    let workspace = Workspace::new();
    let id = "ce_00112233445566778899aabbccddeeff";
    let lines = [
        "cache show".to_owned(),
        "cache purge --all".to_owned(),
        "cache purge --model small".to_owned(),
        format!("cache purge --id {id}"),
    ];
    for line in &lines {
        let alone = workspace.run(line).expect_err("no gateway runs");
        assert!(alone.contains("no gateway"), "{alone}");
    }
    let server = workspace.serve();
    let shown = workspace.json("cache show");
    assert_eq!(
        (&shown["entries"], &shown["bytes_max"]),
        (&Value::from(0), &Value::from(256 << 20))
    );
    assert!(workspace.good("cache show").contains("entries    0"));
    for line in &lines[1..] {
        assert_eq!(
            workspace.json(line),
            serde_json::json!({"removed": 0}),
            "{line}"
        );
    }
    for (line, expected) in [
        ("cache purge", "--all"),
        ("cache purge --all --model small", "cannot be used"),
        ("cache purge --model large", "there is `small`"),
        ("cache purge --id 7", "cache_entry_id"),
    ] {
        let error = workspace.run(line).expect_err("refused");
        assert!(error.contains(expected), "{line}: {error}");
    }
    server.end();
}

#[test]
fn refusals_name_the_remedy() {
    let workspace = Workspace::new();
    let account = workspace.word("account create", "id");
    let missing = "acct_00000000000000000000000000000000";
    //    command line                                                message
    let cases = [
        (
            "account create --class gold".to_owned(),
            "there is no rate class `gold`",
        ),
        ("account create --email invalid".to_owned(), "invalid"),
        (
            format!("account class --account {account} --class x"),
            "there is `anonymous`",
        ),
        (
            format!("account suspend --account {missing}"),
            "there is no account",
        ),
        (
            format!("account show --account {missing}"),
            "there is no account",
        ),
        ("account show --account 7".to_owned(), "is not an id"),
        ("account show".to_owned(), "required"),
        (
            format!("key create --account {account} --name a --scopes api:all"),
            "there is no scope `api:all`",
        ),
        (
            format!("key create --account {account} --name a --models big"),
            "there is no model `big`",
        ),
        (
            format!("key create --account {account} --name a --expires soon"),
            "`soon` is not a time",
        ),
        (
            format!("key create --account {account} --name a --expires 2001-01-01"),
            "expiry",
        ),
        (
            format!("key create --account {account} --name a --spend-max 0"),
            "above 0",
        ),
        (
            format!("key create --account {account} --name a --spend-max 1 --spend-period week"),
            "use total or month",
        ),
        (
            format!("key create --account {missing} --name a"),
            "there is no account",
        ),
        ("key revoke --key key_1".to_owned(), "not a key id"),
        (
            format!("credits grant --account {account} --amount 1.2345678 --reference r"),
            "decimal places",
        ),
        (
            format!("credits grant --account {account} --amount 0 --reference r"),
            "above zero",
        ),
        (
            format!("usage --account {account} --from yesterday"),
            "`yesterday` is not a day",
        ),
    ];
    for (line, wanted) in cases {
        match workspace.run(&line) {
            Err(message) => assert!(
                message.contains(wanted),
                "`{line}` answers {message:?}, not {wanted:?}"
            ),
            Ok(done) => panic!("`{line}` must be refused: {done:?}"),
        }
    }
}

#[test]
fn the_control_socket_returns_the_same_refusals() {
    let workspace = Workspace::new();
    let server = workspace.serve();
    let message = workspace
        .run("account create --class gold")
        .expect_err("refused");
    assert!(
        message
            .starts_with("there is no rate class `gold` in the settings; there is `anonymous`, ")
            && message.contains("`free`"),
        "{message}"
    );
    server.end();
}

#[test]
fn a_locked_database_without_a_control_socket_is_refused() {
    let workspace = Workspace::new();
    let settings = load(
        &workspace.file(),
        &Gateway::builder,
        &Environment::default(),
    )
    .expect("good settings");
    let store = ControlClient::new(settings)
        .open()
        .expect("the database is free");
    let message = workspace.run("account create").expect_err("refused");
    assert!(message.contains("does not answer yet"), "{message}");
    store.close();
}

#[test]
fn an_audit_that_cannot_be_completed_has_its_own_exit_code() {
    let workspace = Workspace::new();
    let args = Args::try_parse_from(["tollgate", "audit"]).expect("it reads");
    let file = workspace.file();
    let environment = Environment::of([(CONFIG, file.to_str().expect("a plain path"))]);
    let error =
        run(args, &Gateway::builder, &environment, &mut Vec::new()).expect_err("there is no store");
    let code: &Exit = error.downcast_ref().expect("an exit code of its own");
    assert_eq!(code.0, 2);
}

#[test]
fn providers_are_shown_by_a_running_gateway() {
    let workspace = Workspace::new();
    let refused = workspace.run("providers").expect_err("no gateway runs");
    assert!(refused.contains("no gateway"), "{refused}");
    let server = workspace.serve();
    let shown = workspace.good("providers");
    assert_eq!(
        shown,
        "PROVIDER  MODEL  STATE    FOR  CALLS  WAITING  OPEN FOR\n\
         local            resting  9 s  3      2\n          small  closed   1 s                  2 accounts\n"
    );
    assert_eq!(
        workspace.json("providers")[0]["models"][0]["closed_ms"],
        1000
    );
    server.end();
}

#[test]
fn check_warns_of_an_x402_route_without_a_node() {
    let workspace = Workspace::new();
    let good = std::fs::read_to_string(workspace.file()).expect("settings");
    assert_eq!(workspace.json("check")["warnings"], serde_json::json!([]));
    let sells = "[payments.x402]\nfacilitator_url = 'https://x402.example.com'\npay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'\n";
    let good = format!("{good}\n[plan]\nmonthly_credits = '100'\n");
    std::fs::write(workspace.file(), format!("{good}\n{sells}")).expect("written");
    let text = workspace.good("check");
    for message in ["warning: payments.x402.rpc_url", "pay twice", "good ("] {
        assert!(text.contains(message), "{message}: {text}");
    }
    let found = workspace.json("check");
    assert_eq!(found["good"], true);
    assert_eq!(found["warnings"][0]["key"], "payments.x402.rpc_url");
    let node = "rpc_url = 'https://base.example.com'\n";
    std::fs::write(workspace.file(), format!("{good}\n{sells}{node}")).expect("written");
    assert!(!workspace.good("check").contains("warning"));
    // A token outside the built-in tokens: without a node, the token is not compared with the chain.
    let token = "network = 'eip155:1'\nasset = '0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48'\nasset_name = 'USD Coin'\nasset_version = '2'\n";
    std::fs::write(workspace.file(), format!("{good}\n{sells}{token}")).expect("written");
    let found = workspace.json("check");
    let keys = [0, 1].map(|at| found["warnings"][at]["key"].clone());
    assert_eq!(keys, ["payments.x402.asset", "payments.x402.rpc_url"]);
    std::fs::write(workspace.file(), format!("{good}\n{sells}{token}{node}")).expect("written");
    assert!(!workspace.good("check").contains("warning"));
}

#[test]
fn check_warns_of_a_plan_that_is_sold_without_credits() {
    let workspace = Workspace::new();
    let good = std::fs::read_to_string(workspace.file()).expect("settings");
    let sells = "[payments.x402]\nfacilitator_url = 'https://x402.example.com'\npay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'\n\
                 rpc_url = 'https://base.example.com'\n";
    for (plan, sold, warned) in [
        ("", "", false),
        ("", sells, true),
        ("[plan]\nmonthly_credits = '0'\n", sells, true),
        ("[plan]\nmonthly_credits = '0.000001'\n", sells, false),
    ] {
        std::fs::write(workspace.file(), format!("{good}\n{plan}{sold}")).expect("written");
        let text = workspace.good("check");
        let warning = "warning: plan.monthly_credits: is 0";
        assert_eq!(text.contains(warning), warned, "{plan}{sold}: {text}");
    }
}

#[test]
fn check_warns_of_trusted_proxies_without_a_configured_field() {
    let workspace = Workspace::new();
    let good = std::fs::read_to_string(workspace.file()).expect("settings");
    let write = |lines: &str| {
        let listener = format!(
            "[[listener]]\naddress = '127.0.0.1:0'\ntrusted_proxies = ['10.0.0.1']\n{lines}\n"
        );
        std::fs::write(workspace.file(), good.clone() + &listener).expect("written");
    };
    for named in [
        "forwarded_field = 'x-forwarded-for'",
        "forwarded_field = 'forwarded'",
        "forwarded_field = 'either'",
        "forwarded_field = 'none'",
        "proxy_protocol = true",
    ] {
        write(named);
        let found = workspace.json("check");
        assert_eq!(found["warnings"], serde_json::json!([]), "{named}");
    }
    for unnamed in ["", "proxy_protocol = false"] {
        write(unnamed);
        let before = good.matches("[[listener]]").count();
        let key = format!("listener.{before}.trusted_proxies");
        assert_eq!(workspace.json("check")["warnings"][0]["key"], *key);
        let text = workspace.good("check");
        for message in [&key, "name the field that the proxy writes", "good ("] {
            assert!(text.contains(message), "{message}: {text}");
        }
    }
}

#[test]
fn check_distinguishes_valid_from_invalid_settings() {
    let workspace = Workspace::new();
    assert!(workspace.good("check").contains("good"));
    std::fs::write(workspace.file(), "[server]\nworkers = 0\nwokers = 1\n").expect("written");
    let (code, text) = workspace.run("check").expect("it checks");
    assert_eq!(code, 1);
    assert!(text.contains("2 problems"), "{text}");
    let (code, text) = workspace.run("check --json").expect("it checks");
    assert_eq!(code, 1);
    let found: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(found["good"], false);
    assert_eq!(found["findings"][0]["line"], 2);
    assert_eq!(found["findings"][0]["key"], "server.workers");
}

#[test]
fn commands_that_need_no_settings_run_without_a_file() {
    for line in [
        ["tollgate", "schema"].as_slice(),
        &["tollgate", "completions", "bash"],
    ] {
        let args = Args::try_parse_from(line).expect("it reads");
        let mut out = Vec::new();
        let code =
            run(args, &Gateway::builder, &Environment::default(), &mut out).expect("it runs");
        assert_eq!(code, 0);
        assert!(out.len() > 100, "{line:?} prints something");
    }
    let args = Args::try_parse_from(["tollgate", "check"]).expect("it reads");
    let error = run(
        args,
        &Gateway::builder,
        &Environment::default(),
        &mut Vec::new(),
    )
    .expect_err("no settings");
    assert!(error.to_string().contains("--config"), "{error}");
}

#[test]
fn each_command_has_a_manual_page() {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    let write = |path: &str| {
        let args = Args::try_parse_from(["tollgate", "man", path]).expect("it reads");
        let environment = Environment::default();
        run(args, &Gateway::builder, &environment, &mut Vec::new())
    };
    assert_eq!(write(path).expect("it writes"), 0);
    fn check(folder: &std::path::Path, name: &str, command: &clap::Command) {
        let page = folder.join(format!("{name}.1"));
        let text = std::fs::read_to_string(&page).expect(name);
        assert!(text.contains(".TH"), "{text}");
        let about = command.get_about().expect(name).to_string();
        let word = about.split(' ').next().expect("a word");
        assert!(text.contains(word), "{name} says what it does: {text}");
        for sub in command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help")
        {
            check(folder, &format!("{name}-{}", sub.get_name()), sub);
        }
    }
    check(folder.path(), "tollgate", &Args::command());
    let error = write("/nowhere/at/all").expect_err("no such folder");
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
}

#[test]
fn paypal_setup_is_idempotent() {
    use tollgate_testing::paypal::{CLIENT_ID, CLIENT_SECRET, Effect, Fault, Operation, PayPal};

    let workspace = Workspace::new();
    let refused = workspace
        .run("paypal setup")
        .expect_err("no PayPal credentials");
    assert!(refused.contains("[payments.paypal]"), "{refused}");

    let paypal = PayPal::start_own_thread().expect("a stand-in");
    for (name, text) in [("id", CLIENT_ID), ("secret", CLIENT_SECRET)] {
        std::fs::write(workspace.folder.path().join(name), text).expect("a file");
    }
    let settings = format!(
        "{SETTINGS}\n[credits]\nusd_per_credit = '0.01'\n[payments.paypal]\nbase_url = '{}'\nclient_id_file = 'id'\n\
         client_secret_file = 'secret'\n",
        paypal.url()
    );
    std::fs::write(workspace.file(), &settings).expect("settings");
    let lost = Fault::once(Operation::Plan, Effect::Unavailable);
    paypal.fault(lost);
    let refused = workspace.run("paypal setup").expect_err("out of service");
    assert!(
        refused.contains("PayPal did not accept the product"),
        "{refused}"
    );

    let first = workspace.json("paypal setup");
    json::compare("paypal setup", &first);
    assert_eq!(first["product_id"], "svc-pro-monthly");
    assert_eq!(first["made"], true);
    let plan = first["plan_id"].as_str().expect("an id").to_owned();
    let again = workspace.json("paypal setup");
    assert_eq!(
        (&again["plan_id"], &again["made"]),
        (&first["plan_id"], &Value::Bool(false))
    );
    let words = workspace.good("paypal setup");
    assert!(words.contains(&format!("plan_id = \"{plan}\"")), "{words}");
    assert!(words.contains("199.00 USD each month"), "{words}");

    // A plan changed at PayPal is left alone, and a new plan is created.
    paypal.change_plan(&plan, |plan| plan.cents = 100);
    paypal.forget_keys();
    let other = workspace.json("paypal setup");
    assert_ne!(other["plan_id"], first["plan_id"]);

    let named = format!("{settings}plan_id = {}\n", other["plan_id"]);
    std::fs::write(workspace.file(), named).expect("settings");
    assert!(
        workspace
            .good("paypal setup")
            .contains("The settings already name this plan.")
    );
}
