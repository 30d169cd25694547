//! `tollgate nodes`, and the commands refused beside a node.

use super::*;

#[test]
fn a_file_has_no_nodes() {
    let workspace = Workspace::new();
    workspace.good("account create");
    let shown = workspace.good("nodes");
    assert!(shown.contains("`store.url` names a file"), "{shown}");
    assert!(!shown.contains("STATE"), "{shown}");
    assert_eq!(workspace.json("nodes"), serde_json::json!([]));
    let refused = workspace.run("nodes recover a").expect_err("none");
    assert!(refused.contains("`store.url` names a file"), "{refused}");
}

#[test]
fn a_node_that_has_left_nothing_is_not_recovered_again() {
    let [_, workspace] = Workspace::on_each_engine();
    let settings = std::fs::read_to_string(workspace.file()).expect("settings");
    std::fs::write(workspace.file(), settings + "\nnode = 'a'\n").expect("settings");
    // Runs as the node, and ends.
    workspace.good("account create");
    let before = workspace.json("nodes");
    assert_eq!(before[0]["state"], "ended", "{before}");
    let said = workspace.good("nodes recover a");
    assert!(said.contains("node `a` has left nothing"), "{said}");
    assert_eq!(workspace.json("nodes")[0]["epoch"], before[0]["epoch"]);

    let server = workspace.serve();
    let refused = workspace.run("nodes recover a").expect_err("it runs");
    assert!(refused.contains("stop it first, or leave it"), "{refused}");
    let refused = workspace.run("audit --fix-derived").expect_err("it runs");
    assert!(
        refused.contains("stop every gateway of the database"),
        "{refused}"
    );
    assert!(!refused.contains("in a moment"), "{refused}");
    server.end();
}

#[test]
fn a_folder_of_exports_that_is_not_there_is_said_before_the_audit() {
    let workspace = Workspace::new();
    workspace.good("account create");
    let refused = workspace.run("audit --exports /missing").expect_err("none");
    assert!(refused.contains("`/missing` is no folder"), "{refused}");
}

#[test]
fn a_file_to_migrate_that_is_not_there_is_the_one_of_the_option() {
    let workspace = Workspace::new();
    let refused = workspace.run("migrate --from sqlite:/missing.db --to postgres://t@h/d");
    let refused = refused.expect_err("there is none");
    assert!(refused.contains("correct `--from`"), "{refused}");
}
