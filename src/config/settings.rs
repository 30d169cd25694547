//! The settings, checked: holding these types proves the rules.
//!
//! They are made by [`super::load`] alone. Nothing outside `config` reads a file or the environment to get at a setting.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use rustls::pki_types::CertificateDer;
use tollgate_auth::RequiredAccess;
use tollgate_cache::CacheSettings;
use tollgate_commerce::UcpSettings;
use tollgate_filter::{Catalog, ErrorShape};
use tollgate_idempotency::IdempotencySettings;
use tollgate_identity::signin::CodeLength;
use tollgate_meter::MeterSettings;
use tollgate_oauth::OAuthConfig;
use tollgate_onboarding::OnboardingSettings;
use tollgate_outbox::mail::TransportSecurity;
use tollgate_pages::Brand;
use tollgate_purchase::plan::Plan;
use tollgate_rate_limit::Limits;

use super::certificate::Certificate;
use super::mcp::Mcp;
use super::pattern::PathPattern;
use super::payments::{Credits, Payments};
use super::proxies::TrustedProxies;
use super::secret::Secret;
use super::url::{BaseUrl, PublicUrl};

/// Every setting of one gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who the service is.
    pub service: Service,
    /// Threads, shutdown and limits on clients.
    pub server: Server,
    /// Where clients connect; at least one.
    pub listeners: Vec<Listener>,
    /// Where operators look.
    pub admin: Admin,
    /// Where the books are.
    pub store: Store,
    /// Which chain answers which address, in the order they are tried.
    pub routes: Vec<Route>,
    /// Further attempts at calls that failed.
    pub upstream: Upstream,
    /// The model providers.
    pub providers: Vec<Arc<Provider>>,
    /// The models on sale.
    pub catalog: Arc<Catalog>,
    /// Rate classes.
    pub limits: Limits,
    /// Holding and charging credit.
    pub meter: MeterSettings,
    /// Answers that are stored and given again.
    pub cache: CacheSettings,
    /// Models whose answers are never stored.
    pub uncached: HashSet<Arc<str>>,
    /// Answers kept for requests that carry a key.
    pub idempotency: IdempotencySettings,
    /// What a credit is worth, and what can be bought.
    pub credits: Credits,
    /// What a month of the plan gives.
    pub plan: Plan,
    /// Through whom can be paid.
    pub payments: Payments,
    /// Checkouts of the Universal Commerce Protocol.
    pub ucp: UcpSettings,
    /// How people sign in.
    pub signin: Signin,
    /// Whose pages these are.
    pub brand: Brand,
    /// What programs and people are told about getting in.
    pub onboarding: OnboardingSettings,
    /// How programs are allowed to act for a person.
    pub oauth: OAuthConfig,
    /// The servers behind the MCP resources.
    pub mcp: Mcp,
    /// Logs.
    pub telemetry: Telemetry,
}

impl Settings {
    /// The provider of this name.
    pub fn provider(&self, name: &str) -> Option<&Arc<Provider>> {
        self.providers.iter().find(|one| *one.name == *name)
    }
}

/// `[service]`: the service's own name and addresses.
#[derive(Clone, Debug)]
pub struct Service {
    /// The short word in `x_svc`, `sk-svc-` and the like: a lower-case letter, then up to 15 lower-case letters or digits.
    pub name: Arc<str>,
    /// The address clients are given, without a slash at its end.
    pub base_url: PublicUrl,
    /// The address of discovery; the same as `base_url` unless the settings say otherwise.
    pub root_url: PublicUrl,
}

/// `[server]`: threads, shutdown and what a client can make the gateway wait for.
#[derive(Clone, Debug)]
pub struct Server {
    /// Threads that serve clients.
    pub workers: NonZeroUsize,
    /// How long open requests may take to finish after a stop was asked for.
    pub grace: Duration,
    /// Silence in a stream after which a comment is sent.
    pub comment: Duration,
    /// Limits on everything a client can hold open.
    pub limits: ConnectionLimits,
}

/// Limits on everything a client can hold open, for all listeners.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// Fields in a request's head.
    pub head_fields_max: usize,
    /// Time for a head to arrive, once its first byte is there; also the time for a TLS handshake.
    pub head: Duration,
    /// Time a connection may rest between requests (HTTP/1.1).
    pub idle: Duration,
    /// Time for a request's body as a whole.
    pub body: Duration,
    /// Time a client may leave written bytes unread.
    pub write: Duration,
    /// Requests at once on an HTTP/2 connection.
    pub h2_streams_max: u32,
    /// Time an HTTP/2 connection may rest without an open stream.
    pub h2_idle: Duration,
    /// Connections at once, on all listeners together.
    pub connections_max: usize,
}

