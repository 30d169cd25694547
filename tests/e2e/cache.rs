//! The response cache: whole responses and streams, single flight, scopes, and the price of a hit.

mod answers;
mod capacity;
mod plain;
mod sharing;
mod single_flight;
mod streams;

use serde_json::Value;
use tollgate_testing::Answer;

use crate::rig::{Rig, Setup};

/// A gateway with the cache on, and with `settings`.
async fn rig(settings: &str) -> Rig {
    setup(settings).start().await
}

fn setup(settings: &str) -> Setup {
    Setup::with(&format!("cache.enabled = true\n{settings}"))
}

/// The metadata of an answer, or of the last event of a stream.
fn metadata(answer: &Answer) -> Value {
    if answer.header("content-type") != Some("text/event-stream") {
        return answer.json()["x_svc"].clone();
    }
    let events = events(answer);
    let (last, others) = events.split_last().expect("a stream has events");
    assert!(
        others.iter().all(|event| event.get("x_svc").is_none()),
        "the metadata stands in the last event alone"
    );
    last["x_svc"].clone()
}

/// The events of a properly ended stream, without `[DONE]`.
fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let (events, end) = text.split_at(text.len() - "data: [DONE]\n\n".len());
    assert_eq!(end, "data: [DONE]\n\n", "{text}");
    let events = events
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "));
    let events = events.map(|event| serde_json::from_str(event).expect("events are JSON"));
    events.collect()
}

/// The cache status of a response.
fn status(answer: &Answer) -> String {
    let metadata = metadata(answer);
    let status = metadata["cache_store_status"].as_str();
    assert_eq!(metadata["cache_hit"], status == Some("hit"), "{metadata}");
    status.expect("a status").to_owned()
}
