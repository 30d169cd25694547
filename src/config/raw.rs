//! The settings as written: every key, none of the rules.
//!
//! Nothing is required here. A missing key is noted by the check, beside everything else that is wrong, instead of ending the reading.
//! The comments are the descriptions in the JSON Schema.

mod signin;

pub(crate) use signin::{RawBrand, RawMail, RawSignin, RawSms};

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_cache::RawCache;
use tollgate_filter::settings::At;
use tollgate_idempotency::RawIdempotency;
use tollgate_meter::RawMeter;
use tollgate_oauth::RawOAuth;
use tollgate_onboarding::RawOnboarding;
use tollgate_rate_limit::RawLimits;

use super::mcp::RawMcp;
use super::payments::{RawCredits, RawPayments};
use super::plan::RawPlan;
use tollgate_commerce::RawUcp;

/// The settings of a tollgate gateway.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSettings {
    /// Who the service is.
    pub(crate) service: RawService,
    /// Threads, shutdown and limits on clients.
    pub(crate) server: RawServer,
    /// Where clients connect.
    pub(crate) listener: Vec<RawListener>,
    /// Health and metrics for operators.
    pub(crate) admin: RawAdmin,
    /// Where accounts, keys and the ledger are kept.
    pub(crate) store: RawStore,
    /// Which chain of filters answers which address; the built-in table when there is none.
    pub(crate) route: Vec<RawRoute>,
    /// Further attempts at calls that failed.
    pub(crate) upstream: RawUpstream,
    /// Who runs models for us.
    pub(crate) provider: Vec<RawProvider>,
    /// The models on sale.
    pub(crate) model: Vec<RawModel>,
    /// Rate classes.
    pub(crate) limits: RawLimits,
    /// Holding and charging credit.
    pub(crate) meter: RawMeter,
    /// Answers that are stored and given again.
    pub(crate) cache: RawCache,
    /// Answers kept for requests that carry a key.
    pub(crate) idempotency: RawIdempotency,
    /// What a credit is worth, and what can be bought.
    pub(crate) credits: RawCredits,
    /// What a month of the plan gives.
    pub(crate) plan: RawPlan,
    /// Through whom can be paid.
    pub(crate) payments: RawPayments,
    /// Checkouts of the Universal Commerce Protocol.
    pub(crate) ucp: RawUcp,
    /// How people sign in.
    pub(crate) signin: RawSignin,
    /// Whose pages these are.
    pub(crate) brand: RawBrand,
    /// What programs and people are told about getting in.
    pub(crate) onboarding: RawOnboarding,
    /// How programs are allowed to act for a person.
    pub(crate) oauth: RawOAuth,
    /// The servers behind the MCP resources.
    pub(crate) mcp: RawMcp,
    /// Logs.
    pub(crate) telemetry: RawTelemetry,
}

/// Who the service is.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawService {
    /// The short word in `x_svc` and `sk-svc-`: a lower-case letter, then up to 15 lower-case letters or digits.
    pub(crate) name: Option<At<String>>,
    /// The address clients are given.
    pub(crate) base_url: Option<At<String>>,
    /// The address of discovery.
    pub(crate) root_url: Option<At<String>>,
    /// The id of the model that serves requests which name none.
    pub(crate) default_model: Option<At<String>>,
}

