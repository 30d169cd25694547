//! The provider of all measurements: prepared answers, sent without delay.
//!
//! A word in the request chooses: `#silent` for a stream that stops after its first event, `#paced` for one whose events
//! are 1 ms apart, `#lasting` for one whose events are 100 ms apart, `#stamped` for one whose events contain the time of sending; otherwise the standard completion, or the
//! standard stream with one write an event.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use bytes::Bytes;
use memchr::memmem;
use tollgate_testing::provider::{Custom, Plan, Request, Settings, Step, standard};
use tollgate_testing::{Gate, Provider};

/// Between two events of a paced stream.
const PACE: Duration = Duration::from_millis(1);

/// Between two events of a lasting stream.
const LONG_PACE: Duration = Duration::from_millis(100);

/// Between the stamped events of a stream: long enough for everything about one to be over before the next.
const APART: Duration = Duration::from_millis(20);

/// Runs the provider at `port` for ever.
pub(crate) async fn run(port: u16) -> Result<()> {
    let settings = Settings {
        address: ([127, 0, 0, 1], port).into(),
        calls_kept: 0,
        models: vec!["bench".to_owned()],
        custom: Some(answers()),
        ..Settings::default()
    };
    let _provider = Provider::start_with(settings).await?;
    std::future::pending().await
}

fn answers() -> Custom {
    let completion = Plan::json(200, standard::completion());
    let exported = Plan::json(200, Bytes::from_static(b"{}"));
    let stream = Plan::events(standard::stream());
    let lasting = paced(&stream, LONG_PACE);
    let paced = paced(&stream, PACE);
    let stamped = stamped();
    let silent = silent();
    let [is_stream, is_paced, is_lasting, is_stamped, is_silent] = [
        "\"stream\":true",
        "#paced",
        "#lasting",
        "#stamped",
        "#silent",
    ]
    .map(memmem::Finder::new);
    Arc::new(move |request: &Request| {
        let has = |finder: &memmem::Finder<'_>| finder.find(&request.body).is_some();
        let plan = match () {
            // It is the collector of traces too.
            () if request.path == "/v1/traces" => &exported,
            () if !request.path.ends_with("/completions") => return None,
            () if !has(&is_stream) => &completion,
            () if has(&is_paced) => &paced,
            () if has(&is_lasting) => &lasting,
            () if has(&is_stamped) => &stamped,
            () if has(&is_silent) => &silent,
            () => &stream,
        };
        Some(plan.clone())
    })
}

fn paced(stream: &Plan, pace: Duration) -> Plan {
    let mut plan = Plan::default();
    for step in &stream.steps {
        plan.steps.push(step.clone());
        if matches!(step, Step::Piece(_)) {
            plan.steps.push(Step::Pause(pace));
        }
    }
    plan
}

fn silent() -> Plan {
    let mut plan = Plan::events(standard::stream().into_iter().take(1));
    plan.steps.push(Step::Wait(Gate::new()));
    plan
}

/// Three stamped events, far apart, and the usual end right behind the last of them.
fn stamped() -> Plan {
    let make: Step = Step::MadePiece(Arc::new(stamp));
    let mut plan = Plan::events([]);
    plan.steps.push(make.clone());
    plan.steps.extend([Step::Pause(APART), make.clone()]);
    plan.steps.extend([Step::Pause(APART), make]);
    plan.steps.extend(
        standard::stream()
            .into_iter()
            .skip(standard::STREAM_EVENTS - 3)
            .map(Step::Piece),
    );
    plan
}

fn stamp() -> Bytes {
    let now = nanos();
    format!(
        "data: {{\"id\":\"chatcmpl-standard0001\",\"object\":\"chat.completion.chunk\",\"created\":1767225600,\
         \"model\":\"bench\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"sent:{now};\"}},\"logprobs\":null,\
         \"finish_reason\":null}}],\"usage\":null}}\n\n"
    )
    .into()
}

/// Nanoseconds of the wall clock: the one clock that two processes can compare without unsafe code. A step of it spoils
/// single samples, which medians do not mind.
pub(crate) fn nanos() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
