//! The settings as written: every key, without the rules.
//!
//! No key is required here: the validation records a missing key together with all other errors. The comments are the descriptions in the
//! JSON Schema.

mod admin;
mod store;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{Amount, At, Number, OptionalWord, Switch, Whole, Word};
use tollgate_filter::{AfterLeaving, CapMember, Choice, ErrorShape};

pub(crate) use self::admin::{RawAdmin, RawAdminTls, RawAdminToken};
pub(crate) use self::store::RawStore;
use super::acme::AcmeChallenge;
use super::proxies::ForwardedField;
use super::settings::{ClientAddressForm, Cors, LogFormat, LogLevel};

/// The highest weight of a provider.
pub(crate) const WEIGHT_MAX: u64 = 1000;

/// The settings of a tollgate gateway.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSettings {
    /// The service's name and URLs.
    pub(crate) service: RawService,
    /// Worker threads, shutdown and limits on client connections.
    pub(crate) server: RawServer,
    /// The listeners for clients.
    pub(crate) listener: Vec<RawListener>,
    /// The admin interface: health, metrics, and the admin API.
    pub(crate) admin: RawAdmin,
    /// The database of accounts, keys and the ledger.
    pub(crate) store: RawStore,
    /// The routes and their filter chains; the built-in table by default.
    pub(crate) route: Vec<RawRoute>,
    /// Routes to add to the table, or to change in it.
    pub(crate) route_change: Vec<RawRoute>,
    /// Retries and hedged requests.
    pub(crate) upstream: RawUpstream,
    /// The model providers.
    pub(crate) provider: Vec<RawProvider>,
    /// The models on sale.
    pub(crate) model: Vec<RawModel>,
    /// The diagnostics and the access log.
    pub(crate) telemetry: RawTelemetry,
}

/// The service's name and URLs.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawService {
    /// The short word in `x_svc`, `X-Svc-...` and `sk-svc-`. Keys created under one name are invalid under another.
    ///
    /// Default: `svc`
    /// Range: a lower-case letter, then up to 15 lower-case letters or digits
    pub(crate) name: Option<At<String>>,
    /// The base URL for clients, without `/v1`. The service needs a host or a port of its own.
    ///
    /// Type: URL
    /// Default: `http(s)://localhost:PORT` of the first listener
    /// Range: `http` or `https`, no path, user, query or fragment
    pub(crate) base_url: Option<At<String>>,
    /// The base URL of discovery documents.
    ///
    /// Type: URL
    /// Default: `service.base_url`
    /// Range: as above, a path is allowed
    pub(crate) root_url: Option<At<String>>,
    /// The model for requests without `model`; by default they are refused.
    ///
    /// Range: the id of a model in this file
    pub(crate) default_model: Option<At<String>>,
}

