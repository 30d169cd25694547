//! Faults of three gateways on one database, drawn from a seed, while clients send requests of every kind to every gateway. An audit
//! follows.
//!
//! `TOLLGATE_CLUSTER_FAULTS` is the number of faults. Every kind of fault comes once before a kind is repeated. The node and the duration
//! of a fault, and the requests, follow from `TOLLGATE_CHAOS_SEED`. The interleaving of faults and requests does not follow from the seed.
//!
//! At the end no hold is left, the books balance, no operation was charged twice or differs from the charge seen by the client, no complete
//! answer is without a charge, and every account has the granted credit less the charges. A node recovered while cut off charges late. The
//! account that runs out may lack credit for a late charge. A request answered again under an idempotency key is charged for the second
//! answer alone.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use tollgate_clock::Clock;
use tollgate_money::AccountId;
use tollgate_testing::{Client, DatabaseLink, Postgres, Redis, RedisLink, within};

use super::super::installation::{Serving, ended};
use super::super::nodes::{Cluster, NAMES};
use super::client::{self, Tally, pause};
use super::request::{ACCOUNTS, Dice, PlannedRequest};
use super::sums::Compared;
use super::{SEED, SEED_DEFAULT, installation, number, print_line};

const FAULTS: &str = "TOLLGATE_CLUSTER_FAULTS";
const FAULTS_DEFAULT: u64 = 12;

/// Concurrent requests.
const CONCURRENCY: usize = 12;

/// How long a client waits for the end of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest duration of a fault, in milliseconds.
const MILLIS_MAX: u64 = 1_500;

/// The account that runs out of credit, and the grant after every fault, in micro-credits.
const POOR: usize = 2;
const GRANT: i64 = 50_000;

#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A node is killed, and recovers at the start.
    Killed,
    /// A node is killed, and another node recovers the killed node.
    KilledAndRecovered,
    /// A node is paused for longer than the lease and the grace period. The node continues after a recovery by another node.
    PausedPastItsLease,
    /// A node is paused, and continues.
    Paused,
    /// A node is cut off from the database until charges are in the spool. The node is killed, and charges from the spool at the next
    /// start.
    KilledWhileCutOff,
    /// A node is cut off until charges are in the spool, and another node recovers the cut-off node. The node ends at the next contact with
    /// the database, and the next start charges late.
    RecoveredWhileCutOff,
    /// The nodes restart in turn.
    Restarts,
    /// The database ends without a checkpoint, and starts again.
    DatabaseCrashes,
    /// The connections between a node and the database are closed.
    DatabaseCut,
    /// No byte arrives between a node and the database.
    DatabaseStalled,
    /// Redis is killed, and starts again without data.
    RedisKilled,
    /// Redis answers late.
    RedisSlow,
}

impl Fault {
    const ALL: [Fault; 12] = [
        Fault::Killed,
        Fault::KilledAndRecovered,
        Fault::PausedPastItsLease,
        Fault::Paused,
        Fault::KilledWhileCutOff,
        Fault::RecoveredWhileCutOff,
        Fault::Restarts,
        Fault::DatabaseCrashes,
        Fault::DatabaseCut,
        Fault::DatabaseStalled,
        Fault::RedisKilled,
        Fault::RedisSlow,
    ];
}

/// The gateways with the shared servers.
struct Faulty {
    cluster: Cluster,
    database: Postgres,
    /// The link of every node to the database.
    links: [DatabaseLink; NAMES.len()],
    redis: Redis,
    redis_link: RedisLink,
    /// The address of every node for clients.
    addresses: Arc<[ArcSwap<String>; NAMES.len()]>,
}

