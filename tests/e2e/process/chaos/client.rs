//! Client behaviour under fault injection: requests, retries and disconnects, and the recorded results.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tollgate_testing::{Answer, Client};

use super::request::{Manners, PlannedRequest};
use crate::rig::micros;

/// The number of tries for a request with a key.
const TRIES: usize = 6;

/// The answers seen by clients.
#[derive(Default)]
pub(super) struct Tally(Mutex<Seen>);

/// The content of a [`Tally`], without the lock.
#[derive(Default)]
pub(super) struct Seen {
    /// The charges in whole responses, by request id, with the number of the account.
    pub(super) charges: HashMap<String, (usize, i64)>,
    /// Answered requests without an equal answer to a repeat under the idempotency key.
    pub(super) unconfirmed: HashSet<String>,
    /// Requests with a different answer to a repeat under the idempotency key.
    pub(super) repeated_anew: Vec<String>,
    /// Requests without a full answer, as far as the client knows their ids.
    pub(super) broken: HashSet<String>,
    /// Requests with a disconnect before the client received an id.
    pub(super) nameless: u64,
    /// Replayed responses.
    pub(super) replays: u64,
    statuses: BTreeMap<u16, u64>,
    hits: u64,
}

impl Tally {
    fn with<T>(&self, act: impl FnOnce(&mut Seen) -> T) -> T {
        act(&mut self.0.lock().expect("not poisoned"))
    }

    /// Notes a client that left before an id arrived.
    pub(super) fn left(&self) {
        self.with(|seen| seen.nameless += 1);
    }

    /// Looks at the results, after every client has ended.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        self.with(|seen| look(seen))
    }

    pub(super) fn summary(&self) -> String {
        self.look(|seen| {
            format!(
                "whole answers {} (from the cache {}), replayed {}, cut {}, closed without a response {}, by status {:?}",
                seen.charges.len(),
                seen.hits,
                seen.replays,
                seen.broken.len(),
                seen.nameless,
                seen.statuses
            )
        })
    }
}

/// Sends a request with the retries of the client, and records the result. `pick` selects the gateway of a try.
pub(super) async fn visit<C: Borrow<Client>>(
    pick: impl Fn() -> C,
    ask: &PlannedRequest,
    tally: &Tally,
) {
    let Some(key) = &ask.key else {
        once(pick().borrow(), ask, ask.manners, tally).await;
        return;
    };
    // The first try with the drawn manners, and further tries until an answer arrives.
    let mut manners = ask.manners;
    let mut first: Option<Answer> = None;
    for _ in 0..TRIES {
        let Some(answer) = once(pick().borrow(), ask, manners, tally).await else {
            manners = Manners::Stays;
            continue;
        };
        match (answer.status, &first) {
            (200, None) => {
                // A repeat, to compare the answers.
                let id = request_id(&answer);
                tally.with(|seen| seen.unconfirmed.insert(id));
                first = Some(answer);
                manners = Manners::Stays;
            }
            (200, Some(first)) => {
                let id = request_id(first);
                tally.with(|seen| match answer.text() == first.text() {
                    true => drop(seen.unconfirmed.remove(&id)),
                    false => seen.repeated_anew.push(id),
                });
                return;
            }
            (409, _) => {
                let code = &answer.json()["error"]["code"];
                assert_eq!(code, "in_progress", "`{key}` stands for one request");
                pause(20).await;
            }
            (402 | 400, _) => return,
            _ => {}
        }
    }
}

fn request_id(answer: &Answer) -> String {
    answer.header("x-request-id").expect("an id").to_owned()
}

/// Sends a request once. Returns a complete answer, or `None`.
async fn once(
    client: &Client,
    ask: &PlannedRequest,
    manners: Manners,
    tally: &Tally,
) -> Option<Answer> {
    let mut request = client.request("POST", ask.path, ask.body.to_string().into());
    if let Some(key) = &ask.key {
        let key = key.parse().expect("a header value");
        request.headers_mut().insert("idempotency-key", key);
    }
    let open = client.try_stream(request);
    let opened = match manners {
        Manners::LeavesAfter(millis) => {
            tokio::time::timeout(Duration::from_millis(millis), open).await
        }
        _ => Ok(open.await),
    };
    let mut stream = match opened {
        Ok(Ok(stream)) => stream,
        // The gateway does not run, and has not received the request.
        Ok(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => return None,
        Ok(Err(_)) | Err(_) => {
            tally.left();
            return None;
        }
    };
    let id = stream.header("x-request-id").expect("an id").to_owned();
    let (status, replayed) = (
        stream.status,
        stream.header("idempotent-replayed").is_some(),
    );
    let broken = |tally: &Tally| {
        tally.with(|seen| {
            *seen.statuses.entry(status).or_default() += 1;
            seen.broken.insert(id.clone());
        });
        None
    };
    match manners {
        Manners::LeavesAt(events) if status == 200 => {
            // A whole answer arrives with the head. A client with a disconnect after the head has not read the answer.
            for _ in 0..if ask.is_stream() { events } else { 0 } {
                if stream.next_event().await.is_err() {
                    break;
                }
            }
            return broken(tally);
        }
        Manners::Slow(millis) => pause(millis).await,
        _ => {}
    }
    let Ok(answer) = stream.try_whole().await else {
        return broken(tally);
    };
    if status == 200 {
        let Some(metadata) = metadata(&answer, ask) else {
            return broken(tally);
        };
        let charge = micros(&metadata["credits_used"]);
        tally.with(|seen| {
            *seen.statuses.entry(status).or_default() += 1;
            if replayed {
                seen.replays += 1;
                return;
            }
            seen.hits += u64::from(metadata["cache_hit"] == true);
            let twice = seen.charges.insert(id, (ask.account, charge));
            assert_eq!(twice, None, "an id is used once");
        });
    } else {
        assert!(!replayed, "only responses are replayed");
        let error = &answer.json()["error"];
        assert!(error["code"].is_string(), "{status}: {}", answer.text());
        tally.with(|seen| *seen.statuses.entry(status).or_default() += 1);
    }
    Some(answer)
}

/// Sleeps for `millis` milliseconds, as part of a client's behaviour. No test waits by a pause.
pub(super) async fn pause(millis: u64) {
    let mut ticks = tokio::time::interval(Duration::from_millis(millis));
    ticks.tick().await;
    ticks.tick().await;
}

/// The metadata of a complete answer; `None` for a cut stream.
fn metadata(answer: &Answer, ask: &PlannedRequest) -> Option<Value> {
    let mut body = if ask.is_stream() {
        let events = answer.text().strip_suffix("data: [DONE]\n\n")?;
        let last = events.trim_end().rsplit("data: ").next()?;
        serde_json::from_str::<Value>(last).expect("JSON")
    } else {
        answer.json()
    };
    let metadata = body["x_svc"].take();
    assert!(metadata.is_object(), "a whole answer has its metadata");
    Some(metadata)
}
