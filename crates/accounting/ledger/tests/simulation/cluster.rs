//! One run: nodes, clients, mishaps, and the checks after the run.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tempfile::TempDir;
use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, SpendingCap};
use tollgate_simulation::{Driving, SimulatedProcess, Simulation, URL};
use tollgate_store::postgres::{DatabaseUrl, NodeRole, Options, SpoolOptions, open_read};
use tollgate_store::{FailureKind, Reader, RootSecret, simulated};

use super::book::{Book, Credit, Operation, State};
use super::client::{Client, Completion};
use super::faults::Fault;
use super::keys::{Key, KeyUse, Setting, cap};
use super::node::{Life, Run, Running, Start};
use crate::support::{NOW, account, operation_at};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Steps of a run before the repair, and the turns of each step.
const STEPS: usize = 500;
const TURNS: usize = 6;

/// A month ends within this time of a run.
const MONTH_ENDS_IN_US: u64 = 40_000_000;

/// Maximum steps of a wait for a condition.
const STEPS_MAX: usize = 20_000;

/// A node in the hands of the driver.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) up: Option<Up>,
    /// The previous process of the node.
    last: Option<SimulatedProcess>,
    /// The number of the node in the database, once assigned.
    pub(crate) number: Option<i64>,
    /// The numbers of ended runs that are not recovered.
    runs: Vec<usize>,
    /// Error of the node's wall clock.
    pub(crate) skew_us: i64,
    pub(crate) spool: Option<TempDir>,
}

/// The process of a node.
pub(crate) struct Up {
    pub(crate) process: SimulatedProcess,
    pub(crate) run: Arc<Run>,
    pub(crate) run_number: usize,
    /// The client of the node's requests, once the node is up.
    pub(crate) client: Option<Client>,
    pub(crate) running: Option<Running>,
    pub(crate) paused_until_us: u64,
    is_recovered: bool,
}

/// A process that recovers a node.
struct Recovery {
    node: usize,
    process: SimulatedProcess,
    run: Arc<Run>,
    runs: Vec<usize>,
}

pub(crate) struct Cluster {
    pub(crate) sim: Simulation,
    timers: tokio::runtime::Runtime,
    /// The time at the beginning of the run: a month ends soon.
    began: Timestamp,
    pub(crate) nodes: Vec<Node>,
    pub(crate) book: Arc<Mutex<Book>>,
    pub(crate) reader: Arc<Reader>,
    pub(crate) accounts: Vec<AccountId>,
    next: u64,
    runs: usize,
    pub(crate) fault: Option<Fault>,
    recoveries: Vec<Recovery>,
    /// Every account has more credit than its requests need, and a key with a cap.
    is_of_caps: bool,
    _driving: Driving,
}

impl Cluster {
    pub(crate) fn new(seed: u64, fault: Option<Fault>) -> Cluster {
        let timers = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let sim = Simulation::new(seed, timers.handle().clone(), &simulated::schema());
        let end_of_month = Month::of(NOW).next().start();
        let before = Duration::from_micros(sim.below(MONTH_ENDS_IN_US));
        let began = Timestamp::from_micros(end_of_month.as_micros() - before.as_micros() as i64);
        let driving = sim.drive(began);
        let url = DatabaseUrl::parse(URL).expect("an address");
        let reader = open_read(&Options::new(url, began, RootSecret([7; 32])));
        if let Some(fault) = fault {
            fault.tamper(&sim);
        }
        let has_spools = sim.chance(350) || fault == Some(Fault::SpoolWithoutBoottime);
        let book = Book {
            has_spools,
            ..Book::default()
        };
        let nodes = NAMES.iter().map(|name| Node {
            name,
            up: None,
            last: None,
            number: None,
            runs: Vec::new(),
            skew_us: 0,
            spool: has_spools.then(|| tempfile::tempdir().expect("a folder")),
        });
        Cluster {
            nodes: nodes.collect(),
            reader: reader.expect("the database is read"),
            sim,
            timers,
            began,
            book: Arc::new(Mutex::new(book)),
            accounts: Vec::new(),
            next: 1,
            runs: 0,
            fault,
            recoveries: Vec::new(),
            is_of_caps: false,
            _driving: driving,
        }
    }

    /// A run in which only caps are scarce.
    pub(crate) fn of_caps(seed: u64, fault: Option<Fault>) -> Cluster {
        let mut cluster = Cluster::new(seed, fault);
        cluster.is_of_caps = true;
        cluster
    }