/// Worker threads, shutdown and limits on client connections.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawServer {
    /// Worker threads.
    ///
    /// Default: one for each processor
    pub(crate) workers: Number<1, 1_024>,
    /// Grace period for open requests after a stop was requested.
    pub(crate) grace_secs: Whole<600, 1, 86_400>,
    /// For how long a gateway that was requested to stop serves on while its `/ready` is 503, so that load balancers send new requests elsewhere
    /// before connections are refused. Longer than they take to notice, and 0 without any. See `docs/operations.md`, "Stop".
    pub(crate) drain_delay_secs: Whole<0, 0, 3_600>,
    /// Maximum size of a request's head; beyond it 431.
    pub(crate) head_bytes_max: Whole<32_768, 4_096, 1_048_576>,
    /// Maximum number of fields in a request's head; beyond it 431.
    pub(crate) head_fields_max: Whole<100, 16, 256>,
    /// Timeout of a head from its first byte, and of a TLS handshake.
    pub(crate) head_secs: Whole<10, 1, 3_600>,
    /// Idle timeout of an HTTP/1.1 connection between requests.
    pub(crate) idle_secs: Whole<75, 1, 3_600>,
    /// Timeout of a request's whole body; beyond it 408.
    pub(crate) body_secs: Whole<60, 1, 3_600>,
    /// Timeout for a client to read written bytes; then it is disconnected.
    pub(crate) write_secs: Whole<60, 1, 3_600>,
    /// Time without data in a stream after which a keep-alive comment is sent, so that intermediate proxies keep the connection.
    pub(crate) comment_secs: Whole<15, 1, 3_600>,
    /// Maximum size of one event of a provider's stream; a larger one ends the stream. Of a whole answer, and of all events together, 64 MiB
    /// are accepted.
    pub(crate) event_bytes_max: Whole<8_388_608, 65_536, 67_108_864>,
    /// Maximum concurrent requests on an HTTP/2 connection. Their decoded heads may have half of so many times `head_bytes_max`, without
    /// this bound on the connection of a trusted proxy; a request beyond it is reset with `REFUSED_STREAM`, and may be sent again.
    pub(crate) h2_streams_max: Whole<100, 1, 10_000>,
    /// Idle timeout of an HTTP/2 connection.
    pub(crate) h2_idle_secs: Whole<300, 1, 86_400>,
    /// Maximum concurrent connections, on all listeners together. The process needs a file descriptor for each, and one for each call to
    /// a provider. Beyond it the connection that has been idle for the longest is closed.
    pub(crate) connections_max: Whole<10_000, 1, 1_000_000>,
    /// Maximum concurrent connections of one client address (IPv6: of its first 64 bits). Beyond it the one of them that has been idle for
    /// the longest is closed, or else the new one. Trusted proxies have no such limit.
    ///
    /// Default: half of `connections_max`, at least 16
    pub(crate) connections_per_address_max: Number<1, 1_000_000>,
    /// Connections that the system keeps for each listener until they are accepted. The system's own limit (`net.core.somaxconn`) applies
    /// as well; the start reports it where it is lower.
    pub(crate) accept_queue: Whole<4_096, 1, 65_535>,
    /// A file with variables, a line `NAME=value` for each, as for systemd's `EnvironmentFile=`. They take precedence over those of the
    /// process, and each reload reads them again. See `docs/reload.md`.
    ///
    /// Type: path
    pub(crate) environment_file: Option<At<String>>,
    /// Reloads the settings when their file, or a file with a secret or with authorities that it names, has changed and stayed as it is for
    /// two seconds. Certificates with their keys are read again without this setting. See `docs/reload.md`.
    pub(crate) watch_settings: Switch<false>,
    /// Memory that the process may use. Bodies and buffers of all requests get two fifths of it, an account a fifth of that at most: what
    /// does not fit is refused with 503 and `Retry-After`, a body that could never fit with 413. Open requests get another fifth: 24 KiB for
    /// each, with its decoded head. One client address (IPv6: its first 64 bits) has at most a fifth of that, and a quarter of what is left:
    /// about 400 requests at 300 MiB, 1,400 at 1 GiB. Beyond it a request is refused with 503, in HTTP/2 with `REFUSED_STREAM`, and an answer
    /// whose client has not read for a second is reset.
    ///
    /// Default: the limit of the cgroup (v2 or v1), else the memory of the machine
    // With less the program itself does not fit.
    pub(crate) memory_bytes_max: Number<67_108_864, 1_099_511_627_776>,
}

/// The listeners for clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawListener {
    /// The address to listen on, or `unix:` and the path of a Unix socket. See `docs/proxy.md`, "Unix sockets".
    ///
    /// Type: address and port, or path
    /// Default: required
    /// Range: an IP address, no names; port 0 selects a free one; a path of at most 107 bytes in an existing folder
    pub(crate) address: Option<At<String>>,
    /// The permissions of the file of a Unix socket.
    ///
    /// Default: `0660`
    /// Range: octal digits; with a Unix socket only
    pub(crate) socket_mode: Option<At<String>>,
    /// Certificates: files with their keys, or by ACME; the first is the default for clients without SNI. None: no TLS.
    pub(crate) tls: Vec<RawTls>,
    /// Certificate authorities of clients (mutual TLS). A client without a certificate of one of them is refused in the handshake; its name in
    /// the certificate means nothing, and it needs a key all the same. Changed ones apply from the next
    /// handshake on; open connections stay.
    ///
    /// Type: path
    /// Default: clients need no certificate
    /// Range: PEM; with `tls` only
    pub(crate) client_ca: Option<At<String>>,
    /// Offers HTTP/2: by ALPN with TLS, by prior knowledge (h2c) without.
    pub(crate) http2: Switch<true>,
    /// Answers `/live` and `/ready` here too, before the routes, for a load balancer in front of the listener: 200 or 503, without the reasons,
    /// which are at the admin address.
    pub(crate) health: Switch<false>,
    /// Trusted proxies. On connections from these addresses the client is the one that the proxy reports; on all others it is the peer, and
    /// the fields are ignored. See `docs/proxy.md`.
    ///
    /// Type: list of ranges
    /// Range: IP addresses and ranges (`10.0.0.0/8`, `2001:db8::/32`), not all addresses
    pub(crate) trusted_proxies: Option<At<Vec<At<String>>>>,
    /// The field by which they report it; the other is not read. `either`: both are read; a request in which they name different
    /// clients is refused with 400.
    ///
    /// Range: with `trusted_proxies` only
    pub(crate) forwarded_field: Word<ForwardedField>,
    /// Every connection starts with a PROXY protocol header, version 1 or 2, before TLS. Connections from untrusted peers or without a
    /// valid header are closed.
    ///
    /// Range: `true` with `trusted_proxies` only
    pub(crate) proxy_protocol: Switch<false>,
}

