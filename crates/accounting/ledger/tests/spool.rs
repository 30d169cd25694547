//! A node cut off from its database. Answers end with their charges in the spool. Each charge is in the books exactly once, after any later
//! event.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use tollgate_clock::{Clock, ManualClock};
use tollgate_ledger::audit::audit;
use tollgate_ledger::{Hold, HoldError, Ledger, LoadError, Settle, SettleError, Settled};
use tollgate_money::{AccountId, Micros};
use tollgate_store::postgres::{self, DatabaseUrl, NodeRole, Options, SpoolOptions};
use tollgate_store::{OpenError, OutageTimes, RootSecret, Store, SubmitError, flush, reading};
use tollgate_testing::{DatabaseLink, Postgres, RaisedAt, RaisedErrors, TempDir, tempdir};

use support::{NOW, account as account_id, account_with, balance_of, request, settle};

#[path = "spool/caps.rs"]
mod caps;
#[path = "spool/idempotency.rs"]
mod idempotency;
#[path = "spool/refused_parts.rs"]
mod refused_parts;
#[path = "spool/removed_months.rs"]
mod removed_months;
#[path = "support/mod.rs"]
mod support;

/// Times of an outage without waits in tests. The margin is within the remaining lease and the grace after some hours.
const TIMES: OutageTimes = OutageTimes {
    lease: Duration::from_secs(10),
    admits_for: Duration::from_secs(7),
    spool_after: Duration::from_millis(40),
    grace: Duration::from_secs(900),
    margin: Duration::from_secs(30),
};

/// A database behind a link, and the folder of a spool.
struct Fixture {
    link: DatabaseLink,
    database: String,
    folder: TempDir,
}

/// A node on the database.
struct Node {
    store: Arc<dyn Store>,
    ledger: Ledger,
}

impl Fixture {
    fn new() -> Fixture {
        let server = Postgres::shared();
        let url = server.database();
        Fixture {
            link: DatabaseLink::start(server.folder()),
            database: url.rsplit('/').next().expect("a name").to_owned(),
            folder: tempdir().expect("a folder"),
        }
    }

    fn spool(&self) -> PathBuf {
        self.folder.path().join("spool")
    }

    fn file(&self) -> PathBuf {
        self.spool().join("charges")
    }

    fn options(&self, name: &str, role: NodeRole) -> Options {
        let url = self.link.url(&self.database);
        Options {
            node_name: name.to_owned(),
            role,
            outage: TIMES,
            spool: Some(SpoolOptions {
                folder: self.spool(),
                bytes_max: 1 << 20,
            }),
            ..Options::new(
                DatabaseUrl::parse(&url).expect("an address"),
                NOW,
                RootSecret([7; 32]),
            )
        }
    }

    /// Options of another machine: without the folder, and with a direct connection.
    fn elsewhere(&self, name: &str, role: NodeRole) -> Options {
        let url = Postgres::shared().url(&self.database);
        Options {
            url: DatabaseUrl::parse(&url).expect("an address"),
            spool: None,
            ..self.options(name, role)
        }
    }

    fn start(&self, role: NodeRole) -> Node {
        start(self.options("a", role))
    }

    /// Recovers a node from another machine, like an operator. The grace does not bind an operator.
    fn recover(&self, number: i64) {
        let end = format!("UPDATE leases SET held_until = 0 WHERE node = {number}");
        Postgres::shared().run(&self.database, &end);
        let recovering = postgres::open(self.elsewhere("b", NodeRole::Recovery(number)));
        Ledger::recover_node(recovering.expect("it is over"), NOW, None).expect("it is recovered");
    }

    fn refused(&self, options: Options) -> String {
        match postgres::open(options) {
            Ok(_) => panic!("it opens"),
            Err(error) => error.to_string(),
        }
    }
}

fn start(options: Options) -> Node {
    let store = postgres::open(options).expect("the store opens");
    let ledger = support::start(&store);
    store.follow_changes();
    Node { store, ledger }
}

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// Waits for a condition that another thread fulfils.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let polled = async {
        let mut often = tokio::time::interval(Duration::from_millis(5));
        while !holds() {
            often.tick().await;
        }
    };
    let found = wait(async { tokio::time::timeout(Duration::from_secs(240), polled).await });
    assert!(found.is_ok(), "not in time: {what}");
}

