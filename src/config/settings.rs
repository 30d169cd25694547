//! The validated settings: a value of these types satisfies the rules.
//!
//! Only [`super::load`] creates these types. Code outside `config` reads no file and no environment for a setting.

mod admin;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use secrecy::{ExposeSecret, SecretString};
use tollgate_filter::settings::Words;
use tollgate_filter::settings::{BaseUrl, PublicUrl, Warning};
use tollgate_filter::{Catalog, ErrorShape, RequiredAccess, ServiceIdentity};
use tollgate_module::{CheckedSection, Services};
use tollgate_store::postgres::{DatabaseUrl, SpoolOptions};

pub use self::admin::{Admin, AdminRole, AdminTls, AdminToken};
use super::acme::AcmeOrder;
use super::address::ListenAddress;
use super::certificate::Certificate;
use super::memory::Memory;
use super::pattern::PathPattern;
use super::proxies::TrustedProxies;
use super::source::Source;

/// Every setting of one gateway.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The service's name and addresses.
    pub service: Service,
    /// Threads, shutdown and limits on clients.
    pub server: Server,
    /// The listeners; at least one.
    pub listeners: Vec<Listener>,
    /// The admin interface.
    pub admin: Admin,
    /// The database.
    pub store: Store,
    /// The routes with their chains, in the order of matching.
    pub routes: Vec<Route>,
    /// Warnings found while the routes were checked.
    pub(super) route_warnings: Vec<Warning>,
    /// Warnings of the checks of sections.
    pub(super) section_warnings: Vec<Warning>,
    /// Retries, hedged requests and their budget.
    pub upstream: Upstream,
    /// The model providers.
    pub providers: Vec<Arc<Provider>>,
    /// The models on sale.
    pub catalog: Arc<Catalog>,
    /// Logs.
    pub telemetry: Telemetry,
    /// The sections of modules.
    pub sections: Sections,
    /// Source of the settings.
    pub source: Source,
}

/// The checked sections of modules, by type.
#[derive(Clone, Default)]
pub struct Sections {
    checked: Vec<CheckedSection>,
    services: Services,
}

impl Sections {
    /// No sections yet. `before`: the gateway's own settings, for the sections' checks.
    pub(super) fn new(before: Services) -> Sections {
        Sections {
            checked: Vec::new(),
            services: before,
        }
    }

    /// Services for the check of the next section.
    pub(super) fn services(&self) -> &Services {
        &self.services
    }

    /// Adds a section and its services.
    pub(super) fn add(&mut self, section: CheckedSection) {
        section.provide(&mut self.services);
        self.checked.push(section);
    }

    /// The sections' service of this type; `None` if the module of the section was not declared.
    pub fn find<T: tollgate_module::Service>(&self) -> Option<T> {
        self.services.find()
    }

    /// Copies the services of the sections to the modules' services.
    pub(crate) fn provide(&self, services: &mut Services) {
        for section in &self.checked {
            section.provide(services);
        }
    }
}

impl std::fmt::Debug for Sections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.checked).finish()
    }
}

impl Settings {
    /// The certificates of all listeners, from files.
    pub fn certificates(&self) -> impl Iterator<Item = &Certificate> {
        let sources = self.listeners.iter().flat_map(|listener| &listener.tls);
        sources.filter_map(|source| match source {
            TlsSource::Files(certificate) => Some(certificate),
            TlsSource::Acme(_) => None,
        })
    }

    /// The certificates of all listeners and of the admin address, without certificates by ACME.
    pub(crate) fn certificates_mut(&mut self) -> impl Iterator<Item = &mut Certificate> {
        let sources = self.listeners.iter_mut().flat_map(|one| &mut one.tls);
        let listeners = sources.filter_map(|source| match source {
            TlsSource::Files(certificate) => Some(certificate),
            TlsSource::Acme(_) => None,
        });
        let admin = self.admin.tls.iter_mut();
        listeners.chain(admin.map(|tls| &mut tls.certificate))
    }

