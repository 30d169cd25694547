//! A relay in front of a server's Unix socket that holds back each answer: a server that is farther away.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::{Instant, sleep_until};

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

/// Relays until it is killed.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let listener = UnixListener::bind(&options.listen)
        .with_context(|| format!("cannot listen at {}", options.listen.display()))?;
    let delay = Duration::from_micros(options.delay_us);
    loop {
        let (client, _) = listener.accept().await?;
        let server = options.server.clone();
        tokio::spawn(async move {
            // Its ends are those of the connection, which both sides notice.
            let _ = relay(client, &server, delay).await;
        });
    }
}

async fn relay(client: UnixStream, server: &Path, delay: Duration) -> Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = UnixStream::connect(server).await?.into_split();
    tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
    });
    // What follows is read while earlier bytes are held back: the relay delays and does not narrow.
    let (sender, mut held) = unbounded_channel();
    tokio::spawn(async move {
        let mut chunk = vec![0; CHUNK];
        while let Ok(read @ 1..) = from_server.read(&mut chunk).await {
            let is_wanted = sender.send((Instant::now() + delay, chunk[..read].to_vec()));
            if is_wanted.is_err() {
                break;
            }
        }
    });
    while let Some((at, bytes)) = held.recv().await {
        sleep_until(at).await;
        to_client.write_all(&bytes).await?;
    }
    Ok(())
}
