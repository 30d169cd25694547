//! Test bed of the MPP route: the filter over a process that can crash and be restarted.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use tollgate_clock::{Entropy, Timestamp};
use tollgate_filter::{
    CacheSharing, ClientAddress, CredentialKind, Exchange, Filter, ModelAccess, Outcome,
    PaymentCredential, PaymentField, Principal, Protocol, ReplyBody, Request, Scope, Scopes,
};
use tollgate_module::Snapshot;
use tollgate_money::{AccountId, CredentialId, OperationId};
use tollgate_pay::mpp::{MppDeps, Processor, Secrets, Settings};
use tollgate_pay::{Pay, PaymentProtocols};
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::mandates::{MandateDeps, Mandates, Urls};
use tollgate_purchase::plan::PlanProtocols;
use tollgate_purchase::wire::Product;
use tollgate_store::{AuthorizationPart, AuthorizationRow, AuthorizationState};

use crate::support::process::{ACCOUNT, Disk, OTHER_ACCOUNT, Process, signed_transfer, transfer};
use crate::support::recurring_provider::{FakeProvider, Fault, PLAN};

const SECRET: &[u8] = b"tollgate-test-secret-0123456789abcdef";

struct Running {
    process: Process,
    mandates: Mandates,
    pay: Arc<Pay>,
}

/// The filter, the provider, and what survives a crash.
pub(crate) struct TestBed {
    pub(crate) provider: FakeProvider,
    disk: Disk,
    running: Option<Running>,
    secrets: Secrets,
    pub(crate) digest: bool,
    pub(crate) own_field: bool,
}

/// A purchase request.
#[derive(Clone, Default)]
pub(crate) struct Buy {
    pub(crate) account: Option<AccountId>,
    pub(crate) credential: Option<String>,
    pub(crate) own_field: bool,
    pub(crate) body: &'static str,
    pub(crate) accept: Option<&'static str>,
    pub(crate) key: Option<&'static str>,
}

