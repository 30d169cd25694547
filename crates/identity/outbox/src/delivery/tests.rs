//! Deliveries to a receiver that is scripted, through a store of each engine, with a manual clock.

use std::collections::VecDeque;
use std::sync::Mutex;

use async_trait::async_trait;
use tempfile::TempDir;
use tokio::sync::Semaphore;
use tollgate_clock::ManualClock;
use tollgate_identity::signin::{CODE_LIFE, CodeRequest, CodeSource, SigninRules};
use tollgate_identity::{Login, SessionValue};
use tollgate_store::postgres::{self, DatabaseUrl, NodeRole};
use tollgate_store::{CodePurpose, RootSecret, sqlite};
use tollgate_testing::{Postgres, within};

use super::*;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECOND: Duration = Duration::from_secs(1);

/// How a receiver answers a message that it has read.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Accepted,
    Refused,
    Rejected,
    /// None: the connection is lost.
    Lost,
    /// Accepted once it is let on.
    Slow,
}

/// A receiver; it accepts what it has no other answer for.
struct Receiver {
    answers: Mutex<VecDeque<Answer>>,
    /// The ids of the messages that it has read, in order.
    read: Mutex<Vec<String>>,
    has_read: Notify,
    slow: Semaphore,
}

impl Receiver {
    fn with(answers: impl IntoIterator<Item = Answer>) -> Arc<Receiver> {
        Arc::new(Receiver {
            answers: Mutex::new(answers.into_iter().collect()),
            read: Mutex::default(),
            has_read: Notify::new(),
            slow: Semaphore::new(0),
        })
    }

    fn count(&self) -> usize {
        self.read.lock().expect("no panic").len()
    }

    async fn has_read(&self) {
        within("a message", self.has_read.notified()).await;
    }
}

#[async_trait]
impl Sender for Receiver {
    async fn send(&self, message: &OutgoingMessage) -> Result<(), SendError> {
        self.read.lock().expect("no panic").push(message.id.clone());
        self.has_read.notify_one();
        let answer = self.answers.lock().expect("no panic").pop_front();
        match answer.unwrap_or(Answer::Accepted) {
            Answer::Accepted => Ok(()),
            Answer::Refused => Err(SendError::Transient("not now".into())),
            Answer::Rejected => Err(SendError::Permanent("no such mailbox".into())),
            Answer::Lost => Err(SendError::Unknown("disconnected".into())),
            Answer::Slow => {
                let _permit = self.slow.acquire().await.expect("never closed");
                Ok(())
            }
        }
    }
}

/// The stores of two deliverers: nodes of a cluster on PostgreSQL, one store on SQLite.
fn stores(engine: &str, folder: &TempDir) -> [Arc<dyn Store>; 2] {
    let secret = || RootSecret([7; 32]);
    if engine == "sqlite" {
        let options = sqlite::Options::new(START, secret());
        let store = sqlite::open(&folder.path().join("t.db"), options).expect("a store");
        return [store.clone(), store];
    }
    let url = Postgres::shared().database();
    ["a", "b"].map(|name| {
        let url = DatabaseUrl::parse(&url).expect("an address");
        let options = postgres::Options {
            node_name: name.to_owned(),
            role: NodeRole::OneOfMany,
            ..postgres::Options::new(url, START, secret())
        };
        postgres::open(options).expect("a store")
    })
}

/// Two deliverers of one queue.
struct TestBed {
    outboxes: [Arc<Outbox>; 2],
    receiver: Arc<Receiver>,
    signin: Signin,
    hand: ManualClock,
    stores: [Arc<dyn Store>; 2],
    drawn: u8,
    _folder: TempDir,
}

impl TestBed {
    fn new(engine: &str, answers: impl IntoIterator<Item = Answer>) -> TestBed {
        let folder = TempDir::new().expect("a folder");
        let stores = stores(engine, &folder);
        let (clock, hand) = Clock::manual(START);
        let receiver = Receiver::with(answers);
        let outboxes = stores.each_ref().map(|store| {
            let signin = Signin::new(store.clone(), SigninRules::default());
            let senders = Senders {
                mail: Some(receiver.clone()),
                sms: None,
            };
            let names = ("Tolls", "svc.example");
            let senders = Snapshot::from(senders);
            Arc::new(Outbox::new(&**store, signin, senders, names, clock.clone()))
        });
        TestBed {
            signin: Signin::new(stores[0].clone(), SigninRules::default()),
            outboxes,
            receiver,
            hand,
            stores,
            drawn: 0,
            _folder: folder,
        }
    }

    /// Queues a message.
    async fn queue(&mut self, address: &str) {
        self.drawn += 1;
        let draw = |out: &mut [u8]| out.fill(self.drawn);
        let request = CodeRequest {
            login: &Login::email(address).expect("an address"),
            purpose: CodePurpose::SignUp,
            browser: &SessionValue::draw(draw),
            source: CodeSource {
                network: None,
                mark: None,
            },
            now: self.now(),
        };
        let mut drawn = self.drawn;
        let queued = self.signin.send_code(&request, |out| {
            drawn = drawn.wrapping_add(16);
            out.fill(drawn);
        });
        queued.await.expect("queued");
    }

    fn now(&self) -> Timestamp {
        self.outboxes[0].clock.now()
    }

    /// Has one of them deliver what is due; the time until the next message is due.
    async fn deliver(&self, deliverer: usize) -> Duration {
        let delivered = self.outboxes[deliverer].deliver_due();
        within("the deliveries", delivered).await.expect("no error")
    }

