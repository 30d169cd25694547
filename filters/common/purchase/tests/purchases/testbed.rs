//! Test bed: a processor over a store in a folder, which can crash and be reopened.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate_ledger::audit::audit;
use tollgate_ledger::{Hold, HoldRequest, Ledger};
use tollgate_money::{AccountId, Micros, OperationId, TopUpId, Usd};
use tollgate_purchase::{
    BeginError, Offer, PurchaseRequest, PurchaseTasks, TopUpDeps, TopUpEvent, TopUps,
};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, CacheScope, NewAccount, Part, RootSecret, Store, TopUpRow, UnitOfWork, commit,
};

use crate::provider::FakeProvider;

pub(crate) const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
pub(crate) const PRICE: Usd = Usd::from_cents(2_000);
pub(crate) const CREDITS: i64 = 2_000_000_000;

/// One run of the process.
struct Running {
    runtime: Runtime,
    store: Arc<dyn Store>,
    ledger: Ledger,
    processor: TopUps,
}

/// The processor and its surroundings.
pub(crate) struct TestBed {
    pub(crate) provider: FakeProvider,
    folder: TempDir,
    running: Option<Running>,
    random: Arc<AtomicU64>,
    holds: Vec<Hold>,
}

impl TestBed {
    pub(crate) fn new() -> TestBed {
        let mut bed = TestBed {
            provider: FakeProvider::new(),
            folder: tempfile::tempdir().expect("a folder"),
            running: None,
            random: Arc::default(),
            holds: Vec::new(),
        };
        bed.open();
        let account = Part::CreateAccount(Box::new(NewAccount {
            id: ACCOUNT,
            class: Arc::from("free"),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::ZERO,
            created_at: 1,
        }));
        let running = bed.running();
        let made = commit(&*running.store, UnitOfWork::of(account, Admission::Normal));
        running.runtime.block_on(made).expect("an account");
        bed
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub(crate) fn open(&mut self) {
        let now = self.provider.now.load(Relaxed);
        let options = Options {
            durability: Durability::Process,
            ..Options::new(now, RootSecret([7; 32]))
        };
        let path = self.folder.path().join("t.db");
        let store = sqlite::open(&path, options).expect("the store opens");
        let (ledger, _) = Ledger::start(store.clone(), now).expect("the books open");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let (clock, random) = (self.provider.now.clone(), self.random.clone());
        let processor = TopUps::new(TopUpDeps {
            store: store.clone(),
            ledger: ledger.clone(),
            orders: Arc::new(self.provider.clone()),
            environment: String::from("test"),
            offer: Offer {
                micro_dollars_per_credit: 10_000,
                amounts: vec![PRICE],
                min: Usd::from_cents(500),
                max: Usd::from_cents(50_000),
            },
            description: String::from("Credits"),
            now: Box::new(move || clock.load(Relaxed)),
            draw: Box::new(move |out| {
                let number = random.fetch_add(1, Relaxed).to_be_bytes();
                let at = out.len() - number.len();
                out[at..].copy_from_slice(&number);
            }),
            runtime: PurchaseTasks::new(runtime.handle().clone()),
        });
        self.running = Some(Running {
            runtime,
            store,
            ledger,
            processor,
        });
    }

    /// Runs an operation; `None` when the process crashed in it, and was restarted.
    pub(crate) fn run<T, F: Future<Output = T>>(
        &mut self,
        act: impl FnOnce(TopUps) -> F,
    ) -> Option<T> {
        let died = self.provider.died();
        let running = self.running();
        let done = running.runtime.block_on(async {
            tokio::select! {
                done = act(running.processor.clone()) => Some(done),
                () = died.notified() => None,
            }
        });
        if done.is_none() {
            self.die();
        }
        done
    }

    /// Crashes the process, and restarts it.
    pub(crate) fn die(&mut self) {
        // Holds are in memory only.
        self.holds.clear();
        let running = self.running.take().expect("it runs");
        running.runtime.shutdown_background();
        // Queued units of work are durable: each is written whole or not at all, and the crash happens at a provider call.
        running.store.close();
        self.open();
    }

    pub(crate) fn begin(&mut self, id: TopUpId) -> Option<Result<TopUpRow, BeginError>> {
        let request = PurchaseRequest {
            id,
            account: ACCOUNT,
            price: PRICE,
            return_url: String::from("https://example.com/back"),
            cancel_url: String::from("https://example.com/left"),
        };
        self.run(|processor| async move { processor.begin(request).await })
    }

    pub(crate) fn row(&self, id: TopUpId) -> Option<TopUpRow> {
        self.running().store.top_up(id).expect("readable")
    }

    pub(crate) fn available(&self) -> i64 {
        let available = self.running().ledger.available(ACCOUNT);
        available.expect("an account").get()
    }

    pub(crate) fn count(&self, event: TopUpEvent) -> u64 {
        self.running().processor.counters().get(event)
    }

    /// Holds credit until [`TestBed::release`]; nothing for zero.
    pub(crate) fn hold(&mut self, micros: i64) {
        if micros == 0 {
            return;
        }
        let number = self.random.fetch_add(1, Relaxed).to_be_bytes();
        let mut random = [0; 10];
        random[..number.len()].copy_from_slice(&number);
        let hold = self.running().ledger.reserve(HoldRequest {
            operation: OperationId::from_parts(3, random),
            account: ACCOUNT,
            amount: Micros::new(micros),
            price_version: None,
            at: 1,
            expires_at: i64::MAX,
        });
        self.holds.push(hold.expect("there is enough"));
    }

    /// Releases every hold.
    pub(crate) fn release(&mut self) {
        self.holds.clear();
    }

    /// Spends credit, as usage would.
    pub(crate) fn spend(&self, micros: i64) {
        let running = self.running();
        let credit = tollgate_ledger::Credit {
            operation: OperationId::from_parts(2, [self.random.fetch_add(1, Relaxed) as u8; 10]),
            account: ACCOUNT,
            amount: Micros::new(-micros),
            reference: Arc::from(format!("spent {}", self.random.fetch_add(1, Relaxed))),
            at: 1,
        };
        let spent = running.runtime.block_on(running.ledger.correct(credit));
        spent.expect("there is enough");
    }

    /// Reconciles until nothing is due within a day, without faults.
    pub(crate) fn settle(&mut self) {
        self.provider.faults([]);
        for _ in 0..40 {
            self.run(|processor| async move { while processor.reconcile_due().await > 0 {} });
            self.provider.advance(3_600);
        }
    }

    pub(crate) fn check_books(&self) {
        let report = audit(&*self.running().store).expect("readable");
        assert!(report.clean(), "the books balance: {report:?}");
    }
}
