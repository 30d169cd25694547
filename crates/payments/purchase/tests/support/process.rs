//! A gateway process: a store in a folder, the ledger and the plans over it, and a runtime. It crashes and is started again.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tollgate_clock::{Clock, Timestamp};
use tollgate_ledger::Ledger;
use tollgate_ledger::audit::audit;
use tollgate_money::{AccountId, Micros};
use tollgate_purchase::plan::{DAYS, PRICE, Paid, PayOutcome, Period, Plan, PlanDeps, Plans};
use tollgate_purchase::{Draw, PurchaseTasks};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState,
    CacheScope, NewAccount, Part, RootSecret, Route, Store, UnitOfWork, commit,
};

pub(crate) const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
pub(crate) const OTHER_ACCOUNT: AccountId = AccountId::from_bytes([2; 16]);

/// The time at which every test starts.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_800_000_000);
pub(crate) const DAY: Duration = Duration::from_hours(24);

/// The credits that a payment for the plan grants.
pub(crate) const CREDITS: i64 = 5_000_000;

/// What survives a crash: the folder of the store, and a counter in place of random numbers.
pub(crate) struct Disk {
    folder: TempDir,
    random: Arc<AtomicU64>,
}

/// One run of the process.
pub(crate) struct Process {
    pub(crate) runtime: Runtime,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Ledger,
    pub(crate) plans: Plans,
    pub(crate) tasks: PurchaseTasks,
}

impl Disk {
    pub(crate) fn new() -> Disk {
        Disk {
            folder: tempfile::tempdir().expect("a folder"),
            random: Arc::default(),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The next number of the counter.
    pub(crate) fn number(&self) -> u64 {
        self.random.fetch_add(1, Relaxed)
    }

    /// A source of distinct bytes in place of random ones.
    pub(crate) fn draw(&self) -> Draw {
        let random = self.random.clone();
        Box::new(move |out| {
            let number = random.fetch_add(1, Relaxed).to_be_bytes();
            let at = out.len() - number.len();
            out[at..].copy_from_slice(&number);
        })
    }

    pub(crate) fn open_store(&self, now: Timestamp) -> Arc<dyn Store> {
        let options = Options {
            durability: Durability::Process,
            ..Options::new(now, RootSecret([7; 32]))
        };
        sqlite::open(&self.path().join("t.db"), options).expect("the store opens")
    }

    /// The plans over a store, and its ledger.
    pub(crate) fn plans(&self, store: &Arc<dyn Store>, clock: Clock) -> (Ledger, Plans) {
        let (ledger, _) = Ledger::start(store.clone(), clock.now()).expect("the books open");
        let plans = Plans::new(PlanDeps {
            store: store.clone(),
            ledger: ledger.clone(),
            plan: plan(),
            clock,
            draw: self.draw(),
        });
        (ledger, plans)
    }

    /// Starts a process with this clock.
    pub(crate) fn start(&self, clock: Clock) -> Process {
        let store = self.open_store(clock.now());
        let (ledger, plans) = self.plans(&store, clock);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        Process {
            tasks: PurchaseTasks::new(runtime.handle().clone()),
            runtime,
            store,
            ledger,
            plans,
        }
    }
}

impl Process {
    /// Kills the process. Queued units of work are durable: each is written whole or not at all.
    pub(crate) fn kill(self) {
        self.runtime.shutdown_background();
        self.store.close();
    }

    /// Runs an operation; `None` when the process crashed in it.
    pub(crate) fn run_until_crash<T>(
        &self,
        crashed: &Notify,
        operation: impl Future<Output = T>,
    ) -> Option<T> {
        self.runtime.block_on(async {
            tokio::select! {
                done = operation => Some(done),
                () = crashed.notified() => None,
            }
        })
    }

    pub(crate) fn create_account(&self, id: AccountId) {
        self.write(new_account(id));
    }

    pub(crate) fn write(&self, part: Part) {
        let unit = UnitOfWork::of(part, Admission::Normal);
        let written = self.runtime.block_on(commit(&*self.store, unit));
        written.expect("it is stored");
    }

    pub(crate) fn authorization(&self, part: AuthorizationPart) {
        self.write(Part::Authorization(Box::new(part)));
    }

    pub(crate) fn pay(&self, paid: Paid) -> PayOutcome {
        let outcome = self.runtime.block_on(self.plans.pay(paid, |_| Vec::new()));
        outcome.expect("it is recorded")
    }

    pub(crate) fn available(&self) -> i64 {
        let loaded = self.runtime.block_on(self.ledger.load(ACCOUNT));
        loaded.expect("it can be loaded");
        self.ledger.available(ACCOUNT).map_or(0, Micros::get)
    }

    pub(crate) fn check_books(&self) {
        let report = audit(&self.store).expect("readable");
        assert!(report.clean(), "the books balance: {report:?}");
    }
}

pub(crate) fn new_account(id: AccountId) -> Part {
    Part::CreateAccount(Box::new(NewAccount {
        id,
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: Timestamp::from_micros(1),
    }))
}

fn plan() -> Plan {
    Plan {
        product: Arc::from("svc-pro-monthly"),
        slug: Arc::from("svc-pro"),
        name: Arc::from("Pro"),
        class: Arc::from("pro"),
        monthly_credits: Micros::new(CREDITS),
        renewal_days: 7,
        device_slots: None,
        computer_use_tasks: None,
        features: Arc::default(),
    }
}

/// A settled transfer that pays for the plan.
pub(crate) fn transfer(name: &str, at: Timestamp) -> Paid {
    Paid {
        account: ACCOUNT,
        route: Route::X402,
        payment: Arc::from(name),
        reference: Arc::from(name),
        amount: PRICE,
        period: Period::Days(DAYS),
        renews: false,
        receipt: None,
        at,
    }
}

/// A signed transfer of the account in this state.
pub(crate) fn signed_transfer(
    state: AuthorizationState,
    valid_before: Timestamp,
) -> AuthorizationRow {
    AuthorizationRow {
        key: AuthorizationKey {
            network: Arc::from("eip155:8453"),
            asset: [1; 20],
            payer: [2; 20],
            nonce: [3; 32],
        },
        account: ACCOUNT,
        state,
        version: 0,
        digest: [4; 32],
        sealed: None,
        valid_before,
        transaction: None,
        receipt: None,
        note: None,
        attempts: 0,
        next_attempt_at: None,
        created_at: Timestamp::from_micros(1),
        updated_at: Timestamp::from_micros(1),
    }
}