/// One `[[listener]]`.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Certificates, the first for clients that name no host. Empty: no TLS.
    pub certificates: Vec<Certificate>,
    /// Whether HTTP/2 is offered: by ALPN with TLS, by prior knowledge without.
    pub http2: bool,
    /// The proxies in front of it that are believed about the client's address.
    pub proxies: Option<Arc<TrustedProxies>>,
}

/// `[admin]`: health and metrics.
#[derive(Clone, Copy, Debug)]
pub struct Admin {
    /// A loopback address; port 0 takes a free one.
    pub address: SocketAddr,
}

/// `[store]`: where the books are.
#[derive(Clone, Debug)]
pub struct Store {
    /// The database.
    pub url: StoreUrl,
    /// What a commit survives.
    pub durability: Durability,
}

/// Where the database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`: one file, made when it is missing.
    Sqlite(PathBuf),
}

/// What a commit survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// A power failure: every commit is synced to the disk.
    Power,
    /// The end of the process, but not a power failure.
    Process,
}

/// One `[[route]]`: which chain answers which address.
#[derive(Clone, Debug)]
pub struct Route {
    /// What the path must look like.
    pub path: PathPattern,
    /// The methods it answers; never empty, never `OPTIONS`, and `HEAD` only where it is written (`GET` includes it).
    pub methods: Vec<Method>,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Names of filters, outermost first.
    pub chain: Vec<Arc<str>>,
    /// How errors are written.
    pub errors: ErrorShape,
    /// What a credential must be allowed to do here, where the chain has `auth`.
    pub access: Option<RequiredAccess>,
    /// The rate class that counts requests here; none: the class of the account, or `anonymous`.
    pub class: Option<Arc<str>>,
    /// What pages of other origins may do here.
    pub cors: Cors,
    /// How it ends, where that is planned.
    pub lifecycle: Option<Lifecycle>,
}

/// How a route ends: told in the fields of its answers (RFC 9745, RFC 8594).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// Since when, or from when on, nothing new should be built on it.
    pub deprecated_at: Option<jiff::Timestamp>,
    /// From when on it may be gone; never before `deprecated_at`.
    pub sunset_at: Option<jiff::Timestamp>,
    /// The address of what takes its place.
    pub successor: Option<String>,
    /// The address of the page that explains it.
    pub notice: String,
}

/// What pages of other origins may do with a route (WHATWG Fetch, CORS protocol).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cors {
    /// Nothing: no CORS fields are sent.
    None,
    /// Read it without credentials; any request field may be asked for.
    Public,
    /// Call it with a bearer credential from any origin; the request fields asked for are echoed, `Authorization` among them.
    Api,
}

/// `[upstream]`: further attempts at calls that failed before the first byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Attempts for one request, the first among them.
    pub attempts_max: u32,
    /// What further attempts may come to, for each model.
    pub budget: RetryBudget,
    /// After so long without an answer another provider is asked too.
    pub hedge_after: Option<Duration>,
}

/// What further attempts may come to, for each model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// For each hundred requests.
    pub percent: u32,
    /// In a second, whatever the number of requests.
    pub per_sec: u32,
    /// At once.
    pub burst: u32,
}

/// One `[[provider]]`: who runs models for us.
pub struct Provider {
    /// Its name in these settings, in logs and metrics.
    pub name: Arc<str>,
    /// Its address, up to and with `/v1` or the like.
    pub base_url: BaseUrl,
    /// The key it knows us by; none for a provider that asks for none.
    pub api_key: Option<Secret>,
    /// Whether HTTP/2 is spoken: by ALPN over TLS, by prior knowledge without.
    pub http2: bool,
    /// Roots to trust instead of the system's.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    /// How long to wait for what.
    pub timeouts: ProviderTimeouts,
    /// Connections kept open between calls.
    pub connections_idle_max: usize,
    /// Its share of a model's calls where the model does not say another; 0 for one that is asked only when no other can serve.
    pub weight: u32,
    /// A bound on calls under way at once.
    pub crowd: Option<Crowd>,
    /// Times that it is asked again within one request when nobody else is left to ask.
    pub retries: u32,
    /// Top-level members of a request that it does not get.
    pub remove_members: Arc<[Box<str>]>,
    /// Top-level members with which a request is refused that it might get.
    pub refuse_members: Arc<[Box<str>]>,
    /// When it counts as not working.
    pub health: ProviderHealth,
    /// Whether it is told the client's address, in `X-Forwarded-For`.
    pub forward_client_address: bool,
}