impl Faulty {
    async fn start() -> Faulty {
        let database = Postgres::start();
        let redis = Redis::start();
        let redis_link = RedisLink::start(&redis);
        let url = database.database();
        let settings = format!(
            "[store]\nurl = '{url}'\n[shared]\nurl = '{}'",
            redis_link.url()
        );
        let mut installation = installation(&settings).await;
        installation.postgres = Some(url);
        let links = NAMES.map(|_| DatabaseLink::start(database.folder()));
        let cluster = Cluster {
            installation,
            nodes: Vec::new(),
            server: None,
            variables: Vec::new(),
        };
        let mut faulty = Faulty {
            cluster,
            database,
            links,
            redis,
            redis_link,
            addresses: Arc::new(NAMES.map(|_| ArcSwap::default())),
        };
        for node in 0..NAMES.len() {
            let serving = faulty.serve(node).await;
            faulty.cluster.nodes.push(serving);
        }
        faulty
    }

    /// Starts a node.
    async fn serve(&self, node: usize) -> Serving {
        let mut command = self.cluster.command(NAMES[node], &["serve"]);
        let linked = self.links[node].url(self.database_name());
        command.env("TOLLGATE__STORE__URL", linked);
        command.env("TOLLGATE__STORE__SPOOL", format!("spool-{}", NAMES[node]));
        let serving = self.cluster.installation.serve_as(command).await;
        self.addresses[node].store(Arc::new(serving.url.clone()));
        serving
    }

    async fn restart(&mut self, node: usize) {
        self.cluster.nodes[node] = self.serve(node).await;
    }

    /// Waits until a node ends without a signal.
    async fn ended(&mut self, node: usize, code: i32) {
        let process = &mut self.cluster.nodes[node].process;
        let status = ended(process).await;
        assert_eq!(status.code(), Some(code), "{}", process.output());
    }

    fn database_name(&self) -> &str {
        let url = self.cluster.installation.postgres.as_deref();
        let name = url.expect("a database").rsplit('/').next();
        name.expect("a name")
    }

    /// Ends the lease and the grace period of a node at once.
    fn end_lease(&self, node: usize) {
        let name = NAMES[node];
        let sql = format!(
            "UPDATE leases SET held_until = 0 FROM nodes WHERE nodes.name = '{name}' AND (node = nodes.id OR holder LIKE 'node ' || nodes.id || ', run %')"
        );
        self.database.run(self.database_name(), &sql);
    }

    /// Lets another node recover `node`.
    async fn recover(&self, node: usize) {
        self.end_lease(node);
        let other = NAMES[(node + 1) % NAMES.len()];
        let recover = ["nodes", "recover", NAMES[node]];
        self.cluster.ask(other, &recover).await;
    }

    /// Waits until another node has recovered `node`.
    async fn recovered(&self, node: usize) {
        let is_ended = async {
            loop {
                let nodes = self
                    .cluster
                    .ask(NAMES[(node + 1) % NAMES.len()], &["nodes"])
                    .await;
                // An earlier process of the name may be listed too.
                let all = nodes.as_array().expect("a list").iter();
                let mut own = all.filter(|one| one["name"] == NAMES[node]);
                if own.all(|one| one["state"] == "ended") {
                    return;
                }
            }
        };
        within("the recovery by another node", is_ended).await;
    }

    /// Stalls a node's connections to the database until charges are in the spool.
    async fn spools(&self, node: usize) {
        self.links[node].stall();
        let serving = &self.cluster.nodes[node];
        let has_some = async { while serving.metric("tollgate_spool_bytes").await == 0 {} };
        within("a charge in the spool", has_some).await;
    }

