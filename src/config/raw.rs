//! The settings as written: every key, none of the rules.
//!
//! Nothing is required here: a missing key is recorded by the validation, together with all other errors. The comments are the descriptions
//! in the JSON Schema.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Switch, Whole, Word};
use tollgate_filter::{CapMember, Choice};

use super::proxies::ForwardedField;
use super::settings::{ClientAddressForm, Durability, LogFormat, LogLevel};

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
    /// The HTTP endpoints for health and metrics.
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
    /// The short word in `x_svc` and `sk-svc-`: a lower-case letter, then up to 15 lower-case letters or digits.
    pub(crate) name: Option<At<String>>,
    /// The base URL for clients, without `/v1`.
    pub(crate) base_url: Option<At<String>>,
    /// The base URL of discovery documents.
    pub(crate) root_url: Option<At<String>>,
    /// The id of the model for requests without `model`.
    pub(crate) default_model: Option<At<String>>,
}

/// Worker threads, shutdown and limits on client connections.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawServer {
    /// Worker threads.
    pub(crate) workers: Option<At<u64>>,
    /// Grace period for open requests after a stop was requested.
    pub(crate) grace_secs: Whole<600, 1, 86_400>,
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
    /// Maximum concurrent requests on an HTTP/2 connection.
    pub(crate) h2_streams_max: Whole<100, 1, 10_000>,
    /// Idle timeout of an HTTP/2 connection.
    pub(crate) h2_idle_secs: Whole<300, 1, 86_400>,
    /// Maximum concurrent connections, on all listeners together. The process needs a file descriptor for each, and one for each call to
    /// a provider. Beyond it the connection that has been idle for the longest is closed.
    pub(crate) connections_max: Whole<10_000, 1, 1_000_000>,
    /// Maximum concurrent connections of one client address (IPv6: of its first 64 bits). Beyond it the one of them that has been idle for
    /// the longest is closed, or else the new one. Trusted proxies have no such limit.
    pub(crate) connections_per_address_max: Option<At<u64>>,
    /// Connections that the system keeps for each listener until they are accepted. The system's own limit (`net.core.somaxconn`) applies
    /// as well; the start reports it where it is lower.
    pub(crate) accept_queue: Whole<4_096, 1, 65_535>,
    /// Memory that the process may use. Bodies and buffers of all requests get two fifths of it. Default: the limit of its cgroup, else the
    /// memory of the machine.
    pub(crate) memory_bytes_max: Option<At<u64>>,
}

/// The listeners for clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawListener {
    /// Address and port; port 0 selects a free one.
    pub(crate) address: Option<At<String>>,
    /// Certificates with their keys; the first is the default for clients without SNI. None: no TLS.
    pub(crate) tls: Vec<RawTls>,
    /// Offers HTTP/2: by ALPN with TLS, by prior knowledge (h2c) without.
    pub(crate) http2: Switch<true>,
    /// Addresses and address ranges of trusted proxies, which report the client's address. Default: none.
    pub(crate) trusted_proxies: Option<At<Vec<At<String>>>>,
    /// The field by which they report it; the other is not read. `either`: both are read; a request in which they name different
    /// clients is refused with 400.
    pub(crate) forwarded_field: Word<ForwardedField>,
    /// Whether every connection starts with a PROXY protocol header, version 1 or 2.
    pub(crate) proxy_protocol: Option<At<bool>>,
}

/// A certificate chain and its key, as PEM files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTls {
    /// The file with the certificate chain, the leaf certificate first.
    pub(crate) certificate: Option<At<String>>,
    /// The file with the private key.
    pub(crate) key: Option<At<String>>,
}

/// The HTTP endpoints for health and metrics.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAdmin {
    /// A loopback address and port; port 0 selects a free one.
    pub(crate) address: Option<At<String>>,
}

/// The database of accounts, keys and the ledger.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawStore {
    /// `sqlite:` and the path of a file.
    pub(crate) url: Option<At<String>>,
    /// Free space of its file system below which new requests are refused with 503; 0 for no check.
    pub(crate) free_bytes_min: Whole<268_435_456, 0, 1_099_511_627_776>,
    /// The durability of a commit: `power` survives a power failure, `process` only the end of the process. With `process` a power
    /// failure may lose the latest charges.
    pub(crate) durability: Word<Durability>,
}