    /// The orders by ACME of all listeners.
    pub fn acme_orders(&self) -> impl Iterator<Item = &Arc<AcmeOrder>> {
        let sources = self.listeners.iter().flat_map(|listener| &listener.tls);
        sources.filter_map(|source| match source {
            TlsSource::Files(_) => None,
            TlsSource::Acme(order) => Some(order),
        })
    }

    /// The listeners in the order of `addresses`, the addresses of other settings with a possibly different order. Of several listeners
    /// with one address, as with port 0, the first is found first.
    pub(crate) fn listeners_at<'a>(
        &self,
        addresses: impl Iterator<Item = &'a ListenAddress>,
    ) -> Vec<Option<&Listener>> {
        let mut left: Vec<&Listener> = self.listeners.iter().collect();
        let found = addresses.map(|address| {
            let at = left.iter().position(|one| one.address == *address)?;
            Some(left.remove(at))
        });
        found.collect()
    }

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
    /// The base URL for clients, without a trailing slash.
    pub base_url: PublicUrl,
    /// The base URL of discovery; by default `base_url`.
    pub root_url: PublicUrl,
}

impl Service {
    /// The name and the URLs as the filters use them.
    pub fn identity(&self) -> ServiceIdentity {
        ServiceIdentity {
            name: self.name.to_string(),
            base_url: self.base_url.to_string(),
            root_url: self.root_url.to_string(),
        }
    }
}

/// `[server]`: threads, shutdown and limits on what a client can hold open.
#[derive(Clone, Debug)]
pub struct Server {
    /// Whether the settings are reloaded when one of their files changes.
    pub watch_settings: bool,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// Grace period of open requests after a stop was requested.
    pub grace: Duration,
    /// Time between the request of a stop and the drain.
    pub drain_delay: Duration,
    /// Silence in a stream after which a keep-alive comment is sent.
    pub comment: Duration,
    /// Maximum size of one event of a provider's stream, in bytes.
    pub event_bytes_max: usize,
    /// Limits on everything a client can hold open.
    pub limits: ConnectionLimits,
    /// The memory that the process may use.
    pub memory: Memory,
}

/// Limits on everything a client can hold open, for all listeners.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionLimits {
    /// Maximum size of a request's head in bytes.
    pub head_bytes_max: usize,
    /// Maximum number of fields in a request's head.
    pub head_fields_max: usize,
    /// Time limit for a head from its first byte; also the time limit of a TLS handshake.
    pub head: Duration,
    /// Idle timeout of a connection between requests (HTTP/1.1).
    pub idle: Duration,
    /// Time limit for a request's body as a whole.
    pub body: Duration,
    /// Time limit for a client to read written bytes.
    pub write: Duration,
    /// Concurrent requests on an HTTP/2 connection.
    pub h2_streams_max: u32,
    /// Idle timeout of an HTTP/2 connection without an open stream.
    pub h2_idle: Duration,
    /// Concurrent connections, on all listeners together.
    pub connections_max: usize,
    /// Concurrent connections of one address prefix.
    pub connections_per_address_max: usize,
    /// Length of the system's accept queue of each listener.
    pub accept_queue: u32,
}

/// One `[[listener]]`.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The address; port 0 selects a free port.
    pub address: ListenAddress,
    /// The permissions of a Unix socket.
    pub socket_mode: u32,
    /// Certificates, the first for clients that send no server name. Empty: no TLS.
    pub tls: Vec<TlsSource>,
    /// The authorities for required certificates of clients; `None`: no certificate required.
    pub client_roots: Option<Arc<RootCertStore>>,
    /// Whether HTTP/2 is offered: by ALPN with TLS, by prior knowledge without.
    pub http2: bool,
    /// Whether the listener answers `/live` and `/ready`.
    pub health: bool,
    /// The trusted proxies in front, which report the client's address.
    pub proxies: Option<Arc<TrustedProxies>>,
}