/// A response as its client receives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl TestBed {
    pub(crate) fn new() -> TestBed {
        let mut bed = TestBed {
            provider: FakeProvider::new(),
            disk: Disk::new(),
            running: None,
            secrets: Secrets::new(SECRET, None).expect("long enough"),
            digest: false,
            own_field: true,
        };
        bed.start();
        for id in [ACCOUNT, OTHER_ACCOUNT] {
            bed.process().create_account(id);
        }
        bed
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("it runs")
    }

    pub(crate) fn process(&self) -> &Process {
        &self.running().process
    }

    fn start(&mut self) {
        let process = self.disk.start(self.provider.gateway_clock());
        let (mandates, pay) = self.start_filter(&process);
        self.running = Some(Running {
            process,
            mandates,
            pay,
        });
    }

    /// A filter over the store of a process.
    fn start_filter(&self, process: &Process) -> (Mandates, Arc<Pay>) {
        let clock = self.provider.gateway_clock();
        let plans = &process.plans;
        let mandates = Mandates::new(MandateDeps {
            store: process.store.clone(),
            plans: plans.clone(),
            recurring: Arc::new(self.provider.clone()),
            plan_id: Some(String::from(PLAN)),
            environment: String::from("test"),
            clock: clock.clone(),
            draw: self.disk.draw(),
            runtime: process.tasks.clone(),
        });
        let processor = Processor::new(MppDeps {
            product: Snapshot::from(Product::new(
                plans.plan(),
                None,
                "https://api.svc.example",
                PlanProtocols::ALL,
            )),
            plans: plans.clone(),
            mandates: mandates.clone(),
            idempotency_keys: IdempotencyKeys::new(process.store.clone(), clock.clone()),
            settings: Settings {
                secrets: self.secrets.clone(),
                realm: String::from("api.svc.example"),
                digest: self.digest,
                own_field: self.own_field,
                urls: Urls {
                    return_url: String::from("https://svc.example/back/{mandate}"),
                    cancel_url: String::from("https://svc.example/not/{mandate}"),
                },
            }
            .into(),
            clock,
            entropy: Entropy::system(),
            runtime: process.tasks.clone(),
        });
        let protocols = PaymentProtocols::new(Arc::from("svc-pro"), Some(processor), None);
        let pay = Pay::new(&protocols, "/commerce/subscriptions/{plan}/mpp").expect("a route");
        (mandates, Arc::new(pay))
    }

    /// Kills the process, and starts another one.
    pub(crate) fn restart(&mut self) {
        self.running.take().expect("it runs").process.kill();
        self.start();
    }

    /// The same, with other secrets.
    pub(crate) fn restart_with(&mut self, current: &[u8], previous: Option<&[u8]>) {
        self.secrets = Secrets::new(current, previous).expect("long enough");
        self.restart();
    }

    /// Advances all clocks.
    pub(crate) fn advance(&self, by: Duration) {
        self.provider.advance(by);
    }

    /// Reconciles due mandates, as the background loop does.
    pub(crate) fn reconcile_due(&self) {
        let mandates = &self.running().mandates;
        let reconciled = async { while mandates.reconcile_due().await > 0 {} };
        self.process().runtime.block_on(reconciled);
    }

    pub(crate) fn buy(&self, buy: Buy) -> Response {
        let pay = self.running().pay.clone();
        self.process().runtime.block_on(send(pay, buy))
    }

    /// Sends a request to another node, whose next call of the provider is held until it is released, and does something meanwhile.
    pub(crate) fn buy_elsewhere(&self, buy: Buy, meanwhile: impl FnOnce(&TestBed)) -> Response {
        self.provider.faults([Fault::Hold]);
        let (_mandates, pay) = self.start_filter(self.process());
        let runtime = &self.process().runtime;
        let sent = runtime.spawn(send(pay, buy));
        runtime.block_on(async {
            let held = tokio::time::timeout(Duration::from_mins(1), self.provider.held());
            held.await.expect("the provider is called");
        });
        meanwhile(self);
        self.provider.release();
        runtime.block_on(sent).expect("it ends")
    }

    /// The same request from several clients at once.
    pub(crate) fn buy_at_once(&self, times: usize, buy: &Buy) -> Vec<Response> {
        let running = self.running();
        self.process().runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..times {
                tasks.spawn(send(running.pay.clone(), buy.clone()));
            }
            tasks.join_all().await
        })
    }

    /// The response to a request; `None` when the process crashed during it, and was restarted.
    pub(crate) fn buy_until_crash(&mut self, buy: Buy) -> Option<Response> {
        let crashed = self.provider.crashed();
        let request = send(self.running().pay.clone(), buy);
        let response = self.process().run_until_crash(&crashed, request);
        if response.is_none() {
            self.restart();
        }
        response
    }

    /// The number of the account's stored payments.
    pub(crate) fn payments(&self) -> usize {
        let payments = self.process().store.payments_of(ACCOUNT, 100);
        payments.expect("a read").len()
    }

    /// Submits a signed transfer of the account with an unknown outcome.
    pub(crate) fn submit_transfer(&self) {
        let row = signed_transfer(AuthorizationState::Unknown, Timestamp::MAX);
        self.process().authorization(AuthorizationPart::Begin(row));
    }

    /// That transfer is proved never to have moved money.
    pub(crate) fn void_transfer(&self) {
        let row = AuthorizationRow {
            version: 1,
            ..signed_transfer(AuthorizationState::Dead, Timestamp::MAX)
        };
        self.process().authorization(AuthorizationPart::Change(row));
    }

    /// The plan is paid for by a transfer.
    pub(crate) fn transfer(&self) {
        self.process().pay(transfer("0xabc", self.provider.now()));
    }
}

