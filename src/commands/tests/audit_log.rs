//! The audit log of changes by commands, over a gateway's control socket and without a gateway.

use super::*;

/// Action, subject and outcome of every record, oldest first; every actor is the user of the test.
fn acts(workspace: &Workspace) -> Vec<(String, String, String)> {
    let records = workspace.json("audit-log");
    let records = records.as_array().expect("a list");
    let actor = crate::admin::Actor::of_process().to_string();
    let text = |record: &Value, key: &str| record[key].as_str().unwrap_or_default().to_owned();
    let acts = records.iter().rev().map(|record| {
        assert_eq!(record["actor"], actor.as_str());
        assert!(text(record, "request").starts_with("req_"), "{record}");
        ["action", "subject", "outcome"].map(|key| text(record, key))
    });
    acts.map(|[action, subject, outcome]| (action, subject, outcome))
        .collect()
}

fn changes_and_refusals_are_recorded(workspace: &Workspace) {
    let account = workspace.word("account create --email ada@example.net --class pro", "id");
    let key = workspace.json(&format!("key create --account {account} --name laptop"));
    let (key, secret) = (key["id"].as_str(), key["secret"].as_str());
    let (key, secret) = (key.expect("an id"), secret.expect("a secret"));
    let grant = format!("credits grant --account {account} --amount 12.5 --reference inv-1");
    workspace.json(&grant);
    workspace.json(&grant);
    let correct = |amount: &str| {
        format!("credits correct --account {account} --amount {amount} --reference c{amount}")
    };
    let corrected = workspace.json(&correct("-2.5"));
    assert_eq!(corrected["available"].to_string(), "10");
    let beyond = workspace
        .run(&correct("-13"))
        .expect_err("there are not so many");
    assert!(beyond.contains("10 credits free"), "{beyond}");
    workspace.good(&format!("account suspend --account {account}"));
    workspace.good(&format!("account class --account {account} --class free"));
    let scope = format!("account cache-scope --account {account} --cache-scope off");
    workspace.good(&scope);
    workspace.good(&format!("key revoke --key {key}"));
    workspace
        .run("account create --email ADA@example.net")
        .expect_err("it is taken");

    let act = |action: &str, subject: &str, outcome: &str| {
        (action.to_owned(), subject.to_owned(), outcome.to_owned())
    };
    assert_eq!(
        acts(workspace),
        [
            act("account_create", &account, "done"),
            act("key_create", key, "done"),
            act("credits_grant", &account, "done"),
            act("credits_grant", &account, "repeated"),
            act("credits_correct", &account, "done"),
            act("credits_correct", &account, "refused"),
            act("account_suspend", &account, "done"),
            act("account_class", &account, "done"),
            act("account_cache_scope", &account, "done"),
            act("key_revoke", key, "done"),
            act("account_create", "", "refused"),
        ]
    );
    let of_key = workspace.json(&format!("audit-log --subject {key} --limit 1"));
    assert_eq!(of_key.as_array().map(Vec::len), Some(1));
    assert_eq!(of_key[0]["action"], "key_revoke");
    let refused = workspace.json(&format!("audit-log --subject {account}"));
    let refused = refused.as_array().expect("a list");
    let refused = refused.iter().find(|record| record["outcome"] == "refused");
    let detail = &refused.expect("a refusal")["detail"];
    assert_eq!(detail["amount"], "-13");
    assert!(
        detail["error"]
            .as_str()
            .is_some_and(|error| error.contains("credits free"))
    );

    let table = workspace.good("audit-log");
    assert!(table.starts_with("TIME"), "{table}");
    let log = format!("{table}{}", workspace.good("audit-log --json"));
    assert!(!log.contains(secret), "no secret is in it");
    assert!(!log.to_lowercase().contains("example.net"), "{log}");
    let audit = workspace.json("audit");
    assert_eq!(audit["clean"], true, "{audit}");
    assert_eq!(audit["audit_records"], 11);
}

#[test]
fn acts_are_recorded_by_a_gateway() {
    let workspace = Workspace::new();
    let server = workspace.serve();
    changes_and_refusals_are_recorded(&workspace);
    // Changes outside the store are recorded as well.
    workspace.json("cache purge --model small");
    let last = workspace.json("audit-log --limit 1");
    assert_eq!(last[0]["action"], "cache_purge");
    assert_eq!(
        last[0]["detail"],
        serde_json::json!({ "model": "small", "removed": 0 })
    );
    workspace.json("cache show");
    // The audit of the list was recorded after completion.
    assert_eq!(workspace.json("audit")["audit_records"], 13);
    let last = workspace.json("audit-log --limit 1");
    assert_eq!(last[0]["action"], "upkeep");
    assert_eq!(last[0]["subject"], "tollgate audit");
    assert_eq!(last[0]["detail"], serde_json::json!({ "violations": 0 }));
    server.end();
}

#[test]
fn acts_are_recorded_without_a_gateway() {
    let workspace = Workspace::new();
    changes_and_refusals_are_recorded(&workspace);
}

#[test]
fn an_edited_record_fails_the_audit() {
    let workspace = Workspace::new();
    workspace.good("account create");
    workspace.good("account create");
    let file = workspace.folder.path().join("tollgate.db");
    let database = rusqlite::Connection::open(file).expect("the file opens");
    let edit = "UPDATE audit_log SET actor = 'uid 4711' WHERE number = 1";
    assert_eq!(database.execute(edit, []).expect("the edit"), 1);
    drop(database);
    let (code, text) = workspace.run("audit").expect("it runs");
    assert_eq!(code, 1);
    assert!(
        text.contains("record 1 of node 1 in the audit log was changed"),
        "{text}"
    );
}