impl Node {
    fn hold(&self, account: AccountId, number: u64, amount: i64) -> Hold {
        wait(self.ledger.load(account)).expect("it can be loaded");
        let wanted = request(account, number, amount);
        let mut hold = wait(self.ledger.hold(wanted, |_| None).finish()).expect("there is credit");
        wait(hold.durable()).expect("it is durable");
        hold
    }

    fn settled(&self, hold: Hold, actual: i64) -> Result<Settled, SettleError> {
        self.settled_as(hold, settle(actual))
    }

    fn settled_as(&self, hold: Hold, settle: Settle) -> Result<Settled, SettleError> {
        wait(async {
            tokio::time::timeout(Duration::from_secs(240), hold.settle(settle))
                .await
                .expect("the answer ends")
        })
    }

    fn spooled(&self) -> (u64, u64) {
        let gauges = self.store.gauges();
        (
            gauges.spool_units.load(Relaxed),
            gauges.spool_bytes.load(Relaxed),
        )
    }

    fn late(&self) -> (u64, u64) {
        let gauges = self.store.gauges();
        (
            gauges.late_charges.load(Relaxed),
            gauges.late_written_off.load(Relaxed),
        )
    }

    /// Waits until the writer has begun a commit, by the clock of the test.
    fn commits(&self) {
        let began = &self.store.gauges().commit_began_us;
        eventually("a commit is under way", || began.load(Relaxed) > 0);
    }

    /// Waits until no commit is under way, so that the next commit belongs to the test.
    fn rests(&self) {
        let began = &self.store.gauges().commit_began_us;
        eventually("the commit has ended", || began.load(Relaxed) == 0);
    }

    /// Ends the use of the spool like the end of the process, without a message to the database.
    fn die(self) {
        self.store.close();
    }
}

fn assert_books(store: &Arc<dyn Store>, account: AccountId, available: i64) {
    let row = store.account(account).expect("a read").expect("an account");
    let seen = (row.available.get(), row.held.get());
    assert_eq!(seen, (available, 0));
    let report = audit(store).expect("the audit runs");
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(report.clean(), "{}", violations.join("\n"));
    assert_eq!(report.sums.total(), Micros::ZERO, "{:?}", report.sums);
}

const ROLES: [NodeRole; 2] = [NodeRole::Alone, NodeRole::OneOfMany];

#[test]
fn answers_end_during_an_outage_and_each_is_charged_once_when_the_database_is_back() {
    for role in ROLES {
        let fixture = Fixture::new();
        let node = fixture.start(role);
        let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
        for (round, stalls) in [(1, false), (2, true)] {
            let (one, two) = (
                node.hold(account, 10 * round, 100),
                node.hold(account, 10 * round + 1, 100),
            );
            match stalls {
                false => fixture.link.cut(),
                true => fixture.link.stall(),
            }
            for hold in [one, two] {
                let settled = node.settled(hold, 30).expect("it is in the spool");
                assert_eq!(settled.charged.get(), 30);
            }
            eventually("both are in the spool", || node.spooled().0 == 2);
            fixture.link.restore();
            eventually("the spool is empty", || node.spooled() == (0, 0));
        }
        assert_eq!(node.late(), (0, 0));
        node.ledger.return_all();
        node.store.close();
        let node = fixture.start(role);
        assert_books(&node.store, account, 1_000 - 4 * 30);
        node.store.close();
    }
}

/// A node with a spool also ended at once.
#[test]
fn answers_end_while_the_database_has_no_room_and_each_is_charged_once_when_it_has() {
    for role in ROLES {
        for (at, code) in [(RaisedAt::Write, "53100"), (RaisedAt::Commit, "58030")] {
            let fixture = Fixture::new();
            let node = fixture.start(role);
            let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
            let holds = [1, 2].map(|number| node.hold(account, number, 100));
            let errors = RaisedErrors::of(&fixture.database, "journal", at);
            errors.raise(code);
            for hold in holds {
                let settled = node.settled(hold, 30).expect("it is in the spool");
                assert_eq!(settled.charged.get(), 30);
            }
            eventually("both are in the spool", || node.spooled().0 == 2);
            errors.stop();
            eventually("the spool is empty", || node.spooled() == (0, 0));
            assert_eq!(node.late(), (0, 0));
            node.ledger.return_all();
            node.store.close();
            let node = fixture.start(role);
            assert_books(&node.store, account, 1_000 - 2 * 30);
            node.store.close();
        }
    }
}

