//! Kills under load, repeatedly, on one database.
//!
//! After each kill: the ledger balances, every charge that a client received is durable, the next start releases the holds, and no client
//! was charged for more than it requested. `TOLLGATE_KILLS` is the number of rounds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use tollgate_ledger::audit::audit;
use tollgate_store::sqlite;
use tollgate_testing::Client;

use super::installation::{Installation, Serving, ended};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited, chat, micros};

const ROUNDS: &str = "TOLLGATE_KILLS";
const ROUNDS_DEFAULT: u64 = 50;
const CLIENTS: usize = 8;

#[expect(clippy::disallowed_methods, reason = "a test's own settings")]
fn rounds() -> u64 {
    std::env::var(ROUNDS).map_or(ROUNDS_DEFAULT, |text| {
        text.parse().expect("TOLLGATE_KILLS is a number")
    })
}

/// What clients were delivered: the charge by the id of the request.
#[derive(Clone, Default)]
struct DeliveredCharges(Arc<Mutex<HashMap<String, i64>>>);

impl DeliveredCharges {
    fn note(&self, id: &str, charge: i64) {
        let mut delivered = self.0.lock().expect("not poisoned");
        delivered.insert(id.to_owned(), charge);
    }

    fn count(&self) -> usize {
        self.0.lock().expect("not poisoned").len()
    }
}

#[tokio::test]
async fn after_a_kill_delivered_charges_are_durable_and_holds_are_released() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let delivered = DeliveredCharges::default();
    let mut orphans = 0;
    for round in 1..=rounds() {
        let mut serving = installation.serve().await;
        // The holds of the previous round were released before the first request was accepted.
        let before = audited(&installation.database()).sums.spent.get();
        let known = delivered.count();
        let requests: Vec<_> = (0..CLIENTS)
            .map(|number| {
                tokio::spawn(send_until_killed(
                    client(&installation, &serving, number),
                    delivered.clone(),
                ))
            })
            .collect();
        // From the first answers to deep in the work.
        let answers = (round * 7 % 41) as usize;
        let deep = || delivered.count() >= known + answers;
        tollgate_testing::within("answers", crate::rig::poll(deep)).await;
        serving.process.kill();
        for one in requests {
            one.await.expect("clients do not panic");
        }
        orphans += check_after_kill(&installation, &delivered, round);
        let after = spent(&installation);
        let answered = (delivered.count() - known) as i64;
        let (least, most) = (answered, answered + CLIENTS as i64);
        let charged = (after - before) / PRICE_OF_A_CHAT;
        assert!(
            (least..=most).contains(&charged),
            "round {round}: {charged} charges for {answered} answers"
        );
    }
    assert!(orphans > 0, "no kill hit a request under way");
    // The last round's holds are released at the next start, and then the ledger matches what clients received.
    let mut serving = installation.serve().await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    audited(&installation.database());
}

/// Requests of one key each, sent again after every kill until they have their answer. A client that gets one has paid for one, and
/// none has paid for two: record and charge became durable together, or not at all.
#[tokio::test]
async fn a_request_repeated_after_a_kill_is_charged_once() {
    const CLIENTS: usize = 6;
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    // Which request each client is at.
    let mut at = [0; CLIENTS];
    let mut answers: HashMap<String, String> = HashMap::new();
    for round in 1..=rounds() {
        let mut serving = installation.serve().await;
        let enough = Arc::new(AtomicUsize::new(0));
        let requests: Vec<_> = at
            .iter()
            .enumerate()
            .map(|(number, at)| {
                let client = client(&installation, &serving, number);
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
                // An undelivered response may be delivered now for the first time; a delivered one never changes.
                assert!(answers.insert(key, text).is_none(), "asked for once");
            }
        }
    }
    // Requests that were under way at the last kill are repeated too.
    let mut serving = installation.serve().await;
    for (number, at) in at.iter().enumerate() {
        let client = client(&installation, &serving, number);
        let (key, request) = keyed(&client, number, *at);
        let answer = client.send(request).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answers.insert(key.clone(), answer.text().to_owned());
        // And an early one, long after.
        let (key, request) = keyed(&client, number, 0);
        let answer = client.send(request).await;
        assert_eq!(answers.get(&key).map(String::as_str), Some(answer.text()));
    }
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let report = audited(&installation.database());
    assert_eq!(
        report.sums.spent.get(),
        answers.len() as i64 * PRICE_OF_A_CHAT,
        "one charge for each of {} keys",
        answers.len()
    );
}

/// The request of one client that has this number.
fn keyed(client: &Client, number: usize, at: usize) -> (String, http::Request<bytes::Bytes>) {
    let key = format!("client {number} request {at}");
    let stream = at.is_multiple_of(2);
    let mut request = client.request("POST", CHAT, chat(stream).to_string().into());
    let value = key.parse().expect("a header value");
    request.headers_mut().insert("idempotency-key", value);
    (key, request)
}

/// Asks one request after the other until the program is gone: the key of each that was answered, and the answer.
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
            // An end without it is no whole answer.
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

/// Sends requests until the program is killed; records each complete answer.
async fn send_until_killed(client: Client, delivered: DeliveredCharges) {
    for round in 0.. {
        let stream = round % 2 == 0;
        let request = client.request("POST", CHAT, chat(stream).to_string().into());
        let Ok(answer) = client.try_send(request).await else {
            return;
        };
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id = answer.header("x-request-id").expect("an id").to_owned();
        let body = match stream {
            false => answer.json(),
            true => {
                let text = answer.text().to_owned();
                let Some(events) = text.strip_suffix("data: [DONE]\n\n") else {
                    // An end without it is no whole answer.
                    return;
                };
                let last = events.trim_end().rsplit("data: ").next().expect("an event");
                serde_json::from_str(last).expect("JSON")
            }
        };
        delivered.note(&id, micros(&body["x_svc"]["credits_used"]));
    }
}

/// Checks the state after a kill; returns the number of open holds.
fn check_after_kill(installation: &Installation, delivered: &DeliveredCharges, round: u64) -> u64 {
    let store = sqlite::open_read(&installation.database()).expect("the store opens after a kill");
    let report = audit(&*store).expect("the store can be read");
    assert!(report.clean(), "round {round}: {:?}", report.violations);
    for (id, charge) in delivered.0.lock().expect("not poisoned").iter() {
        let operation = id.strip_prefix("req_").unwrap_or(id);
        let operation = operation.parse().or_else(|_| id.parse()).expect("an id");
        let rows = store.operation(operation).expect("an operation is read");
        let cost = rows.usage.map(|usage| usage.cost.get());
        assert_eq!(
            cost,
            Some(*charge),
            "round {round}: a client was delivered of {id}"
        );
    }
    report.open_holds
}

fn spent(installation: &Installation) -> i64 {
    let store = sqlite::open_read(&installation.database()).expect("the store opens");
    audit(&*store)
        .expect("the store can be read")
        .sums
        .spent
        .get()
}