    async fn inject(&mut self, fault: Fault, node: usize, millis: u64) {
        match fault {
            Fault::Killed => {
                self.cluster.nodes[node].process.kill();
                self.restart(node).await;
            }
            Fault::KilledAndRecovered => {
                self.cluster.nodes[node].process.kill();
                self.recover(node).await;
                self.restart(node).await;
            }
            Fault::KilledWhileCutOff => {
                self.spools(node).await;
                self.cluster.nodes[node].process.kill();
                self.links[node].restore();
                self.restart(node).await;
            }
            Fault::RecoveredWhileCutOff => {
                self.spools(node).await;
                self.recover(node).await;
                self.links[node].restore();
                self.ended(node, 1).await;
                self.restart(node).await;
                let serving = &self.cluster.nodes[node];
                serving.metric_becomes("tollgate_spool_bytes", 0).await;
            }
            Fault::PausedPastItsLease => {
                self.cluster.nodes[node].process.signal("STOP");
                self.end_lease(node);
                self.recovered(node).await;
                self.cluster.nodes[node].process.signal("CONT");
                self.ended(node, 1).await;
                self.restart(node).await;
            }
            Fault::Paused => {
                self.cluster.nodes[node].process.signal("STOP");
                pause(millis).await;
                self.cluster.nodes[node].process.signal("CONT");
            }
            Fault::Restarts => {
                for node in 0..NAMES.len() {
                    self.cluster.nodes[node].process.signal("TERM");
                    self.ended(node, 0).await;
                    self.restart(node).await;
                }
            }
            // The crash blocks the current thread. The clients continue on the second thread.
            Fault::DatabaseCrashes => {
                tokio::task::block_in_place(|| self.database.crash_and_restart());
            }
            Fault::DatabaseCut | Fault::DatabaseStalled => {
                let link = &self.links[node];
                match fault {
                    Fault::DatabaseCut => link.cut(),
                    _ => link.stall(),
                }
                pause(millis).await;
                link.restore();
            }
            Fault::RedisKilled => {
                self.redis.kill();
                pause(millis).await;
                self.redis.restart();
            }
            Fault::RedisSlow => {
                self.redis_link.delay(Duration::from_millis(100));
                pause(millis).await;
                self.redis_link.delay(Duration::ZERO);
            }
        }
    }

    /// Gives an account credit by a command at a node, once, however often the command has to be repeated.
    async fn grant(&self, node: usize, account: &str, amount: i64, reference: &str) {
        let amount = format!("{}.{:06}", amount / 1_000_000, amount % 1_000_000);
        let words = ["credits", "grant", "--account", account];
        let words = [&words[..], &["--amount", &amount, "--reference", reference]].concat();
        let granted = async {
            loop {
                let command = self.cluster.command(NAMES[node], &words);
                let mut process = self.cluster.installation.spawn(command);
                if ended(&mut process).await.success() {
                    return;
                }
            }
        };
        within("a grant", granted).await;
    }

    /// Waits until no request is under way, and ends every node.
    async fn end(&mut self) {
        for node in 0..NAMES.len() {
            let serving = &self.cluster.nodes[node];
            serving.metric_becomes("tollgate_open_holds", 0).await;
        }
        for node in 0..NAMES.len() {
            self.cluster.nodes[node].process.signal("TERM");
            self.ended(node, 0).await;
        }
    }
}

/// Clients with requests until a stop.
struct Load {
    stop: Arc<AtomicBool>,
    tasks: tokio::task::JoinSet<()>,
    sent: Arc<AtomicU64>,
}

