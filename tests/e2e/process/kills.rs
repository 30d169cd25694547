//! Kills under load, repeatedly, on one database.
//!
//! After a kill the ledger balances, every charge received by a client is durable, and the next start releases the holds. The only further
//! charge of a client is for the client's open request. `TOLLGATE_KILLS` is the number of rounds.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tollgate_ledger::audit::audit;
use tollgate_money::OperationId;
use tollgate_testing::{Client, Postgres};

use super::installation::{Installation, Serving, ended};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited_store, chat, micros};

const ROUNDS: &str = "TOLLGATE_KILLS";
const ROUNDS_DEFAULT: u64 = 50;
const CLIENTS: usize = 8;

#[expect(clippy::disallowed_methods, reason = "a test's own settings")]
fn rounds() -> u64 {
    std::env::var(ROUNDS).map_or(ROUNDS_DEFAULT, |text| {
        text.parse().expect("TOLLGATE_KILLS is a number")
    })
}

/// The charges delivered to clients, by the id of the request.
#[derive(Clone, Default)]
struct DeliveredCharges(Arc<Mutex<HashMap<OperationId, i64>>>);

impl DeliveredCharges {
    fn note(&self, id: OperationId, charge: i64) {
        let mut delivered = self.0.lock().expect("not poisoned");
        delivered.insert(id, charge);
    }

    fn count(&self) -> usize {
        self.0.lock().expect("not poisoned").len()
    }
}

#[tokio::test]
async fn after_a_kill_delivered_charges_are_durable_and_holds_are_released() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    kill_repeatedly(&installation, rounds()).await;
}

/// A fifth of the rounds: starts and audits take longer.
#[tokio::test]
async fn after_a_kill_on_postgresql_delivered_charges_are_durable_and_holds_are_released() {
    let url = Postgres::shared().database();
    let installation = Installation::on_postgres(&url, "[telemetry]\naccess_log = \"none\"").await;
    kill_repeatedly(&installation, rounds().div_ceil(5).max(10)).await;
}

async fn kill_repeatedly(installation: &Installation, rounds: u64) {
    let delivered = DeliveredCharges::default();
    let mut payers = Vec::new();
    for _ in 0..CLIENTS {
        payers.push(installation.account("1000").await);
    }
    let mut orphans = 0;
    // Charges for answers without a delivered end, of every round.
    let mut known = HashSet::new();
    for round in 1..=rounds {
        let mut serving = installation.serve().await;
        // The holds of the previous round were released before the first request was accepted.
        audited_store(&installation.store());
        let before = delivered.count();
        let requests: Vec<_> = payers
            .iter()
            .enumerate()
            .map(|(number, (_, key))| {
                let client = Client::new(&serving.url).with_key(key);
                let client = match number % 2 {
                    0 => client,
                    _ => client.with_http2(),
                };
                tokio::spawn(send_until_killed(client, delivered.clone()))
            })
            .collect();
        // From the first answers to deep in the work.
        let answers = (round * 7 % 41) as usize;
        let deep = || delivered.count() >= before + answers;
        tollgate_testing::within("answers", crate::rig::poll(deep)).await;
        serving.process.kill();
        let mut under_way = Vec::new();
        for one in requests {
            under_way.push(one.await.expect("clients do not panic"));
        }
        orphans += check_after_kill(installation, &delivered, round);
        let mut found = undelivered(installation, &delivered);
        found.retain(|(_, operation)| known.insert(*operation));
        for ((account, _), under_way) in payers.iter().zip(under_way) {
            let own: Vec<OperationId> = found
                .extract_if(.., |(of, _)| of == account)
                .map(|(_, operation)| operation)
                .collect();
            let case =
                format!("round {round}: {account} was charged for {own:?}, and not delivered");
            assert!(own.len() <= 1, "{case}: it had one request under way");
            // Known if the head of the answer was received.
            if let (Some(charged), Some(under_way)) = (own.first(), under_way) {
                assert_eq!(*charged, under_way, "{case}");
            }
        }
        assert!(
            found.is_empty(),
            "round {round}: charges that no client asked for: {found:?}"
        );
    }
    assert!(orphans > 0, "no kill hit a request under way");
    // The next start releases the last round's holds. Afterwards the ledger matches the charges received by clients.
    let mut serving = installation.serve().await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    audited_store(&installation.store());
}

#[tokio::test]
async fn a_request_repeated_after_a_kill_is_charged_once() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    repeat_after_kills(&installation, rounds()).await;
}

/// A fifth of the rounds, as above.
#[tokio::test]
async fn a_request_repeated_after_a_kill_on_postgresql_is_charged_once() {
    let url = Postgres::shared().database();
    let installation = Installation::on_postgres(&url, "[telemetry]\naccess_log = \"none\"").await;
    repeat_after_kills(&installation, rounds().div_ceil(5).max(10)).await;
}

