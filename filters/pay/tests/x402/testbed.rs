//! Test bed of the x402 processor: its process can crash at any call and be restarted; the facilitator and the chain have a clock of their
//! own.

use std::error::Error;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_evm::{Authorization, Nonce};
use tollgate_module::Snapshot;
use tollgate_money::{AccountId, Usd};
use tollgate_pay::x402::{
    CallError, Facilitator, Node, Operation, Payment, Processor, PurchaseOutcome, PurchaseRequest,
    Response, Terms, TokenCheck, X402Deps, X402Event,
};
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::plan::{Paid, Period, PlanProtocols, PlanState, Question, Rail};
use tollgate_purchase::wire::Product;
use tollgate_store::{AuthorizationKey, AuthorizationState, PaymentStatus, Route};
use tollgate_testing::facilitator::{
    Effect, Fault, MERCHANT, NETWORK, Operation as Call, merchant,
};
use tollgate_testing::wallet::encoded;
use tollgate_testing::{Facilitator as FakeFacilitator, Gate, Wallet};

use crate::support::process::{ACCOUNT, DAY, Disk, OTHER_ACCOUNT, Process, START};

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
    /// Where calls of `/settle` wait before they reach the facilitator.
    delay: Option<Gate>,
}

impl Wire {
    async fn crash_at(&self, now: Crash) {
        let due = {
            let mut crash = self.crash.lock().expect("no code panics while holding it");
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
        if let (Operation::Settle, Some(gate)) = (operation, &self.delay) {
            gate.pass().await;
        }
        let path = format!("/{}", operation.word());
        let answer = self.facilitator.call(&path, &body).await;
        self.crash_at(Crash::After(operation)).await;
        let answer = answer.ok_or_else(|| CallError("cut".to_owned()))?;
        Ok(Response {
            status: answer.status,
            body: answer.body,
        })
    }
}

#[async_trait]
impl Node for Wire {
    async fn call(&self, request: &Value) -> Result<Value, CallError> {
        let answer = self
            .facilitator
            .call("/rpc", request.to_string().as_bytes())
            .await;
        let answer = answer.ok_or_else(|| CallError("cut".to_owned()))?;
        serde_json::from_slice(&answer.body).map_err(|_| CallError("no JSON".to_owned()))
    }
}

/// The processor, the facilitator with its chain, and what survives a crash.
pub(crate) struct TestBed {
    pub(crate) facilitator: Arc<FakeFacilitator>,
    /// The chain's time, and the gateway's, which may be wrong.
    chain_time: ManualClock,
    chain_clock: Clock,
    gateway_time: ManualClock,
    clock: Clock,
    node: bool,
    is_one_of_several: bool,
    wait: Duration,
    /// The check of the token, which every process of the bed shares.
    token: TokenCheck,
    disk: Disk,
    crash: Arc<Mutex<Option<Crash>>>,
    crashed: Arc<Notify>,
    running: Option<(Process, Processor)>,
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

    /// One of several nodes, without a node of the chain.
    pub(crate) fn of_several() -> TestBed {
        let mut bed = TestBed::without_node();
        bed.is_one_of_several = true;
        bed.restart();
        bed
    }

    /// With this wait before a buyer is asked to retry.
    pub(crate) fn with_wait(wait: Duration) -> TestBed {
        TestBed::with(true, wait)
    }

    fn with(node: bool, wait: Duration) -> TestBed {
        let (chain_clock, chain_time) = Clock::manual(START);
        let (clock, gateway_time) = Clock::manual(START);
        let outside = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let facilitator = outside.block_on(FakeFacilitator::start_at(chain_clock.clone()));
        let facilitator = Arc::new(facilitator);
        let wire = Wire {
            facilitator: facilitator.clone(),
            crash: Arc::default(),
            crashed: Arc::default(),
            delay: None,
        };
        let token = TokenCheck::new(Some(Arc::new(wire)), &terms());
        outside.block_on(token.check());
        let mut bed = TestBed {
            facilitator,
            chain_time,
            chain_clock,
            gateway_time,
            clock,
            node,
            is_one_of_several: false,
            wait,
            token,
            disk: Disk::new(),
            crash: Arc::default(),
            crashed: Arc::default(),
            running: None,
            _outside: outside,
        };
        bed.start();
        for id in [ACCOUNT, OTHER_ACCOUNT] {
            bed.process().create_account(id);
        }
        bed
    }

