//! Test bed: processors over a store in a folder, which can crash and be reopened.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate_ledger::Ledger;
use tollgate_ledger::audit::audit;
use tollgate_money::{AccountId, MandateId, Micros};
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::checkouts::{self, Checkouts};
use tollgate_purchase::mandates::{
    MandateDeps, MandateEvent, Mandates, OpenError, Urls, Verified, VerifyError,
    request_cancellation,
};
use tollgate_purchase::plan::{
    DAYS, PRICE, Paid, PayOutcome, Period, Plan, PlanDeps, PlanState, Plans,
};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState,
    CacheScope, MandateRow, NewAccount, Part, PaymentRow, PaymentStatus, RootSecret, Route, Store,
    UnitOfWork, commit,
};

use crate::provider::{DAY, FakeProvider, PLAN};

pub(crate) const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);

/// Credits granted by each payment.
const CREDITS: i64 = 5_000_000;

/// How long a checkout waits for its owner.
pub(crate) const CHECKOUT_LIFETIME: i64 = DAY / 4;

/// One run of the process.
struct Running {
    runtime: Runtime,
    store: Arc<dyn Store>,
    ledger: Ledger,
    plans: Plans,
    processor: Mandates,
    checkouts: Checkouts,
}

/// The processors and their surroundings.
pub(crate) struct TestBed {
    pub(crate) provider: FakeProvider,
    folder: TempDir,
    running: Option<Running>,
    random: Arc<AtomicU64>,
    plan: Option<String>,
    environment: String,
}

