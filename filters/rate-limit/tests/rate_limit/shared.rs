//! Limits that several nodes share through a real server, and what each does without it.

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tollgate_clock::{Clock, Entropy, ManualClock, Timestamp};
use tollgate_filter::{ApiError, Exchange, Filter, Outcome, Principal, Step};
use tollgate_module::{Services, check_text};
use tollgate_rate_limit::{Counters, RateLimit, RateLimits};
use tollgate_shared::{RawShared, Shared};
use tollgate_testing::{Redis, RedisLink, within};

use crate::{ended, exchange_of, exchange_using, fields, limits};

/// So that nothing is replenished during a test.
const SETTINGS: &str = "
[classes.free]
quota = 100
window_secs = 86400

[classes.pro]
quota = 1000000
window_secs = 86400
tokens_per_window = 6000
concurrent = 100000

[classes.six]
quota = 1000
window_secs = 86400
concurrent = 6

[classes.many]
quota = 1000
window_secs = 86400
concurrent = 48

[classes.short]
quota = 10000
window_secs = 1
tokens_per_window = 6000
";

/// A node: its filter, its connection, and its clock, which stands still.
struct Node {
    filter: RateLimit,
    shared: Shared,
    manual: ManualClock,
    tasks: Vec<JoinHandle<()>>,
}

impl Node {
    fn start(url: &str, call_limit: Option<Duration>) -> Node {
        let text = format!("url = '{url}'");
        let settings = check_text::<RawShared>(&text, &Services::default());
        let mut settings = settings.expect("a good URL").expect("a server");
        settings.call_limit = call_limit.unwrap_or(settings.call_limit);
        let shared = Shared::new(settings, Entropy::system()).expect("a name");
        let connection = tokio::spawn(shared.clone().run());
        let (clock, manual) = Clock::manual(Timestamp::from_secs(1_700_000_000));
        let counters = Arc::new(Counters::default());
        let limits = RateLimits::new(&limits(SETTINGS), counters, clock, Entropy::seeded(1));
        let limits = limits.sharing(Some(shared.clone()));
        let renewal = tokio::spawn(limits.renewal().expect("a shared server"));
        Node {
            filter: limits.rate_limit(None).expect("no class is named"),
            tasks: vec![connection, renewal],
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

    /// An exchange of an account of this class, if it is admitted: it holds its permit.
    async fn admitted(&self, account: u8, class: &str) -> Option<Exchange> {
        let mut exchange = exchange_of(account, class);
        self.ask(&mut exchange).await.ok().map(|()| exchange)
    }

    /// An exchange whose request may use so many tokens, if they are left.
    async fn reserved(&self, tokens: u64) -> Option<Exchange> {
        self.forwarded(self.counted(tokens).await).await
    }

    /// An exchange whose request may use so many tokens, before they are reserved.
    async fn counted(&self, tokens: u64) -> Exchange {
        self.counted_as("pro", tokens).await
    }

    async fn counted_as(&self, class: &str, tokens: u64) -> Exchange {
        let mut exchange = exchange_using(tokens);
        exchange.get_mut::<Principal>().expect("an account").class = class.into();
        self.ask(&mut exchange).await.expect("requests are left");
        exchange
    }

    async fn forwarded(&self, mut exchange: Exchange) -> Option<Exchange> {
        let step = self.filter.on_forward(&mut exchange);
        let outcome = within("a decision", step.finish()).await;
        match outcome.expect("limits do not fail") {
            Outcome::Continue => Some(exchange),
            _ => None,
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
    let nodes = [(); 3].map(|()| Node::start(&redis.url(), call_limit));
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
            // Leases of few requests, as all are here, last for ten seconds.
            node.manual
                .advance(Duration::from_millis(200 * (round % 60)));
        }
    }
    assert!((60..=100).contains(&admitted), "{admitted}");
}

#[tokio::test]
async fn a_busy_account_asks_rarely_and_a_refused_one_not_at_all() {
    let redis = Redis::start();
    let node = Node::start(&redis.url(), PATIENT);
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
        node.manual.advance(Duration::from_secs(11));
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

#[tokio::test]
async fn three_nodes_share_one_quota_of_tokens() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    let mut running = Vec::new();
    for _ in 0..4 {
        for node in &nodes {
            running.extend(node.reserved(1000).await);
        }
    }
    assert_eq!(running.len(), 6);
    // It has used a tenth; the rest is left for other nodes.
    ended(&nodes[0].filter, &mut running[0], 60, 40);
    let _after = eventually("unused tokens", async || nodes[1].reserved(900).await).await;
    assert!(nodes[2].reserved(900).await.is_none());
    // A request that is cut has used none.
    drop(running.pop());
    let _after_cut = eventually("a cut", async || nodes[2].reserved(1000).await).await;
    assert!(nodes[0].reserved(100).await.is_none());
}

#[tokio::test]
async fn tokens_that_have_drained_are_not_returned() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    let first = nodes[0].reserved(3000).await;
    let _second = nodes[1].reserved(3000).await.expect("the rest");
    // By its clock half of its tokens have drained, by the server's none.
    nodes[0].manual.advance(Duration::from_secs(86_400 / 4));
    drop(first);
    let _third = eventually("the half", async || nodes[2].reserved(1500).await).await;
    assert!(
        nodes[2].reserved(100).await.is_none(),
        "half is not returned"
    );
}

/// At the server all reservations drain together, one second a second. Each was taken to have drained by the whole time of its request: ten that
/// ran as long as one of them takes to drain had nothing returned, and an account that had used a tenth of its quota was refused.
#[tokio::test]
async fn unused_tokens_of_requests_in_parallel_are_returned() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    let mut running = Vec::new();
    for _ in 0..10 {
        running.push(nodes[0].reserved(540).await.expect("tokens are left"));
    }
    assert!(nodes[1].reserved(700).await.is_none());
    // By its clock 600 have drained, by the server's none.
    nodes[0].manual.advance(Duration::from_secs(86_400 / 10));
    for exchange in &mut running {
        ended(&nodes[0].filter, exchange, 30, 30);
    }
    // 600 of them are used, and another 600 would have drained.
    let _rest = eventually("the rest", async || nodes[1].reserved(4_800).await).await;
    assert!(nodes[2].reserved(100).await.is_none());
}

