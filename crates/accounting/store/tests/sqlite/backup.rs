//! Copies of a file while a store writes it.

use std::sync::Arc;

use tollgate_money::{Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::sqlite::{self, BackupError, Options};
use tollgate_store::{EntryKind, Part, RootSecret};

use super::suite::support::{account, new_account, open, time, write};

#[test]
fn a_backup_during_writes_is_the_state_of_one_commit() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1), new_account(2)]).expect("accounts");
    let source = folder.path().join("t.db");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..=250 {
                // Both accounts in one unit: a copy with only one of them matches no commit.
                write(&store, [grant(number, 1), grant(number, 2)]).expect("grants");
            }
        });
        let mut copies = 0;
        while !writer.is_finished() || copies == 0 {
            let copy = folder.path().join(format!("copy-{copies}.db"));
            let mut reported = Vec::new();
            sqlite::backup_watched(&source, &copy, false, &mut |pages| reported.push(pages))
                .expect("a copy beside the writer");
            let last = reported.last().expect("progress");
            assert_eq!(last.done, last.total);
            sqlite::verify_pages(&copy).expect("a copy that is whole");
            let reader = sqlite::open_read(&copy).expect("the copy opens");
            let available = |number| {
                let row = reader.account(account(number)).expect("a read");
                row.expect("an account").available
            };
            assert_eq!(available(1), available(2), "copy {copies} is torn");
            copies += 1;
        }
    });
    let copy = folder.path().join("copy-0.db");
    let again = sqlite::backup(&source, &copy);
    assert!(
        matches!(again, Err(BackupError::Exists { .. })),
        "{again:?}"
    );
    write(&store, [grant(251, 1)]).expect("a grant");
    sqlite::backup_replacing(&source, &copy).expect("the copy of today");
    let reader = sqlite::open_read(&copy).expect("the copy opens");
    let row = reader.account(account(1)).expect("a read");
    assert_eq!(row.expect("an account").available, Micros::new(251));
    let own = sqlite::backup_replacing(&source, &source);
    assert!(matches!(own, Err(BackupError::Exists { .. })), "{own:?}");
    let restored =
        sqlite::open(&copy, Options::new(time(1), RootSecret([0; 32]))).expect("a store");
    assert_eq!(restored.root_secret(), store.root_secret());
}

/// What a program that ships the log does to the file (Litestream 0.3, "How it works"): tables of its own, which it writes, a read transaction
/// that is always open, and checkpoints of every kind.
#[test]
fn a_program_that_ships_the_log_loses_no_commit_and_stops_no_writer() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1), new_account(2)]).expect("accounts");
    let path = folder.path().join("t.db");
    let connect = || {
        let connection = rusqlite::Connection::open(&path).expect("it opens");
        let timeout = std::time::Duration::from_secs(1);
        connection.busy_timeout(timeout).expect("a setting");
        connection
    };
    let (shipper, reader) = (connect(), connect());
    shipper
        .execute_batch("CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
        .expect("a table beside those of the store");
    let hold = "BEGIN; SELECT count(*) FROM _litestream_seq";
    reader.execute_batch(hold).expect("a snapshot");
    for number in 1..=60 {
        write(&store, [grant(number, 1), grant(number, 2)]).expect("the writer goes on");
        let count = "INSERT INTO _litestream_seq VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET seq = seq + 1";
        shipper.execute_batch(count).expect("its own row");
        reader.execute_batch("ROLLBACK").expect("the end");
        let mode = ["PASSIVE", "RESTART", "TRUNCATE"][usize::from(number) % 3];
        let checkpoint = format!("PRAGMA wal_checkpoint({mode})");
        let blocked: i64 = shipper
            .query_row(&checkpoint, [], |row| row.get(0))
            .expect("a checkpoint");
        assert_eq!(blocked, 0, "{mode}");
        reader.execute_batch(hold).expect("a snapshot");
    }
    reader.execute_batch("ROLLBACK").expect("the end");
    let copy = folder.path().join("copy.db");
    sqlite::backup(&path, &copy).expect("a copy");
    sqlite::verify_pages(&copy).expect("a copy that is whole");
    for file in [&path, &copy] {
        let found = sqlite::open_read(file).expect("it opens");
        let row = found.account(account(2)).expect("a read");
        assert_eq!(row.expect("an account").available, Micros::new(60));
    }
}

#[test]
fn a_damaged_copy_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    let copy = folder.path().join("copy.db");
    sqlite::backup(&folder.path().join("t.db"), &copy).expect("a copy");
    sqlite::verify_pages(&copy).expect("a copy that is whole");
    let whole = std::fs::read(&copy).expect("readable");
    // Each page but the first, which has the schema: the engine finds some when it opens the file, and all others when it reads every page.
    let pages = whole.len() / 4096;
    let mut opened = 0;
    for page in 1..pages {
        let mut bytes = whole.clone();
        bytes[page * 4096..][..4096].fill(0xa5);
        std::fs::write(&copy, &bytes).expect("written");
        match sqlite::verify_pages(&copy) {
            Err(BackupError::Damaged { .. }) => opened += 1,
            Err(BackupError::Open(_)) => {}
            other => panic!("page {page}: {other:?}"),
        }
    }
    assert!(opened > pages / 2, "{opened} of {pages}");
}

fn grant(number: u8, account_number: u8) -> Part {
    let mut bytes = [number; 16];
    bytes[15] = account_number;
    Part::Ledger(LedgerPart::Credit {
        operation: OperationId::from_bytes(bytes),
        account: account(account_number),
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::from(format!("grant {number}")),
        at: time(10),
    })
}
