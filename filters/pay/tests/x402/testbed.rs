//! A processor whose process can crash at any call and be restarted, with a facilitator and a chain that have their own clocks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tollgate_evm::{Authorization, Nonce};
use tollgate_filter::{Clock, ManualClock};
use tollgate_ledger::Ledger;
use tollgate_ledger::audit::audit;
use tollgate_money::{AccountId, Micros, Usd};
use tollgate_pay::x402::{
    CallError, Facilitator, Node, Operation, Payment, Processor, PurchaseOutcome, PurchaseRequest,
    Response, Terms, X402Deps,
};
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::plan::{self, Paid, Period, Plan, Plans};
use tollgate_purchase::wire::Product;
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, AuthorizationState, CacheScope, NewAccount, Part, PaymentStatus, RootSecret, Route,
    Store, UnitOfWork, commit,
};
use tollgate_testing::facilitator::{
    Effect, Fault, MERCHANT, NETWORK, Operation as Call, merchant,
};
use tollgate_testing::wallet::encoded;
use tollgate_testing::{Facilitator as FakeFacilitator, TempDir, Wallet};

pub(crate) const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
pub(crate) const OTHER_ACCOUNT: AccountId = AccountId::from_bytes([2; 16]);

/// The second at which every test starts.
const START: u64 = 1_800_000_000;

/// When the process crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    /// Just before a call.
    Before(Operation),
    /// Just after a call was carried out, before its answer arrived.
    After(Operation),
}

/// The network to the facilitator and the node.
struct Wire {
    facilitator: Arc<FakeFacilitator>,
    crash: Arc<Mutex<Option<Crash>>>,
    crashed: Arc<Notify>,
}