/// Requests with idempotency keys, sent again after every kill until an answer arrives. A client with an answer has paid for a single
/// answer, and no client has paid for two: record and charge become durable together.
async fn repeat_after_kills(installation: &Installation, rounds: u64) {
    const CLIENTS: usize = 6;
    // The current request of every client.
    let mut at = [0; CLIENTS];
    let mut answers: HashMap<String, String> = HashMap::new();
    for round in 1..=rounds {
        let mut serving = installation.serve().await;
        let enough = Arc::new(AtomicUsize::new(0));
        let requests: Vec<_> = at
            .iter()
            .enumerate()
            .map(|(number, at)| {
                let client = client(installation, &serving, number);
                let enough = Arc::clone(&enough);
                tokio::spawn(send_each_once(client, number, *at, enough))
            })
            .collect();
        let deep = || enough.load(Relaxed) >= (round * 5 % 23) as usize;
        tollgate_testing::within("answers", crate::rig::poll(deep)).await;
        serving.process.kill();
        for (at, one) in at.iter_mut().zip(requests) {
            let done = one.await.expect("clients do not panic");
            *at += done.len();
            for (key, text) in done {
                // An undelivered response may be delivered for the first time; a delivered response never changes.
                assert!(answers.insert(key, text).is_none(), "asked for once");
            }
        }
    }
    // Requests under way at the last kill are repeated too.
    let mut serving = installation.serve().await;
    for (number, at) in at.iter().enumerate() {
        let client = client(installation, &serving, number);
        let (key, request) = keyed(&client, number, *at);
        let answer = client.send(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answers.insert(key.clone(), answer.text().to_owned());
        // An early request is repeated long after the answer.
        let (key, request) = keyed(&client, number, 0);
        let answer = client.send(request).await;
        assert_eq!(answers.get(&key).map(String::as_str), Some(answer.text()));
    }
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let report = audited_store(&installation.store());
    assert_eq!(
        report.sums.spent.get(),
        answers.len() as i64 * PRICE_OF_A_CHAT,
        "one charge for each of {} keys",
        answers.len()
    );
}

/// The request of a client with the number `at`.
fn keyed(client: &Client, number: usize, at: usize) -> (String, http::Request<bytes::Bytes>) {
    let key = format!("client-{number}-request-{at}");
    let stream = at.is_multiple_of(2);
    let mut request = client.request("POST", CHAT, chat(stream).to_string().into());
    let value = key.parse().expect("a header value");
    request.headers_mut().insert("idempotency-key", value);
    (key, request)
}

/// Sends requests in sequence until the program is gone. Returns the keys of answered requests, with the answers.
async fn send_each_once(
    client: Client,
    number: usize,
    from: usize,
    enough: Arc<AtomicUsize>,
) -> Vec<(String, String)> {
    let mut done = Vec::new();
    for at in from.. {
        let (key, request) = keyed(&client, number, at);
        let Ok(answer) = client.try_send(request).await else {
            break;
        };
        assert_eq!(answer.status, 200, "{}", answer.text());
        let text = answer.text().to_owned();
        if at.is_multiple_of(2) && !text.ends_with("data: [DONE]\n\n") {
            // An end without the final part is no whole answer.
            break;
        }
        done.push((key, text));
        enough.fetch_add(1, Relaxed);
    }
    done
}

fn client(installation: &Installation, serving: &Serving, number: usize) -> Client {
    let client = serving.client(installation);
    match number % 2 {
        0 => client,
        _ => client.with_http2(),
    }
}

/// Sends requests until the program is killed; records every complete answer. Returns the id of the open request, if known.
async fn send_until_killed(client: Client, delivered: DeliveredCharges) -> Option<OperationId> {
    for round in 0.. {
        let stream = round % 2 == 0;
        let request = client.request("POST", CHAT, chat(stream).to_string().into());
        let mut answer = client.try_stream(request).await.ok()?;
        assert_eq!(answer.status, 200);
        let id = answer.header("x-request-id").expect("an id");
        let id = id.parse().expect("an id");
        let body = if stream {
            let (events, _) = answer.rest().await;
            match &events[..] {
                [.., last, done] if done.is_done() => last.json(),
                // An end without the final part is no whole answer.
                _ => return Some(id),
            }
        } else {
            match answer.try_whole().await {
                Ok(answer) => answer.json(),
                Err(_) => return Some(id),
            }
        };
        delivered.note(id, micros(&body["x_svc"]["credits_used"]));
    }
    None
}

/// The charges without delivery to a client: account and operation. Every charge is for a usual chat.
fn undelivered(
    installation: &Installation,
    delivered: &DeliveredCharges,
) -> Vec<(String, OperationId)> {
    let store = installation.store();
    let snapshot = store.snapshot().expect("a view");
    let delivered = delivered.0.lock().expect("not poisoned");
    let mut found = Vec::new();
    let read = snapshot.operations(&mut |rows| {
        if let Some(usage) = rows.usage
            && !delivered.contains_key(&rows.id)
        {
            assert_eq!(usage.cost.get(), PRICE_OF_A_CHAT, "{}", rows.id);
            found.push((usage.account.to_string(), rows.id));
        }
    });
    read.expect("operations are read");
    found
}

/// Checks the state after a kill; returns the number of open holds.
fn check_after_kill(installation: &Installation, delivered: &DeliveredCharges, round: u64) -> u64 {
    let store = installation.store();
    let report = audit(&store).expect("the store can be read");
    assert!(report.clean(), "round {round}: {:?}", report.violations);
    let mut costs = HashMap::new();
    let snapshot = store.snapshot().expect("a view");
    let read = snapshot.operations(&mut |rows| {
        costs.insert(rows.id, rows.usage.map(|usage| usage.cost.get()));
    });
    read.expect("operations are read");
    for (id, charge) in delivered.0.lock().expect("not poisoned").iter() {
        assert_eq!(
            costs.get(id),
            Some(&Some(*charge)),
            "round {round}: a client was delivered of {id}"
        );
    }
    report.open_holds
}
