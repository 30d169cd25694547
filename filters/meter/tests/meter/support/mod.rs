//! A minimal gateway: a real ledger, the real driver, and test doubles for everything around the meter.

mod client;
mod ledger;
mod provider;
mod reader;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method};
use tollgate_chain::run::Run;
use tollgate_chain::{Chain, Limits, Observer, Route, drive};
use tollgate_filter::{
    AfterLeaving, Charge, ClientAddress, CredentialKind, Ending, ErrorShape, Exchange, ModelAccess,
    Principal, Protocol, Record, Request, Scopes,
};
use tollgate_meter::{Meter, MeterCounters, MeterSettings};
use tollgate_money::{AccountId, CredentialId, OperationId};

pub(crate) use client::{Client, Leaves};
pub(crate) use ledger::LedgerFixture;
pub(crate) use provider::{Provider, Step};
use reader::Reader;
pub(crate) use reader::{Panics, model};

/// Capacity of the store's queue, in units.
const QUEUE_MAX: usize = 1_024;

/// The page for adding credits.
pub(crate) const TOPUP_URL: &str = "https://toll.example/credits";

/// A route with the meter on it, and one account.
pub(crate) struct Gateway {
    pub(crate) fixture: LedgerFixture,
    pub(crate) account: AccountId,
    route: Route,
    drain: Duration,
    counters: Arc<MeterCounters>,
    next: std::sync::atomic::AtomicU64,
}

/// The outcome of one request.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) client: Client,
    pub(crate) record: Record,
    pub(crate) charge: Option<Charge>,
    /// The cap that was written into the request.
    pub(crate) cap: Option<u64>,
    pub(crate) operation: OperationId,
}

#[derive(Default)]
struct Seen(std::sync::Mutex<Option<(Ending, Record, Option<Charge>)>>);

impl Observer for Seen {
    fn ended(&self, exchange: &Exchange, ending: Ending) {
        let seen = (ending, exchange.record.clone(), exchange.get().copied());
        let before = self
            .0
            .lock()
            .expect("no panic under the lock")
            .replace(seen);
        assert!(before.is_none(), "an exchange ends once");
    }
}

impl Gateway {
    /// A gateway over a new ledger, with an account that has `credits` micro-credits.
    pub(crate) async fn new(credits: i64) -> Gateway {
        Gateway::with(credits, MeterSettings::default(), 0).await
    }

    /// The same with other settings, and an account with a credit limit of `limit` micro-credits.
    pub(crate) async fn with(credits: i64, settings: MeterSettings, limit: i64) -> Gateway {
        let fixture = LedgerFixture::open(QUEUE_MAX);
        let account = fixture.account(credits, limit).await;
        Gateway::over(fixture, account, settings)
    }

    /// The same over a ledger whose queue is full when `queue_max` units wait.
    pub(crate) async fn with_queue(credits: i64, queue_max: usize) -> Gateway {
        let fixture = LedgerFixture::open(QUEUE_MAX);
        let account = fixture.account(credits, 0).await;
        let fixture = fixture.reopen(queue_max);
        Gateway::over(fixture, account, MeterSettings::default())
    }

    /// The same after a restart.
    pub(crate) fn reopen(self) -> Gateway {
        drop(self.route);
        let fixture = self.fixture.reopen(QUEUE_MAX);
        Gateway {
            next: self.next,
            ..Gateway::over(fixture, self.account, MeterSettings::default())
        }
    }

    fn over(fixture: LedgerFixture, account: AccountId, settings: MeterSettings) -> Gateway {
        let meter = Meter::new(
            settings,
            fixture.ledger().clone(),
            fixture.clock.clone(),
            TOPUP_URL,
        );
        let counters = meter.counters();
        Gateway {
            fixture,
            account,
            route: Route {
                name: "/v1/chat/completions".into(),
                chain: Chain::new(vec![Arc::new(Reader), Arc::new(meter)]),
                body_bytes_max: 1 << 20,
                errors: ErrorShape::Envelope,
            },
            drain: Duration::from_secs(3),
            counters,
            next: std::sync::atomic::AtomicU64::new(1),
        }
    }

    pub(crate) fn counters(&self) -> &MeterCounters {
        &self.counters
    }

    /// Sends one request and waits for its end.
    pub(crate) async fn send(&self, body: &str, client: Client, provider: Provider) -> Outcome {
        self.send_for(body, client, provider, model()).await
    }

    pub(crate) async fn send_for(
        &self,
        body: &str,
        mut client: Client,
        provider: Provider,
        model: Arc<tollgate_filter::Model>,
    ) -> Outcome {
        client.body = body.to_owned().into();
        client.observed_account = Some((self.fixture.ledger().clone(), self.account));
        let exchange = self.exchange(&provider, model);
        let operation = exchange.request.id;
        let seen = Seen::default();
        let mut run = Run::new(exchange, &self.route.chain, &seen);
        let limits = Limits {
            memory: tollgate_memory::MemoryBudget::new(1 << 30),
            answer_bytes_max: 1 << 20,
            event_bytes_max: 1 << 20,
            drain: self.drain,
            after_leaving: AfterLeaving::Drain,
            keep_alive: Duration::from_secs(3_600),
        };
        drive(
            &self.route,
            &mut run,
            &mut client,
            &provider,
            &self.fixture.clock,
            &limits,
        )
        .await;
        drop(run);
        let seen = seen.0.into_inner().expect("no panic under the lock");
        let (ending, record, charge) = seen.expect("an exchange has an end");
        Outcome {
            ending,
            client,
            record,
            charge,
            cap: provider.cap(),
            operation,
        }
    }

    fn exchange(&self, provider: &Provider, model: Arc<tollgate_filter::Model>) -> Exchange {
        let number = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut exchange = Exchange::new(Request {
            id: OperationId::from_parts(number, [0; 10]),
            method: Method::POST,
            path: "/v1/chat/completions".into(),
            query: None,
            headers: HeaderMap::new(),
            body: bytes::Bytes::new(),
            client: ClientAddress::direct(std::net::Ipv4Addr::LOCALHOST.into()),
            tls: false,
            protocol: Protocol::Http11,
        });
        exchange.put(Principal {
            account: self.account,
            credential: CredentialId::from_bytes([7; 16]),
            kind: CredentialKind::ApiKey,
            scopes: Scopes::API,
            class: "free".into(),
            models: ModelAccess::All,
            sharing: tollgate_filter::CacheSharing::Shared,
            spending_cap: None,
        });
        exchange.put(model);
        exchange.put(provider.caps());
        exchange
    }
}
