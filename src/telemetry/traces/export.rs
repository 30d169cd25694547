//! The export of spans over OTLP/HTTP: a bounded queue, and a thread that sends batches and backs off while the collector fails.
//!
//! A batch stays until the collector has accepted or refused the batch. Meanwhile the queue fills, and spans beyond its limit are dropped
//! and counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc as std_mpsc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tollgate_clock::{Backoff, Entropy, Failures, Jitter};

use super::otlp::{self, Span, Value};
use crate::config::Otlp;
use crate::telemetry::chain;

/// Spans in the queue: some kilobytes each.
const QUEUE_SPANS: usize = 4096;
/// Spans of one export.
const BATCH_SPANS: usize = 512;
/// How long spans are batched after the first.
const LINGER: Duration = Duration::from_millis(500);
/// Time limit of one export.
const EXPORT_MAX: Duration = Duration::from_secs(10);
/// Pauses after failures in a row.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(250),
    max: Duration::from_secs(30),
    jitter: Jitter::Shorter(2),
};
/// Time limit of the last exports, at the end of the process.
const FINAL_EXPORT: Duration = Duration::from_secs(1);
/// Bytes read of the collector's answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The numbers of exported and of dropped spans.
#[derive(Default)]
pub(super) struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    /// The label of each number, and the number.
    pub(super) fn by_result(&self) -> [(&'static str, u64); 2] {
        [
            ("exported", self.exported.load(Relaxed)),
            ("dropped", self.dropped.load(Relaxed)),
        ]
    }
}

/// The sending side of the queue. Cheap to clone.
#[derive(Clone)]
pub(super) struct Queue {
    spans: mpsc::Sender<Span>,
    counts: Arc<Counts>,
}

impl Queue {
    /// Appends a span, or drops it where the queue is full.
    pub(super) fn push(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// The collector, and how it is called.
pub(super) struct Destination {
    client: reqwest::Client,
    url: String,
    headers: HeaderMap,
}

impl Destination {
    /// # Errors
    ///
    /// When TLS cannot be set up.
    pub(super) fn of(settings: &Otlp) -> io::Result<Destination> {
        let mut headers: HeaderMap = settings.headers.iter().cloned().collect();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Destination {
            client: client(settings)?,
            url: settings.url.to_string(),
            headers,
        })
    }
}

/// The thread that exports.
pub(super) struct Exporter {
    counts: Arc<Counts>,
    destination: Arc<ArcSwap<Destination>>,
    closing: watch::Sender<bool>,
    /// Closed by the thread at its end.
    ended: Mutex<std_mpsc::Receiver<()>>,
}

impl Exporter {
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Sends to another collector from the next export on, including spans that the earlier collector has not accepted.
    pub(super) fn replace(&self, destination: Destination) {
        self.destination.store(Arc::new(destination));
    }

    /// Sends the queued spans, and ends the thread, within twice [`FINAL_EXPORT`].
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
        let ended = self.ended.lock();
        // The thread sends no message: the end of the thread's sender signals its end.
        let _ = ended.recv_timeout(2 * FINAL_EXPORT);
    }
}

/// Starts the thread.
pub(super) fn start(first: Destination, entropy: &Entropy) -> io::Result<(Queue, Exporter)> {
    let destination = Arc::new(ArcSwap::from_pointee(first));
    let (sender, spans) = mpsc::channel(QUEUE_SPANS);
    let counts = Arc::<Counts>::default();
    let (closing, closed) = watch::channel(false);
    let (alive, ended) = std_mpsc::channel::<()>();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = Export {
        spans,
        batch: Vec::with_capacity(BATCH_SPANS),
        destination: destination.clone(),
        resource: [
            ("service.name", "tollgate".into()),
            ("service.version", env!("CARGO_PKG_VERSION").into()),
            (
                "service.instance.id",
                Value::text(otlp::hex(&entropy.bytes::<16>())),
            ),
        ],
        entropy: entropy.clone(),
        counts: counts.clone(),
        fails: false,
    };
    std::thread::Builder::new()
        .name("otlp".to_owned())
        .spawn(move || {
            runtime.block_on(thread.run(closed));
            drop(alive);
        })?;
    let queue = Queue {
        spans: sender,
        counts: counts.clone(),
    };
    let exporter = Exporter {
        counts,
        destination,
        closing,
        ended: Mutex::new(ended),
    };
    Ok((queue, exporter))
}