    /// Runs the simulation; returns the violations.
    pub(crate) fn run(&mut self) -> Vec<String> {
        self.start(0);
        if self.until("the first node is up", |it| it.is_up(0)) {
            for _ in 0..1 + self.sim.below(2) {
                self.make_account();
            }
            self.until("its accounts are there", |it| it.open(0) == 0);
            let others = 1 + self.sim.below(2) as usize;
            (1..=others).for_each(|index| self.start(index));
            self.sim.cut(self.sim.below(4) * 4);
            for _ in 0..STEPS {
                if self.is_broken() {
                    break;
                }
                self.step();
                self.happen();
            }
        }
        if !self.is_broken() {
            self.repair();
        }
        if !self.is_broken() {
            self.compare();
        }
        self.violations()
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        let mut violations = self.sim.violations();
        violations.extend(self.book().violations.iter().cloned());
        violations
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock()
    }

    pub(crate) fn violation(&self, text: impl Into<String>) {
        self.book().violation(text);
    }

    pub(crate) fn is_broken(&self) -> bool {
        !self.book().violations.is_empty() || self.sim.has_violations()
    }

    pub(crate) fn is_up(&self, index: usize) -> bool {
        let up = self.nodes[index].up.as_ref();
        up.is_some_and(|up| up.client.is_some())
    }

    pub(crate) fn open(&self, index: usize) -> usize {
        let up = self.nodes[index].up.as_ref();
        up.map_or(0, |up| up.run.open())
    }

