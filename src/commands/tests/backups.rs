//! `tollgate backup --dir`: rotation of verified backups.

use super::*;

impl Workspace {
    /// The names in the folder of backups, in their order.
    fn backups(&self) -> Vec<String> {
        let found = std::fs::read_dir(self.folder.path().join("kept")).expect("the folder");
        let mut names: Vec<String> = found
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        names.sort_unstable();
        names
    }

    fn rotate(&self, more: &str) -> Result<(u8, String), String> {
        let folder = self.folder.path().join("kept");
        std::fs::create_dir_all(&folder).expect("a folder");
        self.run(&format!("backup --dir {} {more}", folder.display()))
    }
}

#[test]
fn the_newest_backups_are_kept_and_only_files_of_this_command_are_removed() {
    let workspace = Workspace::new();
    let server = workspace.serve();
    workspace.good("account create --email a@example.net");
    let others = ["tollgate-Mon.db", "tollgate-20200101T000000Z.db", "notes"];
    let (code, text) = workspace.rotate("--keep 2").expect("a backup");
    assert_eq!(code, 0);
    assert!(text.contains(", verified\n"), "{text}");
    let kept = workspace.folder.path().join("kept");
    for name in others {
        std::fs::write(kept.join(name), "").expect("written");
    }
    // The remains of an interrupted run.
    let rest = kept.join(".tollgate-backup-x1");
    std::fs::create_dir(&rest).expect("a folder");
    std::fs::write(rest.join("tollgate.db"), "").expect("written");
    // Older than any: the first to go.
    let oldest = "tollgate-20200101T000000.000Z.db";
    std::fs::write(kept.join(oldest), "").expect("written");
    // The remains of a reader beside the backup.
    let of_reader = ["-wal", "-shm"].map(|ending| kept.join(format!("{oldest}{ending}")));
    for file in &of_reader {
        std::fs::write(file, "").expect("written");
    }
    let first = workspace.backups();

    let (_, text) = workspace.rotate("--keep 2 --json").expect("a backup");
    let made: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(made["verified"], "ledger");
    let removed = made["removed"].as_array().expect("a list");
    assert_eq!(removed.len(), 1, "{made}");
    assert!(removed[0].as_str().expect("a path").ends_with(oldest));
    let second = workspace.backups();
    assert!(!rest.exists());
    assert!(of_reader.iter().all(|file| !file.exists()));
    let dated = |names: &[String]| -> Vec<String> {
        let dated = names
            .iter()
            .filter(|name| name.contains("T") && name.contains('.'));
        let dated = dated.filter(|name| name.len() == oldest.len() && *name != oldest);
        dated.cloned().collect()
    };
    assert_eq!((dated(&first).len(), dated(&second).len()), (1, 2));
    for name in others {
        assert!(second.iter().any(|found| found == name), "{name} stays");
    }
    workspace.rotate("--keep 2").expect("a backup");
    let third = dated(&workspace.backups());
    assert_eq!(third.len(), 2);
    assert!(!third.contains(&dated(&first)[0]), "the oldest is gone");

    // The newest backup can be opened in place of the database, with the account.
    let newest = kept.join(third.last().expect("a name"));
    let store = tollgate_store::sqlite::open_read(&newest).expect("it opens");
    let mut accounts = 0;
    store.accounts(&mut |_| accounts += 1).expect("readable");
    assert_eq!(accounts, 1);
    server.end();
}

/// The clock was ahead for a time: the names of early backups sorted after the name of every new backup, and a new backup was removed as
/// the oldest.
#[test]
fn a_new_backup_is_kept_although_others_have_later_names() {
    let workspace = Workspace::new();
    let server = workspace.serve();
    workspace.rotate("--keep 2").expect("a backup");
    let kept = workspace.folder.path().join("kept");
    let later = ["2", "3"].map(|day| format!("tollgate-2999010{day}T000000.000Z.db"));
    for name in &later {
        std::fs::write(kept.join(name), "").expect("written");
    }
    let (_, text) = workspace.rotate("--keep 2 --json").expect("a backup");
    let made: Value = serde_json::from_str(&text).expect("JSON");
    let file = std::path::Path::new(made["file"].as_str().expect("a path"));
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.expect("a name").to_owned();
    assert_eq!(workspace.backups(), [name, later[1].clone()]);
    server.end();
}

#[test]
fn a_copy_whose_books_do_not_balance_costs_no_earlier_backup() {
    let workspace = Workspace::new();
    let account = workspace.word("account create", "id");
    workspace.rotate("--keep 1").expect("a backup");
    let before = workspace.backups();
    let database = workspace.folder.path().join("tollgate.db");
    let grant = format!("credits grant --account {account} --amount 5 --reference r");
    workspace.good(&grant);
    let connection = rusqlite::Connection::open(&database).expect("it opens");
    connection
        .execute("UPDATE accounts SET available = available + 1", [])
        .expect("changed");
    drop(connection);
    let refused = workspace.rotate("--keep 1").expect_err("not verified");
    for part in ["do not balance", "every earlier backup kept"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert_eq!(workspace.backups(), before);
}

#[test]
fn two_runs_into_one_folder_do_not_meet() {
    let workspace = Workspace::new();
    workspace.good("account create");
    workspace.rotate("").expect("a backup");
    let folder = std::fs::File::open(workspace.folder.path().join("kept")).expect("a folder");
    folder.lock().expect("locked");
    let refused = workspace.rotate("").expect_err("locked");
    assert!(refused.contains("is under way"), "{refused}");
    drop(folder);
    workspace.rotate("").expect("a backup");
    assert_eq!(workspace.backups().len(), 2);
}

#[test]
fn a_backup_needs_a_target() {
    let workspace = Workspace::new();
    workspace.word("account create", "id");
    for line in [
        "backup",
        "backup a.db --dir b",
        "backup a.db --keep 3",
        "backup --dir b --keep 0",
        "backup --dir b --replace",
    ] {
        workspace.run(line).expect_err(line);
    }
    let refused = workspace
        .run("backup --dir /nowhere")
        .expect_err("no folder");
    assert!(refused.contains("/nowhere"), "{refused}");
}