impl Load {
    fn start(seed: u64, keys: &Arc<Vec<String>>, faulty: &Faulty, tally: &Arc<Tally>) -> Load {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..CONCURRENCY {
            let (stop, sent) = (Arc::clone(&stop), Arc::<AtomicU64>::clone(&sent));
            let (keys, tally) = (Arc::clone(keys), Arc::clone(tally));
            let addresses = Arc::clone(&faulty.addresses);
            tasks.spawn(async move {
                while !stop.load(Relaxed) {
                    let number = sent.fetch_add(1, Relaxed);
                    let ask = PlannedRequest::draw(seed, number);
                    // The next try goes to the next node.
                    let tries = AtomicU64::new(number);
                    let pick = || {
                        let node = tries.fetch_add(1, Relaxed) as usize % NAMES.len();
                        let address = addresses[node].load();
                        let client = Client::new(&address).with_key(&keys[ask.account]);
                        match ask.http2 {
                            true => client.with_http2(),
                            false => client,
                        }
                    };
                    let visit = client::visit(pick, &ask, &tally);
                    if tokio::time::timeout(ANSWER_TIMEOUT, visit).await.is_err() {
                        tally.left();
                    }
                }
            });
        }
        Load { stop, tasks, sent }
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Relaxed);
        // A panic of a client is a panic of the test.
        within("the clients", self.tasks.join_all()).await;
        self.sent.load(Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn after_faults_of_nodes_and_of_what_they_share_every_account_has_paid_what_clients_received()
{
    let seed = number(SEED, SEED_DEFAULT);
    let faults = number(FAULTS, FAULTS_DEFAULT);
    print_line(format_args!(
        "{faults} faults of three nodes from seed {seed}"
    ));
    let mut faulty = Faulty::start().await;
    let mut accounts = Vec::new();
    let mut given = HashMap::new();
    for credits in ACCOUNTS {
        let (account, key) = faulty.cluster.installation_account(credits).await;
        let id: AccountId = account.parse().expect("an id");
        let credits: i64 = credits.parse().expect("a number");
        given.insert(id, credits * 1_000_000);
        accounts.push((account, key));
    }
    let tally = Arc::new(Tally::default());
    let keys = accounts.iter().map(|(_, key)| key.clone());
    let load = Load::start(seed, &Arc::new(keys.collect()), &faulty, &tally);
    let (dice, clock) = (Dice::seeded(seed), Clock::system());
    let mut kinds = Vec::new();
    let mut has_late = false;
    for fault_number in 0..faults {
        if kinds.is_empty() {
            kinds.extend(Fault::ALL);
        }
        let fault = kinds.swap_remove(dice.below(kinds.len() as u64) as usize);
        let node = dice.below(NAMES.len() as u64) as usize;
        let millis = 100 + dice.below(MILLIS_MAX);
        let (began, sent) = (clock.elapsed(), load.sent.load(Relaxed));
        let name = NAMES[node];
        print_line(format_args!("{fault_number}: {fault:?} at {name}"));
        has_late |= matches!(fault, Fault::RecoveredWhileCutOff);
        faulty.inject(fault, node, millis).await;
        let (account, _) = &accounts[POOR];
        let reference = format!("after {fault_number}");
        let at = dice.below(NAMES.len() as u64) as usize;
        faulty.grant(at, account, GRANT, &reference).await;
        *given
            .get_mut(&account.parse().expect("an id"))
            .expect("it is there") += GRANT;
        print_line(format_args!(
            "{fault_number}: for {:?}, {} requests",
            clock.elapsed() - began,
            load.sent.load(Relaxed) - sent
        ));
        for (node, serving) in faulty.cluster.nodes.iter_mut().enumerate() {
            let process = &mut serving.process;
            let has_ended = process.has_ended();
            assert!(has_ended.is_none(), "{}: {}", NAMES[node], process.output());
        }
        pause(1 + dice.below(500)).await;
    }
    let sent = load.end().await;
    faulty.end().await;
    print_line(format_args!("{sent} requests: {}", tally.summary()));
    let store = faulty.cluster.installation.store();
    let books = Compared::of(&store, &tally, has_late.then_some(POOR));
    // A recovery of a node ends the recorded answers of the node.
    let repeated_anew = tally.look(|seen| seen.repeated_anew.clone());
    assert!(
        has_late || repeated_anew.is_empty(),
        "other answers: {repeated_anew:?}"
    );
    assert_eq!(books.report.open_holds, 0);
    for (account, given) in given {
        let row = store.account(account).expect("a read");
        let available = row.expect("it is there").available.get();
        let spent = books.spent_of.get(&account).copied().unwrap_or_default();
        assert_eq!(available, given - spent, "{account}");
    }
}