/// A certificate chain and its key, as PEM files, or a certificate by ACME.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTls {
    /// A certificate chain. With several, a client gets the first that matches its SNI, or the first of all.
    ///
    /// Type: path
    /// Default: required in `tls`, without `acme`
    /// Range: PEM, the listener's own certificate first
    pub(crate) certificate: Option<At<String>>,
    /// The private key of the certificate.
    ///
    /// Type: path
    /// Default: required in `tls`, without `acme`
    /// Range: PEM; RSA, ECDSA P-256 or P-384, Ed25519
    pub(crate) key: Option<At<String>>,
    /// A certificate that the gateway obtains and renews by itself, instead of the two files.
    pub(crate) acme: Option<RawAcme>,
}

/// A certificate by ACME (RFC 8555).
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAcme {
    /// The DNS names of the certificate, all of which have to lead to this gateway. See `docs/certificates.md`.
    ///
    /// Type: list of names
    /// Default: required in `acme`
    /// Range: 1 to 100, no wildcards
    pub(crate) names: Option<At<Vec<At<String>>>>,
    /// Mail addresses at which the authority may reach the operator.
    ///
    /// Type: list of addresses
    pub(crate) contact: Option<At<Vec<At<String>>>>,
    /// Whether the operator agrees to the authority's terms of service, for Let's Encrypt those at `https://letsencrypt.org/repository/`.
    ///
    /// Default: required in `acme`
    /// Range: `true`
    pub(crate) terms_agreed: Switch<false>,
    /// The URL of the authority's directory. `https://acme-staging-v02.api.letsencrypt.org/directory` is Let's Encrypt's for trials.
    ///
    /// Type: URL
    /// Default: that of Let's Encrypt
    /// Range: `https`
    pub(crate) directory: Option<At<String>>,
    /// The roots that the directory's own certificate must come from, for an authority of your own.
    ///
    /// Type: path
    /// Default: the system's roots
    /// Range: PEM
    pub(crate) ca_file: Option<At<String>>,
    /// How control over the names is proved: by a request at port 80, or by a handshake at port 443 (RFC 8737).
    ///
    /// Range: `tls-alpn-01` without `client_ca` only
    pub(crate) challenge: Word<AcmeChallenge>,
    /// The id of an external account that the authority requires (RFC 8555 section 7.3.4).
    pub(crate) key_id: Option<At<String>>,
    /// The variable with the MAC key of that account.
    ///
    /// Range: a name; with `key_id` only
    pub(crate) mac_key_env: Option<At<String>>,
    /// The file with the MAC key of that account.
    ///
    /// Type: path
    /// Range: with `key_id` only
    pub(crate) mac_key_file: Option<At<String>>,
    /// Wait after an order has failed; it doubles with each failure, up to a day, and is never shorter than a `Retry-After` of the authority.
    pub(crate) retry_secs: Whole<300, 1, 86_400>,
}