/// Where a certificate of a listener comes from.
#[derive(Clone, Debug)]
pub enum TlsSource {
    /// From files, which are read with the settings.
    Files(Certificate),
    /// From a certificate authority, while the gateway runs.
    Acme(Arc<AcmeOrder>),
}

/// `[store]`: the database of the books.
#[derive(Clone, Debug)]
pub struct Store {
    /// The database.
    pub url: StoreUrl,
    /// The password for the database, if the settings name a password.
    pub password: Option<SecretString>,
    /// The control socket of the database's gateway; `None`: beside the file.
    pub control_socket: Option<PathBuf>,
    /// The durability of a commit.
    pub durability: Durability,
    /// Bytes of free space below which new work is refused; 0 for no check.
    pub free_bytes_min: u64,
    /// The name of this gateway among several gateways on the database; `None` for a lone gateway.
    pub node: Option<String>,
    /// Whether a start waits for the end of another gateway.
    pub standby: bool,
    /// Removal from the journal; `None`: no removal.
    pub retention: Option<Retention>,
    /// Where charges are written while the database does not answer.
    pub spool: Option<SpoolOptions>,
    /// Time after the end of this gateway's lease during which other nodes leave its holds alone.
    pub orphan_grace: Duration,
}

/// Export and removal of the journal's months.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Whole months to keep, before the current month.
    pub keep_months: u32,
    /// The folder of the export files.
    pub exports: PathBuf,
}

/// The location of the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreUrl {
    /// `sqlite:PATH`: one file, created if missing.
    Sqlite(PathBuf),
    /// `postgres://...`: a database of a server.
    Postgres(DatabaseUrl),
}

/// The durability of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Survives a power failure: every commit is synced to the disk.
    #[default]
    Power,
    /// Survives the end of the process, but not a power failure.
    Process,
}

impl Words for Durability {
    const WORDS: &'static [(&'static str, Durability)] = &[
        ("power", Durability::Power),
        ("process", Durability::Process),
    ];
}

/// One `[[route]]`: a path pattern and its chain.
#[derive(Clone, Debug)]
pub struct Route {
    /// The pattern of the path.
    pub path: PathPattern,
    /// The methods of the route; never empty, never `OPTIONS`, and `HEAD` only if written (`GET` includes `HEAD`).
    pub methods: Vec<Method>,
    /// Maximum size of a request's body in bytes.
    pub body_bytes_max: usize,
    /// Names of filters, outermost first.
    pub chain: Vec<Arc<str>>,
    /// The format of errors.
    pub errors: ErrorShape,
    /// The scope that a credential needs here, where the chain has `auth`.
    pub access: Option<RequiredAccess>,
    /// The rate class of requests on this route; `None`: the class of the account, or `anonymous`.
    pub class: Option<Arc<str>>,
    /// The CORS policy.
    pub cors: Cors,
    /// The lifecycle of a route with a planned end.
    pub lifecycle: Option<Lifecycle>,
}

/// The lifecycle of a route, announced in the fields of its answers (RFC 9745, RFC 8594).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// The date of deprecation, past or future.
    pub deprecated_at: Option<jiff::Timestamp>,
    /// The sunset date: the route may be gone afterwards. Never before `deprecated_at`.
    pub sunset_at: Option<jiff::Timestamp>,
    /// The address of its successor.
    pub successor: Option<String>,
    /// The address of the explanatory page.
    pub notice: String,
}

/// The CORS policy of a route (WHATWG Fetch, CORS protocol).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cors {
    /// No access: no CORS fields are sent.
    #[default]
    None,
    /// Read access without credentials; any request field is allowed.
    Public,
    /// Calls with a bearer credential from any origin; the requested field names are echoed, `Authorization` among them.
    Api,
}

impl Words for Cors {
    const WORDS: &'static [(&'static str, Cors)] = &[
        ("none", Cors::None),
        ("public", Cors::Public),
        ("api", Cors::Api),
    ];
}

