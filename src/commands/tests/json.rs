//! `--json` of every command, compared with the table in the README of the commands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::CommandFactory as _;

use super::*;
use crate::admin::{ChangeError, ReloadedSettings, RunningSettings, Upgrade, Upgraded};
use crate::config::{Difference, DifferenceKind};

/// Commands in need of a second program or a network, and the places where their members are compared.
const ELSEWHERE: [&str; 9] = [
    // Runs until a stop: `tests/e2e/process/demo.rs`.
    "demo",
    // Documents of foreign standards, validated by tests of the standards.
    "schema",
    "openapi",
    // A server of PostgreSQL: `tests/e2e/process/postgres.rs`.
    "migrate",
    // The same: `nodes_of_a_database_have_the_documented_members`.
    "nodes",
    "nodes recover",
    // Answered requests: the tests of the module.
    "usage",
    // Requests of months: `tests/e2e/process/retention.rs`.
    "retention",
    // A stand-in for PayPal: `paypal_setup_is_idempotent`.
    "paypal setup",
];

/// Commands without a result.
const NO_RESULT: [&str; 2] = ["serve", "completions"];

/// The members of a command's result by name. The value tells whether the member may be missing.
type Members = BTreeMap<String, bool>;

/// The rows of the table: commands with their members.
fn documented() -> BTreeMap<String, Members> {
    let rows = include_str!("../README.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let (command, rest) = row.split_once('`').expect("a command");
        let members = rest.split('|').nth(2).expect("a column of members");
        let members = members.split(',').map(str::trim).filter_map(|member| {
            let (name, optional) = member.strip_prefix('`')?.split_once('`')?;
            Some((name.to_owned(), optional == "?"))
        });
        (command.to_owned(), members.collect())
    })
    .collect()
}

/// Every command without subcommands, in the written form.
fn commands(command: &clap::Command, before: &str, found: &mut BTreeSet<String>) {
    for sub in command.get_subcommands() {
        let name = format!("{before}{}", sub.get_name());
        if sub.has_subcommands() {
            commands(sub, &format!("{name} "), found);
        }
        if !sub.is_subcommand_required_set() {
            found.insert(name);
        }
    }
}

/// Panics unless a result is an object, or a list of objects, with exactly the documented members.
pub(in crate::commands) fn compare(command: &str, result: &Value) {
    let documented = documented();
    let members = documented
        .get(command)
        .unwrap_or_else(|| panic!("`{command}` is not in the table"));
    let rows = match result {
        Value::Array(rows) => {
            assert!(!rows.is_empty(), "{command}: no row to compare");
            rows.iter().collect()
        }
        one => vec![one],
    };
    for row in rows {
        let row = row
            .as_object()
            .unwrap_or_else(|| panic!("{command}: {row}"));
        for name in row.keys() {
            assert!(
                members.contains_key(name),
                "{command}: `{name}` is not documented"
            );
        }
        for (name, optional) in members {
            assert!(
                *optional || row.contains_key(name),
                "{command}: `{name}` is documented, but missing: {result}"
            );
        }
    }
}

/// A gateway with changed settings and with support for an upgrade.
pub(super) struct Running {
    pub(super) settings: Arc<Settings>,
    pub(super) differences: Vec<Difference>,
}

pub(super) fn difference() -> Difference {
    Difference {
        key: String::from("server.workers"),
        place: String::from("t.toml:3"),
        change: DifferenceKind::Changed,
        needs_restart: false,
    }
}

impl RunningSettings for Running {
    fn reload(&self) -> Result<ReloadedSettings, ChangeError> {
        Ok(ReloadedSettings {
            version: 2,
            digest: String::from("0011"),
            changes: self.differences.clone(),
        })
    }

    fn differences(&self) -> Result<Vec<Difference>, String> {
        Ok(self.differences.clone())
    }

    fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings)
    }
}

impl Upgrade for Running {
    fn upgrade(&self, _: Option<&Path>) -> Result<Upgraded, String> {
        Ok(Upgraded {
            process: 7,
            open: 3,
        })
    }
}

