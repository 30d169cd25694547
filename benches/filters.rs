//! Benchmark of the filters: processor time of an exchange as its chain grows.
//!
//! The real filters use a store with one account and one key; the client and the provider are stand-ins in the same thread at almost no
//! cost. Every chain is driven as in the gateway, with many concurrent exchanges that share the store's commits, and the chains alternate.
//! The cost of a filter is the difference to the previous chain within a round.
//!
//! ```text
//! cargo bench --bench filters [-- --rounds N]
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    missing_docs,
    reason = "a bench prints, and lives beside the build's output"
)]

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, header};
use secrecy::ExposeSecret;
use tollgate_auth::Auths;
use tollgate_cache::{Cache, CacheSettings};
use tollgate_chain::run::Run;
use tollgate_chain::{
    BodyError, Chain, Downstream, Gone, Head, Limits, Observer, Route, Upstream, UpstreamCall,
    UpstreamError, drive,
};
use tollgate_clock::{Clock, Entropy};
use tollgate_completions::Completions;
use tollgate_filter::{
    AfterLeaving, Api, Body, Catalog, ClientAddress, Contract, Ending, ErrorShape, Exchange,
    FailureMode, Filter, Forward, ForwardBody, Model, ModelLimits, Outcome, PartCeilings, Phase,
    Protocol, ProviderModel, Reply, Request, RequiredAccess, Resources, Routing, Scope, Scopes,
    Step,
};
use tollgate_idempotency::{Idempotency, IdempotencySettings};
use tollgate_identity::{Credentials, Form, Login, NewAccount, NewKey, create_account, create_key};
use tollgate_ledger::{Credit, Ledger};
use tollgate_memory::{MemoryBudget, MemoryUse};
use tollgate_meter::{Meter, MeterSettings};
use tollgate_models::Models;
use tollgate_money::{Micros, OperationId, Price};
use tollgate_rate_limit::{Counters, RateLimits, RawLimits};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{RootSecret, Store, flush};
use tollgate_testing::provider::standard;

/// Concurrent exchanges, as in the other measurements.
const IN_FLIGHT: usize = 64;

const SERVICE: &str = "svc";

const BODY_BYTES_MAX: usize = 1 << 20;

/// The workload of a chain.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A whole completion of a kilobyte.
    Whole,
    /// A stream of 53 events, one per chunk.
    Stream,
    /// The list of models, which needs no provider.
    Models,
}

/// A chain and its workload.
struct Case {
    name: &'static str,
    route: Route,
    kind: Kind,
}

/// Processor time of one exchange in microseconds.
#[derive(Clone, Copy)]
struct Cost {
    /// Of the thread that drives the exchanges.
    driver: f64,
    /// Of all others, which are the store's.
    store: f64,
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let rounds: usize = arguments
        .windows(2)
        .find(|pair| pair[0] == "--rounds")
        .map_or(15, |pair| pair[1].parse().expect("--rounds takes a number"));
    // Beside the build's own output: a temporary folder may be memory, whose syncs cost nothing.
    let base = arguments.first().and_then(|own| Path::new(own).parent());
    let folder = tempfile::Builder::new()
        .prefix("bench-filters-")
        .tempdir_in(base.unwrap_or(Path::new(".")))
        .expect("a folder for the bench");

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let bench = Arc::new(runtime.block_on(Bench::open(folder.path())));
    println!(
        "processor time of an exchange in us, {IN_FLIGHT} in flight; median of {rounds} rounds"
    );
    for (title, kind, exchanges) in [
        ("a whole answer of 1 KB", Kind::Whole, 10_000),
        ("a stream of 53 events", Kind::Stream, 2_000),
        ("the list of models", Kind::Models, 10_000),
    ] {
        let cases = bench.cases(kind);
        let mut costs = vec![Vec::new(); cases.len()];
        for round in 0..=rounds {
            for (case, costs) in cases.iter().zip(&mut costs) {
                let cost = runtime.block_on(bench.measure(case, exchanges));
                // The first round warms up.
                if round > 0 {
                    costs.push(cost);
                }
            }
        }
        print(title, &cases, &costs);
    }
    bench.store.close();
}