/// Threads, shutdown and limits on clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawServer {
    /// Threads that serve clients.
    pub(crate) workers: Option<At<u64>>,
    /// Seconds that open requests may take to finish after a stop was asked for.
    pub(crate) grace_secs: Option<At<u64>>,
    /// Bytes of a request's head.
    pub(crate) head_bytes_max: Option<At<u64>>,
    /// Fields in a request's head.
    pub(crate) head_fields_max: Option<At<u64>>,
    /// Seconds for a request's head, and for a TLS handshake.
    pub(crate) head_secs: Option<At<u64>>,
    /// Seconds that an HTTP/1.1 connection may rest between requests.
    pub(crate) idle_secs: Option<At<u64>>,
    /// Seconds for a request's body as a whole.
    pub(crate) body_secs: Option<At<u64>>,
    /// Seconds that a client may leave written bytes unread.
    pub(crate) write_secs: Option<At<u64>>,
    /// Seconds of silence in a stream after which a comment is sent.
    pub(crate) comment_secs: Option<At<u64>>,
    /// Requests at once on an HTTP/2 connection.
    pub(crate) h2_streams_max: Option<At<u64>>,
    /// Seconds that an HTTP/2 connection may rest without an open stream.
    pub(crate) h2_idle_secs: Option<At<u64>>,
    /// Connections at once, on all listeners together.
    pub(crate) connections_max: Option<At<u64>>,
}

/// Where clients connect.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawListener {
    /// Address and port; port 0 takes a free one.
    pub(crate) address: Option<At<String>>,
    /// Certificates with their keys; the first serves clients that name no host. None: no TLS.
    pub(crate) tls: Vec<RawTls>,
    /// Whether HTTP/2 is offered: by ALPN with TLS, by prior knowledge without.
    pub(crate) http2: Option<At<bool>>,
    /// Addresses, and ranges of them, of proxies that are believed about the client's address. None when missing.
    pub(crate) trusted_proxies: Option<At<Vec<At<String>>>>,
    /// The field by which they report it: `either`, `x-forwarded-for`, `forwarded` or `none`.
    pub(crate) forwarded_field: Option<At<String>>,
    /// Whether every connection begins with a header of the PROXY protocol, version 1 or 2.
    pub(crate) proxy_protocol: Option<At<bool>>,
}

/// A certificate chain and its key, as PEM files.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTls {
    /// The file with the chain, the listener's own certificate first.
    pub(crate) certificate: Option<At<String>>,
    /// The file with the key.
    pub(crate) key: Option<At<String>>,
}

/// Health and metrics for operators.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAdmin {
    /// A loopback address and port; port 0 takes a free one.
    pub(crate) address: Option<At<String>>,
}

/// Where accounts, keys and the ledger are kept.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawStore {
    /// `sqlite:` and the path of a file.
    pub(crate) url: Option<At<String>>,
    /// What a commit survives: `power` (a power failure) or `process` (the end of the process alone).
    pub(crate) durability: Option<At<String>>,
}

/// Which chain of filters answers which address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRoute {
    /// The path: exact, with `{name}` for one segment or `{*name}` for the rest.
    pub(crate) path: Option<At<String>>,
    /// The methods it answers. `GET` includes `HEAD`; `OPTIONS` is answered everywhere.
    pub(crate) methods: Option<At<Vec<At<String>>>>,
    /// Bytes of a request's body.
    pub(crate) body_bytes_max: Option<At<u64>>,
    /// Names of filters, outermost first.
    pub(crate) chain: Option<At<Vec<At<String>>>>,
    /// How errors are written: `envelope` or `oauth`.
    pub(crate) errors: Option<At<String>>,
    /// The scope a credential needs here.
    pub(crate) scope: Option<At<String>>,
    /// Scopes of one resource, any one of which a credential needs here.
    pub(crate) scopes_any: Option<At<Vec<At<String>>>>,
    /// The rate class that counts requests here instead of the account's own.
    pub(crate) class: Option<At<String>>,
    /// What pages of other origins may do: `none`, `public` or `api`.
    pub(crate) cors: Option<At<String>>,
    /// Since when, or from when on, nothing new should be built on it, RFC 3339.
    pub(crate) deprecated_at: Option<At<String>>,
    /// From when on it may be gone, RFC 3339.
    pub(crate) sunset_at: Option<At<String>>,
    /// What takes its place: an address, or a path of this service.
    pub(crate) successor: Option<At<String>>,
    /// Where its end is explained: an address, or a path of this service; `/docs/lifecycle` when missing.
    pub(crate) notice: Option<At<String>>,
}