impl TestBed {
    pub(crate) fn new() -> TestBed {
        let mut bed = TestBed {
            provider: FakeProvider::new(),
            folder: tempfile::tempdir().expect("a folder"),
            running: None,
            random: Arc::default(),
            plan: Some(String::from(PLAN)),
            environment: String::from("test"),
        };
        bed.start();
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

    fn start(&mut self) {
        let now = self.provider.now();
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
        let clock = || {
            let provider = self.provider.clone();
            move || provider.gateway_clock()
        };
        let draw = || {
            let random = self.random.clone();
            move |out: &mut [u8]| {
                let number = random.fetch_add(1, Relaxed).to_be_bytes();
                let at = out.len() - number.len();
                out[at..].copy_from_slice(&number);
            }
        };
        let plans = Plans::new(PlanDeps {
            store: store.clone(),
            ledger: ledger.clone(),
            plan: Plan {
                product: Arc::from("svc-pro-monthly"),
                slug: Arc::from("svc-pro"),
                name: Arc::from("Pro"),
                class: Arc::from("pro"),
                monthly_credits: Micros::new(CREDITS),
                renewal_days: 7,
                device_slots: None,
                computer_use_tasks: None,
                features: Arc::default(),
            },
            now: Box::new(clock()),
            draw: Box::new(draw()),
        });
        let processor = Mandates::new(MandateDeps {
            store: store.clone(),
            plans: plans.clone(),
            recurring: Arc::new(self.provider.clone()),
            plan_id: self.plan.clone(),
            environment: self.environment.clone(),
            now: Box::new(clock()),
            draw: Box::new(draw()),
            runtime: PurchaseTasks::new(runtime.handle().clone()),
        });
        let checkouts = Checkouts::new(checkouts::CheckoutDeps {
            store: store.clone(),
            plans: plans.clone(),
            mandates: Some(processor.clone()),
            lifetime: CHECKOUT_LIFETIME,
            now: Box::new(clock()),
            draw: Box::new(draw()),
        });
        self.running = Some(Running {
            checkouts,
            runtime,
            store,
            ledger,
            plans,
            processor,
        });
    }

    /// Runs an operation on mandates; `None` when the process crashed in it, and was restarted.
    pub(crate) fn run<T, F: Future<Output = T>>(
        &mut self,
        act: impl FnOnce(Mandates) -> F,
    ) -> Option<T> {
        let processor = self.running().processor.clone();
        self.alive(act(processor))
    }

    /// The same on checkouts.
    pub(crate) fn run_checkouts<T, F: Future<Output = T>>(
        &mut self,
        act: impl FnOnce(Checkouts) -> F,
    ) -> Option<T> {
        let processor = self.running().checkouts.clone();
        self.alive(act(processor))
    }

    fn alive<T>(&mut self, act: impl Future<Output = T>) -> Option<T> {
        let died = self.provider.died();
        let done = self.running().runtime.block_on(async {
            tokio::select! {
                done = act => Some(done),
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
        let running = self.running.take().expect("it runs");
        running.runtime.shutdown_background();
        // Queued units of work are durable: each is written whole or not at all, and the crash happens at a provider call.
        running.store.close();
        self.start();
    }

    /// Removes the plan from the settings, and restarts the process.
    pub(crate) fn unplan(&mut self) {
        self.plan = None;
        self.die();
    }

    /// Points the settings to another provider environment, and restarts the process.
    pub(crate) fn move_to(&mut self, environment: &str) {
        environment.clone_into(&mut self.environment);
        self.die();
    }

    pub(crate) fn open(&mut self) -> Option<Result<MandateRow, OpenError>> {
        let urls = Urls {
            return_url: String::from("https://example.com/back/{mandate}"),
            cancel_url: String::from("https://example.com/left/{mandate}"),
        };
        self.run(|processor| async move { processor.open(ACCOUNT, urls).await })
    }

    /// An open mandate.
    pub(crate) fn opened(&mut self) -> MandateId {
        self.open().expect("alive").expect("is offered").id
    }

    pub(crate) fn verify(&mut self, id: MandateId) -> Option<Result<Verified, VerifyError>> {
        self.run(|processor| async move { processor.verify(id).await })
    }

    /// A paid mandate.
    pub(crate) fn paid(&mut self) -> MandateId {
        let id = self.opened();
        self.provider.approve(id);
        let verified = self.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
        id
    }

    /// A transfer on the other route.
    pub(crate) fn transfer(&mut self, name: &str) -> PayOutcome {
        let paid = Paid {
            account: ACCOUNT,
            route: Route::X402,
            payment: Arc::from(name),
            reference: Arc::from(name),
            amount: PRICE,
            period: Period::Days(DAYS),
            renews: false,
            receipt: None,
            at: self.provider.now(),
        };
        let running = self.running();
        let done = running
            .runtime
            .block_on(running.plans.pay(paid, |_| Vec::new()));
        done.expect("is noted")
    }

    /// A signed transfer of the account, pending and valid for that many microseconds.
    pub(crate) fn sign(&mut self, lifetime: i64) {
        let now = self.provider.now();
        let row = AuthorizationRow {
            key: AuthorizationKey {
                network: Arc::from("eip155:8453"),
                asset: [1; 20],
                payer: [2; 20],
                nonce: [3; 32],
            },
            account: ACCOUNT,
            state: AuthorizationState::Settling,
            version: 0,
            digest: [0; 32],
            sealed: None,
            valid_before: now + lifetime,
            transaction: None,
            receipt: None,
            note: None,
            attempts: 0,
            next_attempt_at: None,
            created_at: now,
            updated_at: now,
        };
        let begun = AuthorizationRow {
            state: AuthorizationState::Seen,
            ..row.clone()
        };
        self.put(AuthorizationPart::Begin(begun));
        let row = AuthorizationRow { version: 1, ..row };
        self.put(AuthorizationPart::Send {
            row,
            subscription: None,
        });
    }

    /// Settles or refuses the pending transfer.
    pub(crate) fn clear(&mut self, settles: bool) {
        let open = self.running().store.authorization_open(ACCOUNT);
        let mut row = open.expect("readable").expect("one is under way");
        row.version += 1;
        row.state = match settles {
            true => AuthorizationState::Settled,
            false => AuthorizationState::Refused,
        };
        self.put(AuthorizationPart::Change(row));
    }

    fn put(&self, part: AuthorizationPart) {
        let running = self.running();
        let unit = UnitOfWork::of(Part::Authorization(Box::new(part)), Admission::Normal);
        let done = commit(&*running.store, unit);
        running.runtime.block_on(done).expect("is stored");
    }

    /// An operator's cancellation, outside the processor.
    pub(crate) fn leave(&mut self) -> Option<MandateRow> {
        let (rows, now) = (self.rows(), self.provider.now());
        let running = self.running();
        let left = running
            .runtime
            .block_on(request_cancellation(&running.plans, rows, now));
        left.expect("is stored")
    }

    pub(crate) fn row(&self, id: MandateId) -> MandateRow {
        let row = self.running().store.mandate(id).expect("readable");
        row.expect("a mandate")
    }

    pub(crate) fn rows(&self) -> Vec<MandateRow> {
        let rows = self.running().store.mandates_of(ACCOUNT, 1_000);
        rows.expect("readable")
    }

    pub(crate) fn state(&self) -> PlanState {
        let running = self.running();
        let state = running.runtime.block_on(running.plans.state(ACCOUNT));
        state.expect("readable")
    }

    pub(crate) fn payments(&self) -> Vec<PaymentRow> {
        let payments = self.running().store.payments_of(ACCOUNT, 1_000);
        payments.expect("readable")
    }

    pub(crate) fn count(&self, event: MandateEvent) -> u64 {
        self.running().processor.counters().get(event)
    }

    /// Reconciles while time passes, without faults.
    pub(crate) fn pass(&mut self, days: i64) {
        self.provider.faults([]);
        for _ in 0..days * 4 {
            self.run(|processor| async move { while processor.reconcile_due().await > 0 {} });
            self.provider.advance(DAY / 4);
        }
        self.run(|processor| async move { while processor.reconcile_due().await > 0 {} });
    }

    /// Invariant whenever nothing is pending: every charge that was kept bought a period, and every period was paid.
    pub(crate) fn check_books(&self) {
        let mut kept: Vec<String> = self.provider.kept().into_iter().map(|one| one.id).collect();
        let payments = self.payments();
        let mut bought: Vec<String> = payments
            .iter()
            .filter(|row| row.route == Route::PayPal && row.status == PaymentStatus::Paid)
            .map(|row| row.provider_ref.to_string())
            .collect();
        kept.sort();
        bought.sort();
        assert_eq!(
            kept, bought,
            "money that stayed equals periods that were given"
        );
        let report = audit(&*self.running().store).expect("readable");
        assert!(report.clean(), "the books balance: {report:?}");
        let paid = payments
            .iter()
            .filter(|row| row.status == PaymentStatus::Paid)
            .count() as i64;
        let available = self.running().ledger.available(ACCOUNT);
        assert_eq!(
            available.expect("an account").get(),
            paid * CREDITS,
            "each payment gave its credits once"
        );
    }
}