/// A route: a path pattern and its filter chain.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    /// The path: exact, with `{name}` for one segment or `{*name}` for the rest.
    pub(crate) path: Option<At<String>>,
    /// The allowed methods. `GET` includes `HEAD`; `OPTIONS` is always allowed.
    pub(crate) methods: Option<At<Vec<At<String>>>>,
    /// Maximum size of a request's body in bytes.
    pub(crate) body_bytes_max: Option<At<u64>>,
    /// Names of filters, outermost first.
    pub(crate) chain: Option<At<Vec<At<String>>>>,
    /// The format of errors: `envelope`, `oauth`, `page` or `ucp`.
    pub(crate) errors: Option<At<String>>,
    /// The scope that a credential must have.
    pub(crate) scope: Option<At<String>>,
    /// Scopes of one resource; a credential must have at least one of them.
    pub(crate) scopes_any: Option<At<Vec<At<String>>>>,
    /// The rate class for requests to this route, instead of the account's class.
    pub(crate) class: Option<At<String>>,
    /// The CORS policy: `none`, `public` (reads without credentials) or `api` (bearer credentials).
    pub(crate) cors: Option<At<String>>,
    /// The deprecation date, past or future, RFC 3339.
    pub(crate) deprecated_at: Option<At<String>>,
    /// The sunset date, from which the route may be removed, RFC 3339.
    pub(crate) sunset_at: Option<At<String>>,
    /// The successor: a URL, or a path of this service.
    pub(crate) successor: Option<At<String>>,
    /// The documentation of the deprecation: a URL, or a path of this service; `/docs/lifecycle` by default.
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
    /// Milliseconds without a response after which a hedged request is sent to another provider; hedging is disabled by default.
    pub(crate) hedge_after_ms: Option<At<u64>>,
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
    /// Its name in the settings, in logs and in metrics.
    pub(crate) name: Option<At<String>>,
    /// Its base URL, including `/v1`.
    pub(crate) base_url: Option<At<String>>,
    /// The environment variable that contains the API key for the provider.
    pub(crate) api_key_env: Option<At<String>>,
    /// The file that contains the API key for the provider.
    pub(crate) api_key_file: Option<At<String>>,
    /// Uses HTTP/2: by ALPN over TLS, by prior knowledge without.
    pub(crate) http2: Switch<false>,
    /// A PEM file with the roots to trust instead of the system's.
    pub(crate) ca_file: Option<At<String>>,
    /// Its timeouts.
    pub(crate) timeouts: RawTimeouts,
    /// Maximum idle connections of each worker to each address; with TLS or HTTP/2 the limit is 1024 for all providers together.
    pub(crate) connections_idle_max: Whole<512, 1, 65_536>,
    /// Its weight among the providers of a model; 0: used only when no other can serve.
    pub(crate) weight: Whole<1, 0, WEIGHT_MAX>,
    /// Maximum concurrent calls.
    pub(crate) concurrency_max: Option<At<u64>>,
    /// Maximum length of the queue (first come, first served); beyond it 503.
    pub(crate) queue_max: Whole<100, 0, 100_000>,
    /// Maximum wait in the queue; beyond it 503.
    pub(crate) queue_wait_secs: Whole<10, 1, 3_600>,
    /// Retries at this provider within one request, with backoff, when no other candidate is left and the provider has not started to
    /// process the request.
    pub(crate) retries: Whole<0, 0, 5>,
    /// Top-level members of a request that are not forwarded to it.
    pub(crate) remove_members: Option<At<Vec<At<String>>>>,
    /// Top-level members because of which a request is refused that could be sent to it.
    pub(crate) refuse_members: Option<At<Vec<At<String>>>>,
    /// Whether it knows the role `developer` of messages. Otherwise that role is sent to it as `system`.
    pub(crate) developer_role: Switch<false>,
    /// Its circuit breaker and health probe.
    pub(crate) health: RawHealth,
    /// Sends it the client's address in `X-Forwarded-For`. Where a trusted proxy reports no client, the field is not sent. Such fields
    /// of a client are never forwarded.
    pub(crate) forward_client_address: Switch<false>,
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
    /// Maximum concurrent trial requests of a half-open circuit.
    pub(crate) trial_requests: Option<At<u64>>,
    /// The longest `Retry-After` or `retry-after-ms` that is respected, and forwarded to a client.
    pub(crate) retry_after_secs_max: Whole<60, 1, 3_600>,
    /// The path of the periodic health probe, relative to the base URL.
    pub(crate) probe_path: Option<At<String>>,
    /// Interval of the probe.
    pub(crate) probe_secs: Whole<10, 1, 3_600>,
}