/// `[upstream]`: retries of calls that failed before the first byte of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// Attempts for one request, including the first.
    pub attempts_max: u32,
    /// The budget of further attempts, for each model.
    pub budget: RetryBudget,
    /// Delay without an answer after which a hedged request is sent to another provider.
    pub hedge_after: Option<Duration>,
}

/// The budget of further attempts, for each model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Attempts for each hundred requests.
    pub percent: u32,
    /// Attempts in a second, whatever the number of requests.
    pub per_sec: u32,
    /// Burst: the capacity of the bucket.
    pub burst: u32,
}

/// One `[[provider]]`: a model provider.
pub struct Provider {
    /// The name in these settings, in logs and metrics.
    pub name: Arc<str>,
    /// Its address, up to and including `/v1` or the like.
    pub base_url: BaseUrl,
    /// The gateway's API key at the provider; `None` without authentication.
    pub api_key: Option<SecretString>,
    /// Whether HTTP/2 is used: by ALPN over TLS, by prior knowledge without.
    pub http2: bool,
    /// Roots to trust instead of the system's.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    pub timeouts: ProviderTimeouts,
    /// Connections kept open between calls.
    pub connections_idle_max: usize,
    /// The default weight among a model's providers. A provider of weight 0 is called only when no other provider can serve.
    pub weight: u32,
    /// A concurrency limit for calls.
    pub concurrency: Option<Concurrency>,
    /// Retries at this provider within one request without another candidate left.
    pub retries: u32,
    /// Top-level members of a request not forwarded to the provider.
    pub remove_members: Arc<[Box<str>]>,
    /// Top-level members that cause a refusal: a request with such a member is refused if this provider could be called, even if another
    /// would be.
    pub refuse_members: Arc<[Box<str>]>,
    /// Whether the provider knows the role `developer`; otherwise `system` is sent.
    pub developer_role: bool,
    /// Its health settings.
    pub health: ProviderHealth,
    /// Whether the provider receives the client's address, in `X-Forwarded-For`.
    pub forward_client_address: bool,
    /// Whether the provider receives the ids of request and trace.
    pub forward_request_ids: bool,
}

impl Provider {
    /// Whether calls to both providers are equal: one address, one key.
    pub(crate) fn has_place_of(&self, other: &Provider) -> bool {
        let key = |one: &Provider| {
            one.api_key
                .as_ref()
                .map(|key| key.expose_secret().to_owned())
        };
        self.base_url == other.base_url && key(self) == key(other)
    }

    /// Whether the providers are equal in every setting.
    pub(crate) fn is_same(&self, other: &Provider) -> bool {
        // A new field has to be compared as well.
        let Provider {
            name,
            base_url: _,
            api_key: _,
            http2,
            roots,
            timeouts,
            connections_idle_max,
            weight,
            concurrency,
            retries,
            remove_members,
            refuse_members,
            developer_role,
            health,
            forward_client_address,
            forward_request_ids,
        } = self;
        self.has_place_of(other)
            && *name == other.name
            && *http2 == other.http2
            && *roots == other.roots
            && *timeouts == other.timeouts
            && *connections_idle_max == other.connections_idle_max
            && *weight == other.weight
            && *concurrency == other.concurrency
            && *retries == other.retries
            && *remove_members == other.remove_members
            && *refuse_members == other.refuse_members
            && *developer_role == other.developer_role
            && *health == other.health
            && *forward_client_address == other.forward_client_address
            && *forward_request_ids == other.forward_request_ids
    }
}

/// The concurrency limit of a provider, and the queue before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    /// Concurrent calls, from all workers.
    pub calls_max: usize,
    /// Maximum length of the queue.
    pub queue_max: usize,
    /// Maximum wait in the queue.
    pub wait: Duration,
}

/// Circuit breaker and health probes of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderHealth {
    /// Consecutive failures that open the circuit.
    pub failures: u32,
    /// Window from the first to the last of them.
    pub window: Duration,
    /// Cooldown before trial requests are admitted.
    pub cooldown: Duration,
    /// Concurrent trial requests.
    pub trial_requests: u32,
    /// The longest `Retry-After` that is respected.
    pub retry_after_max: Duration,
    /// The periodic probe.
    pub probe: Option<Probe>,
}

