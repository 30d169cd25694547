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

#[test]
fn a_damaged_copy_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("an account");
    let copy = folder.path().join("copy.db");
    sqlite::backup(&folder.path().join("t.db"), &copy).expect("a copy");
    let mut bytes = std::fs::read(&copy).expect("readable");
    // The last pages, beyond the schema.
    let from = bytes.len() - 3 * 4096;
    bytes[from..].fill(0xa5);
    std::fs::write(&copy, &bytes).expect("written");
    let found = sqlite::verify_pages(&copy);
    assert!(
        matches!(found, Err(BackupError::Damaged { .. })),
        "{found:?}"
    );
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
