//! The network between a gateway and its PostgreSQL server, which a test interrupts.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use parking_lot::{Condvar, Mutex};
use tempfile::TempDir;

/// Forwards connections to a server, unless it is interrupted.
#[derive(Debug)]
pub struct DatabaseLink {
    folder: TempDir,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
    /// Bytes of the server so far.
    received: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    mode: Mode,
    /// Both ends of every connection.
    open: Vec<UnixStream>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Open,
    /// Connections stay open, and nothing is forwarded.
    Stalled,
    /// Connections are closed, also new ones.
    Cut,
}

impl DatabaseLink {
    /// A link to the server with its socket in this folder.
    ///
    /// # Panics
    ///
    /// When no socket can be made.
    pub fn start(server: &Path) -> DatabaseLink {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).expect("a socket");
        let shared = Arc::new(Shared {
            server: server.join(".s.PGSQL.5432"),
            state: Mutex::default(),
            changed: Condvar::new(),
            received: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                accepting.connect(client);
            }
        });
        DatabaseLink { folder, shared }
    }

    /// The address of a database through the link.
    pub fn url(&self, database: &str) -> String {
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://test@{folder}/{database}")
    }

    /// Number of bytes that clients have received so far.
    pub fn received(&self) -> usize {
        self.shared.received.load(Relaxed)
    }

    /// Closes every connection, and each new one, until [`DatabaseLink::restore`].
    pub fn cut(&self) {
        let mut state = self.shared.state();
        state.mode = Mode::Cut;
        for end in state.open.drain(..) {
            // It may be closed already.
            let _ = end.shutdown(Shutdown::Both);
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Keeps connections open and forwards nothing until [`DatabaseLink::restore`]: a server that does not run, or a network that loses all.
    pub fn stall(&self) {
        self.shared.state().mode = Mode::Stalled;
    }

    /// Forwards again, what was held back first.
    pub fn restore(&self) {
        self.shared.state().mode = Mode::Open;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.state.lock()
    }

    fn connect(self: &Arc<Self>, client: UnixStream) {
        let Ok(server) = UnixStream::connect(&self.server) else {
            return;
        };
        let ends = [&client, &server, &client, &server].map(UnixStream::try_clone);
        let [
            Ok(from_client),
            Ok(to_server),
            Ok(to_client),
            Ok(from_server),
        ] = ends
        else {
            return;
        };
        {
            let mut state = self.state();
            if state.mode == Mode::Cut {
                return;
            }
            state.open.extend([client, server]);
        }
        for (from, to, is_answer) in [
            (from_client, to_server, false),
            (from_server, to_client, true),
        ] {
            let shared = Arc::clone(self);
            thread::spawn(move || shared.forward(from, to, is_answer));
        }
    }

    fn forward(&self, mut from: UnixStream, mut to: UnixStream, is_answer: bool) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            self.changed
                .wait_while(&mut self.state(), |state| state.mode == Mode::Stalled);
            if is_answer {
                self.received.fetch_add(count, Relaxed);
            }
            if to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        for end in [&from, &to] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}