/// A bound on the calls to one provider, and the queue before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// Calls under way at once, from all workers.
    pub calls_max: usize,
    /// Requests that may wait for one of them to end.
    pub queue_max: usize,
    /// How long they may wait.
    pub wait: Duration,
}

/// When a provider counts as not working, and what brings it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderHealth {
    /// Failures in a row.
    pub failures: u32,
    /// From the first to the last of them.
    pub window: Duration,
    /// Time without calls before trial requests are admitted.
    pub cooldown: Duration,
    /// Trial requests at once.
    pub trial_requests: u32,
    /// The longest `Retry-After` that is kept to.
    pub retry_after_max: Duration,
    /// What is asked for now and then.
    pub probe: Option<Probe>,
}

/// What a provider is asked for now and then to see whether it works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The path below its base address.
    pub path: String,
    /// From one probe to the next.
    pub every: Duration,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The roots are long and tell nothing that their number does not.
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("base_url", &self.base_url)
            .field("api_key", &self.api_key)
            .field("http2", &self.http2)
            .field("roots", &self.roots.as_ref().map(Vec::len))
            .field("timeouts", &self.timeouts)
            .field("connections_idle_max", &self.connections_idle_max)
            .field("weight", &self.weight)
            .field("crowd", &self.crowd)
            .field("retries", &self.retries)
            .field("remove_members", &self.remove_members)
            .field("refuse_members", &self.refuse_members)
            .field("health", &self.health)
            .field("forward_client_address", &self.forward_client_address)
            .finish()
    }
}

/// How long a provider may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderTimeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For the first byte of a stream.
    pub first_byte: Duration,
    /// For the first byte of a whole answer, which comes when all of it is written.
    pub first_byte_whole: Duration,
    /// Between two pieces of an answer.
    pub between_bytes: Duration,
    /// For the whole call.
    pub total: Duration,
}

/// `[signin]`: how people sign in.
#[derive(Clone, Debug)]
pub struct Signin {
    /// People may make accounts themselves.
    pub sign_up: bool,
    /// How long one-time codes are.
    pub length: CodeLength,
    /// Codes asked for from one network in an hour.
    pub network_hourly_max: i64,
    /// Text messages to one country in a day.
    pub country_daily_max: i64,
    /// How mail goes out; without it no codes go out by mail.
    pub mail: Option<SigninMail>,
    /// How text messages go out; without it no codes go out by text message.
    pub sms: Option<SigninSms>,
}

/// `[signin.mail]`: how mail goes out.
#[derive(Clone, Debug)]
pub struct SigninMail {
    /// The mail server.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How the connection is guarded; `None` only to this machine.
    pub security: TransportSecurity,
    /// User and password.
    pub login: Option<(String, Secret)>,
    /// The sender.
    pub from: String,
    /// A root to trust besides the system's, as PEM.
    pub root_pem: Option<Vec<u8>>,
}

/// `[signin.sms]`: how text messages go out.
#[derive(Clone, Debug)]
pub struct SigninSms {
    /// The address that takes them.
    pub url: String,
    /// The key that requests are signed with.
    pub secret: Secret,
}

/// `[telemetry]`: logs.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// How diagnostics are written.
    pub log_format: LogFormat,
    /// Diagnostics below this level are not written.
    pub log_level: LogLevel,
    /// Where the access log goes.
    pub access_log: AccessLog,
    /// What the access log says of the client's address.
    pub client_address: ClientAddressForm,
}

/// What the access log says of the client's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientAddressForm {
    /// The address.
    Whole,
    /// What limits by address count by: an IPv4 address, the first 64 bits of an IPv6 address.
    Prefix,
    /// A keyed hash of the address, equal for equal addresses within one day (UTC) and one run of the process.
    Hashed,
    /// Nothing.
    None,
}

/// How diagnostics are written to the standard error output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Lines for people.
    Text,
}

/// The levels of diagnostics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// What went wrong and needs a person.
    Error,
    /// What went wrong and was dealt with.
    Warn,
    /// What an operator wants to see of a healthy gateway.
    Info,
    /// What helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

/// Where the access log goes, one JSON object for each exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Nowhere.
    None,
    /// The standard output.
    Stdout,
    /// The end of a file, made when it is missing.
    File(PathBuf),
}