#[test]
fn what_a_process_that_ended_meanwhile_has_spooled_is_charged_once_by_its_next_start() {
    for role in ROLES {
        let fixture = Fixture::new();
        let node = fixture.start(role);
        let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
        let known = node.hold(account, 1, 100);
        let below = node.hold(account, 2, 100);
        let open = node.hold(account, 3, 100);
        fixture.link.cut();
        for (hold, actual) in [(known, 100), (below, 1)] {
            node.settled(hold, actual).expect("it is in the spool");
        }
        std::mem::forget(open);
        node.die();
        fixture.link.restore();
        let copy = std::fs::read(fixture.file()).expect("the spool");
        let node = fixture.start(role);
        assert_eq!(node.late(), (0, 0));
        eventually("the spool is empty", || node.spooled() == (0, 0));
        node.ledger.return_all();
        assert_books(&node.store, account, 899);
        node.store.close();
        // A state possible after a power failure: the file system was not asked for durability.
        let mut again = std::fs::read(fixture.file()).expect("the spool");
        again.extend_from_slice(&copy[512..]);
        std::fs::write(fixture.file(), again).expect("it is there again");
        let node = fixture.start(role);
        eventually("the spool is empty", || node.spooled() == (0, 0));
        if role == NodeRole::Alone {
            let balance = balance_of(&node.ledger, account);
            assert_eq!(balance.available, Micros::new(899), "in memory too");
        }
        node.ledger.return_all();
        assert_eq!(node.late(), (0, 0));
        assert_books(&node.store, account, 899);
        node.store.close();
    }
}

#[test]
fn a_charge_of_a_node_that_was_recovered_meanwhile_is_booked_late_once_and_down_to_the_floor() {
    let fixture = Fixture::new();
    let node = fixture.start(NodeRole::OneOfMany);
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let other = account_with(&node.store, &node.ledger, 2, 50, 0);
    let number = node.store.node();
    let (hold, poor) = (node.hold(account, 1, 100), node.hold(other, 2, 50));
    fixture.link.cut();
    node.settled(hold, 70).expect("it is in the spool");
    node.settled(poor, 40).expect("it is in the spool");
    node.die();
    let copy = std::fs::read(fixture.file()).expect("the spool");

    fixture.recover(number);
    let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
    b.settled(b.hold(other, 3, 35), 35).expect("it is durable");
    b.ledger.return_all();
    b.store.close();

    fixture.link.restore();
    let node = fixture.start(NodeRole::OneOfMany);
    assert_eq!(node.late(), (2, 25), "15 of 40 are left");
    eventually("the spool is empty", || node.spooled() == (0, 0));
    node.ledger.return_all();
    assert_books(&node.store, account, 930);
    assert_books(&node.store, other, 0);
    node.store.close();
    let mut again = std::fs::read(fixture.file()).expect("the spool");
    again.extend_from_slice(&copy[512..]);
    std::fs::write(fixture.file(), again).expect("it is there again");
    let node = fixture.start(NodeRole::OneOfMany);
    node.ledger.return_all();
    assert_books(&node.store, account, 930);
    node.store.close();
}

