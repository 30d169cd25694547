//! The list of all metrics: name, kind, labels and meaning. Metrics are created from this list and the reference is checked against it.
//!
//! Labels are bounded by the settings and by lists in the program: route patterns, models, providers, classes, statuses, endings. Never an
//! account, a key, an address or other text from a client. Money is counted in whole micro-credits.

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning.
    pub help: &'static str,
}

/// The kinds of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counter: only increases.
    Counter,
    /// Gauge: increases and decreases.
    Gauge,
    /// Histogram: values in buckets.
    Histogram,
}

impl Kind {
    /// The keyword in the text format.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, [$($label:literal),*], $help:literal;)*) => {
        $(pub(super) const $id: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every metric, in the order of the reference.
        pub const METRICS: &[Metric] = &[$($id,)*];
    };
}

metrics! {
    REQUESTS = "tollgate_requests_total", Counter, ["route", "status", "ending"],
        "Ended exchanges, by route, status and ending.";
    REQUEST_SECONDS = "tollgate_request_seconds", Histogram, ["route"],
        "Time from a request's complete head to the end of the exchange.";
    FIRST_EVENT_SECONDS = "tollgate_first_event_seconds", Histogram, ["route"],
        "Time from a request's complete head until the first byte of a streamed answer left.";
    OVERHEAD_SECONDS = "tollgate_overhead_seconds", Histogram, ["route"],
        "Time the gateway itself added to an answer of a provider: before the call, and between the provider's bytes and ours.";
    TOKENS = "tollgate_tokens_total", Counter, ["model", "direction"],
        "Tokens as billed.";
    CHARGED = "tollgate_charged_microcredits_total", Counter, ["model"],
        "Micro-credits charged for answers.";
    ESTIMATED = "tollgate_usage_estimated_total", Counter, ["model"],
        "Answers whose tokens were counted by the gateway because the provider reported no usage.";
    RATE_LIMIT = "tollgate_rate_limit_total", Counter, ["class", "decision"],
        "Requests counted by a rate class, by decision.";
    UPSTREAM_CALLS = "tollgate_upstream_calls_total", Counter, ["provider", "result"],
        "Calls to providers, by result.";
    UPSTREAM_SECONDS = "tollgate_upstream_first_byte_seconds", Histogram, ["provider"],
        "Time from the start of a call until the provider's first byte.";
    PROVIDER_STATE = "tollgate_provider_state", Gauge, ["provider"],
        "The circuit of a provider: 0 closed, 1 half-open (trial requests are admitted), 2 open.";
    PROVIDER_ACCOUNT_CIRCUITS = "tollgate_provider_account_circuits", Gauge, ["provider"],
        "Circuits that are open for one account alone, of all models at a provider.";
    PROVIDER_CALLS = "tollgate_provider_calls", Gauge, ["provider"],
        "Calls to a provider that are under way.";
    PROVIDER_QUEUE = "tollgate_provider_queue", Gauge, ["provider"],
        "Requests in the queue for a provider's concurrency limit.";
    PROVIDER_WAITED = "tollgate_provider_waited_total", Counter, ["provider"],
        "Requests that got a permit after waiting in the queue of a provider.";
    PROVIDER_WAIT = "tollgate_provider_wait_microseconds_total", Counter, ["provider"],
        "Microseconds that those requests waited in the queue, in total.";
    PROVIDER_FULL = "tollgate_provider_turned_away_total", Counter, ["provider"],
        "Requests refused by a provider's concurrency limit: its queue was full, or the wait was too long.";
    FAILOVERS = "tollgate_upstream_failovers_total", Counter, ["provider"],
        "Failures of a provider that were followed by another attempt.";
    RETRIES_REFUSED = "tollgate_upstream_retries_refused_total", Counter, ["provider"],
        "Failures and slow answers of a provider that no other attempt followed because the budget for such attempts was spent.";
    HEDGES_WON = "tollgate_hedges_won_total", Counter, ["provider"],
        "Hedged requests (second attempts beside a slow one) that this provider answered first.";
    HEDGES_LOST = "tollgate_hedges_lost_total", Counter, ["provider"],
        "Hedged requests (second attempts beside a slow one) that this provider did not answer first.";
    CONNECTIONS = "tollgate_connections", Gauge, [],
        "Client connections that are open.";
    CONNECTIONS_TOTAL = "tollgate_connections_total", Counter, [],
        "Client connections accepted.";
    CONNECTIONS_WAITED = "tollgate_connections_waited_total", Counter, [],
        "Client connections that had to wait because there were too many.";
    PROXY_PROTOCOL_REFUSED = "tollgate_proxy_protocol_refused_total", Counter, ["reason"],
        "Connections closed before TLS on a listener with the PROXY protocol: from an address that is not trusted (untrusted), without a correct header (malformed), or with one that broke off or took too long (incomplete).";
    FILTER_FAILURES = "tollgate_filter_failures_total", Counter, ["filter"],
        "Filter failures: a filter could not decide.";
    OPEN_HOLDS = "tollgate_open_holds", Gauge, [],
        "Requests whose credit is held.";
    HELD = "tollgate_held_microcredits", Gauge, [],
        "Micro-credits held for open requests.";
    COMMIT_QUEUE = "tollgate_commit_queue_depth", Gauge, [],
        "Units of work waiting to be written.";
    COMMIT_OVERLOADS = "tollgate_commit_overloads_total", Counter, [],
        "Units of work refused because too many were waiting.";
    COMMIT_UNITS = "tollgate_commit_units", Histogram, [],
        "Units of work in one commit.";
    COMMIT_SECONDS = "tollgate_commit_seconds", Histogram, [],
        "Time of one commit, the disk included.";
    POSTING_SECONDS = "tollgate_store_posting_seconds", Histogram, [],
        "Time that commits spent posting journal records to accounts.";
    CHECKPOINT_SECONDS = "tollgate_store_checkpoint_seconds", Histogram, [],
        "Time in which nothing was committed because the writer moved a long log into the main file.";
    LEDGER_ENTRIES = "tollgate_ledger_entries_total", Counter, [],
        "Ledger entries written.";
    LEDGER_FOLDED = "tollgate_ledger_folded_total", Counter, [],
        "Holds coalesced with their settlement into one entry, since both were in one commit.";
    WAL_BYTES = "tollgate_store_log_bytes", Gauge, [],
        "Bytes of the database's log that are not in its main file yet.";
    METER_EVENTS = "tollgate_meter_total", Counter, ["event"],
        "Exceptions in metering: requests clamped, requests refused, reported usage bounded.";
    WRITTEN_OFF = "tollgate_written_off_microcredits_total", Counter, [],
        "Micro-credits of usage written off, since the account could not pay for them.";
    CACHE_LOOKUPS = "tollgate_cache_lookups_total", Counter, ["result"],
        "Cache lookups, by result.";
    CACHE_STORES = "tollgate_cache_stores_total", Counter, ["result"],
        "Answers to cache misses, by whether they were stored.";
    CACHE_REMOVED = "tollgate_cache_removed_total", Counter, ["reason"],
        "Cache entries removed, by reason.";
    CACHE_FOLLOWERS = "tollgate_cache_followers_total", Counter, ["outcome"],
        "Requests that waited for the answer to an equal one (single flight), by outcome.";
    CACHE_WAITING = "tollgate_cache_waiting", Gauge, [],
        "Requests that wait for the answer to an equal one.";
    CACHE_ENTRIES = "tollgate_cache_entries", Gauge, [],
        "Stored answers.";
    CACHE_BYTES = "tollgate_cache_bytes", Gauge, [],
        "Bytes of memory used by stored answers, as counted by the cache.";
    IDEMPOTENCY_EVENTS = "tollgate_idempotency_total", Counter, ["event"],
        "Requests with an Idempotency-Key: the first of their key, answered from the record, refused; and answers too large to be kept.";
    PAYMENT_NOTICES = "tollgate_payment_notices_total", Counter, ["result"],
        "Notices of a payment provider: stored, known already, refused for their signature, or undecided and sent again.";
    PURCHASES = "tollgate_purchases_total", Counter, ["event"],
        "Purchases of credits: begun, captured, failed, declined, unclear (an answer was lost), stuck (needs an operator), returned.";
    PLAN_PAYMENTS = "tollgate_plan_payments_total", Counter, ["event"],
        "Payments for the plan: recorded by route (x402, paypal), repeated, surplus (charged while another subscription was active), returned.";
    X402_PAYMENTS = "tollgate_x402_payments_total", Counter, ["event"],
        "Signed transfers: settled, refused, unclear for a time, dead (never moved money), stuck (needs an operator), contradicted (the chain differs from what the facilitator answered), unconfirmed (refused after submission, and no node confirms it), vanished from the chain, taken (presented first by another account).";
    X402_OPEN = "tollgate_x402_open", Gauge, [],
        "Signed transfers that may still move money.";
    X402_UP = "tollgate_x402_up", Gauge, [],
        "Whether the facilitator settles what is offered: 1 or 0.";
    MANDATES = "tollgate_mandates_total", Counter, ["event"],
        "Mandates, the permission to charge for the plan each month: begun, activated (first paid), charges paid, advanced (a day for a payment not listed yet), past_due, ended, surplus (not wanted), refunded, returned, unclear (an answer was lost), stuck (needs an operator).";
    LINES_DROPPED = "tollgate_log_lines_dropped_total", Counter, ["log"],
        "Lines of the access log, or of the diagnostics, that were lost because their destination was too slow, blocked or broken.";
    LINES_SUPPRESSED = "tollgate_log_lines_suppressed_total", Counter, [],
        "Diagnostics that were not written because there were too many of their kind.";
    MEMORY = "tollgate_resident_memory_bytes", Gauge, [],
        "Memory of the process that is in use.";
    OPEN_FILES = "tollgate_open_files", Gauge, [],
        "Files and sockets the process has open.";
    BUILD = "tollgate_build_info", Gauge, ["version"],
        "Always 1; the label is the version of the running release.";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_convention_and_stand_once() {
        let mut names = BTreeSet::new();
        for metric in METRICS {
            let Metric { name, kind, .. } = metric;
            assert!(names.insert(name), "{name} stands twice");
            assert!(name.starts_with("tollgate_"), "{name} lacks the prefix");
            assert_eq!(
                name.ends_with("_total"),
                *kind == Kind::Counter,
                "{name}: counters, and only they, end in `_total`"
            );
            assert!(metric.help.ends_with('.'), "{name}: help is a sentence");
        }
    }

    #[test]
    fn the_reference_and_the_alerts_name_metrics_that_exist() {
        let conf = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("conf");
        let page = std::fs::read_to_string(conf.join("README.md")).expect("the reference");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `tollgate_"))
            .collect();
        let wanted: Vec<String> = METRICS
            .iter()
            .map(|metric| {
                let labels: Vec<String> = metric
                    .labels
                    .iter()
                    .map(|label| format!("`{label}`"))
                    .collect();
                format!(
                    "| `{}` | {} | {} | {} |",
                    metric.name,
                    metric.kind.word(),
                    labels.join(", "),
                    metric.help
                )
            })
            .collect();
        assert_eq!(rows, wanted, "conf/README.md has one row for each metric");

        let alerts =
            std::fs::read_to_string(conf.join("prometheus/alerts.yml")).expect("the alerts");
        let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        for word in alerts.split(|letter| !letters(letter)) {
            if !word.starts_with("tollgate_") {
                continue;
            }
            let name = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(
                METRICS.iter().any(|metric| metric.name == name),
                "conf/prometheus/alerts.yml names `{word}`, which is no metric"
            );
        }
    }
}