/// Further attempts at calls that failed before the first byte of an answer.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawUpstream {
    /// Attempts for one request, the first among them.
    pub(crate) attempts_max: Option<At<u64>>,
    /// What further attempts may come to.
    pub(crate) budget: RawBudget,
    /// Milliseconds without an answer after which another provider is asked too; nobody else is asked where it is missing.
    pub(crate) hedge_after_ms: Option<At<u64>>,
}

/// What further attempts may come to, for each model.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawBudget {
    /// Further attempts for each hundred requests.
    pub(crate) percent: Option<At<u64>>,
    /// Further attempts in a second that are allowed whatever the number of requests.
    pub(crate) per_sec: Option<At<u64>>,
    /// Further attempts at once.
    pub(crate) burst: Option<At<u64>>,
}

/// Who runs models for us.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawProvider {
    /// Its name in these settings, in logs and in metrics.
    pub(crate) name: Option<At<String>>,
    /// Its address, up to and with `/v1`.
    pub(crate) base_url: Option<At<String>>,
    /// The environment variable that holds the key it knows us by.
    pub(crate) api_key_env: Option<At<String>>,
    /// The file that holds the key it knows us by.
    pub(crate) api_key_file: Option<At<String>>,
    /// Whether HTTP/2 is spoken: by ALPN over TLS, by prior knowledge without.
    pub(crate) http2: Option<At<bool>>,
    /// A PEM file with the roots to trust instead of the system's.
    pub(crate) ca_file: Option<At<String>>,
    /// How long it may take.
    pub(crate) timeouts: RawTimeouts,
    /// Connections kept open between calls.
    pub(crate) connections_idle_max: Option<At<u64>>,
    /// Its share of a model's calls, beside the weights of the others.
    pub(crate) weight: Option<At<u64>>,
    /// Calls under way at once.
    pub(crate) concurrency_max: Option<At<u64>>,
    /// Requests that may wait for one of them to end.
    pub(crate) queue_max: Option<At<u64>>,
    /// Seconds they may wait.
    pub(crate) queue_wait_secs: Option<At<u64>>,
    /// Times that it is asked again within one request when nobody else is left to ask.
    pub(crate) retries: Option<At<u64>>,
    /// Members of a request that are left out of what it gets.
    pub(crate) remove_members: Option<At<Vec<At<String>>>>,
    /// Members with which a request is refused that it might get.
    pub(crate) refuse_members: Option<At<Vec<At<String>>>>,
    /// When it counts as not working.
    pub(crate) health: RawHealth,
    /// Whether it is told the client's address, in `X-Forwarded-For`.
    pub(crate) forward_client_address: Option<At<bool>>,
}

/// When a provider counts as not working, and what brings it back.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawHealth {
    /// Failures in a row.
    pub(crate) failures: Option<At<u64>>,
    /// Seconds from the first to the last of them.
    pub(crate) window_secs: Option<At<u64>>,
    /// Seconds without calls before trial requests are admitted.
    pub(crate) cooldown_secs: Option<At<u64>>,
    /// Trial requests at once.
    pub(crate) trial_requests: Option<At<u64>>,
    /// The longest `Retry-After` that is kept to, in seconds.
    pub(crate) retry_after_secs_max: Option<At<u64>>,
    /// A path below its address that is asked for now and then.
    pub(crate) probe_path: Option<At<String>>,
    /// Seconds between two such probes.
    pub(crate) probe_secs: Option<At<u64>>,
}

/// How long a provider may take.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTimeouts {
    /// Seconds for a connection, TLS included.
    pub(crate) connect_secs: Option<At<u64>>,
    /// Seconds to the first byte of a stream.
    pub(crate) first_byte_secs: Option<At<u64>>,
    /// Seconds to the first byte of a whole answer.
    pub(crate) first_byte_whole_secs: Option<At<u64>>,
    /// Seconds between two pieces of an answer.
    pub(crate) between_bytes_secs: Option<At<u64>>,
    /// Seconds for the whole call.
    pub(crate) total_secs: Option<At<u64>>,
}