fn print(title: &str, cases: &[Arc<Case>], costs: &[Vec<Cost>]) {
    println!(
        "\n{title:<28} {:>8} {:>8} {:>8} {:>8}",
        "driver", "store", "+driver", "+store"
    );
    for (at, (case, own)) in cases.iter().zip(costs).enumerate() {
        print!(
            "{:<28} {:>8.2} {:>8.2}",
            case.name,
            median(own.iter().map(|cost| cost.driver)),
            median(own.iter().map(|cost| cost.store)),
        );
        if let Some(before) = at.checked_sub(1).map(|before| &costs[before]) {
            let pairs = || own.iter().zip(before);
            print!(
                " {:>8.2} {:>8.2}",
                median(pairs().map(|(one, other)| one.driver - other.driver)),
                median(pairs().map(|(one, other)| one.store - other.store)),
            );
        }
        println!();
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The store, the ledger, and the inputs of the filters.
struct Bench {
    store: Arc<dyn Store>,
    ledger: Ledger,
    clock: Clock,
    entropy: Entropy,
    auths: Auths,
    rate_limits: RateLimits,
    meter: Arc<Meter>,
    cache: Arc<Cache>,
    /// Number of exchanges so far: each request is different, so that there are no cache hits.
    asked: AtomicU64,
    catalog: Catalog,
    /// Header fields of every request.
    headers: HeaderMap,
    whole: Provider,
    stream: Provider,
}

impl Bench {
    async fn open(folder: &Path) -> Bench {
        let (clock, entropy) = (Clock::system(), Entropy::system());
        let now = clock.now();
        let measured = clock.clone();
        let options = Options {
            monotonic_us: Box::new(move || measured.elapsed().as_micros() as u64),
            ..Options::new(now, RootSecret(entropy.bytes()))
        };
        let store = sqlite::open(&folder.join("books.db"), options).expect("the store opens");
        let (ledger, _) = Ledger::start(Arc::clone(&store), clock.now()).expect("the books open");
        let credentials = Credentials::open(&store);
        let service = tollgate_filter::ServiceIdentity {
            name: SERVICE.to_owned(),
            base_url: "http://localhost".to_owned(),
            root_url: "http://localhost".to_owned(),
        };
        // Counted, and never refused.
        let limits = tollgate_module::check_text::<RawLimits>(
            "[classes.free]\nquota = 1000000\nwindow_secs = 1",
            &Default::default(),
        )
        .expect("good settings");
        let key = open_account(&*store, &ledger, &clock, &entropy).await;
        let mut headers = HeaderMap::new();
        let authorization = HeaderValue::from_str(&format!("Bearer {key}"));
        headers.insert(header::AUTHORIZATION, authorization.expect("a key is text"));
        for (name, value) in [
            (header::HOST, "localhost"),
            (header::CONTENT_TYPE, "application/json"),
            (header::USER_AGENT, "bench"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let settings = MeterSettings::default();
        Bench {
            auths: Auths::new(service, credentials, clock.clone()),
            rate_limits: RateLimits::new(
                &limits,
                Arc::new(Counters::default()),
                clock.clone(),
                entropy.clone(),
            ),
            meter: Arc::new(Meter::new(
                settings,
                ledger.clone(),
                clock.clone(),
                "http://localhost",
            )),
            cache: Arc::new(Cache::new(tollgate_cache::CacheDeps {
                bytes_max: 256 << 20,
                settings: CacheSettings::default(),
                service: SERVICE,
                root: &store.root_secret().0,
                clock: clock.clone(),
                entropy: entropy.clone(),
            })),
            asked: AtomicU64::new(0),
            catalog: Catalog::new(vec![model()], None).expect("one model"),
            store,
            ledger,
            clock,
            entropy,
            headers,
            whole: Provider::new(vec![standard::completion()], false),
            stream: Provider::new(standard::stream(), true),
        }
    }

    /// Chains that grow by a filter.
    ///
    /// A filter that only forwards or answers is at the end, until the real one replaces it.
    fn cases(&self, kind: Kind) -> Vec<Arc<Case>> {
        let pass: Arc<dyn Filter> = Arc::new(Pass {
            model: Arc::clone(&self.catalog.models()[0]),
            kind,
        });
        let access = RequiredAccess::of(match kind {
            Kind::Models => Scope::ApiModels,
            Kind::Whole | Kind::Stream => Scope::ApiChat,
        });
        let auth = self.auths.auth(access).expect("good addresses");
        let rate_limit = self.rate_limits.rate_limit(None).expect("a known class");
        let front: [(&str, Arc<dyn Filter>); 3] = [
            (
                "+ address-limit",
                Arc::new(self.rate_limits.address_limit()),
            ),
            ("+ auth", Arc::new(auth)),
            ("+ rate-limit", Arc::new(rate_limit)),
        ];
        let back: Vec<(&str, Arc<dyn Filter>)> = match kind {
            Kind::Models => {
                let models = Models::new(SERVICE, &self.catalog, None, self.ledger.clone());
                vec![("+ models", Arc::new(models))]
            }
            Kind::Whole | Kind::Stream => {
                let completions = Completions::new(SERVICE, &self.catalog, BODY_BYTES_MAX);
                let idempotency = Idempotency::new(
                    IdempotencySettings::default(),
                    MeterSettings::default().hold,
                    self.store.clone(),
                    self.clock.clone(),
                );
                vec![
                    ("+ completions", Arc::new(completions)),
                    // For requests without an idempotency key, as nearly all are.
                    ("+ idempotency", Arc::new(idempotency)),
                    ("+ meter", self.meter.clone()),
                    ("+ cache", self.cache.clone()),
                ]
            }
        };
        let case = |name, filters| {
            Arc::new(Case {
                name,
                route: Route {
                    name: "bench".into(),
                    chain: Chain::new(filters),
                    body_bytes_max: BODY_BYTES_MAX,
                    errors: ErrorShape::Envelope,
                },
                kind,
            })
        };
        let alone = match kind {
            Kind::Models => "a filter that answers",
            Kind::Whole | Kind::Stream => "a filter that forwards",
        };
        let mut cases = vec![case(alone, vec![pass.clone()])];
        let mut filters = Vec::new();
        for (name, filter) in front {
            filters.push(filter);
            let with_pass = filters.iter().chain([&pass]).cloned();
            cases.push(case(name, with_pass.collect()));
        }
        for (name, filter) in back {
            filters.push(filter);
            cases.push(case(name, filters.clone()));
        }
        cases
    }

    /// Drives exchanges through a chain until all is done and durable.
    async fn measure(self: &Arc<Self>, case: &Arc<Case>, exchanges: usize) -> Cost {
        let before = cpu_us();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..IN_FLIGHT {
            let (bench, case) = (Arc::clone(self), Arc::clone(case));
            tasks.spawn(async move {
                for _ in 0..exchanges / IN_FLIGHT {
                    bench.exchange(&case).await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("a task ends");
        }
        flush(&*self.store).await.expect("everything is durable");
        let after = cpu_us();
        let exchanges = (exchanges / IN_FLIGHT * IN_FLIGHT) as f64;
        let driver = after.0 - before.0;
        Cost {
            driver: driver / exchanges,
            store: (after.1 - before.1 - driver) / exchanges,
        }
    }

    async fn exchange(&self, case: &Case) {
        let (method, path) = match case.kind {
            Kind::Models => (Method::GET, "/v1/models"),
            Kind::Whole | Kind::Stream => (Method::POST, "/v1/chat/completions"),
        };
        let exchange = Exchange::new(Request {
            id: OperationId::generate(self.clock.now(), &self.entropy),
            method,
            path: path.into(),
            query: None,
            headers: self.headers.clone(),
            body: Bytes::new(),
            client: ClientAddress::direct(Ipv4Addr::LOCALHOST.into()),
            tls: false,
            protocol: Protocol::Http11,
        });
        let limits = Limits {
            memory: MemoryBudget::new(1 << 30),
            answer_bytes_max: 64 << 20,
            event_bytes_max: 8 << 20,
            drain: Duration::from_secs(30),
            after_leaving: AfterLeaving::Drain,
            keep_alive: Duration::from_secs(15),
        };
        let provider = match case.kind {
            Kind::Stream => &self.stream,
            Kind::Whole | Kind::Models => &self.whole,
        };
        let mut run = Run::new(exchange, &case.route.chain, &NoObserver);
        let mut client = Client {
            body: numbered(
                &provider.request,
                self.asked.fetch_add(1, Ordering::Relaxed),
            ),
            status: 0,
        };
        let ending = drive(
            &case.route,
            &mut run,
            &mut client,
            provider,
            &self.clock,
            &limits,
        )
        .await;
        assert_eq!(client.status, 200, "{}: {ending:?}", case.name);
        assert!(
            matches!(ending, Ending::Complete | Ending::Answered),
            "{}: {ending:?}",
            case.name
        );
    }
}

/// A unique body.
fn numbered(body: &Bytes, number: u64) -> Bytes {
    match body.strip_suffix(b"}") {
        Some(open) => Bytes::from([open, format!(",\"seed\":{number}}}").as_bytes()].concat()),
        None => body.clone(),
    }
}

/// An account with unlimited credits, and the text of its key.
async fn open_account(
    store: &dyn Store,
    ledger: &Ledger,
    clock: &Clock,
    entropy: &Entropy,
) -> String {
    let now = clock.now();
    let account = NewAccount {
        logins: vec![Login::email("bench@example.net").expect("an address")],
        class: "free".into(),
        credit_limit: Micros::ZERO,
        cache_scope: tollgate_store::CacheScope::Shared,
        created_at: now,
    };
    let account = create_account(store, account, |out| entropy.fill(out)).await;
    let account = account.expect("an account");
    let credit = Credit {
        operation: OperationId::generate(clock.now(), entropy),
        account,
        amount: Micros::from_credits(1_000_000).expect("in range"),
        reference: "bench".into(),
        at: clock.now(),
    };
    ledger.grant(credit).await.expect("credit");
    let key = NewKey {
        account,
        label: "bench".to_owned(),
        resources: Resources::API.bits(),
        scopes: Scopes::API.bits(),
        models: None,
        spending_cap: None,
        expires_at: None,
        created_at: now,
    };
    let key = create_key(store, &Form::api_key(SERVICE), key, |out| entropy.fill(out)).await;
    key.expect("a key").secret.expose_secret().to_owned()
}

fn model() -> Arc<Model> {
    Arc::new(Model {
        id: "bench".into(),
        name: None,
        owned_by: SERVICE.to_owned(),
        created: None,
        price: Price {
            input: "1".parse().expect("a price"),
            output: "2".parse().expect("a price"),
            request: Micros::ZERO,
        },
        price_version: 1,
        limits: ModelLimits {
            context_length: None,
            output_tokens_default: NonZeroU64::new(4096).expect("not zero"),
            output_tokens_bound: false,
        },
        output_modalities: vec!["text".to_owned()],
        part_ceilings: PartCeilings::default(),
        token_factor_ppm: 1_000_000,
        providers: Vec::new(),
        system_as_chat: false,
        cap_member: tollgate_filter::CapMember::MaxTokens,
        routing: Routing::default(),
        after_leaving: None,
        working: AtomicBool::new(true),
    })
}

/// The last filter of a chain without another one that forwards or answers. It reads nothing.
struct Pass {
    model: Arc<Model>,
    kind: Kind,
}

impl Filter for Pass {
    fn name(&self) -> &'static str {
        "pass"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: match self.kind {
                Kind::Models => Body::Unread,
                Kind::Whole | Kind::Stream => Body::Json {
                    bytes_max: BODY_BYTES_MAX,
                },
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        if self.kind == Kind::Models {
            return Step::now(Outcome::reply(Reply::json(Bytes::from_static(b"{}"))));
        }
        exchange.put(Forward {
            model: Arc::clone(&self.model),
            api: Api::Chat,
            asked: Api::Chat,
            tokens_max: 0,
            quote: None,
            stream: self.kind == Kind::Stream,
            body: Box::new(Same),
        });
        Step::now(Outcome::Continue)
    }
}

/// The unchanged body.
struct Same;

impl ForwardBody for Same {
    fn render(&self, exchange: &Exchange, _: &ProviderModel) -> Bytes {
        exchange.request.body.clone()
    }

    fn cap_output(&mut self, _: tollgate_filter::OutputCap) {}
}

struct NoObserver;

impl Observer for NoObserver {
    fn ended(&self, _: &Exchange, _: Ending) {}
}

/// A client that accepts all data immediately.
struct Client {
    body: Bytes,
    status: u16,
}

impl Downstream for Client {
    async fn read_body(&mut self, _: usize, _: &mut MemoryUse) -> Result<Bytes, BodyError> {
        Ok(self.body.clone())
    }

    async fn send(&mut self, head: Head, body: Bytes) -> Result<(), Gone> {
        self.status = head.status.as_u16();
        black_box((head, body));
        Ok(())
    }

    async fn start(&mut self, head: Head, first: &mut BytesMut) -> Result<(), Gone> {
        self.status = head.status.as_u16();
        black_box(head);
        self.write(first).await
    }

    async fn write(&mut self, piece: &mut BytesMut) -> Result<(), Gone> {
        black_box(&piece[..]);
        piece.clear();
        Ok(())
    }

    async fn finish(&mut self, last: &mut BytesMut) -> Result<(), Gone> {
        self.write(last).await
    }

    async fn gone(&mut self) {
        std::future::pending().await
    }
}

/// A provider with a prepared response.
struct Provider {
    /// The matching request.
    request: Bytes,
    pieces: Arc<[Bytes]>,
    is_stream: bool,
    at: ProviderModel,
}

impl Provider {
    fn new(pieces: Vec<Bytes>, is_stream: bool) -> Provider {
        let stream = match is_stream {
            true => r#","stream":true,"stream_options":{"include_usage":true}"#,
            false => "",
        };
        let request = format!(
            r#"{{"model":"bench","messages":[{{"role":"system","content":"You keep a gate and answer in one short paragraph."}},{{"role":"user","content":"What is the toll today?"}}],"max_tokens":256,"temperature":0.2{stream}}}"#
        );
        Provider {
            request: request.into(),
            pieces: pieces.into(),
            is_stream,
            at: ProviderModel::new("stand-in", "bench"),
        }
    }
}

/// A response and the number of bytes read.
struct Call {
    pieces: Arc<[Bytes]>,
    read: usize,
    is_stream: bool,
}

impl Upstream for Provider {
    type Call = Call;

    async fn call(&self, exchange: &mut Exchange) -> Result<Call, UpstreamError> {
        let forward = exchange.get::<Forward>().expect("something to send");
        black_box(forward.body.render(exchange, &self.at));
        Ok(Call {
            pieces: Arc::clone(&self.pieces),
            read: 0,
            is_stream: self.is_stream,
        })
    }
}

impl UpstreamCall for Call {
    fn is_stream(&self) -> bool {
        self.is_stream
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let piece = self.pieces.get(self.read).cloned();
        self.read += 1;
        Ok(piece)
    }

    /// Always ready: real providers are slower than a gateway.
    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        None
    }

    async fn finish(self) {}
}

/// Processor time of this thread and of the process so far, in microseconds.
fn cpu_us() -> (f64, f64) {
    let read = |clock| {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        #[expect(unsafe_code, reason = "clock_gettime(2) has no safe wrapper here")]
        // SAFETY: the pointer is to a live `timespec` that no other code accesses.
        let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
        assert_eq!(result, 0, "the system says what a thread has used");
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
    };
    let thread = read(libc::CLOCK_THREAD_CPUTIME_ID);
    (thread, read(libc::CLOCK_PROCESS_CPUTIME_ID))
}