/// The periodic health probe of a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The path below its base address.
    pub path: String,
    /// Interval between probes.
    pub every: Duration,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The roots are long, and their number is enough here.
        f.debug_struct("Provider")
            .field("name", &self.name)
            .field("base_url", &self.base_url)
            .field("api_key", &self.api_key)
            .field("http2", &self.http2)
            .field("roots", &self.roots.as_ref().map(Vec::len))
            .field("timeouts", &self.timeouts)
            .field("connections_idle_max", &self.connections_idle_max)
            .field("weight", &self.weight)
            .field("concurrency", &self.concurrency)
            .field("retries", &self.retries)
            .field("remove_members", &self.remove_members)
            .field("refuse_members", &self.refuse_members)
            .field("developer_role", &self.developer_role)
            .field("health", &self.health)
            .field("forward_client_address", &self.forward_client_address)
            .field("forward_request_ids", &self.forward_request_ids)
            .finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProviderTimeouts {
    /// Connect timeout, for all addresses of the name, lookup and TLS included.
    pub connect: Duration,
    /// Timeout of the first event of a stream.
    pub first_byte: Duration,
    /// Timeout of the first byte of a whole answer, sent after complete generation.
    pub first_byte_whole: Duration,
    /// Idle timeout between two chunks of an answer.
    pub between_bytes: Duration,
    /// Timeout of the whole call.
    pub total: Duration,
}

/// `[telemetry]`: logs and traces.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// The format of diagnostics.
    pub log_format: LogFormat,
    /// Diagnostics below this level are not written.
    pub log_level: LogLevel,
    /// The output of the access log.
    pub access_log: AccessLog,
    /// The logged share of exchanges without an error or a charge, 0 to 1.
    pub access_sample: f64,
    /// The form of the client's address in the access log.
    pub client_address: ClientAddressForm,
    /// The export of traces, if any.
    pub otlp: Option<Otlp>,
}

/// The collector of traces.
#[derive(Clone, Debug)]
pub struct Otlp {
    /// The URL that spans are sent to.
    pub url: BaseUrl,
    /// The share of requests that are sampled where the client does not decide, 0 to 1.
    pub sample: f64,
    /// Header fields of each export, marked as sensitive.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Roots to trust instead of the system's.
    pub roots: Option<Vec<CertificateDer<'static>>>,
}

/// The form of the client's address in the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientAddressForm {
    /// The address.
    Whole,
    /// The key of limits by address: an IPv4 address, the first 64 bits of an IPv6 address.
    Prefix,
    /// A keyed hash of the address, equal for equal addresses within one day (UTC) and one run of the process.
    Hashed,
    /// No address.
    #[default]
    None,
}

impl Words for ClientAddressForm {
    const WORDS: &'static [(&'static str, ClientAddressForm)] = &[
        ("whole", ClientAddressForm::Whole),
        ("prefix", ClientAddressForm::Prefix),
        ("hashed", ClientAddressForm::Hashed),
        ("none", ClientAddressForm::None),
    ];
}

/// Format of diagnostics on the standard error output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Lines for people.
    #[default]
    Text,
}

impl Words for LogFormat {
    const WORDS: &'static [(&'static str, LogFormat)] =
        &[("json", LogFormat::Json), ("text", LogFormat::Text)];
}

/// The levels of diagnostics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// An error that needs an operator.
    Error,
    /// An error that was handled.
    Warn,
    /// Normal events that an operator needs.
    #[default]
    Info,
    /// Details for finding a fault.
    Debug,
    /// Everything.
    Trace,
}

impl Words for LogLevel {
    const WORDS: &'static [(&'static str, LogLevel)] = &[
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
}

/// The output of the access log, one JSON object for each exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// Disabled.
    None,
    /// The standard output.
    Stdout,
    /// Appended to a file, created if missing.
    File(PathBuf),
}
