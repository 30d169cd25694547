//! A real ledger on a disk, and its checks.

use std::sync::{Arc, Mutex, mpsc};

use tempfile::TempDir;
use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_ledger::{Credit, Ledger, Totals};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{
    Admission, CacheScope, Effect, NewAccount, Observer, OperationRows, Part, RootSecret, Store,
    UnitOfWork, commit, flush,
};

/// The wall-clock time of the tests.
const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

const FILE: &str = "tollgate.db";

pub(crate) struct LedgerFixture {
    ledger: Ledger,
    store: Arc<dyn Store>,
    /// Holds of an earlier process that were released at this start.
    pub(crate) orphans: usize,
    pub(crate) clock: Clock,
    pub(crate) manual: ManualClock,
    // Last, so that the store is closed before its folder is removed.
    folder: TempDir,
}

impl LedgerFixture {
    pub(crate) fn open(queue_max: usize) -> LedgerFixture {
        let folder = tempfile::tempdir().expect("a folder");
        LedgerFixture::open_in(folder, queue_max)
    }

    fn open_in(folder: TempDir, queue_max: usize) -> LedgerFixture {
        let (clock, manual) = Clock::manual(NOW);
        let options = Options {
            durability: sqlite::Durability::Process,
            queue_max,
            ..Options::new(NOW, RootSecret([1; 32]))
        };
        let store = sqlite::open(&folder.path().join(FILE), options).expect("a store");
        let (ledger, started) = Ledger::start(Arc::clone(&store), NOW).expect("the ledger starts");
        LedgerFixture {
            ledger,
            orphans: started.orphans,
            store,
            clock,
            manual,
            folder,
        }
    }

    /// The next process, started on a copy of the current disk state.
    pub(crate) async fn copy(&self) -> LedgerFixture {
        flush(&*self.store).await.expect("the store is open");
        let folder = tempfile::tempdir().expect("a folder");
        let from = self.folder.path().join(FILE);
        sqlite::backup(&from, &folder.path().join(FILE)).expect("a copy");
        LedgerFixture::open_in(folder, 1_024)
    }

    /// The same ledger in a process of its own, whose queue takes `queue_max` units.
    pub(crate) fn reopen(self, queue_max: usize) -> LedgerFixture {
        let LedgerFixture {
            ledger,
            store,
            folder,
            ..
        } = self;
        store.close();
        drop((ledger, store));
        LedgerFixture::open_in(folder, queue_max)
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// An account that has bought so many micro-credits.
    pub(crate) async fn account(&self, credits: i64, limit: i64) -> AccountId {
        let id = self.new_account(limit).await;
        if credits > 0 {
            self.top_up(id, credits).await;
        }
        id
    }

    pub(crate) async fn top_up(&self, account: AccountId, credits: i64) {
        let credit = credit(account, credits, "bought");
        self.ledger.top_up(credit).await.expect("credit");
    }

    pub(crate) async fn grant(&self, account: AccountId, credits: i64) {
        let credit = credit(account, credits, "granted");
        self.ledger.grant(credit).await.expect("credit");
    }

    async fn new_account(&self, limit: i64) -> AccountId {
        let id = AccountId::from_parts(1, [3; 10]);
        let account = Part::CreateAccount(Box::new(NewAccount {
            id,
            class: "free".into(),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::new(limit),
            created_at: NOW,
        }));
        commit(&*self.store, UnitOfWork::of(account, Admission::Always))
            .await
            .expect("an account");
        id
    }

    pub(crate) fn available(&self, account: AccountId) -> i64 {
        let loaded = tollgate_store::block_on(self.ledger.load(account));
        if loaded.expect("no panic").is_err() {
            // Its queue takes nothing.
            let row = self.store.account(account).expect("a read");
            return row.expect("the account").available.get();
        }
        let available = self.ledger.available(account).expect("the account");
        available.get()
    }

    pub(crate) fn totals(&self) -> Totals {
        self.ledger.totals()
    }

    /// Stops the store, as a full disk would.
    pub(crate) fn stop(&self) {
        self.store.close();
    }

    /// A function that stops the store.
    pub(crate) fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        let store = Arc::clone(&self.store);
        Arc::new(move || store.close())
    }

    /// Blocks the writer until the returned gate is opened: units queued meanwhile are decided and not durable.
    pub(crate) fn stall(&self) -> Gate {
        stall(&*self.store)
    }

    /// A function that stalls the writer.
    pub(crate) fn staller(&self) -> impl Fn() -> Gate + Send + Sync + use<> {
        let store = Arc::clone(&self.store);
        move || stall(&*store)
    }

    /// The rows of one operation, once all are written.
    pub(crate) async fn rows(&self, operation: OperationId) -> OperationRows {
        flush(&*self.store).await.expect("the store is open");
        self.store.operation(operation).expect("rows")
    }

    /// Checks that the ledger balances and that no hold is open.
    pub(crate) async fn audit(&self) {
        flush(&*self.store).await.expect("the store is open");
        let report = tollgate_ledger::audit::audit(&self.store).expect("an audit");
        assert!(report.clean(), "the ledger does not balance: {report:?}");
        assert_eq!(report.open_holds, 0, "something is held for ever");
        assert_eq!(self.totals().held, Micros::ZERO);
    }
}

fn stall(store: &dyn Store) -> Gate {
    let (reached, wait) = mpsc::channel();
    let (open, opened) = mpsc::channel();
    store.observe(Arc::new(Stall {
        reached,
        opened: Mutex::new(opened),
    }));
    // An observer is called for an account, and for nothing that an exchange writes.
    let account = Part::CreateAccount(Box::new(NewAccount {
        id: AccountId::from_parts(2, [4; 10]),
        class: "free".into(),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: NOW,
    }));
    store
        .submit(UnitOfWork::of(account, Admission::Always), Box::new(|_| {}))
        .expect("the queue has capacity");
    wait.recv().expect("the writer reaches the gate");
    Gate(open)
}

/// Blocks the writer; opens on request or when dropped.
pub(crate) struct Gate(mpsc::Sender<()>);

impl Gate {
    pub(crate) fn open(self) {
        self.0.send(()).expect("the writer waits");
    }
}

struct Stall {
    reached: mpsc::Sender<()>,
    opened: Mutex<mpsc::Receiver<()>>,
}

impl Observer for Stall {
    fn committed(&self, _: &Part, _: Effect) {
        self.reached.send(()).expect("the test waits");
        // An error means that the gate was dropped, which opens it too.
        let _ = self.opened.lock().expect("no panic under the lock").recv();
    }
}

fn credit(account: AccountId, credits: i64, reference: &str) -> Credit {
    Credit {
        operation: OperationId::from_parts(0, [reference.len() as u8; 10]),
        account,
        amount: Micros::new(credits),
        reference: reference.into(),
        at: NOW,
    }
}