    fn process(&self) -> &Process {
        &self.running.as_ref().expect("it runs").0
    }

    fn processor(&self) -> &Processor {
        &self.running.as_ref().expect("it runs").1
    }

    fn start(&mut self) {
        let process = self.disk.start(self.clock.clone());
        let processor = self.start_processor(&process, None);
        self.running = Some((process, processor));
    }

    /// A processor over the store of a process.
    fn start_processor(&self, process: &Process, delay: Option<&Gate>) -> Processor {
        let wire = || Wire {
            facilitator: self.facilitator.clone(),
            crash: self.crash.clone(),
            crashed: self.crashed.clone(),
            delay: delay.cloned(),
        };
        let plan = process.plans.plan();
        Processor::new(X402Deps {
            store: process.store.clone(),
            plans: process.plans.clone(),
            idempotency_keys: IdempotencyKeys::new(process.store.clone(), self.clock.clone()),
            facilitator: Arc::new(wire()),
            node: self.node.then(|| Arc::new(wire()) as Arc<dyn Node>),
            // Verified once: reads of the token would take the faults that a test scripts for other reads.
            token: self.token.clone(),
            terms: terms(),
            product: Snapshot::from(Product::new(
                plan,
                None,
                "https://api.example",
                PlanProtocols::ALL,
            )),
            clock: self.clock.clone(),
            is_one_of_several: self.is_one_of_several,
            wait: self.wait,
            confirm: Duration::ZERO,
            runtime: process.tasks.clone(),
        })
    }

    /// Presents a payment at another node, whose call of `/settle` is delayed by the gate, if there is one.
    pub(crate) fn present_elsewhere(
        &self,
        payment: &Payment,
        delay: Option<&Gate>,
    ) -> JoinHandle<PurchaseOutcome> {
        self.purchase_elsewhere(request(ACCOUNT, Some(payment), None), delay)
    }

    /// The same, under an idempotency key.
    pub(crate) fn present_elsewhere_with_key(
        &self,
        payment: &Payment,
        key: &str,
    ) -> JoinHandle<PurchaseOutcome> {
        self.purchase_elsewhere(request(ACCOUNT, Some(payment), Some(key)), None)
    }

    fn purchase_elsewhere(
        &self,
        request: PurchaseRequest,
        delay: Option<&Gate>,
    ) -> JoinHandle<PurchaseOutcome> {
        let process = self.process();
        let other = self.start_processor(process, delay);
        process
            .runtime
            .spawn(async move { other.purchase(request).await })
    }

    /// Waits until so many calls have reached a gate.
    pub(crate) fn reached(&self, gate: &Gate, calls: usize) {
        self.block_on(gate.reached_by(calls));
    }

    /// The outcome of a request that was made at another node.
    pub(crate) fn end(&self, presented: JoinHandle<PurchaseOutcome>) -> PurchaseOutcome {
        self.block_on(presented).expect("it ends")
    }

    /// Kills the process, and starts another one.
    pub(crate) fn restart(&mut self) {
        *self.crash.lock().expect("no code panics while holding it") = None;
        let (process, _) = self.running.take().expect("it runs");
        process.kill();
        self.start();
    }

    /// The process shuts down gracefully once its work in progress is done, and another one starts.
    pub(crate) fn drain_and_restart(&mut self) {
        let process = self.process();
        process.tasks.close();
        process.runtime.block_on(process.tasks.wait());
        self.restart();
    }