/// A model on sale.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawModel {
    /// What clients call it.
    pub(crate) id: Option<At<String>>,
    /// A name for people.
    pub(crate) name: Option<At<String>>,
    /// Who made it.
    pub(crate) owned_by: Option<At<String>>,
    /// Seconds since 1970 when it came into the catalog.
    pub(crate) created: Option<At<u64>>,
    /// Where it can be had.
    pub(crate) providers: Vec<RawProviderModel>,
    /// How one of them is chosen: `weighted` or `least-busy`.
    pub(crate) choice: Option<At<String>>,
    /// Ids of the models that serve when none of its providers can.
    pub(crate) fallback: Option<At<Vec<At<String>>>>,
    /// Whether one of those may cost more than this model.
    pub(crate) expensive_fallback: Option<At<bool>>,
    /// What it costs.
    pub(crate) price: RawPrice,
    /// Tokens of input and output together.
    pub(crate) context_length: Option<At<u64>>,
    /// Output tokens of a request that names no cap.
    pub(crate) max_output_tokens: Option<At<u64>>,
    /// What it can write: `text`, `image`, `audio`.
    pub(crate) modalities: Option<At<Vec<At<String>>>>,
    /// Credits that a part of a request which is not text costs at most, where its kind has no ceiling of its own; a decimal string.
    pub(crate) part_ceiling: Option<At<String>>,
    /// Its tokens for each token of the o200k vocabulary, as a decimal string.
    pub(crate) token_factor: Option<At<String>>,
    /// Whether a text request with a `system` goes through chat, although a provider takes text requests.
    pub(crate) system_as_chat: Option<At<bool>>,
    /// How a cap is written into a chat request that names none: `max_tokens` or `max_completion_tokens`.
    pub(crate) cap_member: Option<At<String>>,
    /// Whether its answers are stored and given again.
    pub(crate) cache: Option<At<bool>>,
    /// What becomes of a stream whose client has left: `drain` or `stop`. As `meter.after_leaving` when missing.
    pub(crate) after_leaving: Option<At<String>>,
}

/// A model as one provider sells it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawProviderModel {
    /// The provider's name.
    pub(crate) provider: Option<At<String>>,
    /// What the provider calls the model; the model's own id when missing.
    pub(crate) model: Option<At<String>>,
    /// The operations it has there: `chat`, `text`. Both when missing.
    pub(crate) api: Option<At<Vec<At<String>>>>,
    /// Its share of the model's calls; the provider's weight when missing.
    pub(crate) weight: Option<At<u64>>,
}

/// What a model costs, as decimal strings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPrice {
    /// Credits for a million tokens that the client sends.
    pub(crate) input: Option<At<String>>,
    /// Credits for a million tokens that the model writes.
    pub(crate) output: Option<At<String>>,
    /// Credits for each request that succeeds.
    pub(crate) request: Option<At<String>>,
    /// Credits that a picture in a request costs at most; `part_ceiling` when missing.
    pub(crate) image: Option<At<String>>,
    /// Credits that a sound costs at most; `part_ceiling` when missing.
    pub(crate) audio: Option<At<String>>,
    /// Credits that a file costs at most; `part_ceiling` when missing.
    pub(crate) file: Option<At<String>>,
    /// Credits that all plugins of a request cost at most; `part_ceiling` when missing.
    pub(crate) plugins: Option<At<String>>,
}

/// Logs.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawTelemetry {
    /// How diagnostics are written to the standard error output: `json` or `text`.
    pub(crate) log_format: Option<At<String>>,
    /// Diagnostics below this level are not written: `error`, `warn`, `info`, `debug` or `trace`.
    pub(crate) log_level: Option<At<String>>,
    /// Where the access log goes: `stdout`, `none` or the path of a file.
    pub(crate) access_log: Option<At<String>>,
    /// What the access log says of the client's address: `whole`, `prefix`, `hashed` or `none`.
    pub(crate) client_address: Option<At<String>>,
}