/// A route: a path pattern and its filter chain.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    /// The path, compared undecoded: exact, `{name}` for one segment, `{*name}` at the end for the rest.
    ///
    /// Type: pattern
    /// Default: required
    /// Range: starts with `/`; visible ASCII without `?`, `#` and `%`
    pub(crate) path: Option<At<String>>,
    /// The allowed methods. `GET` includes `HEAD`; `OPTIONS` is always allowed.
    ///
    /// Type: list of words
    /// Default: required
    /// Range: `GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`
    pub(crate) methods: Option<At<Vec<At<String>>>>,
    /// Maximum size of a request's body; beyond it 413.
    ///
    /// Default: 65536
    pub(crate) body_bytes_max: Number<0, 1_073_741_824>,
    /// The filter chain, outermost first.
    ///
    /// Type: list of names
    /// Default: required
    /// Range: filters of `filters/README.md`, each once, in the order that they declare there
    pub(crate) chain: Option<At<Vec<At<String>>>>,
    /// The format of errors: `{"error":{"message","type","param","code"}}`, that of OAuth, HTML pages, or `code` and `content` beside the
    /// envelope for commerce platforms.
    ///
    /// Default: `envelope`
    pub(crate) errors: OptionalWord<ErrorShape>,
    /// The scope that a credential must have.
    ///
    /// Type: word
    /// Default: required where the chain has `auth` (or `scopes_any` is), not allowed elsewhere
    /// Range: `api:models`, `api:chat`, `api:completions`, `commerce:subscribe`, `dev.ucp.shopping.checkout:manage`, `mcp:...`
    pub(crate) scope: Option<At<String>>,
    /// Scopes of which a credential must have at least one; the server behind the route checks the scope of each operation.
    ///
    /// Type: list of words
    /// Default: none; instead of `scope`
    /// Range: scopes of one resource
    pub(crate) scopes_any: Option<At<Vec<At<String>>>>,
    /// The rate class for requests to this route, instead of the account's class.
    ///
    /// Type: name
    /// Range: a class of `[limits]`
    pub(crate) class: Option<At<String>>,
    /// The CORS policy: no access, reads without credentials, or calls with a bearer credential.
    ///
    /// Default: `none`
    pub(crate) cors: OptionalWord<Cors>,
    /// The deprecation date, past or future: responses have `Deprecation` (RFC 9745) and a `Link` to `notice`, and the OpenAPI document and
    /// the page `/docs/lifecycle` list it.
    ///
    /// Type: time
    /// Range: RFC 3339
    pub(crate) deprecated_at: Option<At<String>>,
    /// The sunset date: `Sunset` (RFC 8594). The route keeps working until it is removed from the settings.
    ///
    /// Type: time
    /// Range: RFC 3339, not before `deprecated_at`
    pub(crate) sunset_at: Option<At<String>>,
    /// The successor: a `Link` with `rel="successor-version"`.
    ///
    /// Type: URL or path
    /// Range: with one of the two above
    pub(crate) successor: Option<At<String>>,
    /// The documentation of the deprecation.
    ///
    /// Type: URL or path
    /// Default: `/docs/lifecycle`
    /// Range: with one of the two above
    pub(crate) notice: Option<At<String>>,
}

/// Retries of calls that failed before the first byte of the response, and hedged requests.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawUpstream {
    /// Maximum attempts for one request, including the first; 1 disables failover.
    pub(crate) attempts_max: Whole<3, 1, 10>,
    /// The retry budget.
    pub(crate) budget: RawBudget,
    /// Delay without a response after which a hedged request is sent to another provider of the model; the first response is used, the
    /// other call is cancelled. Both providers may bill.
    ///
    /// Type: milliseconds
    pub(crate) hedge_after_ms: Number<1, 600_000>,
}

/// The retry budget of each model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawBudget {
    /// Retries per hundred requests, for each model.
    pub(crate) percent: Whole<20, 0, 100>,
    /// Additional retries per second.
    pub(crate) per_sec: Whole<2, 0, 1_000>,
    /// Burst of retries.
    pub(crate) burst: Whole<50, 1, 10_000>,
}

