//! A service that sells the plan, whose process can crash and be restarted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tollgate_filter::{
    CacheSharing, ClientAddress, Clock, CredentialKind, Entropy, Exchange, Filter, ManualClock,
    ModelAccess, Outcome, PaymentCredential, PaymentField, Principal, Protocol, ReplyBody, Request,
    Scope, Scopes,
};
use tollgate_ledger::Ledger;
use tollgate_ledger::audit::audit;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};
use tollgate_pay::mpp::{MppDeps, Processor, Secrets, Settings};
use tollgate_pay::{Pay, PaymentProtocols};
use tollgate_purchase::PurchaseTasks;
use tollgate_purchase::idempotency::IdempotencyKeys;
use tollgate_purchase::mandates::{MandateDeps, Mandates, Urls};
use tollgate_purchase::plan::{self, PRICE, Paid, Period, Plan, Plans};
use tollgate_purchase::wire::Product;
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState,
    CacheScope, NewAccount, Part, RootSecret, Route, Store, UnitOfWork, commit,
};

use crate::provider::{PLAN, World};

pub(crate) const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
pub(crate) const OTHER_ACCOUNT: AccountId = AccountId::from_bytes([2; 16]);

/// The credits that a payment grants.
pub(crate) const CREDITS: i64 = 5_000_000;

const SECRET: &[u8] = b"tollgate-test-secret-0123456789abcdef";

/// One run of the process.
struct Running {
    runtime: Runtime,
    store: Arc<dyn Store>,
    ledger: Ledger,
    plans: Plans,
    mandates: Mandates,
    pay: Arc<Pay>,
    gateway_time: ManualClock,
}