    /// From the next start on there is a node, or none.
    pub(crate) fn set_node(&mut self, node: bool) {
        self.node = node;
    }

    fn block_on<T>(&self, operation: impl Future<Output = T>) -> T {
        self.process().runtime.block_on(operation)
    }

    /// Runs an operation of the processor in a task of its own.
    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        operation: impl FnOnce(Processor) -> F,
    ) -> JoinHandle<T> {
        let operation = operation(self.processor().clone());
        self.process().runtime.spawn(operation)
    }

    /// Runs an operation of the processor; `None` when the process crashed in it, and was restarted.
    fn run_until_crash<T, F: Future<Output = T>>(
        &mut self,
        operation: impl FnOnce(Processor) -> F,
    ) -> Option<T> {
        let operation = operation(self.processor().clone());
        let done = self.process().run_until_crash(&self.crashed, operation);
        if done.is_none() {
            self.restart();
        }
        done
    }

    /// Starts the background loop of the processor, which runs until the process ends.
    pub(crate) fn run(&self) {
        self.spawn(|processor| async move {
            tokio::join!(processor.run(), processor.run_checks());
        });
    }

    /// Waits for a condition; a test whose condition never holds is stopped.
    pub(crate) fn until(&self, holds: impl Fn(&Processor) -> bool) {
        self.block_on(async {
            let mut interval = tokio::time::interval(Duration::from_millis(1));
            let waited = async {
                while !holds(self.processor()) {
                    interval.tick().await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(240), waited);
            waited.await.expect("the condition holds soon");
        });
    }

    /// Presents a payment under an idempotency key during its reconciliation; meanwhile something happens.
    pub(crate) fn present_during_reconciliation(
        &mut self,
        payment: &Payment,
        key: &str,
        meanwhile: impl FnOnce(&TestBed),
    ) -> PurchaseOutcome {
        let gate = self.facilitator.gate();
        self.facilitator.fault(Fault::once(Call::Rpc, Effect::Hold));
        let reconciliation = self.spawn(|processor| async move { processor.reconcile_due().await });
        self.block_on(gate.reached_by(1));
        let request = request(ACCOUNT, Some(payment), Some(key));
        let mut presented = Box::pin(self.processor().purchase(request));
        assert!(self.poll_once(presented.as_mut()).is_pending());
        meanwhile(self);
        gate.open();
        let outcome = self.block_on(presented);
        let reconciled = self.block_on(reconciliation).expect("it ends");
        assert_eq!(reconciled, 1, "the reconciliation came first");
        outcome
    }

    fn poll_once<T>(&self, operation: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        let _guard = self.process().runtime.enter();
        operation.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Reconciles all payments that the earlier process left open, as the start of the background loop does.
    pub(crate) fn recover(&self) {
        self.block_on(self.processor().recover());
    }

    /// The same, against a node that answers nothing before `calls` calls are held; returns how many are held then.
    pub(crate) fn recover_against_a_held_node(&self, calls: usize) -> u64 {
        let gate = self.facilitator.gate();
        let before = self.facilitator.calls(Call::Rpc);
        let hold = Fault::once(Call::Rpc, Effect::Hold);
        self.facilitator.fault(hold.times(1_000));
        let recovery = self.spawn(|processor| async move { processor.recover().await });
        self.block_on(async {
            gate.reached_by(calls).await;
            // Calls beyond those would be made now.
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
        });
        let held = self.facilitator.calls(Call::Rpc) - before;
        gate.open();
        self.block_on(recovery).expect("it ends");
        held
    }

    /// Deletes expired payments, as the background loop does.
    pub(crate) fn delete_expired(&self) {
        self.block_on(self.processor().delete_expired());
    }

    /// The process crashes the next time that it is here.
    pub(crate) fn crash(&self, crash: Crash) {
        *self.crash.lock().expect("no code panics while holding it") = Some(crash);
    }

    /// Advances all clocks.
    pub(crate) fn advance(&self, secs: u64) {
        self.chain_time.advance(Duration::from_secs(secs));
        self.gateway_time.advance(Duration::from_secs(secs));
    }

    /// Sets the gateway's clock off the chain's by so many seconds.
    pub(crate) fn jump(&self, off: i64) {
        let right = self.chain_clock.now().as_secs();
        self.gateway_time.jump_to(Timestamp::from_secs(right + off));
    }

    /// The current second.
    pub(crate) fn now(&self) -> u64 {
        self.chain_clock.now().as_secs().unsigned_abs()
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

    /// A request without a payment.
    pub(crate) fn ask(&mut self, account: AccountId) -> Option<PurchaseOutcome> {
        self.purchase(request(account, None, None))
    }

    pub(crate) fn present(
        &mut self,
        account: AccountId,
        payment: &Payment,
    ) -> Option<PurchaseOutcome> {
        self.purchase(request(account, Some(payment), None))
    }

    fn purchase(&mut self, request: PurchaseRequest) -> Option<PurchaseOutcome> {
        self.run_until_crash(|processor| async move { processor.purchase(request).await })
    }

    /// The state of an account as another rail reads it before it offers or takes a payment.
    pub(crate) fn ask_from_paypal(&self, account: AccountId) -> PlanState {
        let plans = self.process().plans.clone();
        let state = self.block_on(async move {
            plans
                .state_across_rails(account, Route::PayPal, Question::Offer)
                .await
        });
        state.expect("a read")
    }

    /// Adds a rail that never answers, for as long as the result is kept.
    pub(crate) fn add_silent_rail(&self) -> Arc<dyn Rail> {
        let rail: Arc<dyn Rail> = Arc::new(SilentRail);
        self.process().plans.add_rail(&rail);
        rail
    }

    /// Adds a rail on which every account has a purchase open, for as long as the result is kept.
    pub(crate) fn add_open_rail(&self) -> Arc<dyn Rail> {
        let rail: Arc<dyn Rail> = Arc::new(OpenRail);
        self.process().plans.add_rail(&rail);
        rail
    }

    /// Presents a payment under an idempotency key.
    pub(crate) fn present_with_key(&self, payment: &Payment, key: &str) -> PurchaseOutcome {
        let request = request(ACCOUNT, Some(payment), Some(key));
        self.block_on(self.processor().purchase(request))
    }

    /// Presents a payment whose call is held, and has another rail ask meanwhile.
    pub(crate) fn ask_from_paypal_during_submission(&self, payment: &Payment) -> PlanState {
        let gate = self.facilitator.gate();
        self.facilitator
            .fault(Fault::once(Call::Settle, Effect::Hold));
        let request = request(ACCOUNT, Some(payment), None);
        let presented = self.spawn(|processor| async move { processor.purchase(request).await });
        self.block_on(gate.reached_by(1));
        let state = self.ask_from_paypal(ACCOUNT);
        gate.open();
        self.block_on(presented).expect("it ends");
        state
    }

    /// Presents a payment; `None` without an answer within this time.
    pub(crate) fn present_within(
        &self,
        payment: &Payment,
        time: Duration,
    ) -> Option<PurchaseOutcome> {
        let request = request(ACCOUNT, Some(payment), None);
        self.block_on(async {
            let presented = self.processor().purchase(request);
            tokio::time::timeout(time, presented).await.ok()
        })
    }

    /// Presents a payment, and disconnects before the answer.
    pub(crate) fn present_and_disconnect(&self, payment: &Payment) {
        let request = request(ACCOUNT, Some(payment), None);
        // Polled once, which starts the detached attempt.
        let presented = pin!(self.processor().purchase(request));
        let _ = self.poll_once(presented);
    }

    /// Reconciles due payments, as the background loop does.
    pub(crate) fn reconcile_due(&mut self) -> Option<usize> {
        self.run_until_crash(|processor| async move { processor.reconcile_due().await })
    }

    /// PayPal has charged an account.
    pub(crate) fn charged_by_paypal(&self, account: AccountId, days: u32) {
        let now = self.clock.now();
        let paid = Paid {
            account,
            route: Route::PayPal,
            payment: Arc::from("SALE-1"),
            reference: Arc::from("I-1"),
            amount: Usd::from_cents(19_900),
            period: Period::Until(now + days * DAY),
            renews: true,
            receipt: None,
            at: now,
        };
        self.process().pay(paid);
    }

    /// The number of an account's payments in the books that were not revoked.
    pub(crate) fn payments(&self, account: AccountId) -> usize {
        let rows = self.process().store.payments_of(account, 100);
        let rows = rows.expect("a read");
        let ours = rows.iter().filter(|row| row.route == Route::X402);
        ours.filter(|row| row.status == PaymentStatus::Paid).count()
    }

    pub(crate) fn transfers(&self) -> usize {
        self.facilitator.transfers().len()
    }

    /// Days until the end of the paid time; `None` for an account without the plan.
    pub(crate) fn days_left(&self, account: AccountId) -> Option<u64> {
        let row = self.process().store.subscription(account);
        let row = row.expect("a read")?;
        let now = self.clock.now();
        row.is_active(now).then(|| {
            let left = row.period_end.duration_since(now) + DAY / 2;
            left.as_secs() / DAY.as_secs()
        })
    }

    /// The stored state of a payment.
    pub(crate) fn state(&self, payment: &Payment) -> Option<AuthorizationState> {
        let key = AuthorizationKey {
            network: Arc::from(NETWORK),
            asset: terms().asset.address().0,
            payer: payment.authorization.from.0,
            nonce: payment.authorization.nonce.0,
        };
        let row = self.process().store.authorization(&key).expect("a read");
        row.map(|row| row.state)
    }

    /// The attempts of an account's open payment, and when it is due.
    pub(crate) fn schedule(&self, account: AccountId) -> (u32, Option<Timestamp>) {
        let row = self.process().store.authorization_open(account);
        let row = row.expect("a read").expect("one is open");
        (row.attempts, row.next_attempt_at)
    }

    pub(crate) fn count(&self, event: X402Event) -> u64 {
        self.processor().counters().get(event)
    }

    pub(crate) fn has_open(&self) -> bool {
        let open = self.process().store.authorizations_open(None, 1);
        !open.expect("a read").is_empty()
    }

    pub(crate) fn check_books(&self) {
        self.process().check_books();
    }

    /// All bytes of the store's files.
    pub(crate) fn on_disk(&self) -> Vec<u8> {
        let entries = std::fs::read_dir(self.disk.path()).expect("the folder");
        let files = entries.map(|entry| entry.expect("an entry").path());
        files
            .flat_map(|file| std::fs::read(file).expect("a file"))
            .collect()
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        if let Some((process, _)) = self.running.take() {
            process.kill();
        }
    }
}

fn request(account: AccountId, payment: Option<&Payment>, key: Option<&str>) -> PurchaseRequest {
    PurchaseRequest {
        account,
        payment: payment.cloned(),
        idempotency_keys: key.into_iter().map(Arc::from).collect(),
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

/// A rail on which every account has a purchase open.
struct OpenRail;

#[async_trait]
impl Rail for OpenRail {
    fn route(&self) -> Route {
        Route::PayPal
    }

    async fn has_open(
        &self,
        _: AccountId,
        _: Question,
    ) -> Result<bool, Box<dyn Error + Send + Sync>> {
        Ok(true)
    }
}

/// A rail that cannot be read.
struct SilentRail;

#[async_trait]
impl Rail for SilentRail {
    fn route(&self) -> Route {
        Route::PayPal
    }

    async fn has_open(
        &self,
        _: AccountId,
        _: Question,
    ) -> Result<bool, Box<dyn Error + Send + Sync>> {
        std::future::pending().await
    }
}
