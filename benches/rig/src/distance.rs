//! A relay in front of a server's Unix socket that holds back each answer: a server that is farther away.
//!
//! It has threads, since a runtime's timers are a millisecond late: the server would be that much farther away.

use std::io::{Read, Write, copy};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Bytes of one read.
const CHUNK: usize = 64 * 1024;

/// What to relay.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The socket to make.
    #[arg(long)]
    listen: PathBuf,
    /// The server's socket.
    #[arg(long)]
    server: PathBuf,
    /// The time that is added to each round trip, in microseconds.
    #[arg(long, default_value_t = 5000)]
    delay_us: u64,
}

/// Bytes of an answer, and when they are passed on.
type Held = (Instant, Vec<u8>);

/// Relays until it is killed.
pub(crate) fn run(options: &Options) -> Result<()> {
    let listener = UnixListener::bind(&options.listen)
        .with_context(|| format!("cannot listen at {}", options.listen.display()))?;
    let delay = Duration::from_micros(options.delay_us);
    for client in listener.incoming() {
        let (client, server) = (client?, UnixStream::connect(&options.server)?);
        let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
        // The end of a connection is noticed by both sides of it.
        thread::spawn(move || {
            let _ = copy(&mut from_client, &mut to_server);
            let _ = to_server.shutdown(std::net::Shutdown::Write);
        });
        let (sender, held) = channel();
        thread::spawn(move || hold_back(server, delay, &sender));
        thread::spawn(move || pass_on(client, &held));
    }
    Ok(())
}

/// Reads what follows while earlier bytes are held back: the relay delays and does not narrow.
fn hold_back(mut server: UnixStream, delay: Duration, held: &Sender<Held>) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(read @ 1..) = server.read(&mut chunk) {
        if held
            .send((Instant::now() + delay, chunk[..read].to_vec()))
            .is_err()
        {
            return;
        }
    }
}

fn pass_on(mut client: UnixStream, held: &Receiver<Held>) {
    for (at, bytes) in held {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        if client.write_all(&bytes).is_err() {
            return;
        }
    }
    let _ = client.shutdown(std::net::Shutdown::Write);
}
