//! The network between a process and the server: connections that are cut before, during and after an exchange.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tollgate_postgres::{Connected, Transport};

use super::actor::Actor;
use super::process::Process;
use super::scheduler::Wait;
use super::server::{Progress, RELEASED};

/// For how long a connection attempt waits.
const CONNECT: Duration = Duration::from_secs(5);

/// How many points in a thousand let other actors run first.
const INTERLEAVED: u64 = 250;

/// How many waits in a thousand end without an answer.
const SLOW: u64 = 300;

/// Delay until the server notices the end of an unreachable client.
const KEPT_US: u64 = 20_000_000;

/// The point at which an exchange loses its connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The server receives nothing.
    Before,
    /// The server runs the statements later, without the client.
    During,
    /// The reply is lost.
    After,
}

/// A connection of a process, with the messages of the protocol as bytes.
struct SimulatedSocket {
    process: Arc<Process>,
    session: u64,
    received: Vec<u8>,
    limit: Cell<Duration>,
    is_lost: bool,
}

/// Connects the simulated process of the current thread, if any.
pub fn connect() -> Connected {
    let socket = SimulatedSocket::connect()?;
    Some(socket.map(|socket| Box::new(socket) as Box<dyn Transport>))
}

impl SimulatedSocket {
    fn connect() -> Option<io::Result<SimulatedSocket>> {
        let actor = Actor::current()?;
        let process = Arc::clone(&actor.process);
        if process.is_dead.load(Relaxed) {
            return Some(Err(ErrorKind::ConnectionRefused.into()));
        }
        if process.unreachable_until_us().is_some() {
            if !actor.is_driver() {
                actor.wait(Wait::Until(actor.after(CONNECT)));
            }
            return Some(Err(ErrorKind::TimedOut.into()));
        }
        let now_us = actor.scheduler().now_us();
        let session = process.world.server().connect(&process.name, now_us);
        Some(Ok(SimulatedSocket {
            process,
            session,
            received: Vec::new(),
            limit: Cell::new(CONNECT),
            is_lost: false,
        }))
    }

    fn is_closed(&self) -> bool {
        self.is_lost
            || self.process.is_dead.load(Relaxed)
            || !self.process.world.server().is_open(self.session)
    }

    fn lose(&mut self, how: &str) -> io::Result<()> {
        let world = &self.process.world;
        let what = world.server().pending(self.session);
        self.process
            .note(&format!("loses the connection {how}: {what}"));
        self.is_lost = true;
        if what.contains("COMMIT") || what.contains("INSERT INTO journal") {
            let callbacks = std::mem::take(&mut *self.process.on_lost_commit.lock());
            callbacks.into_iter().for_each(|callback| callback());
        }
        Ok(())
    }

    /// Has the server run the sent statements, and takes the reply.
    fn exchange(&mut self, actor: &Actor) -> io::Result<()> {
        let world = Arc::clone(&self.process.world);
        let scheduler = &world.scheduler;
        let is_quiet = actor.is_driver() || world.server().is_snapshot(self.session);
        let interleave = || {
            if !is_quiet && scheduler.chance(INTERLEAVED) {
                actor.wait(Wait::Turn);
            }
        };
        interleave();
        let is_cut = !is_quiet && scheduler.chance(world.cuts.load(Relaxed));
        let cut =
            is_cut.then(|| [Cut::Before, Cut::During, Cut::After][scheduler.below(3) as usize]);
        let until_us = actor.after(self.limit.get());
        loop {
            if self.is_closed() {
                if let Some(message) = world.server().last_message(self.session) {
                    self.received = message;
                    return Ok(());
                }
                return self.lose("");
            }
            let unreachable_until_us = self.process.unreachable_until_us();
            if let Some(reachable_us) = unreachable_until_us {
                if actor.is_driver() || scheduler.now_us() >= until_us {
                    self.lose("in vain")?;
                    return Err(ErrorKind::TimedOut.into());
                }
                actor.wait(Wait::Until(reachable_us.min(until_us)));
                continue;
            }
            let now_us = scheduler.now_us();
            match cut {
                Some(Cut::Before) => {
                    self.lose("before")?;
                    world.server().close(self.session);
                    return Ok(());
                }
                Some(Cut::During) => {
                    self.lose("during")?;
                    let due_us = now_us + scheduler.below(3_000_000);
                    world.server().orphan(self.session, due_us);
                    return Ok(());
                }
                Some(Cut::After) | None => {}
            }
            let progress = {
                let mut server = world.server();
                let progress = server.serve(self.session, now_us, &mut self.received);
                world.report(&mut server);
                progress
            };
            match progress {
                Progress::Done => break,
                Progress::Blocked if actor.is_driver() || now_us >= until_us => {
                    self.lose("in vain")?;
                    return Err(ErrorKind::TimedOut.into());
                }
                Progress::Blocked => actor.wait(Wait::Notified(RELEASED, until_us)),
            }
        }
        if cut == Some(Cut::After) {
            self.lose("after")?;
            self.received.clear();
            world.server().close(self.session);
            return Ok(());
        }
        interleave();
        Ok(())
    }
}

impl Transport for SimulatedSocket {
    fn limit(&self, limit: Duration) {
        self.limit.set(limit);
    }

    fn is_readable_within(&self, time: Duration) -> bool {
        let Some(actor) = Actor::current() else {
            return true;
        };
        let is_slow = self.received.is_empty()
            && !self.is_closed()
            && !actor.is_driver()
            && actor.scheduler().chance(SLOW);
        if is_slow {
            actor.wait(Wait::Until(actor.after(time)));
        }
        !is_slow
    }

    fn is_stale(&self) -> bool {
        self.is_closed()
    }
}

impl Read for SimulatedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.received.is_empty() && !self.is_lost {
            let actor = Actor::current().ok_or(ErrorKind::NotConnected)?;
            self.exchange(&actor)?;
        }
        if self.process.is_dead.load(Relaxed) {
            return Ok(0);
        }
        let count = self.received.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.received[..count]);
        self.received.drain(..count);
        Ok(count)
    }
}

impl Write for SimulatedSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let is_ended = self.is_lost || !self.process.world.server().takes_from(self.session);
        if is_ended || self.process.is_dead.load(Relaxed) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.process.world.server().send(self.session, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for SimulatedSocket {
    /// The server runs the received statements, notices the end of the client, and ends the session.
    fn drop(&mut self) {
        let now_us = self.process.world.scheduler.now_us();
        let is_reachable = self.process.unreachable_until_us().is_none();
        let world = &self.process.world;
        let mut server = world.server();
        match is_reachable {
            true => server.leave(self.session, now_us),
            false => server.leave(self.session, now_us + KEPT_US),
        }
        server.pass_time(now_us);
        world.report(&mut server);
    }
}
