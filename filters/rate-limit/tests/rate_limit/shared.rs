//! Limits that several nodes share through a real server, and what each does without it.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Clock, Entropy, ManualClock, Timestamp};
use tollgate_filter::{ApiError, Exchange, Filter, Outcome, Step};
use tollgate_module::{Services, check_text};
use tollgate_rate_limit::{Counters, RateLimit, RateLimits};
use tollgate_shared::{RawShared, Shared};
use tollgate_testing::{Redis, within};

use crate::{exchange_of, fields, limits};

/// So that nothing is replenished during a test.
const SETTINGS: &str = "[classes.free]\nquota = 100\nwindow_secs = 86400\n";

/// A node: its filter, its connection, and its clock, which stands still.
struct Node {
    filter: RateLimit,
    shared: Shared,
    manual: ManualClock,
}

impl Node {
    fn start(redis: &Redis, call_limit: Option<Duration>) -> Node {
        let text = format!("url = '{}'", redis.url());
        let settings = check_text::<RawShared>(&text, &Services::default());
        let mut settings = settings.expect("a good URL").expect("a server");
        settings.call_limit = call_limit.unwrap_or(settings.call_limit);
        let shared = Shared::new(settings, Entropy::system()).expect("a name");
        tokio::spawn(shared.clone().run());
        let (clock, manual) = Clock::manual(Timestamp::from_secs(1_700_000_000));
        let counters = Arc::new(Counters::default());
        let limits = RateLimits::new(limits(SETTINGS), counters, clock, Entropy::seeded(1));
        let filter = limits.sharing(Some(shared.clone())).rate_limit(None);
        Node {
            filter: filter.expect("no class is named"),
            shared,
            manual,
        }
    }

    async fn ask(&self, exchange: &mut Exchange) -> Result<(), Box<ApiError>> {
        let step = self.filter.on_request(exchange);
        let outcome = within("a decision", step.finish()).await;
        match outcome.expect("limits do not fail") {
            Outcome::Continue => Ok(()),
            Outcome::Refuse(error) => Err(error),
            Outcome::Reply(_) => panic!("a limit does not reply"),
        }
    }

    async fn admits(&self, account: u8) -> bool {
        self.ask(&mut exchange_of(account, "free")).await.is_ok()
    }

    /// Whether a request of the account is decided without waiting.
    fn decides_at_once(&self, account: u8) -> bool {
        let mut exchange = exchange_of(account, "free");
        let step = self.filter.on_request(&mut exchange);
        matches!(step, Step::Now(_))
    }
}

/// As long as a busy machine needs: for tests of what is counted while the server answers.
const PATIENT: Option<Duration> = Some(Duration::from_secs(60));

async fn nodes(redis: &Redis, call_limit: Option<Duration>) -> [Node; 3] {
    let nodes = [(); 3].map(|()| Node::start(redis, call_limit));
    until("three live nodes", || {
        nodes
            .iter()
            .all(|node| node.shared.is_reachable() && node.shared.nodes() == 3)
    })
    .await;
    nodes
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let polled = async {
        let mut often = tokio::time::interval(Duration::from_millis(2));
        while !is_so() {
            often.tick().await;
        }
    };
    within(what, polled).await;
}

/// The requests of an account that nodes admit in turn, until each has refused many.
async fn admitted(nodes: &[Node], account: u8) -> u32 {
    let mut admitted = 0;
    for _ in 0..150 {
        for node in nodes {
            admitted += u32::from(node.admits(account).await);
        }
    }
    admitted
}

#[tokio::test]
async fn three_nodes_admit_exactly_one_quota() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    assert_eq!(admitted(&nodes, 1).await, 100);
    assert_eq!(admitted(&nodes[..1], 2).await, 100, "one may use all of it");
    assert_eq!(admitted(&nodes[1..], 2).await, 0, "then none is left");
}