#[test]
fn a_late_charge_that_waits_for_another_nodes_credit_does_not_keep_others_from_being_booked() {
    let fixture = Fixture::new();
    let node = fixture.start(NodeRole::OneOfMany);
    let awaited = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let number = node.store.node();
    // So many accounts that sequential requests for their credit take longer than the wait of the start.
    let more: Vec<_> = (3..63)
        .map(|id| account_with(&node.store, &node.ledger, id, 1_000, 0))
        .collect();
    // The last account.
    let other = account_with(&node.store, &node.ledger, 63, 1_000, 0);
    let accounts = [&[awaited; 3][..], &more, &[other]].concat();
    let holds: Vec<_> = (1..)
        .zip(&accounts)
        .map(|(at, account)| node.hold(*account, at, 100))
        .collect();
    fixture.link.cut();
    for hold in holds {
        node.settled(hold, 70).expect("it is in the spool");
    }
    node.die();
    fixture.recover(number);

    // Node `b` has the whole credit of the accounts, and does not read recalls of other nodes.
    let store = postgres::open(fixture.elsewhere("b", NodeRole::OneOfMany)).expect("it opens");
    let ledger = support::start(&store);
    let b = Node { store, ledger };
    for (at, account) in (100..).zip([&[awaited][..], &more].concat()) {
        drop(b.hold(account, at, 1_000));
    }

    fixture.link.restore();
    let node = fixture.start(NodeRole::OneOfMany);
    assert_eq!(node.late(), (1, 0), "that of the other account");
    // One charge per account asks for the credit, for ten seconds, at most three times a second.
    let counters = node.ledger.allotment_counters();
    let asked = counters.unavailable.load(Relaxed);
    assert!((61..61 * 30).contains(&asked), "{asked}");
    node.ledger.return_all();
    node.store.close();
    b.ledger.return_all();
    b.store.close();
    let node = fixture.start(NodeRole::OneOfMany);
    assert_eq!(node.late(), (63, 0), "those of the other accounts");
    eventually("the spool is empty", || node.spooled() == (0, 0));
    node.ledger.return_all();
    assert_books(&node.store, awaited, 790);
    assert_books(&node.store, other, 930);
    node.store.close();
}

#[test]
fn a_recovery_that_has_the_nodes_own_spool_charges_what_is_in_it() {
    let fixture = Fixture::new();
    let node = fixture.start(NodeRole::OneOfMany);
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let number = node.store.node();
    let hold = node.hold(account, 1, 100);
    fixture.link.cut();
    node.settled(hold, 70).expect("it is in the spool");
    node.die();
    // The lock of the folder shows the end of the process, so the recovery does not wait for the lease.
    let store = postgres::open(Options {
        spool: fixture.options("a", NodeRole::OneOfMany).spool,
        ..fixture.elsewhere("a", NodeRole::Recovery(number))
    });
    let started =
        Ledger::recover_node(store.expect("it opens"), NOW, None).expect("it is recovered");
    assert_eq!((started.spooled, started.late, started.orphans), (1, 0, 0));
    let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
    assert_books(&b.store, account, 930);
    b.store.close();
}

#[test]
fn until_its_grace_is_over_no_other_start_takes_a_node_that_may_end_answers() {
    let fixture = Fixture::new();
    let node = fixture.start(NodeRole::OneOfMany);
    let number = node.store.node();
    let run = |sql: String| Postgres::shared().run(&fixture.database, &sql);
    fixture.link.cut();
    run(format!(
        "UPDATE leases SET holder = 'another machine 1', held_until = CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT) - 1 \
         WHERE node = {number}"
    ));
    let refused = fixture.refused(fixture.elsewhere("a", NodeRole::OneOfMany));
    assert!(
        refused.contains("may end answers for 900 seconds"),
        "{refused}"
    );
    let refused = fixture.refused(fixture.elsewhere("gateway", NodeRole::Alone));
    assert!(refused.contains("may end answers for"), "{refused}");
    run(format!(
        "UPDATE leases SET held_until = held_until - 900000000 WHERE node = {number}"
    ));
    start(fixture.elsewhere("a", NodeRole::OneOfMany))
        .store
        .close();
    node.die();
    fixture.link.restore();
}

/// A node with a clock that the test advances.
fn clocked(fixture: &Fixture, spool_bytes_max: u64) -> (Node, ManualClock) {
    let (clock, hand) = Clock::manual(NOW);
    let mut options = Options {
        clock,
        ..fixture.options("a", NodeRole::Alone)
    };
    options.spool.as_mut().expect("a spool").bytes_max = spool_bytes_max;
    (start(options), hand)
}

