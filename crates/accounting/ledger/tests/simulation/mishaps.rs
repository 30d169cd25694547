//! Mishaps of nodes, network and database during a run.

use tollgate_money::{AccountId, CredentialId};
use tollgate_store::Budget;

use super::cluster::Cluster;
use super::faults::Fault;

impl Cluster {
    pub(crate) fn pause(&mut self, index: usize, us: u64) {
        let until_us = self.sim.now_us() + us;
        let node = &mut self.nodes[index];
        if let Some(up) = &mut node.up {
            self.sim
                .note(&format!("{} stands still for {us} us", node.name));
            up.paused_until_us = until_us;
            up.process.pause(true);
            up.process
                .stop_clock(self.fault == Some(Fault::SpoolWithoutBoottime));
        }
    }

    pub(crate) fn cut_off(&self, index: usize, us: u64) {
        let node = &self.nodes[index];
        if let Some(up) = &node.up {
            self.sim
                .note(&format!("{} is cut off for {us} us", node.name));
            up.process.cut_off(us);
        }
    }

    /// Draws a mishap or a request.
    pub(crate) fn happen(&mut self) {
        if self.sim.chance(250) {
            self.ask();
        }
        if !self.sim.chance(36) {
            return;
        }
        let index = self.sim.below(self.nodes.len() as u64) as usize;
        match self.sim.below(17) {
            0 if self.is_up(index) => self.kill(index, "killed"),
            1 | 2 => {
                let us = [50_000, 400_000, 3_000_000, 9_000_000][self.sim.below(4) as usize];
                self.pause(index, us);
            }
            3 => {
                let skew_us = self.sim.below(240_000_000) as i64 - 120_000_000;
                let now = self.wall(skew_us);
                let node = &mut self.nodes[index];
                node.skew_us = skew_us;
                if let Some(up) = &node.up {
                    up.process.set_wall_clock(now);
                }
            }
            4 if self.sim.chance(300) => self.sim.crash_database(),
            5 => {
                let us = [200_000, 1_000_000, 3_000_000][self.sim.below(3) as usize];
                self.sim.stall_database(us);
            }
            6..=8 => match &self.nodes[index].up {
                None if self.nodes[index].number.is_some() && self.sim.chance(500) => {
                    self.pass(self.sim.below(4_000_000));
                    self.recover(index);
                }
                None => self.start(index),
                // The node is paused, and another process takes the node for dead.
                Some(_) if self.is_paused(index) => {
                    self.pass(2_500_000);
                    self.recover(index);
                }
                _ => {}
            },
            9 if self.accounts.len() < 3 => self.make_account(),
            10 => self.pass(self.sim.below(1_000_000)),
            11 => {
                let us = [300_000, 1_500_000, 8_000_000][self.sim.below(3) as usize];
                self.cut_off(index, us);
            }
            12 if self.open(index) == 0 => self.end(index),
            // Suspended while its network is cut, long enough for a recovery by another node.
            13 if self.nodes[index].spool.is_some() && self.open(index) > 0 => {
                self.cut_off(index, 16_000_000);
                self.pass(150_000);
                self.pause(index, 10_000_000);
                self.pass(9_000_000);
                self.recover(index);
            }
            14 | 15 => self.probe(),
            _ => {}
        }
    }

    /// Minimum credit of an account for a request, with or without a key.
    fn free_for(&self, account: AccountId, key: Option<CredentialId>) -> Option<i64> {
        let book = self.book();
        let free = |budget| book.free_at_least(&self.reader, budget, 0);
        let of_account = free(Budget::Account(account))?;
        let cap = key.and_then(|key| book.cap_of(key, self.wall(0)));
        Some(match cap {
            Some(cap) => of_account.min(free(Budget::Cap(cap))?),
            None => of_account,
        })
    }

    /// Asks for the whole credit of an account or of its key's cap, by one or two requests, without any other request. Another node may be
    /// paused meanwhile.
    pub(crate) fn probe(&mut self) {
        self.pass_quietly(600_000);
        let account = self.accounts[self.sim.below(self.accounts.len() as u64) as usize];
        let key = self.key_of(account).filter(|_| self.sim.chance(500));
        let free = self.free_for(account, key).unwrap_or(0);
        let paused = self.sim.below(self.nodes.len() as u64 * 2) as usize;
        if paused < self.nodes.len() {
            self.pause(paused, 1_000_000);
        }
        let parts = 1 + self.sim.below(2) as i64;
        for _ in 0..parts {
            let index = self.sim.below(self.nodes.len() as u64) as usize;
            if free >= parts && index != paused {
                self.complete_at(index, (account, key), free / parts);
            }
        }
        self.pass_quietly(800_000);
    }

    /// Runs the simulation for a time, with requests.
    pub(crate) fn pass(&mut self, us: u64) {
        let until_us = self.sim.now_us() + us;
        while self.sim.now_us() < until_us && !self.is_broken() {
            self.step();
            if self.sim.chance(60) {
                self.ask();
            }
            if self.sim.chance(300) {
                self.advance(30_000);
            }
        }
    }

    pub(crate) fn pass_quietly(&mut self, us: u64) {
        let until_us = self.sim.now_us() + us;
        while self.sim.now_us() < until_us && !self.is_broken() {
            self.step();
        }
    }
}