/// The server had counted them, and they stayed counted until they had drained: for a day, with this window.
#[tokio::test]
async fn tokens_that_the_server_has_counted_too_late_are_returned() {
    let redis = Redis::start();
    let link = RedisLink::start(&redis);
    let late = Node::start(&link.url(), Some(Duration::from_millis(300)));
    let other = Node::start(&redis.url(), PATIENT);
    until("two live nodes", || {
        late.shared.nodes() == 2 && other.shared.nodes() == 2
    })
    .await;
    // The server has the script from now on.
    drop(other.reserved(1).await);
    let exchange = late.counted(3000).await;
    link.delay(Duration::from_secs(30));
    let by_share = late.forwarded(exchange).await;
    assert!(by_share.is_some());
    let counted = other.reserved(3001).await.is_none();
    assert!(counted, "after the limit of the call");
    link.delay(Duration::ZERO);
    eventually("the whole quota", async || other.reserved(6000).await).await;
}

/// What a request did not use stayed counted when it ended while the server was unreachable.
#[tokio::test]
async fn tokens_of_a_request_that_ends_without_the_server_are_returned() {
    let mut redis = Redis::start();
    let node = Node::start(&redis.url(), Some(Duration::from_millis(300)));
    until("the connection", || node.shared.is_reachable()).await;
    let running = eventually("tokens", async || node.reserved(6000).await).await;
    redis.pause();
    until("the loss of the server", || !node.shared.is_reachable()).await;
    drop(running);
    redis.resume();
    let other = Node::start(&redis.url(), PATIENT);
    until("the connection", || other.shared.is_reachable()).await;
    eventually("the whole quota", async || other.reserved(6000).await).await;
}

