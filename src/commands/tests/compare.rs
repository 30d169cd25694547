//! `tollgate compare`: what a restore of a backup would undo.

use super::*;

fn effects(workspace: &Workspace, backup: &Path) -> Vec<String> {
    let undone = workspace.json(&format!("compare {}", backup.display()));
    let undone = undone.as_array().expect("a list").iter();
    let mut effects: Vec<_> = undone
        .map(|one| one["effect"].as_str().expect("a word").to_owned())
        .collect();
    effects.sort();
    effects
}

#[test]
fn what_ended_since_a_backup_and_would_be_valid_again_is_listed() {
    let workspace = Workspace::new();
    let account = workspace.word("account create --email a@example.net", "id");
    let mut keys = ["one", "two", "three"].map(|name| {
        workspace.word(
            &format!("key create --account {account} --name {name}"),
            "id",
        )
    });
    let revoke = |key: &str| workspace.good(&format!("key revoke --key {key}"));
    // Revoked before the backup: it stays revoked.
    revoke(&keys[0]);
    let backup = workspace.folder.path().join("backup.db");
    workspace.good(&format!("backup {}", backup.display()));
    assert_eq!(effects(&workspace, &backup), Vec::<String>::new());

    revoke(&keys[1]);
    workspace.good(&format!("account suspend --account {account}"));
    let other = workspace.word("account create", "id");
    let listed = workspace.json(&format!("compare {}", backup.display()));
    assert_eq!(
        effects(&workspace, &backup),
        ["account_active_again", "account_missing", "key_valid_again"]
    );
    keys.sort();
    let key = listed.as_array().expect("a list").iter();
    let mut key = key.filter(|one| one["effect"] == "key_valid_again");
    let key = key.next().expect("one");
    assert_eq!(key["account"], account.as_str());
    assert!(keys.contains(&key["subject"].as_str().expect("an id").to_owned()));
    workspace.good(&format!("account delete --account {account}"));
    workspace.good(&format!("account delete --account {other}"));
    assert_eq!(
        effects(&workspace, &backup),
        [
            "account_active_again",
            "account_missing",
            "key_valid_again",
            "key_valid_again",
            "login_again"
        ]
    );
}