fn client(settings: &Otlp) -> io::Result<reqwest::Client> {
    let mut roots = rustls::RootCertStore::empty();
    match &settings.roots {
        Some(own) => {
            roots.add_parsable_certificates(own.iter().cloned());
        }
        None if settings.url.tls => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        None => {}
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // The token in the header fields is for this collector only.
        .redirect(reqwest::redirect::Policy::none())
        .timeout(EXPORT_MAX)
        .no_proxy()
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(io::Error::other)
}

/// Why a batch was not accepted.
enum ExportError {
    /// The collector may accept the batch later, not before this time if the collector names a time.
    Transient(String, Option<Duration>),
    /// The collector never will accept the batch.
    Permanent(String),
}

/// The state of the thread.
struct Export {
    spans: mpsc::Receiver<Span>,
    /// Taken from the queue, and neither accepted nor refused yet.
    batch: Vec<Span>,
    destination: Arc<ArcSwap<Destination>>,
    resource: [(&'static str, Value); 3],
    entropy: Entropy,
    counts: Arc<Counts>,
    /// Whether the last export failed, so that each change causes a single log line.
    fails: bool,
}

impl Export {
    async fn run(mut self, mut closed: watch::Receiver<bool>) {
        // A cancellation loses no span: spans not accepted are in the batch or in the queue.
        tokio::select! {
            () = self.export() => {}
            // An error says that the gateway has dropped its end, which also means closing.
            _ = closed.wait_for(|closed| *closed) => {}
        }
        self.spans.close();
        // A timeout counts as a refusal: the remaining spans are counted below.
        let _ = tokio::time::timeout(FINAL_EXPORT, self.export_rest()).await;
        let left = self.batch.len() + self.spans.len();
        if left > 0 {
            self.counts.dropped.fetch_add(left as u64, Relaxed);
            tracing::warn!(spans = left, url = %self.url(), "trace spans not exported at shutdown");
        }
    }

    /// Exports until the queue is closed.
    async fn export(&mut self) {
        while self.batch.len() + self.spans.recv_many(&mut self.batch, BATCH_SPANS).await > 0 {
            let fill = async {
                while self.batch.len() < BATCH_SPANS {
                    let more = BATCH_SPANS - self.batch.len();
                    if self.spans.recv_many(&mut self.batch, more).await == 0 {
                        break;
                    }
                }
            };
            // After this time a batch is sent even if the batch is not full.
            let _ = tokio::time::timeout(LINGER, fill).await;
            self.deliver().await;
        }
    }

    /// Exports the remaining spans, each batch once.
    async fn export_rest(&mut self) {
        loop {
            if self.batch.is_empty() {
                self.spans.recv_many(&mut self.batch, BATCH_SPANS).await;
            }
            if self.batch.is_empty() {
                return;
            }
            let body = self.body();
            match self.send(body).await {
                Ok(()) => {}
                Err(error) => {
                    self.failed(&error);
                    return;
                }
            }
        }
    }

    /// Sends the batch until the collector accepts or refuses the batch.
    async fn deliver(&mut self) {
        let body = self.body();
        let mut failures = Failures::new(BACKOFF);
        loop {
            let Err(error) = self.send(body.clone()).await else {
                return;
            };
            self.failed(&error);
            let ExportError::Transient(_, wait) = error else {
                self.counts
                    .dropped
                    .fetch_add(self.batch.len() as u64, Relaxed);
                self.batch.clear();
                return;
            };
            let pause = failures.next(&self.entropy);
            tokio::time::sleep(wait.unwrap_or(pause).min(BACKOFF.max)).await;
        }
    }

    fn url(&self) -> String {
        self.destination.load().url.clone()
    }

    fn body(&self) -> Bytes {
        otlp::export_request(&self.resource, &self.batch).into()
    }

    /// Sends an export; the batch is empty after an acceptance.
    async fn send(&mut self, body: Bytes) -> Result<(), ExportError> {
        let transient = |error: reqwest::Error| ExportError::Transient(chain(&error), None);
        let to = self.destination.load_full();
        let request = to.client.post(&to.url).headers(to.headers.clone());
        let mut answer = request.body(body).send().await.map_err(transient)?;
        let status = answer.status();
        if !status.is_success() {
            let cause = format!("the collector answered {status}");
            // OTLP/HTTP: an export with any of these four statuses may be repeated, with any other status not.
            if !matches!(status.as_u16(), 429 | 502 | 503 | 504) {
                return Err(ExportError::Permanent(cause));
            }
            let after = answer.headers().get(RETRY_AFTER);
            let secs = after.and_then(|after| after.to_str().ok()?.parse().ok());
            return Err(ExportError::Transient(cause, secs.map(Duration::from_secs)));
        }
        let mut text = Vec::new();
        // The spans are accepted with the status. An answer that breaks off reports no rejected spans.
        while let Ok(Some(piece)) = answer.chunk().await {
            text.extend_from_slice(&piece);
            if text.len() > ANSWER_BYTES_MAX {
                break;
            }
        }
        let sent = self.batch.len() as u64;
        self.batch.clear();
        let (rejected, why) = otlp::rejected(&text);
        let rejected = rejected.min(sent);
        self.counts.exported.fetch_add(sent - rejected, Relaxed);
        if rejected > 0 {
            self.counts.dropped.fetch_add(rejected, Relaxed);
            tracing::warn!(spans = rejected, url = %to.url, cause = %why, "exporting trace spans failed in part: the collector rejected some");
        }
        if std::mem::take(&mut self.fails) {
            tracing::info!(url = %to.url, "exporting trace spans succeeds again");
        }
        Ok(())
    }

    fn failed(&mut self, error: &ExportError) {
        let (ExportError::Transient(cause, _) | ExportError::Permanent(cause)) = error;
        if !std::mem::replace(&mut self.fails, true) {
            tracing::warn!(url = %self.url(), %cause, "exporting trace spans failed: check the collector, `telemetry.otlp_url` and its header fields");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::traces::otlp::Kind;

    fn span() -> Span {
        Span {
            trace: [1; 16],
            id: [2; 8],
            parent: None,
            parent_is_remote: false,
            state: None,
            name: "a".to_owned(),
            kind: Kind::Server,
            started: 1,
            ended: 2,
            failed: false,
            attributes: Vec::new(),
        }
    }

    #[test]
    fn spans_beyond_the_queue_are_dropped_and_each_one_is_counted_once() {
        // A socket with accepted connections and without answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = silent.local_addr().expect("a bound socket has one");
        let settings = Otlp {
            url: format!("http://{address}/v1/traces")
                .parse()
                .expect("a URL"),
            sample: 1.0,
            headers: Vec::new(),
            roots: None,
        };
        let destination = Destination::of(&settings).expect("a client");
        let (queue, exporter) = start(destination, &Entropy::seeded(1)).expect("it starts");
        let pushed = (QUEUE_SPANS + 2 * BATCH_SPANS) as u64;
        for _ in 0..pushed {
            queue.push(span());
        }
        let [exported, dropped] = exporter.counts().by_result();
        assert_eq!(exported, ("exported", 0));
        assert!(dropped.1 >= BATCH_SPANS as u64, "{dropped:?}");
        exporter.close();
        let [exported, dropped] = exporter.counts().by_result();
        assert_eq!((exported.1, dropped.1), (0, pushed));
    }
}
