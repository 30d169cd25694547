//! The processes of this node that have handed the store over and still serve requests: the one before this one, and those before it.
//!
//! Each has a connection to this process, on which it sends how its requests end, and a socket to which it relays the requests that arrive on its
//! connections. A process that hands over passes both on to its successor, between two messages: from then on nothing of an earlier process
//! depends on it.

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

/// For how long a commit of an earlier process is waited for before its connection is passed on: one that takes longer stays here.
const PASSED_WITHIN: Duration = Duration::from_secs(2);

/// A process that has handed the store over, and what connects it with the one that has the store.
#[derive(Debug)]
pub(in crate::gateway) struct Earlier {
    /// Its run; `None` from a release that does not send it.
    pub(super) epoch: Option<i64>,
    pub(super) link: UnixStream,
    pub(super) relay: TcpListener,
    pub(super) token: [u8; TOKEN_BYTES],
}

impl Earlier {
    /// Its files in the message to a successor.
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

/// The earlier processes that this one serves, and what their ends affect.
pub(in crate::gateway) struct Followed {
    pub(in crate::gateway) store: Arc<dyn Store>,
    pub(in crate::gateway) ledger: Ledger,
    pub(in crate::gateway) proxy: Arc<Proxy>,
    pub(in crate::gateway) clock: Clock,
    served: Mutex<Vec<EarlierProcess>>,
    /// The threads that serve one each.
    running: AtomicUsize,
    /// Set before the first one is passed on: from then on the successor releases what earlier processes leave.
    is_passed_on: AtomicBool,
}

/// An earlier process that a thread serves.
struct EarlierProcess {
    /// Its place among those that this process was started to serve.
    place: usize,
    epoch: Option<i64>,
    process: Option<Pid>,
    relay: TcpListener,
    token: [u8; TOKEN_BYTES],
    /// Its end is the request to pass the connection on.
    wanted: UnixStream,
    /// From which the connection comes then.
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
        // All before the first thread: none is the last one before the others run.
        self.running.store(earlier.len(), Ordering::SeqCst);
        for (place, one) in earlier.into_iter().enumerate() {
            let (wanted, is_wanted) = UnixStream::pair()?;
            // Without a place in the channel the connection is passed on only to who takes it.
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

    /// Ends the service of earlier processes between two of their messages. Blocks for [`PASSED_WITHIN`] at most for each.
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

    /// Commits what a process sends, until it has ended or its connection is passed on.
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

    /// Releases what a process has left, unless the successor does. Its run is `None` where its release does not send it: the end of the last
    /// process releases that.
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

/// The process at the other end of a connection, which has made it (SO_PEERCRED, unix(7)).
fn process(link: &UnixStream) -> Option<Pid> {
    socket_peercred(link)
        .ok()
        .map(|credentials| credentials.pid)
}

/// Waits for a message, or for the request to pass the connection on, and returns whether that came. Without one nothing is waited for: the read
/// of the message waits.
fn is_wanted_before_message(link: &UnixStream, wanted: Option<&UnixStream>) -> io::Result<bool> {
    let Some(wanted) = wanted else {
        return Ok(false);
    };
    let mut waits =
        [link.as_fd(), wanted.as_fd()].map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
    retry_on_intr(|| poll(&mut waits, None))?;
    Ok(!waits[1].revents().is_empty())
}

/// Waits until every process that serves a connection has ended, or closed it.
pub(super) fn wait_for_end(link: &UnixStream) {
    let mut waits = [PollFd::from_borrowed_fd(link.as_fd(), PollFlags::empty())];
    // A hang-up is always reported (poll(2)); an error ends the wait too.
    let _ = retry_on_intr(|| poll(&mut waits, None));
}