impl Wire {
    async fn crash_at(&self, now: Crash) {
        let due = {
            let mut crash = self.crash.lock().expect("nobody panics while holding it");
            crash.take_if(|crash| *crash == now).is_some()
        };
        if due {
            self.crashed.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Facilitator for Wire {
    async fn call(&self, operation: Operation, body: Bytes) -> Result<Response, CallError> {
        self.crash_at(Crash::Before(operation)).await;
        let path = format!("/{}", operation.word());
        let said = self.facilitator.call(&path, &body).await;
        self.crash_at(Crash::After(operation)).await;
        let said = said.ok_or_else(|| CallError("cut".to_owned()))?;
        Ok(Response {
            status: said.status,
            body: said.body,
        })
    }
}

#[async_trait]
impl Node for Wire {
    async fn call(&self, request: &Value) -> Result<Value, CallError> {
        let said = self
            .facilitator
            .call("/rpc", request.to_string().as_bytes())
            .await;
        let said = said.ok_or_else(|| CallError("cut".to_owned()))?;
        serde_json::from_slice(&said.body).map_err(|_| CallError("no JSON".to_owned()))
    }
}

/// One run of the process.
struct Running {
    runtime: Runtime,
    store: Arc<dyn Store>,
    plans: Plans,
    processor: Processor,
    tasks: PurchaseTasks,
}

pub(crate) struct TestBed {
    pub(crate) facilitator: Arc<FakeFacilitator>,
    /// The world's time, which is the chain's; and ours, which may be wrong.
    world: ManualClock,
    chain_clock: Clock,
    gateway_time: ManualClock,
    clock: Clock,
    node: bool,
    wait: Duration,
    folder: TempDir,
    crash: Arc<Mutex<Option<Crash>>>,
    crashed: Arc<Notify>,
    random: Arc<AtomicU64>,
    running: Option<Running>,
    /// The runtime of the unused socket: calls bypass it.
    _outside: Runtime,
}

impl TestBed {
    pub(crate) fn new() -> TestBed {
        TestBed::with(true, Duration::from_secs(25))
    }

    /// Without a node: the facilitator is trusted.
    pub(crate) fn without_node() -> TestBed {
        TestBed::with(false, Duration::from_secs(25))
    }

    /// With this wait before a buyer is asked to retry.
    pub(crate) fn with_wait(wait: Duration) -> TestBed {
        TestBed::with(true, wait)
    }

    fn with(node: bool, wait: Duration) -> TestBed {
        let (chain_clock, world) = Clock::manual(START * 1_000_000);
        let (clock, gateway_time) = Clock::manual(START * 1_000_000);
        let outside = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let facilitator = outside.block_on(FakeFacilitator::start_at(chain_clock.clone()));
        let mut bed = TestBed {
            facilitator: Arc::new(facilitator),
            world,
            chain_clock,
            gateway_time,
            clock,
            node,
            wait,
            folder: tollgate_testing::tempdir().expect("a folder"),
            crash: Arc::default(),
            crashed: Arc::default(),
            random: Arc::default(),
            running: None,
            _outside: outside,
        };
        bed.start();
        for id in [ACCOUNT, OTHER_ACCOUNT] {
            let account = Part::CreateAccount(Box::new(NewAccount {
                id,
                class: Arc::from("free"),
                cache_scope: CacheScope::Shared,
                credit_limit: Micros::ZERO,
                created_at: 1,
            }));
            let running = bed.running();
            let made = commit(&*running.store, UnitOfWork::of(account, Admission::Normal));
            running.runtime.block_on(made).expect("an account");
        }
        bed
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    fn start(&mut self) {
        let now = self.clock.unix_micros();
        let options = Options {
            durability: Durability::Process,
            ..Options::new(now, RootSecret([7; 32]))
        };
        let path = self.folder.path().join("t.db");
        let store = sqlite::open(&path, options).expect("the store opens");
        let (ledger, _) = Ledger::start(store.clone(), now).expect("the books open");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let now = || {
            let clock = self.clock.clone();
            move || clock.unix_micros()
        };
        let random = self.random.clone();
        let plans = Plans::new(plan::PlanDeps {
            store: store.clone(),
            ledger,
            plan: Plan {
                product: Arc::from("svc-pro-monthly"),
                slug: Arc::from("svc-pro"),
                name: Arc::from("Pro"),
                class: Arc::from("pro"),
                monthly_credits: Micros::new(5_000_000),
                renewal_days: 7,
                device_slots: None,
                computer_use_tasks: None,
                features: Arc::default(),
            },
            now: Box::new(now()),
            draw: Box::new(move |out| {
                let number = random.fetch_add(1, Relaxed).to_be_bytes();
                let at = out.len() - number.len();
                out[at..].copy_from_slice(&number);
            }),
        });
        let wire = || Wire {
            facilitator: self.facilitator.clone(),
            crash: self.crash.clone(),
            crashed: self.crashed.clone(),
        };
        let tasks = PurchaseTasks::new(runtime.handle().clone());
        let processor = Processor::new(X402Deps {
            store: store.clone(),
            plans: plans.clone(),
            idempotency_keys: IdempotencyKeys::new(store.clone(), Box::new(now())),
            facilitator: Arc::new(wire()),
            node: self.node.then(|| Arc::new(wire()) as Arc<dyn Node>),
            terms: terms(),
            product: Product::new(plans.plan(), "https://api.example", "https://example"),
            clock: self.clock.clone(),
            wait: self.wait,
            confirm: Duration::ZERO,
            runtime: tasks.clone(),
        });
        self.running = Some(Running {
            runtime,
            store,
            plans,
            processor,
            tasks,
        });
    }

    /// The process is killed, and another one starts.
    pub(crate) fn restart(&mut self) {
        *self.crash.lock().expect("nobody panics while holding it") = None;
        let running = self.running.take().expect("it runs");
        running.runtime.shutdown_background();
        running.store.close();
        drop((running.processor, running.plans, running.store));
        self.start();
    }

    /// The process shuts down gracefully once its work in progress is done, and another one starts.
    pub(crate) fn drain_and_restart(&mut self) {
        let running = self.running();
        running.tasks.close();
        running.runtime.block_on(running.tasks.wait());
        self.restart();
    }

    /// From the next start on there is a node, or none.
    pub(crate) fn set_node(&mut self, node: bool) {
        self.node = node;
    }

    /// The processor's background loop runs, as in production, until the process ends.
    pub(crate) fn run(&self) {
        let running = self.running();
        let processor = running.processor.clone();
        running.runtime.spawn(async move { processor.run().await });
    }

    /// Waits for a condition; a test whose condition never holds is stopped.
    pub(crate) fn until(&self, is_so: impl Fn(&Processor) -> bool) {
        let running = self.running();
        running.runtime.block_on(async {
            let mut often = tokio::time::interval(Duration::from_millis(1));
            let waited = async {
                while !is_so(&running.processor) {
                    often.tick().await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(8), waited);
            waited.await.expect("it comes soon");
        });
    }

    /// A payment is presented under this idempotency key during its reconciliation; meanwhile something happens.
    pub(crate) fn present_during_reconciliation(
        &mut self,
        account: AccountId,
        payment: &Payment,
        name: &str,
        meanwhile: impl FnOnce(&TestBed),
    ) -> PurchaseOutcome {
        let gate = self.facilitator.gate();
        self.facilitator.fault(Fault::once(Call::Rpc, Effect::Hold));
        let running = self.running();
        let processor = running.processor.clone();
        let turn = running
            .runtime
            .spawn(async move { processor.reconcile_due().await });
        running.runtime.block_on(gate.reached_by(1));
        let processor = running.processor.clone();
        let request = PurchaseRequest {
            account,
            payment: Some(payment.clone()),
            idempotency_keys: vec![Arc::from(name)],
        };
        let mut asking = Box::pin(async move { processor.purchase(request).await });
        {
            let _guard = running.runtime.enter();
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(asking.as_mut().poll(&mut context).is_pending());
        }
        meanwhile(self);
        gate.open();
        let outcome = running.runtime.block_on(asking);
        let looked = running.runtime.block_on(turn).expect("it ends");
        assert_eq!(looked, 1, "the processor had looked first");
        outcome
    }

    /// The next process starts as in production: it reconciles open payments first.
    pub(crate) fn recover(&self) {
        let running = self.running();
        running.runtime.block_on(running.processor.recover());
    }

    /// The next one begins, and the node answers nothing of it before so many calls have come: how many have.
    pub(crate) fn recover_against_a_held_node(&self, calls: usize) -> u64 {
        let gate = self.facilitator.gate();
        let before = self.facilitator.calls(Call::Rpc);
        let hold = Fault::once(Call::Rpc, Effect::Hold);
        self.facilitator.fault(hold.times(1_000));
        let running = self.running();
        let processor = running.processor.clone();
        let recovery = running
            .runtime
            .spawn(async move { processor.recover().await });
        running.runtime.block_on(async {
            gate.reached_by(calls).await;
            // What is under way beside those gets its turns.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
        });
        let held = self.facilitator.calls(Call::Rpc) - before;
        gate.open();
        let recovered = running.runtime.block_on(recovery);
        recovered.expect("it ends");
        held
    }

    /// What is over is forgotten, as the processor does by itself.
    pub(crate) fn delete_expired(&self) {
        let running = self.running();
        running.runtime.block_on(running.processor.delete_expired());
    }

    /// The process dies the next time that this happens.
    pub(crate) fn crash(&self, crash: Crash) {
        *self.crash.lock().expect("nobody panics while holding it") = Some(crash);
    }

    /// Advances all clocks.
    pub(crate) fn advance(&self, secs: u64) {
        self.world.advance(Duration::from_secs(secs));
        self.gateway_time.advance(Duration::from_secs(secs));
    }

    /// Sets our clock off the world's by so many seconds.
    pub(crate) fn jump(&self, off: i64) {
        let right = self.chain_clock.unix_micros();
        self.gateway_time
            .jump_to((right + off * 1_000_000).unsigned_abs());
    }

    /// The current second.
    pub(crate) fn now(&self) -> u64 {
        (self.chain_clock.unix_micros() / 1_000_000).unsigned_abs()
    }

    /// A payment for the offer, signed now.
    pub(crate) fn payment(&self, wallet: &Wallet, nonce: u8) -> Payment {
        let payment = wallet.payment(&offer(), [nonce; 32], self.now());
        Payment::read(encoded(&payment).as_bytes()).expect("a payment")
    }

    /// The transfer of [`TestBed::payment`], for submission without the facilitator.
    pub(crate) fn transfer(&self, wallet: &Wallet, nonce: u8) -> Authorization {
        Authorization {
            from: wallet.address(),
            to: merchant(),
            value: 199_000_000.into(),
            valid_after: 0.into(),
            valid_before: (self.now() + 300).into(),
            nonce: Nonce([nonce; 32]),
        }
    }

    pub(crate) fn ask(&mut self, account: AccountId) -> Option<PurchaseOutcome> {
        self.request(account, None)
    }

    pub(crate) fn present(
        &mut self,
        account: AccountId,
        payment: &Payment,
    ) -> Option<PurchaseOutcome> {
        self.request(account, Some(payment.clone()))
    }

    /// The outcome of a request; `None` when the process crashes during it, which is then restarted.
    pub(crate) fn request(
        &mut self,
        account: AccountId,
        payment: Option<Payment>,
    ) -> Option<PurchaseOutcome> {
        let running = self.running();
        let (processor, crashed) = (running.processor.clone(), self.crashed.clone());
        let request = PurchaseRequest {
            account,
            payment,
            idempotency_keys: Vec::new(),
        };
        let outcome = running.runtime.block_on(async {
            tokio::select! {
                outcome = processor.purchase(request) => Some(outcome),
                () = crashed.notified() => None,
            }
        });
        if outcome.is_none() {
            self.restart();
        }
        outcome
    }

    /// The outcome of a request with an idempotency key.
    pub(crate) fn present_with_key(
        &self,
        account: AccountId,
        payment: &Payment,
        name: &str,
    ) -> PurchaseOutcome {
        let running = self.running();
        running
            .runtime
            .block_on(running.processor.purchase(PurchaseRequest {
                account,
                payment: Some(payment.clone()),
                idempotency_keys: vec![Arc::from(name)],
            }))
    }

    /// The same, and the client disconnects before the answer.
    pub(crate) fn present_and_disconnect(&self, account: AccountId, payment: &Payment) {
        let running = self.running();
        let request = PurchaseRequest {
            account,
            payment: Some(payment.clone()),
            idempotency_keys: Vec::new(),
        };
        let processor = running.processor.clone();
        let _guard = running.runtime.enter();
        // Polled once, which starts the detached attempt.
        let mut asking = Box::pin(async move { processor.purchase(request).await });
        let waker = std::task::Waker::noop();
        let _ = asking
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker));
    }

    /// The processor reconciles due payments, as its loop does.
    pub(crate) fn reconcile_due(&mut self) -> Option<usize> {
        let running = self.running();
        let (processor, crashed) = (running.processor.clone(), self.crashed.clone());
        let looked = running.runtime.block_on(async {
            tokio::select! {
                looked = processor.reconcile_due() => Some(looked),
                () = crashed.notified() => None,
            }
        });
        if looked.is_none() {
            self.restart();
        }
        looked
    }

    /// PayPal has charged an account.
    pub(crate) fn charged_by_paypal(&self, account: AccountId, days: i64) {
        let now = self.clock.unix_micros();
        let paid = Paid {
            account,
            route: Route::PayPal,
            payment: Arc::from("SALE-1"),
            reference: Arc::from("I-1"),
            amount: Usd::from_cents(19_900),
            period: Period::Until(now + days * 86_400_000_000),
            renews: true,
            receipt: None,
            at: now,
        };
        let running = self.running();
        let outcome = running
            .runtime
            .block_on(running.plans.pay(paid, |_| Vec::new()));
        outcome.expect("it is noted");
    }

    /// The number of an account's payments in the books that were not revoked.
    pub(crate) fn payments(&self, account: AccountId) -> usize {
        let rows = self.running().store.payments_of(account, 100);
        let rows = rows.expect("a read");
        let ours = rows.iter().filter(|row| row.route == Route::X402);
        ours.filter(|row| row.status == PaymentStatus::Paid).count()
    }

    pub(crate) fn transfers(&self) -> usize {
        self.facilitator.transfers().len()
    }

    /// Days until the end of the paid time; `None` for an account without the plan.
    pub(crate) fn days_left(&self, account: AccountId) -> Option<i64> {
        let row = self
            .running()
            .store
            .subscription(account)
            .expect("a read")?;
        let now = self.clock.unix_micros();
        row.is_active(now)
            .then(|| (row.period_end - now + 43_200_000_000) / 86_400_000_000)
    }

    /// The stored state of a payment.
    pub(crate) fn state(&self, payment: &Payment) -> Option<AuthorizationState> {
        let key = tollgate_store::AuthorizationKey {
            network: Arc::from(NETWORK),
            asset: terms().asset.address().0,
            payer: payment.authorization.from.0,
            nonce: payment.authorization.nonce.0,
        };
        let row = self.running().store.authorization(&key).expect("a read");
        row.map(|row| row.state)
    }

    pub(crate) fn has_open(&self) -> bool {
        let open = self.running().store.authorizations_open(None, 1);
        !open.expect("a read").is_empty()
    }

    pub(crate) fn check_books(&self) {
        let report = audit(&*self.running().store).expect("it can be read");
        assert!(report.violations.is_empty(), "{:?}", report.violations);
    }

    /// All bytes of the store's files.
    pub(crate) fn on_disk(&self) -> Vec<u8> {
        let entries = std::fs::read_dir(self.folder.path()).expect("the folder");
        let files = entries.map(|entry| entry.expect("an entry").path());
        files
            .flat_map(|file| std::fs::read(file).expect("a file"))
            .collect()
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.runtime.shutdown_background();
            running.store.close();
        }
    }
}

fn terms() -> Terms {
    Terms {
        network: NETWORK.to_owned(),
        asset: "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
            .parse()
            .expect("an address"),
        asset_name: "USD Coin".to_owned(),
        asset_version: "2".to_owned(),
        amount: 199_000_000.into(),
        pay_to: MERCHANT.parse().expect("an address"),
        max_timeout_secs: 300,
    }
}

pub(crate) fn offer() -> Value {
    json!({
        "x402Version": 2, "resource": {"url": "https://api.example/commerce/subscriptions/svc-pro/x402"},
        "accepts": [{
            "scheme": "exact", "network": NETWORK, "amount": "199000000", "asset": terms().asset.to_string(), "payTo": MERCHANT,
            "maxTimeoutSeconds": 300, "extra": {"name": "USD Coin", "version": "2"},
        }],
    })
}
