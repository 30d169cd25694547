//! Test bed of mandates and checkouts: their processors over a process that can crash and be restarted.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tollgate_money::MandateId;
use tollgate_purchase::checkouts::{self, Checkouts};
use tollgate_purchase::mandates::{
    MandateDeps, MandateEvent, Mandates, OpenError, Urls, Verified, VerifyError,
    request_cancellation,
};
use tollgate_purchase::plan::{PayOutcome, PlanState, Question};
use tollgate_store::{
    AuthorizationPart, AuthorizationRow, AuthorizationState, MandateRow, PaymentRow, PaymentStatus,
    Route,
};

pub(crate) use crate::support::process::ACCOUNT;
use crate::support::process::{CREDITS, DAY, Disk, Process, signed_transfer, transfer};
use crate::support::recurring_provider::{FakeProvider, Fault, PLAN};

/// How long a checkout waits for its owner.
pub(crate) const CHECKOUT_LIFETIME: Duration = Duration::from_hours(6);

struct Running {
    process: Process,
    mandates: Mandates,
    checkouts: Checkouts,
}

/// The processors, the provider, and what survives a crash.
pub(crate) struct TestBed {
    pub(crate) provider: FakeProvider,
    disk: Disk,
    running: Option<Running>,
    plan: Option<String>,
    environment: String,
}

impl TestBed {
    pub(crate) fn new() -> TestBed {
        let mut bed = TestBed {
            provider: FakeProvider::new(),
            disk: Disk::new(),
            running: None,
            plan: Some(String::from(PLAN)),
            environment: String::from("test"),
        };
        bed.start();
        bed.process().create_account(ACCOUNT);
        bed
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    fn process(&self) -> &Process {
        &self.running().process
    }

    fn start_mandates(&self, process: &Process) -> Mandates {
        Mandates::new(MandateDeps {
            store: process.store.clone(),
            plans: process.plans.clone(),
            recurring: Arc::new(self.provider.clone()),
            plan_id: self.plan.clone(),
            environment: self.environment.clone(),
            clock: self.provider.gateway_clock(),
            draw: self.disk.draw(),
            runtime: process.tasks.clone(),
        })
    }

    fn start(&mut self) {
        let clock = self.provider.gateway_clock();
        let process = self.disk.start(clock.clone());
        let mandates = self.start_mandates(&process);
        let checkouts = Checkouts::new(checkouts::CheckoutDeps {
            store: process.store.clone(),
            plans: process.plans.clone(),
            mandates: Some(mandates.clone()),
            lifetime: CHECKOUT_LIFETIME,
            clock,
            draw: self.disk.draw(),
        });
        self.running = Some(Running {
            process,
            mandates,
            checkouts,
        });
    }

    /// Runs an operation on mandates; `None` when the process crashed in it, and was restarted.
    pub(crate) fn run<T, F: Future<Output = T>>(
        &mut self,
        operation: impl FnOnce(Mandates) -> F,
    ) -> Option<T> {
        let mandates = self.running().mandates.clone();
        self.run_until_crash(operation(mandates))
    }

    /// The same on checkouts.
    pub(crate) fn run_checkouts<T, F: Future<Output = T>>(
        &mut self,
        operation: impl FnOnce(Checkouts) -> F,
    ) -> Option<T> {
        let checkouts = self.running().checkouts.clone();
        self.run_until_crash(operation(checkouts))
    }

    /// Runs an operation on the mandates of another node, and something else while its call of this number waits for the provider.
    pub(crate) fn run_elsewhere<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &mut self,
        held: usize,
        operation: impl FnOnce(Mandates) -> F,
        meanwhile: impl FnOnce(&mut TestBed),
    ) -> T {
        let mut faults = vec![Fault::None; held];
        faults.push(Fault::Hold);
        self.provider.faults(faults);
        let process = self.process();
        let other = self.start_mandates(process);
        let running = process.runtime.spawn(operation(other));
        self.wait_for_held_call();
        meanwhile(self);
        self.provider.release();
        self.process().runtime.block_on(running).expect("it ends")
    }

    /// Waits until a call of another node waits for the provider.
    pub(crate) fn wait_for_held_call(&self) {
        self.process().runtime.block_on(async {
            let held = tokio::time::timeout(Duration::from_mins(1), self.provider.held());
            held.await.expect("the call is made");
        });
    }

    fn run_until_crash<T>(&mut self, operation: impl Future<Output = T>) -> Option<T> {
        let crashed = self.provider.crashed();
        let done = self.process().run_until_crash(&crashed, operation);
        if done.is_none() {
            self.crash();
        }
        done
    }

    /// Crashes the process, and restarts it.
    pub(crate) fn crash(&mut self) {
        self.running.take().expect("it runs").process.kill();
        self.start();
    }

    /// Removes the plan from the settings, and restarts the process.
    pub(crate) fn unplan(&mut self) {
        self.plan = None;
        self.crash();
    }

    /// Points the settings to another provider environment, and restarts the process.
    pub(crate) fn move_to(&mut self, environment: &str) {
        environment.clone_into(&mut self.environment);
        self.crash();
    }

    pub(crate) fn open(&mut self) -> Option<Result<MandateRow, OpenError>> {
        let urls = Urls {
            return_url: String::from("https://example.com/back/{mandate}"),
            cancel_url: String::from("https://example.com/left/{mandate}"),
        };
        self.run(|mandates| async move { mandates.open(ACCOUNT, urls).await })
    }

