//! The earlier processes of this node that have handed the store over and still have requests: the predecessor of this process, and the
//! predecessor's predecessors.
//!
//! An earlier process has a connection to this process, for the ends of its requests. The earlier process also has a socket, to which the
//! process relays requests that arrive on its connections. A process that hands over passes connection and socket on to its successor,
//! between two messages. From the hand-over on, earlier processes do not depend on the process that handed over.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use tollgate_clock::Clock;
use tollgate_ledger::Ledger;
use tollgate_store::{Admission, IdempotencyPart, Part, Store, UnitOfWork, first_token};

use super::link::EarlierRun;
use crate::proxy::{Proxy, TOKEN_BYTES};

/// Time limit for a commit of an earlier process before its connection is passed on. A connection with a longer commit stays at this
/// process.
const PASSED_WITHIN: Duration = Duration::from_secs(2);

/// A process that has handed the store over, and its connection to the process with the store.
#[derive(Debug)]
pub(in crate::gateway) struct Earlier {
    /// The run of the process; `None` from a release that does not send its run.
    pub(super) epoch: Option<i64>,
    pub(super) link: UnixStream,
    pub(super) relay: TcpListener,
    pub(super) token: [u8; TOKEN_BYTES],
}

impl Earlier {
    /// The files of the process in the message to a successor.
    pub(super) fn files(&self) -> [BorrowedFd<'_>; 2] {
        [self.link.as_fd(), self.relay.as_fd()]
    }
}

impl From<&Earlier> for EarlierRun {
    fn from(earlier: &Earlier) -> EarlierRun {
        EarlierRun {
            epoch: earlier.epoch,
            token: base16ct::lower::encode_string(&earlier.token),
        }
    }
}

/// The earlier processes connected to this process, and the objects that the ends of the processes affect.
pub(in crate::gateway) struct Followed {
    pub(in crate::gateway) store: Arc<dyn Store>,
    pub(in crate::gateway) ledger: Ledger,
    pub(in crate::gateway) proxy: Arc<Proxy>,
    pub(in crate::gateway) clock: Clock,
    served: Mutex<Vec<EarlierProcess>>,
    /// The number of threads, a thread per earlier process.
    running: AtomicUsize,
    /// Set before the first connection is passed on: from now on the successor releases the remains of earlier processes.
    is_passed_on: AtomicBool,
}

/// An earlier process that a thread serves.
struct EarlierProcess {
    /// The position among the processes that this process was started to serve.
    place: usize,
    epoch: Option<i64>,
    process: Option<Pid>,
    relay: TcpListener,
    token: [u8; TOKEN_BYTES],
    /// The end of this socket is the request to pass the connection on.
    wanted: UnixStream,
    /// The source of the passed connection.
    passed: Receiver<UnixStream>,
}

impl Followed {
    pub(in crate::gateway) fn new(
        store: Arc<dyn Store>,
        ledger: Ledger,
        proxy: Arc<Proxy>,
        clock: Clock,
    ) -> Followed {
        Followed {
            store,
            ledger,
            proxy,
            clock,
            served: Mutex::default(),
            running: AtomicUsize::new(0),
            is_passed_on: AtomicBool::new(false),
        }
    }