    /// How many messages there are, and the counts of sent, failed, unknown, rejected and expired ones.
    async fn state(&self, deliverer: usize) -> (usize, Vec<u64>) {
        let later = START + CODE_LIFE + SECOND;
        let queued = self.signin.messages_due(later, 100).await;
        let counters = &self.outboxes[deliverer].counters;
        let counts = counters.values().map(|(_, count)| count).collect();
        (queued.expect("an answer").len(), counts)
    }

    fn close(self) {
        self.stores.iter().for_each(|store| store.close());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_not_accepted_is_retried_with_backoff() {
    for engine in ["sqlite", "postgres"] {
        let answers = [Answer::Refused, Answer::Refused, Answer::Refused];
        let mut bed = TestBed::new(engine, answers);
        bed.queue("ada@example.com").await;
        for (attempts, backoff) in [(1, 1), (2, 2), (3, 4)] {
            let backoff = backoff * SECOND;
            // Each by another node: the backoff is that of the message.
            assert_eq!(bed.deliver(attempts % 2).await, backoff, "{engine}");
            assert_eq!(bed.receiver.count(), attempts, "{engine}");
            bed.hand.advance(backoff - Duration::from_millis(1));
            let left = bed.deliver(0).await;
            assert_eq!(left, Duration::from_millis(1), "{engine}");
            assert_eq!(bed.receiver.count(), attempts, "{engine}: too early");
            bed.hand.advance(left);
        }
        bed.deliver(0).await;
        assert_eq!(bed.receiver.count(), 4, "{engine}");
        assert_eq!(bed.state(0).await, (0, vec![1, 1, 0, 0, 0]), "{engine}");
        bed.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_without_an_answer_and_a_rejected_one_are_not_repeated() {
    for engine in ["sqlite", "postgres"] {
        let answers = [Answer::Lost, Answer::Rejected];
        let mut bed = TestBed::new(engine, answers);
        for (address, counts) in [
            ("ada@example.com", vec![0, 0, 1, 0, 0]),
            ("bob@example.com", vec![0, 0, 1, 1, 0]),
        ] {
            bed.queue(address).await;
            assert_eq!(bed.deliver(0).await, POLL_INTERVAL, "{engine} {address}");
            assert_eq!(bed.state(0).await, (0, counts), "{engine} {address}");
        }
        assert_eq!(bed.receiver.count(), 2, "{engine}");
        bed.close();
    }
}

/// The receiver has the message and has not answered, when another node becomes the leader: with a claim after the attempt, or none,
/// that node sends it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_one_node_is_sending_is_not_sent_by_another() {
    for engine in ["sqlite", "postgres"] {
        let mut bed = TestBed::new(engine, [Answer::Slow]);
        bed.queue("ada@example.com").await;
        let first = bed.outboxes[0].clone();
        let running = tokio::spawn(async move { first.run().await });
        bed.receiver.has_read().await;
        // Its node is no longer the leader: the attempt goes on.
        running.abort();
        bed.queue("bob@example.com").await;
        bed.deliver(1).await;
        assert_eq!(bed.receiver.count(), 2, "{engine}: that to bob");
        bed.hand.advance(CODE_LIFE / 2);
        bed.deliver(1).await;
        assert_eq!(
            bed.receiver.count(),
            2,
            "{engine}: it is not repeated later"
        );
        bed.receiver.slow.add_permits(1);
        within("the end", bed.outboxes[0].attempts().finish()).await;
        assert_eq!(bed.state(0).await, (0, vec![1, 0, 0, 0, 0]), "{engine}");
        bed.deliver(1).await;
        assert_eq!(bed.receiver.count(), 2, "{engine}");
        bed.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_claim_has_no_result_is_dropped_when_it_expires() {
    for engine in ["sqlite", "postgres"] {
        let mut bed = TestBed::new(engine, []);
        bed.queue("ada@example.com").await;
        let due = bed.signin.messages_due(bed.now(), 1).await;
        let message = &due.expect("an answer")[0];
        let claim = || bed.signin.claim_message(message.id, message.tries);
        assert!(claim().await.expect("claimed"), "{engine}");
        assert!(!claim().await.expect("an answer"), "{engine}: once");
        bed.deliver(1).await;
        assert_eq!(bed.state(1).await, (1, vec![0; 5]), "{engine}: it waits");
        bed.hand.advance(CODE_LIFE);
        bed.deliver(1).await;
        assert_eq!(bed.state(1).await, (0, vec![0, 0, 0, 0, 1]), "{engine}");
        assert_eq!(bed.receiver.count(), 0, "{engine}");
        bed.close();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_waits_for_the_attempt_under_way_and_begins_none() {
    let mut bed = TestBed::new("sqlite", [Answer::Slow]);
    bed.queue("ada@example.com").await;
    let outbox = bed.outboxes[0].clone();
    let running = tokio::spawn(async move { outbox.run().await });
    bed.receiver.has_read().await;
    let attempts = bed.outboxes[0].attempts();
    let stopping = tokio::spawn(async move { attempts.finish().await });
    let closed = async {
        while !bed.outboxes[0].attempts.0.is_closed() {
            tokio::task::yield_now().await;
        }
    };
    within("the begin of the stop", closed).await;
    assert!(!stopping.is_finished(), "an attempt is under way");
    bed.queue("bob@example.com").await;
    bed.receiver.slow.add_permits(1);
    within("the stop", stopping).await.expect("no panic");
    bed.deliver(0).await;
    assert_eq!(bed.receiver.count(), 1, "that to bob waits");
    let (queued, counts) = bed.state(0).await;
    assert_eq!((queued, &counts[..]), (1, &[1, 0, 0, 0, 0][..]));
    running.abort();
    bed.close();
}
