//! `tollgate account export` and `tollgate account delete`.

use super::*;

/// An account with a login, a key, credit, and a ledger entry.
fn account(workspace: &Workspace) -> String {
    let account = workspace.word(
        "account create --email mara@example.net --phone +4930123456",
        "id",
    );
    workspace.good(&format!(
        "key create --account {account} --name maras-laptop"
    ));
    workspace.good(&format!(
        "credits grant --account {account} --amount 12.5 --reference inv-1"
    ));
    account
}

fn check_deletion(workspace: &Workspace) {
    let account = account(workspace);
    let exported = workspace.json(&format!("account export --account {account}"));
    assert_eq!(exported["account"]["emails"][0], "mara@example.net");
    assert_eq!(exported["account"]["phones"][0], "+4930123456");
    assert_eq!(exported["keys"][0]["name"], "maras-laptop");
    assert_eq!(exported["entries"][0]["reference"], "inv-1");
    assert_eq!(exported["entries"][0]["amount"].to_string(), "12.5");
    assert_eq!(exported["has_more_entries"], false);
    let last = workspace.json("audit-log --limit 1");
    assert_eq!(last[0]["action"], "account_export");
    assert_eq!(last[0]["subject"], *account);

    let refused = workspace.run(&format!("account delete --account {account}"));
    let refused = refused.expect_err("it has credit");
    assert!(
        refused.contains("12.5 credits") && refused.contains("--forfeit"),
        "{refused}"
    );
    let shown = workspace.json(&format!("account show --account {account}"));
    assert_eq!(shown["status"], "active", "nothing was changed");
    assert_eq!(shown["emails"][0], "mara@example.net");

    workspace.good(&format!("account delete --account {account} --forfeit"));
    let shown = workspace.json(&format!("account show --account {account}"));
    assert_eq!(shown["status"], "closed");
    assert_eq!(shown["available"].to_string(), "0");
    let after = workspace.json(&format!("account export --account {account}"));
    let text = after.to_string();
    for personal in ["mara", "+4930123456", "laptop"] {
        assert!(!text.contains(personal), "{personal}: {text}");
    }
    assert_eq!(after["keys"][0]["status"], "revoked");
    assert_eq!(
        after["entries"][1]["reference"], "inv-1",
        "rows of money stay"
    );
    assert_eq!(after["entries"][0]["kind"], "correction");
    // The address is free for another account.
    workspace.good("account create --email mara@example.net");

    let again = workspace.run(&format!("account delete --account {account}"));
    assert!(again.expect_err("it is gone").contains("deleted already"));
    let lifted = workspace.run(&format!("account suspend --account {account} --lift"));
    assert!(lifted.expect_err("it is gone").contains("is deleted"));
    for change in [
        "key create --name later --account",
        "credits grant --amount 1 --reference late --account",
        "credits correct --amount 1 --reference late --account",
        "account class --class free --account",
        "account cache-scope --cache-scope off --account",
    ] {
        let refused = workspace.run(&format!("{change} {account}"));
        let refused = refused.expect_err("nothing is given to a deleted account");
        assert!(refused.contains("is deleted"), "{change}: {refused}");
    }
    let unknown_id = format!("acct_{}", "0".repeat(32));
    let unknown = workspace.run(&format!("account delete --account {unknown_id}"));
    assert!(unknown.expect_err("none").contains("there is no account"));
    let audit = workspace.json("audit");
    assert_eq!(audit["clean"], true, "{audit}");
    let log = workspace.json(&format!("audit-log --subject {account}"));
    let acts: Vec<_> = log.as_array().expect("a list").iter().collect();
    let done = acts
        .iter()
        .find(|act| act["action"] == "account_delete" && act["outcome"] == "done");
    assert_eq!(done.expect("it is recorded")["detail"]["forfeit"], true);
    assert!(acts.iter().any(|act| act["outcome"] == "refused"), "{log}");
}

#[test]
fn a_deleted_account_keeps_its_entries_and_nothing_personal() {
    check_deletion(&Workspace::new());
    let workspace = Workspace::new();
    let server = workspace.serve();
    check_deletion(&workspace);
    server.end();
}

/// Earlier releases booked credit to a deleted account, and made keys for a deleted account.
#[test]
fn a_second_deletion_takes_what_a_deleted_account_has_got_since() {
    let workspace = Workspace::new();
    let account = account(&workspace);
    workspace.good(&format!("account delete --account {account} --forfeit"));
    let id: tollgate_money::AccountId = account.parse().expect("an id");
    let client = ControlClient::new(
        load(
            &workspace.file(),
            &Gateway::builder,
            &Environment::default(),
        )
        .expect("good"),
    );
    let store = client.open().expect("the database is free");
    let now = Clock::system().now();
    let (ledger, _) = Ledger::start(store.clone(), now).expect("the books open");
    let late = tollgate_ledger::Credit {
        operation: tollgate_money::OperationId::generate(now, &Entropy::system()),
        account: id,
        amount: tollgate_money::Micros::new(2_000_000),
        reference: "late".into(),
        at: now,
    };
    tollgate_store::block_on(ledger.grant_with(late, Vec::new()))
        .expect("no panic")
        .expect("it is booked");
    store.close();

    let refused = workspace.run(&format!("account delete --account {account}"));
    let refused = refused.expect_err("it has credit");
    assert!(refused.contains("2 credits"), "{refused}");
    workspace.good(&format!("account delete --account {account} --forfeit"));
    let shown = workspace.json(&format!("account show --account {account}"));
    assert_eq!(shown["available"].to_string(), "0");
    let again = workspace.run(&format!("account delete --account {account} --forfeit"));
    assert!(again.expect_err("it is gone").contains("deleted already"));
    assert_eq!(workspace.json("audit")["clean"], true);
}

#[test]
fn an_account_with_a_request_under_way_is_not_deleted() {
    let workspace = Workspace::new();
    let account = account(&workspace);
    let server = workspace.serve();
    let id: tollgate_money::AccountId = account.parse().expect("an id");
    let clock = Clock::system();
    let (now, minute) = (clock.now(), std::time::Duration::from_secs(60));
    let request = tollgate_ledger::HoldRequest {
        operation: tollgate_money::OperationId::generate(now, &Entropy::system()),
        account: id,
        amount: tollgate_money::Micros::new(1000),
        price_version: None,
        at: now,
        deadline: tollgate_clock::Deadline::after(clock.elapsed(), minute),
        expires_at: now + minute,
        is_written: true,
    };
    let loaded = tollgate_store::block_on(server.ledger.load(id));
    loaded.expect("no panic").expect("it can be loaded");
    let hold = server
        .ledger
        .hold(request, |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    // A commit after the commit of the hold.
    workspace.good("account create");
    let delete = format!("account delete --account {account} --forfeit");
    let refused = workspace.run(&delete).expect_err("a request is under way");
    assert!(refused.contains("under way"), "{refused}");
    drop(hold);
    server.end();
}