/// The server did not have them any more, and what it gave back were those that others had reserved since.
#[tokio::test]
async fn tokens_that_the_server_has_lost_are_not_returned() {
    let mut redis = Redis::start();
    let [one, other] = [(); 2].map(|()| Node::start(&redis.url(), PATIENT));
    let are_reachable = |wanted| {
        let (one, other) = (one.shared.is_reachable(), other.shared.is_reachable());
        one == wanted && other == wanted
    };
    until("the connections", || are_reachable(true)).await;
    let lost = one.reserved(6000).await.expect("tokens are left");
    redis.restart();
    until("the loss of the server", || are_reachable(false)).await;
    until("its return", || are_reachable(true)).await;
    let _reserved = other.reserved(6000).await.expect("the count begins anew");
    drop(lost);
    for _ in 0..2 {
        // The second call is behind that of the request which has ended.
        assert!(one.reserved(6000).await.is_none());
    }
}

/// The server kept the count of the longer window, and refused for the rest of it with a wait of a second. A server whose clock is behind that of
/// the one before it, as after a failover, did the same.
#[tokio::test]
async fn a_request_after_the_wait_is_admitted_when_the_window_has_become_shorter() {
    let redis = Redis::start();
    let node = Node::start(&redis.url(), PATIENT);
    until("the connection", || node.shared.is_reachable()).await;
    // All tokens of a day, and all requests.
    let mut used = node.reserved(6000).await.expect("tokens are left");
    ended(&node.filter, &mut used, 6000, 0);
    assert_eq!(admitted(slice::from_ref(&node), 2).await, 100);
    let tokens = async || {
        let exchange = node.counted_as("short", 600).await;
        node.forwarded(exchange).await
    };
    assert!(tokens().await.is_none());
    eventually("tokens after a tenth of a second", tokens).await;
    let request = async || {
        // The remembered refusal is over.
        node.manual.advance(Duration::from_secs(1));
        node.admitted(2, "short").await
    };
    eventually("a request at once", request).await;
}

/// What an attempt has as its result at last.
async fn eventually(what: &str, attempt: impl AsyncFn() -> Option<Exchange>) -> Exchange {
    let repeated = async {
        let mut often = tokio::time::interval(Duration::from_millis(2));
        loop {
            often.tick().await;
            if let Some(exchange) = attempt().await {
                return exchange;
            }
        }
    };
    within(what, repeated).await
}

/// The requests of an account that nodes admit in turn and keep open.
async fn open(nodes: &[Node], account: u8, class: &str) -> Vec<Exchange> {
    let mut open = Vec::new();
    for _ in 0..60 {
        for node in nodes {
            open.extend(node.admitted(account, class).await);
        }
    }
    open
}

#[tokio::test]
async fn three_nodes_share_one_limit_of_concurrent_requests() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    for (account, class, most) in [(1, "six", 6), (2, "many", 48)] {
        let mut running = open(&nodes, account, class).await;
        assert_eq!(running.len(), most, "{class}");
        // The permits of all ended requests are free for any node; a few of them may be spare at the others.
        running.clear();
        let few = most - most / 4;
        while running.len() < few {
            let next = async || nodes[2].admitted(account, class).await;
            running.push(eventually("returned permits", next).await);
        }
        assert!(running.len() <= most);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_of_three_nodes_in_parallel_never_exceed_the_concurrency_limit() {
    let redis = Redis::start();
    let nodes = Arc::new(nodes(&redis, PATIENT).await);
    for (account, class, limit) in [(1, "six", 6), (2, "many", 48)] {
        let running = Arc::new(AtomicUsize::new(0));
        let admitted = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..60)
            .map(|task| {
                let (nodes, running, admitted) = (nodes.clone(), running.clone(), admitted.clone());
                tokio::spawn(async move {
                    for round in 0..5 {
                        let node = &nodes[(task + round) % 3];
                        let Some(exchange) = node.admitted(account, class).await else {
                            continue;
                        };
                        let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(now <= limit, "{now} of {limit} at once");
                        admitted.fetch_add(1, Ordering::SeqCst);
                        for _ in 0..task % 7 {
                            tokio::task::yield_now().await;
                        }
                        running.fetch_sub(1, Ordering::SeqCst);
                        drop(exchange);
                    }
                })
            })
            .collect();
        for task in tasks {
            within("a task", task).await.expect("no panic");
        }
        assert!(admitted.load(Ordering::SeqCst) >= limit, "{class}");
    }
}