/// The timeouts of a provider.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTimeouts {
    /// Connect timeout, TLS included.
    pub(crate) connect_secs: Whole<10, 1, 300>,
    /// Timeout of the first byte of a stream.
    pub(crate) first_byte_secs: Whole<120, 1, 3_600>,
    /// Timeout of the first byte of a whole response, which is sent when all of it is generated.
    pub(crate) first_byte_whole_secs: Whole<600, 1, 3_600>,
    /// Timeout between two chunks of a response.
    pub(crate) between_bytes_secs: Whole<60, 1, 3_600>,
    /// Timeout of the whole call, from its first attempt, including the wait in queues.
    pub(crate) total_secs: Whole<900, 1, 21_600>,
}

/// A model on sale.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawModel {
    /// The id that clients use.
    pub(crate) id: Option<At<String>>,
    /// The display name.
    pub(crate) name: Option<At<String>>,
    /// The owner, in the model list.
    pub(crate) owned_by: Option<At<String>>,
    /// The creation time, in seconds since 1970.
    pub(crate) created: Option<At<u64>>,
    /// The providers of the model.
    pub(crate) providers: Vec<RawProviderModel>,
    /// How a provider is selected: at random by weight, or the one with the fewest open calls for its weight.
    pub(crate) choice: Word<Choice>,
    /// Ids of the fallback models, used in this order when none of its providers can serve.
    pub(crate) fallback: Option<At<Vec<At<String>>>>,
    /// Allows models in `fallback` whose price of input, output or a request is higher: the operator pays the difference.
    pub(crate) expensive_fallback: Switch<false>,
    /// The price.
    pub(crate) price: RawPrice,
    /// The context length in tokens, input and output together.
    pub(crate) context_length: Option<At<u64>>,
    /// Maximum output tokens of a request without a cap.
    pub(crate) max_output_tokens: Option<At<u64>>,
    /// Its output modalities: `text`, `image`, `audio`, `video`.
    pub(crate) modalities: Option<At<Vec<At<String>>>>,
    /// Credits held for each part of a request that is not text, where its kind has no ceiling of its own; a decimal string. Default: a part
    /// without a ceiling is held for at the model's context.
    pub(crate) part_ceiling: Option<At<String>>,
    /// Its tokens per token of the o200k vocabulary, as a decimal string.
    pub(crate) token_factor: Option<At<String>>,
    /// Sends text requests with a `system` member as chat requests, even if the provider accepts text requests; otherwise it is put
    /// before the prompt.
    pub(crate) system_as_chat: Switch<false>,
    /// The member that caps a chat request without a cap at what its account can pay (`meter.clamp_output`).
    pub(crate) cap_member: Word<CapMember>,
    /// Whether its responses are cached.
    pub(crate) cache: Switch<true>,
    /// How a stream continues after its client has disconnected: `drain` or `stop`. Default: `meter.after_leaving`.
    pub(crate) after_leaving: Option<At<String>>,
}

/// A model at one provider.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawProviderModel {
    /// The provider's name.
    pub(crate) provider: Option<At<String>>,
    /// The provider's id of the model; the model's id by default.
    pub(crate) model: Option<At<String>>,
    /// The operations that the provider supports for it: `chat`, `text`. Both by default.
    pub(crate) api: Option<At<Vec<At<String>>>>,
    /// Its weight among the model's providers; the provider's weight by default.
    pub(crate) weight: Option<At<u64>>,
}

/// The price of a model, as decimal strings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPrice {
    /// Credits per million input tokens.
    pub(crate) input: Option<At<String>>,
    /// Credits per million output tokens.
    pub(crate) output: Option<At<String>>,
    /// Credits per successful request.
    pub(crate) request: Option<At<String>>,
    /// Credits held for an image in a request; `part_ceiling` by default.
    pub(crate) image: Option<At<String>>,
    /// Credits held for an audio part; `part_ceiling` by default.
    pub(crate) audio: Option<At<String>>,
    /// Credits held for a file; `part_ceiling` by default.
    pub(crate) file: Option<At<String>>,
    /// Credits held for all plugins of a request together; `part_ceiling` by default.
    pub(crate) plugins: Option<At<String>>,
}

/// The diagnostics and the access log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTelemetry {
    /// The format of diagnostics on the standard error output.
    pub(crate) log_format: Word<LogFormat>,
    /// The minimum level of diagnostics.
    pub(crate) log_level: Word<LogLevel>,
    /// The destination of the access log: `stdout`, `none` or the path of a file.
    pub(crate) access_log: Option<At<String>>,
    /// The form of the client's address in the access log: the address, the prefix that limits count by (IPv6: the first 64 bits), a
    /// keyed hash, or nothing. The key of the hash is random for each start and never stored, and the day (UTC) is hashed too: equal
    /// hashes are one client within a day and one run only.
    pub(crate) client_address: Word<ClientAddressForm>,
}