    fn served(&self) -> MutexGuard<'_, Vec<EarlierProcess>> {
        self.served.lock()
    }

    /// Serves earlier processes until each has ended.
    pub(in crate::gateway) fn serve(self: &Arc<Self>, earlier: Vec<Earlier>) -> io::Result<()> {
        if earlier.is_empty() {
            self.proxy.predecessor_ended();
            return Ok(());
        }
        tracing::info!(
            holds = self.ledger.adopted_holds(),
            processes = earlier.len(),
            "took over from the predecessor, which ends its open requests"
        );
        // The full number before the first thread starts: no thread is the last before every thread runs.
        self.running.store(earlier.len(), Ordering::SeqCst);
        for (place, one) in earlier.into_iter().enumerate() {
            let (wanted, is_wanted) = UnixStream::pair()?;
            // The channel has no buffer: the connection is passed on only to a waiting receiver.
            let (pass, passed) = sync_channel(0);
            let served = EarlierProcess {
                place,
                epoch: one.epoch,
                process: process(&one.link),
                relay: one.relay,
                token: one.token,
                wanted,
                passed,
            };
            self.served().push(served);
            let this = Arc::clone(self);
            let run = move || {
                let (link, epoch) = (one.link, one.epoch);
                this.serve_one(link, is_wanted, &pass);
                this.served().retain(|served| served.place != place);
                this.one_ended(epoch);
            };
            let thread = std::thread::Builder::new().name(String::from("predecessor"));
            thread.spawn(run)?;
        }
        Ok(())
    }

    /// The earlier processes that run.
    pub(super) fn processes(&self) -> Vec<Pid> {
        self.served().iter().filter_map(|one| one.process).collect()
    }

    /// Ends the service of earlier processes between two of their messages. Blocks for at most [`PASSED_WITHIN`] for each process.
    pub(super) fn pass_on(&self) -> Vec<Earlier> {
        let served = std::mem::take(&mut *self.served());
        self.is_passed_on
            .store(!served.is_empty(), Ordering::SeqCst);
        let earlier = served.into_iter().filter_map(|served| {
            drop(served.wanted);
            let link = served.passed.recv_timeout(PASSED_WITHIN).ok()?;
            Some(Earlier {
                epoch: served.epoch,
                link,
                relay: served.relay,
                token: served.token,
            })
        });
        earlier.collect()
    }

    /// Commits the messages of a process until the process has ended or its connection is passed on.
    fn serve_one(
        &self,
        mut link: UnixStream,
        is_wanted: UnixStream,
        pass: &SyncSender<UnixStream>,
    ) {
        let mut is_wanted = Some(is_wanted);
        let served = self.ledger.serve_predecessor(&mut link, |link| {
            if !is_wanted_before_message(link, is_wanted.as_ref())? {
                return Ok(true);
            }
            is_wanted = None;
            Ok(pass.send(link.try_clone()?).is_err())
        });
        if let Err(error) = served {
            tracing::error!(%error, "connection to the predecessor broke");
        }
    }

    /// Releases the remains of a process, unless the successor does. The run is `None` where the release does not send its run: the end of
    /// the last process releases these remains.
    fn one_ended(&self, epoch: Option<i64>) {
        let is_last = self.running.fetch_sub(1, Ordering::SeqCst) == 1;
        if self.is_passed_on.load(Ordering::SeqCst) {
            if is_last {
                self.proxy.predecessor_ended();
            }
            return;
        }
        let orphans = match (epoch, is_last) {
            (_, true) => self.ledger.release_adopted(None, &self.clock),
            (Some(epoch), false) => self.ledger.release_adopted(Some(epoch), &self.clock),
            (None, false) => 0,
        };
        if is_last {
            // Their idempotency keys without a response are free again.
            let part = IdempotencyPart::FreeBefore {
                token: first_token(self.store.node(), self.store.epoch()),
            };
            let unit = UnitOfWork::of(Part::Idempotency(Box::new(part)), Admission::Always);
            // A stopped store frees them at the next start.
            let _ = self.store.submit(unit, Box::new(|_| {}));
            self.proxy.predecessor_ended();
        }
        match orphans {
            0 => tracing::info!("predecessor has ended"),
            _ => tracing::warn!(
                holds = orphans,
                "predecessor has ended, released holds of requests that it did not finish"
            ),
        }
    }
}

/// The process that made the connection, at the peer end (SO_PEERCRED, unix(7)).
fn process(link: &UnixStream) -> Option<Pid> {
    socket_peercred(link)
        .ok()
        .map(|credentials| credentials.pid)
}

/// Waits for a message, or for the request to pass the connection on. Returns whether the request came. Without a request socket the
/// function returns immediately: the read of the message waits.
fn is_wanted_before_message(link: &UnixStream, wanted: Option<&UnixStream>) -> io::Result<bool> {
    let Some(wanted) = wanted else {
        return Ok(false);
    };
    let mut waits =
        [link.as_fd(), wanted.as_fd()].map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
    retry_on_intr(|| poll(&mut waits, None))?;
    Ok(!waits[1].revents().is_empty())
}

/// Waits until every process at the connection has ended or closed the connection.
pub(super) fn wait_for_end(link: &UnixStream) {
    let mut waits = [PollFd::from_borrowed_fd(link.as_fd(), PollFlags::empty())];
    // A hang-up is always reported (poll(2)); an error ends the wait too.
    let _ = retry_on_intr(|| poll(&mut waits, None));
}