#[tokio::test]
async fn a_user_with_the_documented_rights_has_all_that_limits_need() {
    let redis = Redis::start();
    let conf = include_str!("../../../../conf/README.md");
    let line = conf
        .lines()
        .find_map(|line| line.split_once("on >PASSWORD "));
    let rights = line.expect("a line with the rights").1.split(' ');
    let user: Vec<&str> = ["ACL", "SETUSER", "default"]
        .into_iter()
        .chain(rights)
        .collect();
    redis.command(&user);
    let nodes = nodes(&redis, PATIENT).await;
    // By its share a node would refuse, or admit, after a third of each.
    assert_eq!(admitted(&nodes[..1], 3).await, 100);
    assert_eq!(admitted(&nodes[1..], 3).await, 0);
    let held = open(&nodes[..1], 2, "six").await;
    assert_eq!(held.len(), 6);
    assert!(nodes[1].admitted(2, "six").await.is_none());
    let reserved = nodes[0].reserved(6000).await.expect("tokens are left");
    assert!(nodes[1].reserved(1).await.is_none());
    drop(reserved);
    eventually("unused tokens", async || nodes[1].reserved(6000).await).await;
}

#[tokio::test]
async fn the_permits_of_a_killed_node_are_free_after_a_while() {
    let redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    let _renewed = nodes[2].admitted(1, "six").await.expect("the first");
    let manual = nodes[2].manual.clone();
    let _clock = tokio::spawn(async move {
        let mut seconds = tokio::time::interval(Duration::from_secs(1));
        loop {
            seconds.tick().await;
            manual.advance(Duration::from_secs(1));
        }
    });
    let held = open(&nodes[..1], 1, "six").await;
    assert_eq!(held.len(), 5);
    assert!(nodes[1].admitted(1, "six").await.is_none());
    for task in &nodes[0].tasks {
        task.abort();
    }
    let mut running = Vec::new();
    while running.len() < 5 {
        let next = async || nodes[1].admitted(1, "six").await;
        running.push(eventually("permits of the killed node", next).await);
    }
    // That of a node that lives is renewed.
    assert!(nodes[1].admitted(1, "six").await.is_none());
    drop(held);
}

#[tokio::test]
async fn without_the_server_each_node_has_its_share_of_tokens_and_permits() {
    let mut redis = Redis::start();
    let nodes = nodes(&redis, PATIENT).await;
    let before = open(&nodes[..1], 1, "six").await;
    redis.kill();
    until("the loss of the server", || {
        nodes.iter().all(|node| !node.shared.is_reachable())
    })
    .await;
    assert_eq!(
        open(&nodes[..1], 1, "six").await.len(),
        0,
        "it holds more than its share"
    );
    assert_eq!(open(&nodes[1..], 1, "six").await.len(), 4);
    let mut reserved = Vec::new();
    for _ in 0..4 {
        for node in &nodes {
            reserved.extend(node.reserved(1000).await);
        }
    }
    assert_eq!(reserved.len(), 6, "two thousand on each");
    drop((before, reserved));
    assert_eq!(open(&nodes[..1], 1, "six").await.len(), 2);
}
