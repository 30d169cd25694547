//! A proxy between a store and its server that cuts a connection at one statement.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

/// Locks what nodes share.
const LOCK: &str = "SELECT number FROM cluster WHERE id = 1 FOR UPDATE";

/// When a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Before the server has received the statement.
    Before,
    /// After the server has answered the statement, and before the client has.
    After,
    /// Before the server has received the statement: both connections stay open.
    Silent,
    /// After the server has received the statement: its connection stays open until the proxy ends, and its answer is not read.
    During,
}

/// A proxy on a socket of its own.
pub(super) struct Proxy {
    folder: TempDir,
    shared: Arc<Shared>,
}

struct Shared {
    server: PathBuf,
    /// The beginning of the statement at which the next connection is cut.
    armed: Mutex<Option<(String, Cut)>>,
    cuts: AtomicUsize,
    connections: AtomicUsize,
    /// The beginning of the statement at which connections fall silent, up to the one of this number.
    silent: Mutex<Option<(String, usize)>>,
    /// Journal rows that were to be inserted, and transactions that were to end.
    rows: AtomicUsize,
    commits: AtomicUsize,
    /// How often the last transaction that locked what nodes share has waited for the server meanwhile.
    waits_with_lock: AtomicUsize,
    /// Connections to the server whose clients are gone, and those that are silent.
    kept: Mutex<Vec<UnixStream>>,
}