/// The model providers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawProvider {
    /// Its name in these settings, in logs and in metrics.
    ///
    /// Type: name
    /// Default: required
    /// Range: 1 to 32 letters, digits, `-`, `_`, `.`; once
    pub(crate) name: Option<At<String>>,
    /// Its base URL, including `/v1`; `/chat/completions` is appended.
    ///
    /// Type: URL
    /// Default: required
    /// Range: `http` or `https`, no user, query or fragment
    pub(crate) base_url: Option<At<String>>,
    /// The variable that contains the API key for the provider.
    ///
    /// Type: name of a variable
    /// Range: a variable that is set; not beside `api_key_file`
    pub(crate) api_key_env: Option<At<String>>,
    /// The file that contains the API key, such as a credential of the service manager.
    ///
    /// Type: path
    /// Range: a readable file with one word; not beside `api_key_env`
    pub(crate) api_key_file: Option<At<String>>,
    /// Uses HTTP/2: by ALPN over TLS, by prior knowledge without.
    pub(crate) http2: Switch<false>,
    /// The roots its certificate must come from.
    ///
    /// Type: path
    /// Default: the system's roots
    /// Range: PEM
    pub(crate) ca_file: Option<At<String>>,
    /// Its timeouts.
    pub(crate) timeouts: RawTimeouts,
    /// Maximum idle connections of each worker to each address; with TLS or HTTP/2 the limit is 1024 for all providers together.
    pub(crate) connections_idle_max: Whole<512, 1, 65_536>,
    /// Its weight among the providers of a model; 0: used only when no other can serve.
    pub(crate) weight: Whole<1, 0, WEIGHT_MAX>,
    /// Maximum concurrent calls of all workers; streams count until their end.
    pub(crate) concurrency_max: Number<1, 100_000>,
    /// Maximum length of the queue (first come, first served); beyond it 503.
    ///
    /// Range: with `concurrency_max` only
    pub(crate) queue_max: Whole<100, 0, 100_000>,
    /// Maximum wait in the queue; beyond it 503.
    ///
    /// Range: with `concurrency_max` only
    pub(crate) queue_wait_secs: Whole<10, 1, 3_600>,
    /// Retries at this provider within one request, with backoff, when no other candidate is left and the provider has not started to
    /// process the request.
    pub(crate) retries: Whole<0, 0, 5>,
    /// Top-level members of a request that are not forwarded to it, in any case; see below.
    ///
    /// Type: list of names
    /// Default: `[]`
    /// Range: 64 at most, of 1 to 64 visible ASCII characters; none that the price depends on
    pub(crate) remove_members: Option<At<Vec<At<String>>>>,
    /// Top-level members because of which a request is refused (400) that could be sent to it, also if another provider or a fallback model
    /// would be selected.
    ///
    /// Type: list of names
    /// Default: `[]`
    /// Range: 64 at most; not `model`, `messages`, `prompt`, `cache`
    pub(crate) refuse_members: Option<At<Vec<At<String>>>>,
    /// Whether it knows the role `developer` of messages. Otherwise that role is sent to it as `system`.
    pub(crate) developer_role: Switch<false>,
    /// Its circuit breaker and health probe.
    pub(crate) health: RawHealth,
    /// Sends it the client's address in `X-Forwarded-For`. Where a trusted proxy reports no client, the field is not sent. Such fields
    /// of a client are never forwarded.
    pub(crate) forward_client_address: Switch<false>,
    /// Sends it the id of the request (`X-Request-Id`), and the client's `traceparent` and `tracestate` where they are valid (W3C Trace
    /// Context), so that its logs and traces can be joined with the client's. Of a request that is traced here, the parent is the span of
    /// the attempt.
    pub(crate) forward_request_ids: Switch<false>,
}

/// The circuit breaker and the health probe of a provider.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHealth {
    /// Consecutive failures that open a circuit: the provider is not called as long as another one is healthy. Failures that a request
    /// can cause (5xx answers, cut answers, time-outs) open it for their account; for all accounts only when so many of them, at least
    /// 2, have distinct bodies and come from at least two accounts, or the last probe failed, or no other account was active in the
    /// window. They never remove the last provider of a model.
    pub(crate) failures: Whole<3, 1, 1_000>,
    /// Window from the first to the last of them; also how long an account is active after one of its calls started or ended.
    pub(crate) window_secs: Whole<30, 1, 3_600>,
    /// How long a circuit stays open; then it is half-open and admits trial requests.
    pub(crate) cooldown_secs: Whole<10, 1, 3_600>,
    /// Maximum concurrent trial requests of a half-open circuit. One success closes it.
    ///
    /// Default: 4, or `concurrency_max` if that is less
    pub(crate) trial_requests: Number<1, 1_000>,
    /// The longest `Retry-After` or `retry-after-ms` that is respected, and forwarded to a client.
    pub(crate) retry_after_secs_max: Whole<60, 1, 3_600>,
    /// The path of the periodic health probe, relative to its base URL; sent with its key. Any status from 200 to 299 is healthy.
    ///
    /// Type: path
    /// Range: starts with `/`
    pub(crate) probe_path: Option<At<String>>,
    /// Interval of the probe.
    ///
    /// Range: with `probe_path` only
    pub(crate) probe_secs: Whole<10, 1, 3_600>,
}

