//! A rate limit on diagnostics, with a quota for each kind of line.
//!
//! A kind is a callsite: the place in the program that writes the line. Libraries that write through the `log` crate share a kind per
//! level. The state of a kind is an atomic number, found without a lock. The suppressed lines of a kind become a single line per interval,
//! so that the last burst is reported as well ([`EventLimit::report`]).

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate_clock::Clock;
use tollgate_rate_limit::Quota;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Burst of lines of a kind: enough to see that several requests fail, and how.
const BURST: NonZeroU32 = NonZeroU32::new(10).expect("not zero");
/// Sustained rate of lines of a kind per minute: a line a second. Every exchange has a line in the access log.
const PER_MINUTE: NonZeroU32 = NonZeroU32::new(60).expect("not zero");
const MINUTE: NonZeroU32 = NonZeroU32::new(60).expect("not zero");

/// Bytes of a kind's message that are kept for the report.
const MESSAGE_BYTES_MAX: usize = 200;

/// Modules that write at the start and at the end of the process: as many lines as the settings have listeners and similar entries, or at
/// most a line every ten seconds (maintenance). Every line is needed. The list also has this module, whose lines are bounded by the number
/// of kinds.
const LIFECYCLE: [&str; 3] = [
    "tollgate::commands",
    "tollgate::gateway",
    "tollgate::telemetry::event_limit",
];

/// Modules and crates that keep books, take payments or let people sign in. Their errors name an account or a payment for an operator to
/// examine, so that no error is suppressed. The errors come with payments, not with requests.
const MONEY: [&str; 7] = [
    "tollgate_commerce",
    "tollgate_ledger",
    "tollgate_meter",
    "tollgate_pay",
    "tollgate_portal::signup_grant",
    "tollgate_purchase",
    "tollgate_store",
];

/// Admits as many events of each kind as the kind's quota permits. Cheap to clone.
#[derive(Clone)]
pub(super) struct EventLimit {
    inner: Arc<Limits>,
}

struct Limits {
    kinds: ArcSwap<HashMap<Identifier, Arc<Kind>>>,
    quota: Quota,
    clock: Clock,
    /// Number of events ever suppressed.
    suppressed: Arc<AtomicU64>,
}

/// The state of one callsite.
struct Kind {
    metadata: &'static Metadata<'static>,
    /// The arrival time of the quota, in nanoseconds of the clock.
    arrival: AtomicU64,
    /// Events suppressed since the last report, and the message of the first suppressed event.
    suppressed: AtomicU64,
    message: Mutex<String>,
}

impl EventLimit {
    /// A limit that counts suppressed events in `suppressed`.
    pub(super) fn new(clock: Clock, suppressed: Arc<AtomicU64>) -> EventLimit {
        EventLimit {
            inner: Arc::new(Limits {
                kinds: ArcSwap::default(),
                quota: Quota::new(PER_MINUTE, MINUTE, BURST),
                clock,
                suppressed,
            }),
        }
    }

    /// Writes a line for each kind with lines suppressed since the last call.
    pub(super) fn report(&self) {
        for kind in self.inner.kinds.load_full().values() {
            let lines = kind.suppressed.swap(0, Relaxed);
            if lines == 0 {
                continue;
            }
            let message = std::mem::take(&mut *kind.message());
            let (severity, source) = (kind.metadata.level(), kind.metadata.target());
            tracing::warn!(kind = message, %severity, source, lines, "suppressed log lines: too many of one kind");
        }
    }

    fn admits(&self, event: &Event<'_>) -> bool {
        let metadata = event.metadata();
        if is_exempt(metadata.target(), *metadata.level()) {
            return true;
        }
        let kind = self.kind(metadata);
        // The monotonic clock never reaches 500 years.
        let now = self.inner.clock.elapsed().as_nanos() as u64;
        let admitted = kind.arrival.fetch_update(Relaxed, Relaxed, |arrival| {
            let (verdict, next) = self.inner.quota.take(arrival, now);
            verdict.admitted.then_some(next)
        });
        if admitted.is_ok() {
            return true;
        }
        self.inner.suppressed.fetch_add(1, Relaxed);
        if kind.suppressed.fetch_add(1, Relaxed) == 0 {
            *kind.message() = message_of(event);
        }
        false
    }

    fn kind(&self, metadata: &'static Metadata<'static>) -> Arc<Kind> {
        let id = metadata.callsite();
        if let Some(kind) = self.inner.kinds.load().get(&id) {
            return kind.clone();
        }
        let new = Arc::new(Kind {
            metadata,
            arrival: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            message: Mutex::default(),
        });
        // A callsite is new once. Of two threads that register a callsite, the first wins.
        self.inner.kinds.rcu(|kinds| {
            let mut kinds = HashMap::clone(kinds);
            kinds.entry(id.clone()).or_insert_with(|| new.clone());
            kinds
        });
        self.inner.kinds.load().get(&id).cloned().unwrap_or(new)
    }
}

impl Kind {
    fn message(&self) -> parking_lot::MutexGuard<'_, String> {
        self.message.lock()
    }
}

impl<S: Subscriber> Layer<S> for EventLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admits(event)
    }
}

/// Whether every event of a module at a level is written.
fn is_exempt(target: &str, level: Level) -> bool {
    let is_of = |modules: &[&str]| {
        modules.iter().any(|module| {
            let rest = target.strip_prefix(module);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        })
    };
    // Debug and trace are enabled only at an operator's request, and the operator needs every line.
    level > Level::INFO || is_of(&LIFECYCLE) || level == Level::ERROR && is_of(&MONEY)
}

/// The message of an event, without its fields.
fn message_of(event: &Event<'_>) -> String {
    let mut message = Message(String::new());
    event.record(&mut message);
    message.0
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Text that does not fit is truncated; a string takes the rest.
            let _ = write!(Shortened(&mut self.0), "{value:?}");
        }
    }
}