#[test]
fn each_command_prints_the_documented_members_with_json() {
    let workspace = Workspace::new();
    let mut left = BTreeSet::new();
    commands(&Args::command(), "", &mut left);
    let documented: BTreeSet<String> = documented().into_keys().collect();
    let with_result: BTreeSet<String> = left
        .iter()
        .filter(|name| !NO_RESULT.contains(&&***name))
        .cloned()
        .collect();
    assert_eq!(documented, with_result, "the table has every command");
    for name in NO_RESULT.into_iter().chain(ELSEWHERE) {
        assert!(left.remove(name), "{name}");
    }

    let server = workspace.serve_with(|service, settings| {
        let running = Arc::new(Running {
            settings: Arc::new(settings),
            differences: vec![difference()],
        });
        service.with_settings(running.clone()).with_upgrade(running)
    });
    let account = workspace.word("account create --email a@example.net", "id");
    let other = workspace.word("account create", "id");
    let key = workspace.json(&format!("key create --account {account} --name a"));
    let [key, secret] =
        ["id", "secret"].map(|member| key[member].as_str().expect("a word").to_owned());
    std::fs::write(workspace.folder.path().join("secret"), secret).expect("written");
    let payment = payments::unproved_payment(&server.store, &account, 1);
    payments::unproved_payment(&server.store, &account, 2);
    let folder = workspace.folder.path().display().to_string();
    let of = format!("--account {account}");
    let lines = [
        ("check", String::new()),
        ("doctor", String::new()),
        ("account create", String::from("--phone +4930123456")),
        ("account show", of.clone()),
        ("account list", String::new()),
        ("account suspend", of.clone()),
        ("account suspend", format!("{of} --lift")),
        ("account cache-scope", format!("{of} --cache-scope off")),
        ("account class", format!("{of} --class free")),
        (
            "key create",
            format!("{of} --name b --expires 9d --spend-max 3"),
        ),
        ("key list", of.clone()),
        ("key find", format!("--secret-file {folder}/secret")),
        ("key revoke", format!("--key {key}")),
        ("credits grant", format!("{of} --amount 3 --reference r")),
        ("credits correct", format!("{of} --amount -1 --reference c")),
        ("credits show", of.clone()),
        ("payment close", format!("{payment} --not-moved")),
        ("payment list", String::new()),
        ("providers", String::new()),
        ("reload", String::new()),
        ("settings diff", String::new()),
        ("upgrade", String::new()),
        ("cache show", String::new()),
        ("cache purge", String::from("--all")),
        ("audit", String::new()),
        ("audit-log", String::new()),
        ("repair", String::new()),
        ("backup", format!("{folder}/copy.db")),
        ("backup", format!("--dir {folder}")),
        ("account export", of.clone()),
        ("account delete", format!("--account {other}")),
        ("compare", format!("{folder}/copy.db")),
        ("man", folder.clone()),
    ];
    for (command, arguments) in &lines {
        let (_, text) = workspace
            .run(&format!("{command} {arguments} --json"))
            .unwrap_or_else(|error| panic!("{command}: {error}"));
        compare(command, &serde_json::from_str(&text).expect(command));
        left.remove(*command);
    }
    assert_eq!(left, BTreeSet::new(), "every command was run");
    server.end();
}

#[test]
fn a_command_without_a_result_refuses_json() {
    let workspace = Workspace::new();
    for line in ["serve --json", "completions bash --json"] {
        let refused = workspace.run(line).expect_err(line);
        assert!(refused.contains("leave out `--json`"), "{refused}");
    }
}

#[test]
fn nodes_of_a_database_have_the_documented_members() {
    let workspace = Workspace::new();
    let url = tollgate_testing::Postgres::shared().database();
    let settings = format!("{SETTINGS}\n[store]\nurl = '{url}'\n");
    std::fs::write(workspace.file(), settings).expect("written");
    workspace.good("account create");
    let nodes = workspace.json("nodes");
    compare("nodes", &nodes);
    let number = &nodes[0]["node"];
    compare(
        "nodes recover",
        &workspace.json(&format!("nodes recover {number}")),
    );
}
