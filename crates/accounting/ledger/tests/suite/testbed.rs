//! A ledger on a store of the engine, in a separate folder.

use std::path::Path;
use std::sync::{Arc, mpsc};

use tollgate_ledger::Ledger;
use tollgate_money::AccountId;
use tollgate_store::{Admission, EntryKind, Store, UnitOfWork};

use super::engine::{self, Options};
use crate::support::{balance_of, operation, start};

pub(crate) struct Testbed {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Ledger,
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) fn options() -> Options {
    Options {
        // A small number, so that every test has posted and unposted data.
        post_records: 7,
        ..engine::options()
    }
}

pub(crate) fn open(folder: &Path) -> Arc<dyn Store> {
    engine::open(folder, options())
}

pub(crate) fn bed(options: Options) -> Testbed {
    let folder = tempfile::tempdir().expect("a folder");
    let store = engine::open(folder.path(), options);
    let ledger = start(&store);
    Testbed {
        store,
        ledger,
        folder,
    }
}

impl Testbed {
    pub(crate) fn balance(&self, account: AccountId) -> (i64, i64) {
        let balance = balance_of(&self.ledger, account);
        (balance.available.get(), balance.held.get())
    }

    /// Blocks the writer until the returned sender is dropped. Units queued meanwhile are in one commit.
    pub(crate) fn stop_writer(&self) -> mpsc::Sender<()> {
        let (resume, wait_for) = mpsc::channel::<()>();
        let (stopped, wait_stopped) = mpsc::channel();
        let done = Box::new(move |_| {
            stopped.send(()).expect("the test waits");
            let _ = wait_for.recv();
        });
        self.store
            .submit(UnitOfWork::of_all([], Admission::Always), done)
            .expect("the queue is open");
        wait_stopped.recv().expect("the writer stops");
        resume
    }

    pub(crate) fn kinds(&self, number: u64) -> Vec<EntryKind> {
        let rows = self.store.operation(operation(number)).expect("a read");
        rows.entries.iter().map(|entry| entry.kind).collect()
    }
}