/// Accepts text up to [`MESSAGE_BYTES_MAX`] and refuses the rest.
struct Shortened<'a>(&'a mut String);

impl Write for Shortened<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = MESSAGE_BYTES_MAX - self.0.len();
        let fits = text.floor_char_boundary(left.min(text.len()));
        self.0.push_str(&text[..fits]);
        if fits < text.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_clock::ManualClock;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;
    use tollgate_clock::Timestamp;

    /// The written text, as `message fields`.
    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber> Layer<S> for Written {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().push(line.0);
        }
    }

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            write!(self.0, "{}={value:?} ", field.name()).expect("a string");
        }
    }

    struct TestLimit {
        limit: EventLimit,
        hand: ManualClock,
        suppressed: Arc<AtomicU64>,
        written: Written,
    }

    impl TestLimit {
        fn new() -> TestLimit {
            let (clock, hand) = Clock::manual(Timestamp::from_micros(1));
            let suppressed = Arc::<AtomicU64>::default();
            TestLimit {
                limit: EventLimit::new(clock, suppressed.clone()),
                hand,
                suppressed,
                written: Written::default(),
            }
        }

        fn run(&self, work: impl FnOnce()) {
            let subscriber = tracing_subscriber::registry()
                .with(self.limit.clone())
                .with(self.written.clone());
            tracing::subscriber::with_default(subscriber, work);
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut *self.written.0.lock())
        }
    }

    /// In another module, because lines of the current module are exempt.
    const TARGET: &str = "tollgate_chain::answer";

    fn fail(number: u32) {
        tracing::warn!(target: TARGET, number, "provider failed");
    }

    #[test]
    fn each_kind_has_a_burst_and_then_one_a_second() {
        let fixture = TestLimit::new();
        fixture.run(|| {
            (0..1000).for_each(fail);
            tracing::warn!(target: TARGET, "another kind");
        });
        let lines = fixture.take();
        assert_eq!(lines.len(), 11, "{lines:?}");
        assert!(lines[10].contains("another kind"), "{lines:?}");
        for _ in 0..3 {
            fixture.hand.advance(Duration::from_secs(1));
            fixture.run(|| (0..5).for_each(fail));
            assert_eq!(fixture.take().len(), 1);
        }
        assert_eq!(fixture.suppressed.load(Relaxed), 990 + 3 * 4);
    }

    #[test]
    fn suppressed_lines_are_reported_with_their_number() {
        let fixture = TestLimit::new();
        fixture.run(|| {
            (0..1000).for_each(fail);
            fixture.limit.report();
            fixture.limit.report();
        });
        let lines = fixture.take();
        assert_eq!(lines.len(), 11, "{lines:?}");
        for word in [
            "suppressed log lines",
            "kind=\"provider failed\"",
            "severity=WARN",
            "lines=990",
        ] {
            assert!(lines[10].contains(word), "no `{word}` in {:?}", lines[10]);
        }
        fixture.run(|| {
            (0..7).for_each(fail);
            fixture.limit.report();
        });
        let lines = fixture.take();
        assert!(lines[0].contains("lines=7"), "{lines:?}");
    }

    #[test]
    fn errors_about_money_and_lines_of_the_start_are_never_suppressed() {
        for (target, level, exempt) in [
            ("tollgate_ledger::accounts", Level::ERROR, true),
            ("tollgate_pay::x402::reconcile", Level::ERROR, true),
            ("tollgate_pay::module::x402", Level::ERROR, true),
            ("tollgate_pay::x402::reconcile", Level::WARN, false),
            ("tollgate_payments", Level::ERROR, false),
            ("tollgate_chain::answer", Level::ERROR, false),
            ("tollgate::gateway", Level::INFO, true),
            ("tollgate::commands::serve", Level::INFO, true),
            ("tollgate_chain::answer", Level::DEBUG, true),
        ] {
            assert_eq!(is_exempt(target, level), exempt, "{target} {level}");
        }
        let fixture = TestLimit::new();
        fixture.run(|| {
            for payment in 0..100 {
                tracing::error!(target: "tollgate_purchase::topups::reconcile", payment, "stuck");
            }
        });
        assert_eq!(fixture.take().len(), 100);
    }

    #[test]
    fn every_exempt_module_exists() {
        let root = tollgate_testing::package_folder();
        for name in LIFECYCLE.into_iter().chain(MONEY) {
            let (package, module) = name.split_once("::").unwrap_or((name, ""));
            let file = module.replace("::", "/");
            let mut folders = match package.strip_prefix("tollgate_") {
                None => vec!["src".to_owned()],
                Some(name) => std::fs::read_dir(root.join("crates"))
                    .expect("the layers")
                    .map(|layer| layer.expect("a folder").path())
                    .chain([root.join("filters")])
                    .map(|layer| format!("{}/{name}/src", layer.display()))
                    .collect(),
            };
            folders.retain(|folder| {
                let at = root.join(folder).join(&file);
                at.is_dir() || at.with_extension("rs").is_file()
            });
            assert_eq!(folders.len(), 1, "no module `{name}`");
        }
    }

    #[test]
    fn a_long_message_is_truncated_between_characters() {
        let fixture = TestLimit::new();
        fixture.run(|| {
            for _ in 0..11 {
                tracing::warn!(target: TARGET, "{}", "ä".repeat(MESSAGE_BYTES_MAX));
            }
            fixture.limit.report();
        });
        let lines = fixture.take();
        let kept = format!("kind=\"{}\"", "ä".repeat(MESSAGE_BYTES_MAX / 2));
        assert!(lines[10].contains(&kept), "{:?}", lines[10]);
    }
}