    pub(crate) fn is_paused(&self, index: usize) -> bool {
        let up = self.nodes[index].up.as_ref();
        up.is_some_and(|up| up.paused_until_us > 0)
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn wall(&self, skew_us: i64) -> Timestamp {
        Timestamp::from_micros(self.began.as_micros() + self.sim.now_us() as i64 + skew_us)
    }

    /// Lets time pass.
    pub(crate) fn advance(&self, us: u64) {
        self.sim.advance(us);
        let timers = tokio::time::advance(Duration::from_micros(us));
        self.timers.block_on(timers);
    }

    pub(crate) fn start_of(
        &self,
        index: usize,
        process: &SimulatedProcess,
        role: NodeRole,
    ) -> Start {
        let node = &self.nodes[index];
        let spool = node.spool.as_ref().map(|folder| SpoolOptions {
            folder: folder.path().to_owned(),
            bytes_max: 1 << 20,
        });
        let has_spool = role == NodeRole::OneOfMany;
        Start {
            sim: self.sim.clone(),
            process: process.clone(),
            name: node.name,
            role,
            spool: spool.filter(|_| has_spool),
            submitter: None,
        }
    }

    /// Starts a node as a new process.
    pub(crate) fn start(&mut self, index: usize) {
        let node = &self.nodes[index];
        if node.last.as_ref().is_some_and(|last| !last.has_ended()) {
            return;
        }
        self.runs += 1;
        let process = self.sim.process(node.name, self.wall(node.skew_us));
        let mut start = self.start_of(index, &process, NodeRole::OneOfMany);
        start.submitter = self.fault.and_then(|fault| fault.submitter(&process));
        self.sim.note(&format!("{} starts", node.name));
        let run = Arc::<Run>::default();
        let served = Arc::clone(&run);
        process.spawn("main", move || start.run(&served));
        self.nodes[index].up = Some(Up {
            process,
            run,
            run_number: self.runs,
            client: None,
            running: None,
            paused_until_us: 0,
            is_recovered: false,
        });
    }

    /// Ends a node's process.
    pub(crate) fn kill(&mut self, index: usize, why: &str) {
        let Some(up) = self.nodes[index].up.take() else {
            return;
        };
        self.sim
            .note(&format!("{} ends: {why}", self.nodes[index].name));
        let mut book = self.book();
        book.dead.insert(up.run_number);
        book.lose(up.run_number);
        drop(book);
        up.run.end(&self.sim);
        up.process.kill();
        let node = &mut self.nodes[index];
        node.runs.push(up.run_number);
        node.last = Some(up.process);
    }

    /// Ends a node in order.
    pub(crate) fn end(&mut self, index: usize) {
        if let Some(up) = &self.nodes[index].up {
            self.sim
                .note(&format!("{} is to end", self.nodes[index].name));
            up.run.end(&self.sim);
        }
    }

    /// Whether other processes may recover a node.
    pub(crate) fn may_be_recovered(&self, number: i64) -> bool {
        let sql = format!("SELECT COALESCE(MAX(held_until), 0) FROM leases WHERE node = {number}");
        let until = self.sim.committed(&sql);
        let sql = format!("SELECT COALESCE(MAX(grace), 0) FROM spools WHERE node_id = {number}");
        until + self.sim.committed(&sql) <= self.sim.now_us() as i64
    }

    /// Recovers a node that is down or paused, as another process.
    pub(crate) fn recover(&mut self, index: usize) {
        let Some(number) = self.nodes[index].number else {
            return;
        };
        let is_under_way = self.recoveries.iter().any(|it| it.node == index);
        if is_under_way || !self.may_be_recovered(number) {
            return;
        }
        let name = format!("recovery of {}", self.nodes[index].name);
        let process = self.sim.process(&name, self.wall(0));
        let mut start = self.start_of(index, &process, NodeRole::Recovery(number));
        let other = self.nodes.iter().enumerate().find_map(|(other, node)| {
            let running = node.up.as_ref()?.running.as_ref()?;
            (other != index).then(|| Arc::clone(&running.store))
        });
        start.submitter = (self.fault).and_then(|fault| fault.recovery_submitter(other));
        self.sim.note(&format!("{name} begins"));
        let run = Arc::<Run>::default();
        let recovering = Arc::clone(&run);
        process.spawn("main", move || start.recover(&recovering));
        let node = &mut self.nodes[index];
        let mut runs = node.runs.clone();
        if let Some(up) = &mut node.up {
            // The recovery takes the node's credit.
            up.is_recovered = true;
            runs.push(up.run_number);
        }
        let mut book = self.book();
        for run in &runs {
            book.lose(*run);
            book.recovered.insert(*run);
        }
        drop(book);
        self.recoveries.push(Recovery {
            node: index,
            process,
            run,
            runs,
        });
    }

    pub(crate) fn client(&self, index: usize) -> Option<Client> {
        self.nodes[index].up.as_ref()?.client.clone()
    }

    pub(crate) fn make_account(&mut self) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|it| self.is_up(*it)).collect();
        let Some(index) = up.first().copied() else {
            return;
        };
        let client = self.client(index).expect("it is up");
        let id = account(self.accounts.len() as u64 + 1);
        let limit = [0, 0, 50][self.sim.below(3) as usize];
        let least = [100, 1_000_000][usize::from(self.is_of_caps)];
        let credit = least + self.sim.below(900) as i64;
        self.accounts.push(id);
        let known = Credit {
            limit,
            ..Credit::default()
        };
        self.book().accounts.insert(id, known);
        let number = self.number();
        let has_key = self.sim.chance(700) || self.is_of_caps;
        let setting = Setting {
            cap: self.drawn_cap(),
            number: None,
        };
        let key = Key {
            account: id,
            settings: vec![setting],
        };
        let credential = credential_of(id);
        if has_key {
            self.book().keys.insert(credential, key);
        }
        self.ask_at(index, async move {
            client.clone().make_account(number, id, credit).await;
            if has_key {
                client.make_key(credential).await;
            }
        });
    }

    /// A random cap, or no cap.
    fn drawn_cap(&self) -> Option<SpendingCap> {
        let max = 40 + self.sim.below(500) as i64;
        match self.sim.below(6) {
            0 => None,
            1 | 2 => Some(cap(max, CapPeriod::Total)),
            _ => Some(cap(max, CapPeriod::Month)),
        }
    }

    /// The key of an account, if any.
    pub(crate) fn key_of(&self, account: AccountId) -> Option<CredentialId> {
        let credential = credential_of(account);
        let has_key = self.book().keys.contains_key(&credential);
        has_key.then_some(credential)
    }

    pub(crate) fn ask_at(&self, index: usize, request: impl Future<Output = ()> + Send + 'static) {
        if let Some(up) = &self.nodes[index].up {
            up.run.ask(&self.sim, Box::pin(request));
        }
    }

    /// A new request at some node.
    pub(crate) fn ask(&mut self) {
        let index = self.sim.below(self.nodes.len() as u64) as usize;
        let account = self.accounts[self.sim.below(self.accounts.len() as u64) as usize];
        let Some(client) = self.client_for(index, account) else {
            return;
        };
        let number = self.number();
        match self.sim.below(12) {
            0 => {
                let amount = 1 + self.sim.below(150) as i64;
                self.ask_at(index, client.book_credit(number, account, amount));
            }
            1 if self.fault == Some(Fault::RefundWithoutAllotment) => {
                self.ask_at(index, client.refund_without_allotment(number, account));
            }
            1 => {
                let amount = -1 - self.sim.below(150) as i64;
                self.ask_at(index, client.book_credit(number, account, amount));
            }
            2 if self.sim.chance(300) => {
                if let Some(key) = self.key_of(account) {
                    self.ask_at(index, client.change_cap(key, self.drawn_cap()));
                }
            }
            _ => {
                let most = [20, 120, 600][self.sim.below(3) as usize];
                let amount = 1 + self.sim.below(most) as i64;
                let key = self.key_of(account).filter(|_| self.sim.chance(600));
                self.complete_at(index, (account, key), amount);
            }
        }
    }

    /// The client of a node that accepts requests, for an existing account.
    pub(crate) fn client_for(&self, index: usize, account: AccountId) -> Option<Client> {
        let up = self.nodes[index].up.as_ref()?;
        let client = up.client.clone()?;
        let is_ending = up.run.is_ending.load(Relaxed) || up.is_recovered;
        let exists = self.reader.account(account).ok().flatten().is_some();
        (!is_ending && exists).then_some(client)
    }

    pub(crate) fn complete_at(
        &mut self,
        index: usize,
        (account, key): (AccountId, Option<CredentialId>),
        amount: i64,
    ) {
        let Some(client) = self.client_for(index, account) else {
            return;
        };
        let number = self.number();
        let id = operation_at(client.now(), number);
        let key = key.and_then(|key| Some((key, client.key(key)?)));
        let asked = Operation {
            account,
            amount,
            run: client.run,
            state: State::Asked,
            acknowledged: None,
            is_late: false,
            key: key.map(|(credential, _)| KeyUse::new(credential, id)),
        };
        let mut book = self.book();
        book.operations.insert(number, asked);
        book.ids.insert(id, number);
        drop(book);
        let completion = Completion {
            number,
            id,
            account,
            key,
            amount,
            kind: self.sim.below(10_000),
        };
        self.ask_at(index, client.complete(completion));
    }

    /// Runs one thread for a moment, or lets time pass.
    pub(crate) fn step(&mut self) {
        if !self.sim.run(TURNS) || self.sim.chance(300) {
            let now_us = self.sim.now_us();
            let next = self.sim.next_wake_us().map(|at| at.saturating_sub(now_us));
            let moment = 1 + self.sim.below(20_000);
            self.advance(next.unwrap_or(moment).clamp(1, moment));
        }
        self.maintain();
    }

    /// Handles starts, ends and pauses that are over.
    pub(crate) fn maintain(&mut self) {
        let now_us = self.sim.now_us();
        for index in 0..self.nodes.len() {
            let node = &mut self.nodes[index];
            let Some(up) = &mut node.up else { continue };
            if up.paused_until_us > 0 && now_us >= up.paused_until_us {
                self.sim.note(&format!("{} goes on", node.name));
                up.paused_until_us = 0;
                up.process.stop_clock(false);
                up.process.pause(false);
            }
            match up.run.life() {
                Life::Starting => {}
                Life::Up(running) if up.client.is_none() => {
                    node.number = Some(running.store.node());
                    up.client = Some(Client {
                        sim: self.sim.clone(),
                        process: up.process.clone(),
                        store: Arc::clone(&running.store),
                        ledger: running.ledger.clone(),
                        book: Arc::clone(&self.book),
                        changes: Arc::clone(&running.changes),
                        reader: Arc::clone(&self.reader),
                        run: up.run_number,
                        name: node.name,
                        fault: self.fault,
                    });
                    up.running = Some(running);
                    let runs = std::mem::take(&mut node.runs);
                    self.book().recovered(&runs, now_us);
                }
                Life::Up(_) => {}
                Life::Ended(how) => self.kill(index, &how),
            }
            self.check_failure(index);
        }
        self.recoveries_ended();
    }

    /// A stopped node ends its process. Only a recovered node may be fenced.
    pub(crate) fn check_failure(&mut self, index: usize) {
        let node = &self.nodes[index];
        let Some(up) = &node.up else { return };
        let Some(failure) = up.run.failure() else {
            return;
        };
        let text = format!("{} stops: {}", node.name, failure.message);
        match failure.kind {
            FailureKind::Inconsistent | FailureKind::Damaged => self.violation(text.clone()),
            FailureKind::Fenced => {
                let running = up
                    .running
                    .as_ref()
                    .map(|it| (it.store.node(), it.store.epoch()));
                if let Some((number, epoch)) = running {
                    let sql = format!("SELECT epoch FROM nodes WHERE id = {number}");
                    if self.sim.committed(&sql) == epoch {
                        self.violation(format!(
                            "{text}, and no other process has become node {number}"
                        ));
                    }
                }
            }
            // Allowed only when the database could not be reached for the grace of the node.
            FailureKind::Io if !text.contains("could not be reached again") => {
                self.violation(text.clone());
            }
            _ => {}
        }
        self.kill(index, &text);
    }

    pub(crate) fn recoveries_ended(&mut self) {
        let now_us = self.sim.now_us();
        for at in (0..self.recoveries.len()).rev() {
            let Life::Ended(error) = self.recoveries[at].run.life() else {
                continue;
            };
            let recovery = self.recoveries.swap_remove(at);
            self.sim.note(&format!(
                "recovery of {} ends: {error}",
                self.nodes[recovery.node].name
            ));
            recovery.process.kill();
            if error.is_empty() {
                self.book().recovered(&recovery.runs, now_us);
                let node = &mut self.nodes[recovery.node];
                node.runs.retain(|run| !recovery.runs.contains(run));
            }
        }
    }

    /// Runs until a condition holds, without further mishaps.
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Cluster) -> bool) -> bool {
        for _ in 0..STEPS_MAX {
            if holds(self) {
                return true;
            }
            if self.is_broken() {
                return false;
            }
            self.step();
            if self.sim.chance(50) {
                self.advance(20_000);
            }
        }
        let waiting = self.sim.waiting().join(", ");
        self.violation(format!("not in time: {what}; there are {waiting}"));
        false
    }

    /// Repairs everything: each node is recovered or goes on, its requests end, every account is usable, and every node ends.
    pub(crate) fn repair(&mut self) {
        self.sim.note("everything is repaired");
        self.sim.cut(0);
        self.sim.stall_database(0);
        for index in 0..self.nodes.len() {
            self.cut_off(index, 0);
            if let Some(up) = &mut self.nodes[index].up {
                up.paused_until_us = up.paused_until_us.min(self.sim.now_us() + 1);
            }
        }
        self.advance(5);
        self.maintain();
        let ended = self.until("requests end", |it| {
            let is_idle = |node: &Node| {
                let up = node.up.as_ref();
                up.is_none_or(|up| up.client.is_some() && up.run.open() == 0)
                    && up.is_none_or(|up| !up.run.is_ending.load(Relaxed))
                    && (up.is_some() || node.last.as_ref().is_none_or(|last| last.has_ended()))
            };
            it.nodes.iter().all(is_idle)
                && it.recoveries.is_empty()
                && !it.sim.has_late_statements()
        });
        // Nodes that are down start again; the start recovers the node.
        for index in 0..self.nodes.len() {
            for _ in 0..4 {
                let is_new = self.nodes[index].number.is_none();
                if !ended || self.nodes[index].up.is_some() || is_new {
                    break;
                }
                self.pass_quietly(2_500_000);
                self.start(index);
                self.until("a node starts again", |it| {
                    it.nodes[index].up.is_none() || it.is_up(index)
                });
            }
            let node = &self.nodes[index];
            if node.number.is_some() && !self.is_up(index) {
                return self.violation(format!("{} does not start again", node.name));
            }
        }
        self.flush();
        self.follow();
        self.use_all();
        (0..self.nodes.len()).for_each(|index| self.end(index));
        self.until("every node ends", |it| {
            it.nodes.iter().all(|node| node.up.is_none())
                && it
                    .nodes
                    .iter()
                    .all(|node| node.last.as_ref().is_none_or(|last| last.has_ended()))
        });
    }
}

fn credential_of(account: AccountId) -> CredentialId {
    CredentialId::from_bytes(*account.as_bytes())
}

impl Drop for Cluster {
    /// Ends every thread.
    fn drop(&mut self) {
        self.sim.cut(0);
        for index in 0..self.nodes.len() {
            self.kill(index, "the run ends");
        }
        for recovery in &self.recoveries {
            recovery.process.kill();
        }
        self.sim.crash_database();
        for _ in 0..STEPS_MAX {
            if self.sim.waiting().is_empty() {
                break;
            }
            if !self.sim.run(TURNS) {
                self.advance(50_000);
            }
        }
        let waiting = self.sim.waiting();
        assert!(
            waiting.is_empty() || std::thread::panicking(),
            "threads do not end: {waiting:?}"
        );
        self.sim.join();
    }
}
