//! The metrics of the gateway itself; each module defines its own. Metrics are created from this list, and the reference is checked against
//! it.

use tollgate_counters::metrics;

metrics! {
    REQUESTS = "tollgate_requests_total", Counter, ["route", "status", "ending"],
        "Ended exchanges, by route, status and ending.";
    REQUEST_SECONDS = "tollgate_request_seconds", Histogram, ["route"],
        "Time from a request's complete head to the end of the exchange.";
    FIRST_EVENT_SECONDS = "tollgate_first_event_seconds", Histogram, ["route"],
        "Time from a request's complete head until the first byte of a streamed answer left.";
    OVERHEAD_SECONDS = "tollgate_overhead_seconds", Histogram, ["route"],
        "Time the gateway itself added to an answer of a provider: before the call, and between the provider's bytes and ours.";
    MODEL_REQUESTS = "tollgate_model_requests_total", Counter, ["model", "provider", "ending"],
        "Ended exchanges of a model, by the provider that was called last (none for refusals and answers from the cache) and ending.";
    MODEL_SECONDS = "tollgate_model_request_seconds", Histogram, ["model", "provider"],
        "Time from a request's complete head to the end of its whole answer.";
    MODEL_FIRST_EVENT_SECONDS = "tollgate_model_first_event_seconds", Histogram, ["model", "provider"],
        "Time from a request's complete head until the first byte of a streamed answer left: the time to the first token.";
    TOKENS = "tollgate_tokens_total", Counter, ["model", "provider", "direction"],
        "Tokens as billed.";
    CHARGED = "tollgate_charged_microcredits_total", Counter, ["model", "provider"],
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
    MODEL_STATE = "tollgate_model_state", Gauge, ["provider", "model"],
        "A model at a provider: 0 called, 1 half-open (trial requests are admitted), 2 not called, since a circuit is open or the provider has asked for a pause.";
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
    SETTINGS_VERSION = "tollgate_settings_version", Gauge, [],
        "Version of the settings in force: 1 at the start, and one more with each reload.";
    SETTINGS_RELOADS = "tollgate_settings_reloads_total", Counter, ["result"],
        "Reloads of the settings: ok, or failed, so that the earlier settings stayed in force.";
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
    CONNECTIONS_CLOSED = "tollgate_connections_closed_total", Counter, ["reason"],
        "Client connections closed for lack of places: those idle for the longest when all were taken (full) or an address prefix had its share (share), and new ones of a prefix without an idle one (refused).";
    ADMIN_CONNECTIONS_CLOSED = "tollgate_admin_connections_closed_total", Counter, ["reason"],
        "Connections to the admin address closed for lack of places, by the reasons of `tollgate_connections_closed_total`.";
    PROXY_PROTOCOL_REFUSED = "tollgate_proxy_protocol_refused_total", Counter, ["reason"],
        "Connections closed before TLS on a listener with the PROXY protocol: from an address that is not trusted (untrusted), without a correct header (malformed), or with one that broke off or took too long (incomplete).";
    FILTER_FAILURES = "tollgate_filter_failures_total", Counter, ["filter"],
        "Filter failures: a filter could not decide.";
    MEMORY_BUDGET = "tollgate_memory_budget_bytes", Gauge, [],
        "Bytes that bodies, buffers and open requests may have.";
    MEMORY_TAKEN = "tollgate_memory_taken_bytes", Gauge, [],
        "Bytes of that budget that are held: 24 KiB and the decoded head for each open request, and its body and buffers beyond 16 KiB.";
    MEMORY_REFUSED = "tollgate_memory_refused_total", Counter, [],
        "Requests, bodies and answers refused since they did not fit into the budget or into the share of their account or address.";
    ACCOUNTS = "tollgate_accounts", Gauge, [],
        "Accounts in memory: those that were used within the last ten to twenty minutes, and those with open holds.";
    ACCOUNT_LOADS = "tollgate_account_loads_total", Counter, ["result"],
        "Loads of accounts that were not in memory, by result: found, or unknown.";
    CREDENTIALS = "tollgate_credentials", Gauge, [],
        "Credentials in memory: those that were presented within the last ten minutes.";
    CREDENTIAL_LOOK_UPS = "tollgate_credential_look_ups_total", Counter, ["result"],
        "Look-ups in the database of credentials that were not in memory, by result: found, unknown, or failed, for each request that got 503 since the database did not answer or too many look-ups were under way. Others under way at the same time for one credential are one look-up.";
    OPEN_HOLDS = "tollgate_open_holds", Gauge, [],
        "Requests whose credit is held.";
    HELD = "tollgate_held_microcredits", Gauge, [],
        "Micro-credits held for open requests.";
    OWED = "tollgate_owed_microcredits", Gauge, [],
        "Micro-credits that accounts have, available and held: what the operator owes to its customers. Read once a minute, on the leader.";
    ALLOTTED = "tollgate_allotted_microcredits", Gauge, [],
        "Micro-credits of accounts that this node of several has, available and held. Counted at most once a minute.";
    ALLOTMENT_MOVES = "tollgate_allotment_moves_total", Counter, ["direction"],
        "Moves of credit, and of parts of the spending caps of keys, between this node and what nodes share: taken or returned.";
    ALLOTMENT_MOVED = "tollgate_allotment_moved_microcredits_total", Counter, ["direction"],
        "Micro-credits of those moves.";
    TAKES_WAITING = "tollgate_allotment_waiting", Gauge, [],
        "Requests that wait for credit, or for a part of a spending cap, from the database.";
    RECALL_SECONDS = "tollgate_recall_seconds", Histogram, [],
        "Time that requests waited for other nodes to return what they did not need.";
    CREDIT_UNAVAILABLE = "tollgate_credit_unavailable_total", Counter, [],
        "Requests refused with 503 `credit_unavailable` since another node had not answered.";
    LEASE_AGE = "tollgate_node_lease_age_seconds", Gauge, [],
        "Seconds since the node last renewed its lease in the database. From 10 on an operator can recover it; other nodes do so by themselves from 70 on, with `store.spool` from 910 on (`store.orphan_grace_secs`). 0 with a file.";
    FEED_AGE = "tollgate_node_feed_age_seconds", Gauge, [],
        "Seconds since the node last read what other nodes have changed; from 2 on credentials are refused with 503. 0 on a gateway that is alone.";
    NODE_DUTIES = "tollgate_node_duties", Gauge, [],
        "Whether the node delivers messages and reconciles purchases for all nodes of its database: 1 or 0.";
    UNRECOVERED_NODES = "tollgate_nodes_unrecovered", Gauge, [],
        "Nodes whose lease and grace have ended and whose recovery has failed, on the leader, which tries it again five seconds after the last attempt. Others cannot use their part of the credit meanwhile. The value stays while the nodes cannot be read (log line `reading which nodes have ended failed, retrying`).";
    OTHER_SETTINGS = "tollgate_nodes_with_other_settings", Gauge, [],
        "Running nodes of the database whose settings differ from those of this node in what all must have in common; 0 on a gateway that is alone.";
    COMMIT_QUEUE = "tollgate_commit_queue_depth", Gauge, [],
        "Units of work waiting to be written.";
    COMMIT_OVERLOADS = "tollgate_commit_overloads_total", Counter, [],
        "Units of work refused because too many were waiting.";
    STORE_LOCKED = "tollgate_store_locked", Gauge, [],
        "Whether the writer waits for another program's lock on the database: 1 or 0.";
    STORE_CUT_OFF = "tollgate_store_cut_off", Gauge, [],
        "Whether the database does not answer, so that new requests are refused: 1 or 0.";
    SPOOL_BYTES = "tollgate_spool_bytes", Gauge, [],
        "Bytes of charges in the spool.";
    SPOOL_UNITS = "tollgate_spool_units", Gauge, [],
        "Units of work in the spool that are not known to be durable in the database.";
    SPOOL_FAILING = "tollgate_spool_failing", Gauge, [],
        "Whether the last attempt to write the spool has failed: 1 or 0.";
    LATE_CHARGES = "tollgate_late_charges_total", Counter, [],
        "Charges of the spool that were booked after another gateway had recovered this one.";
    LATE_WRITTEN_OFF = "tollgate_late_written_off_microcredits_total", Counter, [],
        "Micro-credits of spooled charges that their accounts did not have any more.";
    COMMIT_UNITS = "tollgate_commit_units", Histogram, [],
        "Units of work in one commit.";
    COMMIT_SECONDS = "tollgate_commit_seconds", Histogram, [],
        "Time of one commit, the disk included.";
    SYNC_SECONDS = "tollgate_store_sync_seconds", Histogram, [],
        "Time in which a commit waited for the disk, or for the database's server, to make it durable.";
    POSTING_SECONDS = "tollgate_store_posting_seconds", Histogram, [],
        "Time of postings of journal records to accounts, with their commits.";
    CHECKPOINT_SECONDS = "tollgate_store_checkpoint_seconds", Histogram, [],
        "Time in which nothing was committed because the writer moved a long log into the main file.";
    LEDGER_ENTRIES = "tollgate_ledger_entries_total", Counter, [],
        "Ledger entries written.";
    LEDGER_FOLDED = "tollgate_ledger_folded_total", Counter, [],
        "Holds coalesced with their settlement into one entry, since both were in one commit.";
    STORE_BYTES = "tollgate_store_bytes", Gauge, [],
        "Bytes of the database: of SQLite's main file, or of all tables of a PostgreSQL database. Read once a minute.";
    STORE_FREE = "tollgate_store_free_bytes", Gauge, [],
        "Bytes of SQLite's main file that removed rows have left for new ones; 0 for a PostgreSQL database.";
    RETENTION_OVERDUE = "tollgate_retention_overdue_seconds", Gauge, [],
        "For how long the journal has had months that `tollgate retention` is to remove; 0 without any, and where `store.keep_months` is not set. Read once a minute.";
    UPKEEP = "tollgate_upkeep_timestamp_seconds", Gauge, ["task"],
        "When a backup or an audit of the ledger was last completed (backup, audit), in seconds since 1970; not there before the first. The audit log is read every ten minutes.";
    AUDIT_VIOLATIONS = "tollgate_audit_violations", Gauge, [],
        "Violations that the last audit of the ledger has found; 0 before the first.";
    WAL_BYTES = "tollgate_store_log_bytes", Gauge, [],
        "Bytes of the database's log that are not in its main file yet.";
    DISK_FREE = "tollgate_disk_free_bytes", Gauge, [],
        "Bytes that are free on the file system of an SQLite file, for users other than root; not there with PostgreSQL.";
    CERTIFICATE_EXPIRY = "tollgate_certificate_expiry_timestamp_seconds", Gauge, ["certificate"],
        "When the certificate of a listener expires, in seconds since 1970. The label is its file, or `acme:` and its first name.";
    ACME_ORDERS = "tollgate_acme_orders_total", Counter, ["result"],
        "Orders of certificates by ACME, by their end: a certificate was issued (issued), or the order failed (failed).";
    ACME_FAILURES = "tollgate_acme_failures", Gauge, ["certificate"],
        "Orders of a certificate by ACME that have failed since the last that succeeded.";
    ACME_MISSING = "tollgate_acme_certificate_missing", Gauge, ["certificate"],
        "Whether there is no certificate yet, and handshakes for its names are refused (1).";
    LINES_DROPPED = "tollgate_log_lines_dropped_total", Counter, ["log"],
        "Lines of the access log, or of the diagnostics, that were lost because their destination was too slow, blocked or broken.";
    LINES_SUPPRESSED = "tollgate_log_lines_suppressed_total", Counter, [],
        "Diagnostics that were not written because there were too many of their kind.";
    SPANS = "tollgate_trace_spans_total", Counter, ["result"],
        "Spans of sampled requests: exported to the collector of traces, or dropped since it was too slow, not reachable or refused them.";
    CPU = "tollgate_cpu_seconds_total", Counter, [],
        "Processor time that the process has used, in seconds.";
    START = "tollgate_start_time_seconds", Gauge, [],
        "When the process started, in seconds since 1970.";
    MEMORY = "tollgate_resident_memory_bytes", Gauge, [],
        "Memory of the process that is in use.";
    OPEN_FILES = "tollgate_open_files", Gauge, [],
        "Files and sockets the process has open.";
    BUILD = "tollgate_build_info", Gauge, ["version", "commit"],
        "Always 1; the labels are the version of the running release, and the commit of a release build.";
}