pub(crate) struct TestBed {
    pub(crate) world: World,
    folder: TempDir,
    running: Option<Running>,
    random: Arc<AtomicU64>,
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

/// A response, as a buyer sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl TestBed {
    pub(crate) fn new() -> TestBed {
        let mut bed = TestBed {
            world: World::new(),
            folder: tempfile::tempdir().expect("a folder"),
            running: None,
            random: Arc::default(),
            secrets: Secrets::new(SECRET, None).expect("long enough"),
            digest: false,
            own_field: false,
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
        let now = self.world.now();
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
        let clock = || {
            let now = self.world.now.clone();
            move || now.load(Relaxed)
        };
        let draw = || {
            let random = self.random.clone();
            move |out: &mut [u8]| {
                let number = random.fetch_add(1, Relaxed).to_be_bytes();
                let at = out.len() - number.len();
                out[at..].copy_from_slice(&number);
            }
        };
        let plans = Plans::new(plan::PlanDeps {
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
        let mandates = Mandates::new(MandateDeps {
            store: store.clone(),
            plans: plans.clone(),
            recurring: Arc::new(self.world.clone()),
            plan_id: Some(String::from(PLAN)),
            environment: String::from("test"),
            now: Box::new(clock()),
            draw: Box::new(draw()),
            runtime: PurchaseTasks::new(runtime.handle().clone()),
        });
        let (manual, gateway_time) = Clock::manual(now.unsigned_abs());
        let base = "https://api.svc.example";
        let processor = Processor::new(MppDeps {
            product: Product::new(plans.plan(), base, "https://svc.example"),
            plans: plans.clone(),
            mandates: mandates.clone(),
            idempotency_keys: IdempotencyKeys::new(store.clone(), Box::new(clock())),
            settings: Settings {
                secrets: self.secrets.clone(),
                realm: String::from("api.svc.example"),
                digest: self.digest,
                own_field: self.own_field,
                urls: Urls {
                    return_url: String::from("https://svc.example/back/{mandate}"),
                    cancel_url: String::from("https://svc.example/not/{mandate}"),
                },
            },
            clock: manual,
            entropy: Entropy::system(),
            runtime: PurchaseTasks::new(runtime.handle().clone()),
        });
        let desks = PaymentProtocols::new(Arc::from("svc-pro"), Some(processor), None);
        let pay = Pay::new(&desks, "/commerce/subscriptions/{plan}/mpp").expect("a route");
        self.running = Some(Running {
            runtime,
            store,
            ledger,
            plans,
            mandates,
            pay: Arc::new(pay),
            gateway_time,
        });
    }

    /// The process is killed, and another one starts.
    pub(crate) fn restart(&mut self) {
        let running = self.running.take().expect("it runs");
        running.runtime.shutdown_background();
        running.store.close();
        drop((
            running.plans,
            running.pay,
            running.mandates,
            running.ledger,
            running.store,
        ));
        self.start();
    }

    /// The same, with other secrets.
    pub(crate) fn restart_with(&mut self, current: &[u8], previous: Option<&[u8]>) {
        self.secrets = Secrets::new(current, previous).expect("long enough");
        self.restart();
    }

    /// Advances all clocks.
    pub(crate) fn advance(&self, micros: i64) {
        self.world.advance(micros);
        let time = std::time::Duration::from_micros(micros.unsigned_abs());
        self.running().gateway_time.advance(time);
    }

    /// Reconciles due mandates, as the background loop does.
    pub(crate) fn sweep(&self) {
        let running = self.running();
        running
            .runtime
            .block_on(async { while running.mandates.reconcile_due().await > 0 {} });
    }

    pub(crate) fn buy(&self, buy: Buy) -> Response {
        let running = self.running();
        running.runtime.block_on(ask(running.pay.clone(), buy))
    }

    /// The same request from several clients at once.
    pub(crate) fn buy_at_once(&self, times: usize, buy: &Buy) -> Vec<Response> {
        let running = self.running();
        running.runtime.block_on(async {
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..times {
                tasks.spawn(ask(running.pay.clone(), buy.clone()));
            }
            tasks.join_all().await
        })
    }

    /// A request whose client disconnects at the first call to the provider, and during which the process crashes where a fault is set.
    pub(crate) fn buy_until_death(&mut self, buy: Buy) -> Option<Response> {
        let running = self.running();
        let died = self.world.died.clone();
        let response = running.runtime.block_on(async {
            tokio::select! {
                response = ask(running.pay.clone(), buy) => Some(response),
                () = died.notified() => None,
            }
        });
        if response.is_none() {
            self.world.fault(crate::provider::Fault::None, 0);
            self.restart();
        }
        response
    }

    pub(crate) fn available(&self) -> i64 {
        let available = self.running().ledger.available(ACCOUNT);
        available.map_or(0, Micros::get)
    }

    /// The number of the account's stored payments.
    pub(crate) fn payments(&self) -> usize {
        let payments = self.running().store.payments_of(ACCOUNT, 100);
        payments.expect("a read").len()
    }

    fn write(&self, part: Part) {
        let running = self.running();
        let unit = UnitOfWork::of(part, Admission::Normal);
        let written = running.runtime.block_on(commit(&*running.store, unit));
        written.expect("it is taken");
    }

    /// A signed transfer of the account is submitted with an unknown outcome; or it is proved dead.
    pub(crate) fn transfer_may_move(&self, may: bool) {
        let row = |state, version| AuthorizationRow {
            key: AuthorizationKey {
                network: Arc::from("eip155:84532"),
                asset: [1; 20],
                payer: [2; 20],
                nonce: [3; 32],
            },
            account: ACCOUNT,
            state,
            version,
            digest: [4; 32],
            sealed: None,
            valid_before: i64::MAX,
            transaction: None,
            receipt: None,
            note: None,
            attempts: 0,
            next_attempt_at: None,
            created_at: 1,
            updated_at: 1,
        };
        let part = match may {
            true => AuthorizationPart::Begin(row(AuthorizationState::Unknown, 0)),
            false => AuthorizationPart::Change(row(AuthorizationState::Dead, 1)),
        };
        self.write(Part::Authorization(Box::new(part)));
    }

    /// The plan is paid for by a transfer.
    pub(crate) fn transfer(&self) {
        let running = self.running();
        let paid = Paid {
            account: ACCOUNT,
            route: Route::X402,
            payment: Arc::from("eip155:84532/a/b/c"),
            reference: Arc::from("0xabc"),
            amount: PRICE,
            period: Period::Days(30),
            renews: false,
            receipt: None,
            at: self.world.now(),
        };
        let paid = running
            .runtime
            .block_on(running.plans.pay(paid, |_| Vec::new()));
        paid.expect("it is noted");
    }

    pub(crate) fn check_books(&self) {
        let report = audit(&*self.running().store).expect("it can be read");
        assert!(report.violations.is_empty(), "{:?}", report.violations);
    }
}

async fn ask(pay: Arc<Pay>, buy: Buy) -> Response {
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