/// The timeouts of a provider.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTimeouts {
    /// Connect timeout, for all addresses of the name, lookup and TLS included.
    pub(crate) connect_secs: Whole<10, 1, 300>,
    /// Timeout of the first event of a stream, also after a head that was sent early. A comment starts it again.
    pub(crate) first_byte_secs: Whole<120, 1, 3_600>,
    /// Timeout of the first byte of a whole response, which is sent when all of it is generated. White space starts it again.
    pub(crate) first_byte_whole_secs: Whole<600, 1, 3_600>,
    /// Timeout between two chunks of a response, from its first event or first byte on.
    pub(crate) between_bytes_secs: Whole<60, 1, 3_600>,
    /// Timeout of the whole call, from its first attempt, including the wait in queues.
    ///
    /// Range: below `meter.hold_secs`
    pub(crate) total_secs: Whole<900, 1, 21_600>,
}

/// A model on sale.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawModel {
    /// The id that clients use.
    ///
    /// Default: required
    /// Range: 1 to 128 visible ASCII characters without quotes, braces, `<`, `>`, backslash; once
    pub(crate) id: Option<At<String>>,
    /// The display name, in the model list.
    pub(crate) name: Option<At<String>>,
    /// The owner, in the model list.
    ///
    /// Default: `service.name`
    pub(crate) owned_by: Option<At<String>>,
    /// The creation time, in the model list.
    ///
    /// Type: seconds since 1970
    // Up to 2100-01-01, so that a value in milliseconds is detected.
    pub(crate) created: Number<0, 4_102_444_800>,
    /// The providers of the model.
    pub(crate) providers: Vec<RawProviderModel>,
    /// How a provider is selected: at random by weight, or the one with the fewest open calls for its weight.
    pub(crate) choice: Word<Choice>,
    /// Fallback models, used in this order when none of its own providers can serve. The client pays the price of the requested model.
    ///
    /// Type: list of ids
    /// Default: `[]`
    /// Range: other models of this file, 3 at most, none more expensive
    pub(crate) fallback: Option<At<Vec<At<String>>>>,
    /// Allows models in `fallback` whose price of input, output or a request is higher: the operator pays the difference.
    pub(crate) expensive_fallback: Switch<false>,
    /// The price.
    pub(crate) price: RawPrice,
    /// Input and output together; limits the hold.
    ///
    /// Type: tokens
    /// Default: unknown
    pub(crate) context_length: Number<1, 100_000_000>,
    /// Maximum output of a request without a cap: the basis of the hold and, where it is set, the maximum that is charged for each
    /// response.
    ///
    /// Default: 4096, or `context_length` if that is less
    /// Range: `context_length` at most
    pub(crate) max_output_tokens: Number<1, 100_000_000>,
    /// Output modalities, in the model list.
    ///
    /// Type: list of words
    /// Default: `["text"]`
    /// Range: `text`, `image`, `audio`, `video`
    pub(crate) modalities: Option<At<Vec<At<String>>>>,
    /// Held for each part of a message that is not text, where its kind has no ceiling of its own.
    ///
    /// Default: none: the input is held for at `context_length`, or with 65536 tokens for each such part
    pub(crate) part_ceiling: Amount,
    /// Its tokens per token of the o200k vocabulary, where the gateway counts tokens.
    ///
    /// Type: decimal string
    /// Default: `"1"`
    /// Range: 0.1 to 10
    pub(crate) token_factor: Option<At<String>>,
    /// Sends text requests with a `system` member as chat requests, even if the provider accepts text requests; otherwise it is put
    /// before the prompt.
    pub(crate) system_as_chat: Switch<false>,
    /// The member that caps a chat request without a cap at what its account can pay (`meter.clamp_output`).
    pub(crate) cap_member: Word<CapMember>,
    /// Whether its responses are cached.
    pub(crate) cache: Switch<true>,
    /// How a stream of this model continues after its client has disconnected.
    ///
    /// Default: `meter.after_leaving`
    pub(crate) after_leaving: OptionalWord<AfterLeaving>,
}