    /// An open mandate.
    pub(crate) fn opened(&mut self) -> MandateId {
        self.open().expect("alive").expect("is offered").id
    }

    /// Whether the plan is sold, as a page asks. A check that this has begun has ended on return.
    pub(crate) fn is_sold(&self) -> bool {
        let Running {
            process, mandates, ..
        } = self.running();
        process.runtime.block_on(async {
            let is_sold = mandates.is_sold().await;
            let ended = async {
                while process.tasks.running() > 0 {
                    tokio::task::yield_now().await;
                }
            };
            let ended = tokio::time::timeout(Duration::from_mins(1), ended).await;
            ended.expect("the check ends");
            is_sold
        })
    }

    pub(crate) fn verify(&mut self, id: MandateId) -> Option<Result<Verified, VerifyError>> {
        self.run(|mandates| async move { mandates.verify(id).await })
    }

    /// A paid mandate.
    pub(crate) fn paid(&mut self) -> MandateId {
        let id = self.opened();
        self.provider.approve(id);
        let verified = self.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
        id
    }

    /// A transfer over the other protocol.
    pub(crate) fn transfer(&mut self, name: &str) -> PayOutcome {
        self.process().pay(transfer(name, self.provider.now()))
    }

    /// A signed transfer of the account, pending and valid for that long.
    pub(crate) fn sign(&mut self, lifetime: Duration) {
        let now = self.provider.now();
        let seen = AuthorizationRow {
            created_at: now,
            updated_at: now,
            ..signed_transfer(AuthorizationState::Seen, now + lifetime)
        };
        let settling = AuthorizationRow {
            state: AuthorizationState::Settling,
            version: 1,
            ..seen.clone()
        };
        self.process().authorization(AuthorizationPart::Begin(seen));
        self.process().authorization(AuthorizationPart::Send {
            row: settling,
            subscription: None,
        });
    }

    /// Settles or refuses the pending transfer.
    pub(crate) fn clear(&mut self, settles: bool) {
        let open = self.process().store.authorization_open(ACCOUNT);
        let mut row = open.expect("readable").expect("one is pending");
        row.version += 1;
        row.state = match settles {
            true => AuthorizationState::Settled,
            false => AuthorizationState::Refused,
        };
        self.process().authorization(AuthorizationPart::Change(row));
    }

    /// An operator's cancellation, outside the processor.
    pub(crate) fn leave(&mut self) -> Option<MandateRow> {
        let (rows, now) = (self.rows(), self.provider.now());
        let process = self.process();
        let left =
            process
                .runtime
                .block_on(request_cancellation(&process.plans, rows, now, Vec::new()));
        left.expect("is stored")
    }

    pub(crate) fn row(&self, id: MandateId) -> MandateRow {
        let row = self.process().store.mandate(id).expect("readable");
        row.expect("a mandate")
    }

    pub(crate) fn rows(&self) -> Vec<MandateRow> {
        let rows = self.process().store.mandates_of(ACCOUNT, 1_000);
        rows.expect("readable")
    }

    pub(crate) fn state(&self) -> PlanState {
        let process = self.process();
        let state = process.runtime.block_on(process.plans.state(ACCOUNT));
        state.expect("readable")
    }

    /// Whether money may move, as another rail is answered.
    pub(crate) fn ask(&self) -> bool {
        self.ask_for(Question::Offer)
    }

    pub(crate) fn ask_for(&self, question: Question) -> bool {
        let process = self.process();
        let asked = (process.plans).state_across_rails(ACCOUNT, Route::X402, question);
        let state = process.runtime.block_on(asked);
        state.expect("readable").money_may_move()
    }

    /// Callers of another rail ask at once while the provider does not answer, and go away. Returns the tasks that they leave.
    pub(crate) fn ask_and_leave(&self, callers: usize) -> usize {
        let process = self.process();
        let reached = self.provider.crashed();
        process.runtime.block_on(async {
            let ask = |_| {
                let plans = process.plans.clone();
                tokio::spawn(async move {
                    plans
                        .state_across_rails(ACCOUNT, Route::X402, Question::Offer)
                        .await
                })
            };
            let asked: Vec<_> = (0..callers).map(ask).collect();
            reached.notified().await;
            // The others would ask now.
            for _ in 0..10_000 {
                tokio::task::yield_now().await;
            }
            for caller in asked {
                caller.abort();
                assert!(caller.await.is_err_and(|ended| ended.is_cancelled()));
            }
            process.tasks.running()
        })
    }

    pub(crate) fn payments(&self) -> Vec<PaymentRow> {
        let payments = self.process().store.payments_of(ACCOUNT, 1_000);
        payments.expect("readable")
    }

    pub(crate) fn count(&self, event: MandateEvent) -> u64 {
        self.running().mandates.counters().get(event)
    }

    fn reconcile_due(&mut self) {
        self.run(|mandates| async move { while mandates.reconcile_due().await > 0 {} });
    }

    /// Reconciles while time passes, without faults.
    pub(crate) fn pass(&mut self, days: u32) {
        self.provider.faults([]);
        for _ in 0..days * 4 {
            self.reconcile_due();
            self.provider.advance(DAY / 4);
        }
        self.reconcile_due();
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
            "money that was kept equals periods that were granted"
        );
        self.process().check_books();
        let paid = payments
            .iter()
            .filter(|row| row.status == PaymentStatus::Paid)
            .count() as i64;
        assert_eq!(
            self.process().available(),
            paid * CREDITS,
            "each payment granted its credits once"
        );
    }
}