async fn send(pay: Arc<Pay>, buy: Buy) -> Response {
    let mut headers = HeaderMap::new();
    for (name, value) in [("accept-payment", buy.accept), ("idempotency-key", buy.key)] {
        if let Some(value) = value {
            headers.insert(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
    }
    let mut exchange = Exchange::new(Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::POST,
        path: "/commerce/subscriptions/svc-pro/mpp".into(),
        query: None,
        headers,
        body: Bytes::from_static(buy.body.as_bytes()),
        client: ClientAddress::direct([192, 0, 2, 1].into()),
        tls: false,
        protocol: Protocol::Http11,
    });
    exchange.put(Principal {
        account: buy.account.unwrap_or(ACCOUNT),
        credential: CredentialId::from_bytes([8; 16]),
        kind: CredentialKind::ApiKey,
        scopes: Scopes::NONE.with(Scope::CommerceSubscribe),
        class: Arc::from("free"),
        models: ModelAccess::All,
        sharing: CacheSharing::Shared,
        spending_cap: None,
    });
    if let Some(text) = buy.credential {
        exchange.put(PaymentCredential {
            text: text.into(),
            field: match buy.own_field {
                false => PaymentField::Authorization,
                true => PaymentField::PaymentAuthorization,
            },
        });
    }
    let outcome = pay.on_request(&mut exchange).finish().await;
    let reply = match outcome.expect("it can decide") {
        Outcome::Reply(reply) => reply,
        other => panic!("{other:?}"),
    };
    let mut headers = reply.headers;
    headers.extend(exchange.take_reply_headers());
    let ReplyBody::Whole(body) = reply.body else {
        panic!("a stream")
    };
    Response {
        status: reply.status.as_u16(),
        headers,
        body: serde_json::from_slice(&body).expect("JSON"),
    }
}

impl Response {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        Some(value.to_str().expect("ASCII"))
    }

    pub(crate) fn word(&self, pointer: &str) -> &str {
        self.body
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("")
    }

    /// The parameters of its challenge, as a client parses them.
    pub(crate) fn challenge(&self) -> Value {
        let mut all = self.headers.get_all("www-authenticate").iter();
        let first = all.next().expect("a challenge");
        parameters(first.to_str().expect("ASCII"))
    }

    pub(crate) fn challenges(&self) -> Vec<Value> {
        let all = self.headers.get_all("www-authenticate").iter();
        all.map(|value| parameters(value.to_str().expect("ASCII")))
            .collect()
    }

    /// The subscription of the challenge.
    pub(crate) fn subscription(&self) -> String {
        let challenge = self.challenge();
        let request = challenge["request"].as_str().expect("a text");
        let request = URL_SAFE_NO_PAD.decode(request).expect("base64url");
        let request: Value = serde_json::from_slice(&request).expect("JSON");
        let id = &request["methodDetails"]["subscriptionId"];
        id.as_str().expect("an id").to_owned()
    }

    /// The credential that answers its challenge.
    pub(crate) fn credential(&self) -> String {
        self.credential_for(&self.subscription())
    }

    pub(crate) fn credential_for(&self, subscription: &str) -> String {
        let payload = json!({"type": "subscription", "subscriptionId": subscription});
        let whole = json!({"challenge": self.challenge(), "payload": payload});
        URL_SAFE_NO_PAD.encode(whole.to_string())
    }

    pub(crate) fn receipt(&self) -> Value {
        let receipt = self.header("payment-receipt").expect("a receipt");
        let receipt = URL_SAFE_NO_PAD.decode(receipt).expect("base64url");
        serde_json::from_slice(&receipt).expect("JSON")
    }
}

fn parameters(header: &str) -> Value {
    let rest = header.strip_prefix("Payment ").expect("the scheme");
    let pairs = rest.split("\", ").map(|pair| {
        let (name, value) = pair.split_once("=\"").expect("a pair");
        (name.to_owned(), json!(value.trim_end_matches('"')))
    });
    Value::Object(pairs.collect())
}