/// A model at one provider.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawProviderModel {
    /// The providers of the model, 16 at most.
    ///
    /// Type: name
    /// Default: required, at least one
    /// Range: a provider of this file
    pub(crate) provider: Option<At<String>>,
    /// The provider's id of the model.
    ///
    /// Default: the model's id
    pub(crate) model: Option<At<String>>,
    /// The operations that the provider supports for it. With `chat` alone, text requests are translated to chat requests, and the
    /// responses back.
    ///
    /// Type: list of words
    /// Default: `["chat", "text"]`
    /// Range: `chat`, `text`
    pub(crate) api: Option<At<Vec<At<String>>>>,
    /// Its weight for this model; 0: used only when no other can serve.
    ///
    /// Default: the provider's
    pub(crate) weight: Number<0, WEIGHT_MAX>,
}

/// The price of a model, as decimal strings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPrice {
    /// Per million input tokens.
    ///
    /// Type: credits, decimal string
    /// Default: required
    /// Range: 0 or more
    pub(crate) input: Option<At<String>>,
    /// Per million output tokens.
    ///
    /// Type: credits, decimal string
    /// Default: required
    /// Range: 0 or more
    pub(crate) output: Option<At<String>>,
    /// Per successful request.
    ///
    /// Default: `"0"`
    pub(crate) request: Amount,
    /// Held for each image in a request. It is charged by the tokens that the provider reports.
    ///
    /// Default: `part_ceiling`
    pub(crate) image: Amount,
    /// Held for each audio part.
    ///
    /// Default: `part_ceiling`
    pub(crate) audio: Amount,
    /// Held for each file.
    ///
    /// Default: `part_ceiling`
    pub(crate) file: Amount,
    /// Held for all plugins of a request together.
    ///
    /// Default: `part_ceiling`
    pub(crate) plugins: Amount,
}

/// The diagnostics, the access log and the export of traces.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTelemetry {
    /// The format of diagnostics on the standard error output.
    pub(crate) log_format: Word<LogFormat>,
    /// The minimum level of diagnostics.
    pub(crate) log_level: Word<LogLevel>,
    /// The destination of the access log.
    ///
    /// Type: word or path
    /// Default: `stdout`
    /// Range: `stdout`, `none`, or a file to append to
    pub(crate) access_log: Option<At<String>>,
    /// The share of exchanges that are logged. Those that failed, or were charged, are logged in any case.
    ///
    /// Type: decimal
    /// Default: 1
    /// Range: 0 to 1
    pub(crate) access_sample: Option<At<f64>>,
    /// The form of the client's address in the access log: the address, the prefix that limits count by (IPv6: the first 64 bits), a
    /// keyed hash, or nothing. The key of the hash is random for each start and never stored, and the day (UTC) is hashed too: equal
    /// hashes are one client within a day and one run only.
    pub(crate) client_address: Word<ClientAddressForm>,
    /// The collector of OpenTelemetry traces that spans are exported to, by OTLP over HTTP in JSON; `/v1/traces` is appended.
    ///
    /// Type: URL
    /// Default: none: no traces
    /// Range: `http` or `https`, no user, query or fragment
    pub(crate) otlp_url: Option<At<String>>,
    /// The share of requests that are traced. Where a request has a valid `traceparent`, its sampled flag decides instead.
    ///
    /// Type: decimal
    /// Default: 0.01
    /// Range: 0 to 1
    pub(crate) otlp_sample: Option<At<f64>>,
    /// The variable that contains header fields of each export, such as the collector's token: `NAME=VALUE`, separated by commas, values
    /// percent-encoded.
    ///
    /// Type: name of a variable
    /// Range: a variable that is set; not beside `otlp_headers_file`
    pub(crate) otlp_headers_env: Option<At<String>>,
    /// The file that contains these header fields.
    ///
    /// Type: path
    /// Range: a readable file with one word; not beside `otlp_headers_env`
    pub(crate) otlp_headers_file: Option<At<String>>,
    /// The roots its certificate must come from.
    ///
    /// Type: path
    /// Default: the system's roots
    /// Range: PEM
    pub(crate) otlp_ca_file: Option<At<String>>,
}