#[tokio::test]
async fn leases_that_expire_are_lost_and_admit_nothing_beyond_the_quota() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    let mut admitted = 0;
    for round in 0..300_u64 {
        for node in &nodes {
            admitted += u32::from(node.admits(1).await);
            node.manual.advance(Duration::from_millis(round % 60));
        }
    }
    assert!((60..=100).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn a_busy_account_asks_rarely_and_a_refused_one_not_at_all() {
    let redis = Redis::start();
    let node = Node::start(&redis, PATIENT);
    until("the connection", || node.shared.is_reachable()).await;
    let mut at_once = 0;
    for _ in 0..100 {
        // A second request is a lookup that takes a cell too, so it is made once.
        let mut exchange = exchange_of(1, "free");
        match node.filter.on_request(&mut exchange) {
            Step::Now(_) => at_once += 1,
            later => drop(
                within("a decision", later.finish())
                    .await
                    .expect("a decision"),
            ),
        }
        node.manual.advance(Duration::from_millis(1));
    }
    assert!(at_once > 20, "{at_once} of 100 without a call");
    assert!(!node.admits(1).await);
    for _ in 0..10 {
        assert!(node.decides_at_once(1), "the refusal is known");
    }
    let mut refused = exchange_of(1, "free");
    let error = node.ask(&mut refused).await.expect_err("refused");
    let wait = error.retry_after.expect("a wait").as_secs();
    assert!(
        (860..=960).contains(&wait),
        "{wait}: a cell takes 864 seconds, and jitter"
    );
    let state = fields(&mut refused);
    assert!(state.contains("ratelimit: \"requests\";r=0;t="), "{state}");
}

#[tokio::test]
async fn fields_count_what_all_nodes_have_used() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    for remaining in (90..100).rev() {
        let node = &nodes[remaining % 3];
        let mut exchange = exchange_of(1, "free");
        assert!(node.ask(&mut exchange).await.is_ok());
        let text = fields(&mut exchange);
        assert!(
            text.starts_with("ratelimit-policy: \"requests\";q=100;w=86400"),
            "{text}"
        );
        if remaining >= 97 {
            // Each has asked for one cell, and knows the count at its answer.
            let wanted = format!("ratelimit: \"requests\";r={remaining};t=");
            assert!(text.contains(&wanted), "{text}");
        }
        // No lease is left at the next request.
        node.manual.advance(Duration::from_secs(1));
    }
}

#[tokio::test]
async fn without_the_server_each_node_uses_its_share_until_it_is_back() {
    let mut redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    assert!(nodes[0].admits(1).await);
    redis.kill();
    until("the loss of the server", || {
        nodes.iter().all(|node| !node.shared.is_reachable())
    })
    .await;
    assert!(nodes.iter().all(|node| node.decides_at_once(9)));
    assert_eq!(admitted(&nodes, 2).await, 99, "three times 33");
    assert_eq!(
        admitted(&nodes[..1], 1).await,
        32,
        "what it has used before counts"
    );
    redis.restart();
    until("the server's return", || {
        nodes
            .iter()
            .all(|node| node.shared.is_reachable() && node.shared.nodes() == 3)
    })
    .await;
    assert_eq!(admitted(&nodes, 3).await, 100);
}

#[tokio::test]
async fn a_server_that_does_not_answer_delays_no_request_for_long() {
    let mut redis = Redis::start();
    let nodes = nodes(&redis, None).await;
    redis.pause();
    // Without a limit of the wait none of these would be decided.
    for account in 1..=5 {
        for node in &nodes {
            assert!(node.admits(account).await, "by the share");
        }
    }
    until("three calls without an answer", || {
        nodes.iter().all(|node| !node.shared.is_reachable())
    })
    .await;
    assert!(nodes.iter().all(|node| node.decides_at_once(9)));
    redis.resume();
    until("the next connection", || {
        nodes.iter().all(|node| node.shared.is_reachable())
    })
    .await;
}
