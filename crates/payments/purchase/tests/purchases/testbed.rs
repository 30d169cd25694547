//! Test bed of top-ups: their processor over a process that can crash and be restarted.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Deadline, Timestamp};
use tollgate_ledger::{Hold, HoldRequest};
use tollgate_money::{Micros, OperationId, TopUpId, Usd};
use tollgate_purchase::{BeginError, Offer, PurchaseRequest, TopUpDeps, TopUpEvent, TopUps};
use tollgate_store::TopUpRow;

use crate::provider::FakeProvider;
pub(crate) use crate::support::process::ACCOUNT;
use crate::support::process::{Disk, Process};

pub(crate) const PRICE: Usd = Usd::from_cents(2_000);
pub(crate) const CREDITS: i64 = 2_000_000_000;

/// The processor, the provider, and what survives a crash.
pub(crate) struct TestBed {
    pub(crate) provider: FakeProvider,
    disk: Disk,
    offer: Option<Offer>,
    running: Option<(Process, TopUps)>,
    holds: Vec<Hold>,
}

impl TestBed {
    pub(crate) fn new() -> TestBed {
        let mut bed = TestBed {
            provider: FakeProvider::new(),
            disk: Disk::new(),
            offer: Some(Offer {
                micro_dollars_per_credit: 10_000,
                amounts: vec![PRICE],
                min: Usd::from_cents(500),
                max: Usd::from_cents(50_000),
            }),
            running: None,
            holds: Vec::new(),
        };
        bed.start();
        bed.process().create_account(ACCOUNT);
        bed
    }

    fn running(&self) -> &(Process, TopUps) {
        self.running.as_ref().expect("it runs")
    }

    fn process(&self) -> &Process {
        &self.running().0
    }

    fn start(&mut self) {
        let clock = &self.provider.clock;
        let process = self.disk.start(clock.clone());
        let processor = TopUps::new(TopUpDeps {
            store: process.store.clone(),
            ledger: process.ledger.clone(),
            orders: Arc::new(self.provider.clone()),
            environment: String::from("test"),
            offer: self.offer.clone(),
            description: String::from("Credits"),
            clock: clock.clone(),
            draw: self.disk.draw(),
            runtime: process.tasks.clone(),
        });
        self.running = Some((process, processor));
    }

    /// Runs an operation; `None` when the process crashed in it, and was restarted.
    pub(crate) fn run<T, F: Future<Output = T>>(
        &mut self,
        operation: impl FnOnce(TopUps) -> F,
    ) -> Option<T> {
        let crashed = self.provider.crashed();
        let (process, processor) = self.running();
        let done = process.run_until_crash(&crashed, operation(processor.clone()));
        if done.is_none() {
            self.crash();
        }
        done
    }

    /// Crashes the process, and restarts it.
    pub(crate) fn crash(&mut self) {
        // Holds are in memory only.
        self.holds.clear();
        let (process, _) = self.running.take().expect("it runs");
        process.kill();
        self.start();
    }

    /// Removes the price of credits from the settings, and restarts the process.
    pub(crate) fn unprice(&mut self) {
        self.offer = None;
        self.crash();
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
        self.process().store.top_up(id).expect("readable")
    }

    pub(crate) fn available(&self) -> i64 {
        self.process().available()
    }

    pub(crate) fn count(&self, event: TopUpEvent) -> u64 {
        self.running().1.counters().get(event)
    }

    /// Holds credit until [`TestBed::release`]; nothing for zero.
    pub(crate) fn hold(&mut self, micros: i64) {
        if micros == 0 {
            return;
        }
        let number = self.disk.number().to_be_bytes();
        let mut random = [0; 10];
        random[..number.len()].copy_from_slice(&number);
        let hold = self
            .process()
            .ledger
            .hold(
                HoldRequest {
                    operation: OperationId::from_parts(3, random),
                    account: ACCOUNT,
                    amount: Micros::new(micros),
                    price_version: None,
                    at: Timestamp::from_micros(1),
                    deadline: Deadline::after(Duration::ZERO, Duration::MAX),
                    expires_at: Timestamp::MAX,
                    is_written: false,
                },
                |_| None,
            )
            .now()
            .expect("it is alone");
        self.holds.push(hold.expect("there is enough"));
    }

    /// Releases the last hold.
    pub(crate) fn release_one(&mut self) {
        drop(self.holds.pop());
    }

    /// Releases every hold.
    pub(crate) fn release(&mut self) {
        self.holds.clear();
    }

    /// Spends credit, as usage would.
    pub(crate) fn spend(&self, micros: i64) {
        let process = self.process();
        let credit = tollgate_ledger::Credit {
            operation: OperationId::from_parts(2, [self.disk.number() as u8; 10]),
            account: ACCOUNT,
            amount: Micros::new(-micros),
            reference: Arc::from(format!("spent {}", self.disk.number())),
            at: Timestamp::from_micros(1),
        };
        let spent = process.runtime.block_on(process.ledger.correct(credit));
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
        self.process().check_books();
    }
}