impl Proxy {
    /// Starts a proxy to the server with its socket in this folder.
    pub(super) fn start(server: &Path) -> Proxy {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).expect("a socket");
        let shared = Arc::new(Shared {
            server: server.join(".s.PGSQL.5432"),
            armed: Mutex::default(),
            cuts: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            silent: Mutex::default(),
            rows: AtomicUsize::new(0),
            commits: AtomicUsize::new(0),
            waits_with_lock: AtomicUsize::new(0),
            kept: Mutex::default(),
        });
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let shared = accepting.clone();
                let number = shared.connections.fetch_add(1, Ordering::SeqCst) + 1;
                thread::spawn(move || forward(&shared, client, number));
            }
        });
        Proxy { folder, shared }
    }

    /// The address of a database through the proxy.
    pub(super) fn url(&self, database: &str) -> String {
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://test@{folder}/{database}")
    }

    /// Cuts the next connection that sends a statement which begins so.
    pub(super) fn cut_at(&self, statement: &str, cut: Cut) {
        *self.shared.armed.lock().expect("no panic") = Some((statement.to_owned(), cut));
    }

    /// From now on the connections of today pass nothing on from a statement which begins so, and stay open: their other end is gone without a
    /// sign.
    pub(super) fn silence_at(&self, statement: &str) {
        let silent = Some((statement.to_owned(), self.connections()));
        *self.shared.silent.lock().expect("no panic") = silent;
    }

    /// Ends the connections that stay open after they were cut.
    pub(super) fn end_kept(&self) {
        for connection in self.shared.kept.lock().expect("no panic").drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// How many connections were cut.
    pub(super) fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// How often the last transaction that locked what nodes share has waited for the server from then on.
    pub(super) fn waits_with_lock(&self) -> usize {
        self.shared.waits_with_lock.load(Ordering::SeqCst)
    }

    /// How many journal rows were to be inserted.
    pub(super) fn rows(&self) -> usize {
        self.shared.rows.load(Ordering::SeqCst)
    }

    /// How many transactions of several statements were to end.
    pub(super) fn commits(&self) -> usize {
        self.shared.commits.load(Ordering::SeqCst)
    }

    /// How many connections were made.
    pub(super) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

/// Forwards messages of the client, and recognizes the statements that they bind.
fn forward(shared: &Arc<Shared>, mut client: UnixStream, number: usize) {
    let mut server = UnixStream::connect(&shared.server).expect("the server");
    let is_swallowing = Arc::new(Mutex::new(false));
    let answers = {
        let (client, server) = (
            client.try_clone().expect("a socket"),
            server.try_clone().expect("a socket"),
        );
        let is_swallowing = is_swallowing.clone();
        thread::spawn(move || answer(server, client, &is_swallowing))
    };
    let mut statements: HashMap<String, String> = HashMap::new();
    // The first message has no type.
    let mut is_first = true;
    let mut cut = None;
    let mut waits = 0;
    while let Some(message) = read_message(&mut client, is_first) {
        if !is_first {
            let kind = message[0];
            let mut texts = message[5..].split(|byte| *byte == 0);
            let mut text =
                || String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
            match kind {
                b'P' => {
                    let name = text();
                    statements.insert(name, text());
                }
                b'B' => {
                    let _portal = text();
                    let statement = statements.get(&text()).cloned().unwrap_or_default();
                    if statement.contains("INSERT INTO journal") {
                        shared.rows.fetch_add(1, Ordering::SeqCst);
                    }
                    match statement.as_str() {
                        LOCK => waits = 0,
                        "COMMIT" => {
                            shared.waits_with_lock.store(waits + 1, Ordering::SeqCst);
                            shared.commits.fetch_add(1, Ordering::SeqCst);
                        }
                        _ => {}
                    }
                    let mut armed = shared.armed.lock().expect("no panic");
                    if armed
                        .as_ref()
                        .is_some_and(|(begins, _)| statement.starts_with(begins.as_str()))
                    {
                        cut = armed.take().map(|(_, cut)| cut);
                    }
                    let silent = shared.silent.lock().expect("no panic");
                    if silent.as_ref().is_some_and(|(begins, last)| {
                        number <= *last && statement.starts_with(begins.as_str())
                    }) {
                        cut = Some(Cut::Silent);
                    }
                }
                b'S' => waits += 1,
                _ => {}
            }
            match cut {
                Some(Cut::Before | Cut::Silent) => break,
                Some(_) if kind == b'S' => {
                    *is_swallowing.lock().expect("no panic") = true;
                    server.write_all(&message).expect("the server reads");
                    break;
                }
                _ => {}
            }
        }
        is_first = false;
        if server.write_all(&message).is_err() {
            break;
        }
    }
    match cut {
        Some(Cut::After) => {
            // Ends with the answer.
            answers.join().expect("no panic");
        }
        Some(Cut::Silent) => {
            // The client does not see that the server ends the connection either.
            *is_swallowing.lock().expect("no panic") = true;
            shared
                .kept
                .lock()
                .expect("no panic")
                .extend([server, client]);
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            return;
        }
        Some(Cut::During) => {
            let kept = server.try_clone().expect("a socket");
            shared.kept.lock().expect("no panic").push(kept);
            let _ = client.shutdown(Shutdown::Both);
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            return;
        }
        _ => {}
    }
    if cut.is_some() {
        shared.cuts.fetch_add(1, Ordering::SeqCst);
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

/// Forwards messages of the server, and its end. One that is swallowed ends with the server's being ready again.
fn answer(mut server: UnixStream, mut client: UnixStream, is_swallowing: &Mutex<bool>) {
    while let Some(message) = read_message(&mut server, false) {
        if *is_swallowing.lock().expect("no panic") {
            if message[0] == b'Z' {
                return;
            }
        } else if client.write_all(&message).is_err() {
            return;
        }
    }
    if !*is_swallowing.lock().expect("no panic") {
        let _ = client.shutdown(Shutdown::Both);
    }
}

/// A whole message, with its type unless it is the first of a client.
fn read_message(from: &mut UnixStream, is_first: bool) -> Option<Vec<u8>> {
    let head_bytes = if is_first { 4 } else { 5 };
    let mut message = vec![0; head_bytes];
    from.read_exact(&mut message).ok()?;
    let length: [u8; 4] = message[head_bytes - 4..].try_into().expect("four bytes");
    let rest = usize::try_from(u32::from_be_bytes(length)).expect("a length") - 4;
    message.resize(head_bytes + rest, 0);
    from.read_exact(&mut message[head_bytes..]).ok()?;
    Some(message)
}