#[test]
fn shortly_before_others_may_recover_the_node_no_answer_ends_any_more() {
    let fixture = Fixture::new();
    let (node, hand) = clocked(&fixture, 1 << 20);
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let (hold, late) = (node.hold(account, 1, 100), node.hold(account, 2, 100));
    node.rests();
    fixture.link.cut();
    let settlement = hold.settle(settle(10));
    node.commits();
    // 10 s of the lease, 900 s of grace, less the margin of 30 s.
    hand.advance(Duration::from_secs(879));
    wait(settlement).expect("one second before that");
    hand.advance(Duration::from_secs(2));
    let mut settlement = Box::pin(late.settle(settle(10)));
    let waited =
        wait(async { tokio::time::timeout(Duration::from_millis(300), &mut settlement).await });
    assert!(waited.is_err(), "{waited:?}");
    assert_eq!(
        node.spooled().0,
        1,
        "a cut answer is charged by no later run"
    );
    fixture.link.restore();
    // The node was not recovered, and goes on.
    wait(settlement).expect("it is durable");
    eventually("the spool is empty", || node.spooled() == (0, 0));
    node.store.close();
    let node = fixture.start(NodeRole::Alone);
    assert_books(&node.store, account, 980);
    node.store.close();
}

#[test]
fn a_node_that_is_cut_off_admits_nothing_new_and_goes_on_after_a_stall() {
    let fixture = Fixture::new();
    let (node, hand) = clocked(&fixture, 1 << 20);
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let under_way = node.hold(account, 1, 100);
    let idle = account_with(&node.store, &node.ledger, 2, 1_000, 0);
    node.ledger.evict_idle();
    wait(flush(&*node.store)).expect("everything is durable");
    assert_eq!(node.ledger.evict_idle(), 1, "the other one has a hold");
    // Waits for the unit queued by `evict_idle`. A commit begun after the clock advance below would take no time by the clock.
    wait(flush(&*node.store)).expect("everything is durable");
    node.rests();
    fixture.link.stall();
    // The hold is on its way. The hold is refused when the node is cut off. Its release is queued behind the hold.
    let mut waiting = node
        .ledger
        .hold(request(account, 2, 200), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    node.commits();
    let mut loading = pin!(node.ledger.load(idle));
    let begun = wait(std::future::poll_fn(|context| {
        Poll::Ready(loading.as_mut().poll(context))
    }));
    assert!(begun.is_pending(), "it waits for the database: {begun:?}");
    // More reads than allowed at a time.
    let readers = tokio::runtime::Runtime::new().expect("a runtime");
    let reads = Vec::from_iter((0..20).map(|_| {
        let store = Arc::clone(&node.store);
        readers.spawn(async move { reading(&store, move |read| read.account(idle)).await })
    }));
    hand.advance(Duration::from_secs(12));
    let all = async {
        for read in reads {
            let refused = read.await.expect("no panic");
            assert!(refused.is_err(), "{refused:?}");
        }
    };
    let ended =
        readers.block_on(async { tokio::time::timeout(Duration::from_secs(15), all).await });
    assert!(ended.is_ok(), "they wait for the time limit of a read");
    readers.shutdown_background();
    let refused = wait(loading);
    assert!(matches!(refused, Err(LoadError::CutOff)), "{refused:?}");
    for unused in [idle, account_id(9)] {
        let refused = wait(node.ledger.load(unused));
        assert!(matches!(refused, Err(LoadError::CutOff)), "{refused:?}");
    }
    wait(node.ledger.load(account)).expect("it is in memory");
    let refused = wait(waiting.durable());
    assert!(matches!(refused, Err(HoldError::CutOff)), "{refused:?}");
    drop(waiting);
    assert!(matches!(node.store.admit(), Err(SubmitError::CutOff)));
    for refused in [
        node.ledger
            .hold(request(account, 3, 1), |_| None)
            .now()
            .expect("it is alone"),
        node.ledger
            .hold(request(account, 4, 1).in_memory(), |_| None)
            .now()
            .expect("it is alone"),
    ] {
        assert!(matches!(refused, Err(HoldError::CutOff)), "{refused:?}");
    }
    node.settled(under_way, 10).expect("it goes on");
    fixture.link.restore();
    eventually("it admits again", || node.store.admit().is_ok());
    assert_eq!(balance_of(&node.ledger, idle).available, Micros::new(1_000));
    node.settled(node.hold(account, 5, 100), 10)
        .expect("as before");
    assert!(node.store.failure().is_none());
    node.store.close();
    let node = fixture.start(NodeRole::Alone);
    assert_books(&node.store, account, 980);
    node.store.close();
}

#[test]
fn a_spool_that_is_full_keeps_answers_back_until_the_database_is_there() {
    let fixture = Fixture::new();
    let mut options = fixture.options("a", NodeRole::Alone);
    options.spool.as_mut().expect("a spool").bytes_max = 100;
    let node = start(options);
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let hold = node.hold(account, 1, 100);
    fixture.link.cut();
    let mut settlement = Box::pin(hold.settle(settle(10)));
    let gauges = node.store.gauges();
    eventually("it is full", || gauges.is_spool_failing.load(Relaxed));
    let waited =
        wait(async { tokio::time::timeout(Duration::from_millis(100), &mut settlement).await });
    assert!(waited.is_err(), "{waited:?}");
    fixture.link.restore();
    wait(settlement).expect("it is durable");
    node.store.close();
    let node = fixture.start(NodeRole::Alone);
    assert_books(&node.store, account, 990);
    node.store.close();
}

/// A node gives up when another node may have recovered the node. Unwritten answers are cut and free. Written answers are charged.
#[test]
fn at_the_end_of_the_grace_answers_without_a_place_in_the_spool_are_cut_and_not_charged() {
    let fixture = Fixture::new();
    let (node, hand) = clocked(&fixture, 200);
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let (kept, cut) = (node.hold(account, 1, 100), node.hold(account, 2, 100));
    node.rests();
    fixture.link.cut();
    let settlement = kept.settle(settle(10));
    node.commits();
    hand.advance(Duration::from_secs(1));
    wait(settlement).expect("it has a place");
    eventually("it is in the file", || node.spooled().0 == 1);
    assert!(
        (101..200).contains(&node.spooled().1),
        "{:?}",
        node.spooled()
    );
    let settlement = cut.settle(settle(10));
    let gauges = node.store.gauges();
    eventually("it is full", || gauges.is_spool_failing.load(Relaxed));
    hand.advance(Duration::from_secs(901));
    let refused = wait(async { tokio::time::timeout(Duration::from_secs(240), settlement).await });
    let refused = refused.expect("the node gives up");
    assert!(
        matches!(refused, Err(SettleError::Store { .. })),
        "{refused:?}"
    );
    assert!(node.store.failure().is_some());
    node.store.close();
    fixture.link.restore();
    let node = fixture.start(NodeRole::Alone);
    assert_books(&node.store, account, 990);
    node.store.close();
}

#[test]
fn a_folder_of_another_node_or_in_use_is_refused() {
    let fixture = Fixture::new();
    let node = fixture.start(NodeRole::OneOfMany);
    let in_use = fixture.refused(fixture.options("b", NodeRole::OneOfMany));
    assert!(in_use.contains("is in use by another process"), "{in_use}");
    let account = account_with(&node.store, &node.ledger, 1, 1_000, 0);
    let hold = node.hold(account, 1, 100);
    fixture.link.cut();
    node.settled(hold, 70).expect("it is in the spool");
    node.die();
    fixture.link.restore();
    let refused = fixture.refused(fixture.options("b", NodeRole::OneOfMany));
    assert!(
        refused.contains("has charges of node `a` (number 16)") && refused.contains("move it away"),
        "{refused}"
    );
    let other = Fixture::new();
    let database = Options {
        spool: fixture.options("a", NodeRole::OneOfMany).spool,
        random: RootSecret([8; 32]),
        ..other.options("a", NodeRole::OneOfMany)
    };
    let refused = fixture.refused(database);
    assert!(refused.contains("of database"), "{refused}");
    damage(&fixture.file());
    match postgres::open(fixture.options("a", NodeRole::OneOfMany)) {
        Err(OpenError::Spool { problem, .. }) => assert!(problem.contains("damaged"), "{problem}"),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

fn damage(file: &Path) {
    let mut bytes = std::fs::read(file).expect("the spool");
    bytes[30] ^= 1;
    std::fs::write(file, bytes).expect("it is written");
}
