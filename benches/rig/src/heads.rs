//! What stalled HTTP/2 streams with large heads cost the requests of another customer.
//!
//! The attacker has no credential. Each of its connections closes the windows of its streams, opens as many as it may, each with a head of 31 KB of
//! which eight bytes are sent (references of HPACK), and reads nothing. One that is closed is opened again after a pause. The customer's requests
//! are sent at fixed times, in turn without and with the attack beside them; a time is that from the moment at which a request was to be sent until
//! its answer is complete.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::refusals::paced;
use crate::stats::{median, quantile};
use crate::target::{Target, peak_mib};
use crate::wire::{Connection, Workload, workload_body};

/// Streams on each connection.
const STREAMS: u32 = 100;

/// The value of a field that fills the table of HPACK, of which each reference is one byte (RFC 7541 section 6.1).
const VALUE_BYTES: usize = 3_900;

/// For how long the attack goes on before the customer's requests are measured beside it.
const BEGUN: Duration = Duration::from_secs(2);

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the gateway listens.
    #[arg(long)]
    address: SocketAddr,
    /// The customer's key.
    #[arg(long)]
    key: String,
    /// The gateway's process.
    #[arg(long)]
    pid: u32,
    /// Client addresses of the attack: 127.0.1.1 and those after it.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=250))]
    addresses: u8,
    /// Its connections, of all addresses together.
    #[arg(long, default_value_t = 500)]
    connections: usize,
    /// The pause before a connection that was closed is opened again, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    again_ms: u64,
    /// The customer's requests a second.
    #[arg(long, default_value_t = 200)]
    others: usize,
    /// Rounds without and with the attack.
    #[arg(long, default_value_t = 10)]
    rounds: usize,
    /// The length of a round in milliseconds.
    #[arg(long, default_value_t = 3000)]
    round_ms: u64,
    /// The most that the p99 with the attack may be of that without; it fails above, after its row.
    #[arg(long, default_value_t = 2.0)]
    at_most: f64,
    /// The most memory of the gateway in MiB; it fails above, after its row.
    #[arg(long, default_value_t = 300.0)]
    memory_mib: f64,
}

/// Runs all rounds and prints a row.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let target = Target::at(options.address, &options.key);
    let body = workload_body(Workload::Json);
    let mut customer = Vec::new();
    for index in 0..16 {
        customer.push(Connection::open_nth(&target, &body, index).await?);
    }
    let pace = (options.others, options.round_ms);
    let p99 = |took: &[f64]| quantile(took, 0.99);
    let (mut alone, mut beside, mut ratios) = (vec![], vec![], vec![]);
    let sent = stalled_streams();
    let opened = Arc::<AtomicUsize>::default();
    let mut first = 40_000_000;
    for round in 0..=options.rounds {
        let quiet = paced(pace, &mut customer, &mut first).await?;
        let mut attack = JoinSet::new();
        for nth in 0..options.connections {
            let from = Ipv4Addr::new(127, 0, 1, (nth % usize::from(options.addresses)) as u8 + 1);
            let from = SocketAddr::from((from, 0));
            let again = Duration::from_millis(options.again_ms);
            attack.spawn(stall(
                options.address,
                from,
                sent.clone(),
                again,
                opened.clone(),
            ));
        }
        sleep(BEGUN).await;
        let busy = paced(pace, &mut customer, &mut first).await?;
        attack.shutdown().await;
        // The gateway finds its connections closed.
        sleep(BEGUN).await;
        // The first round warms up.
        if round > 0 {
            ratios.push(p99(&busy) / p99(&quiet));
            alone.extend(quiet);
            beside.extend(busy);
        }
    }
    let memory = peak_mib(options.pid)?;
    let ratio = p99(&beside) / p99(&alone);
    println!(
        "| {} | {} | {} | {:.0}, {:.0} | {:.0}, {:.0} | **{ratio:.2}** ({:.2}, {:.2}, {:.2}) | {memory:.0} |",
        options.addresses,
        options.connections,
        opened.load(Relaxed),
        median(&alone),
        median(&beside),
        p99(&alone),
        p99(&beside),
        quantile(&ratios, 0.25),
        median(&ratios),
        quantile(&ratios, 0.75),
    );
    ensure!(
        memory <= options.memory_mib,
        "the gateway had {memory:.0} MiB"
    );
    ensure!(
        ratio <= options.at_most,
        "p99 is {ratio:.2} times that without the attack"
    );
    Ok(())
}

/// Opens one connection of the attack again and again.
async fn stall(
    address: SocketAddr,
    from: SocketAddr,
    sent: Arc<[u8]>,
    again: Duration,
    opened: Arc<AtomicUsize>,
) {
    loop {
        if let Ok(mut stream) = connect(address, from).await {
            opened.fetch_add(1, Relaxed);
            if stream.write_all(&sent).await.is_ok() {
                // Until it is closed. What has arrived fills no window of HTTP/2: all of its streams have none.
                let mut read = [0; 4096];
                while matches!(stream.read(&mut read).await, Ok(1..)) {}
            }
        }
        sleep(again).await;
    }
}

async fn connect(address: SocketAddr, from: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(from)?;
    socket.connect(address).await
}

/// What each connection sends.
fn stalled_streams() -> Arc<[u8]> {
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0 (RFC 9113 section 6.5.2).
    frame(&mut sent, 4, 0, 0, &[0, 4, 0, 0, 0, 0]);
    // GET, http, `:authority: localhost`, `:path: /v1/models` as literals that are not indexed.
    let mut request = vec![0x82, 0x86, 0x01, 9];
    request.extend(b"localhost");
    request.extend([0x04, 10]);
    request.extend(b"/v1/models");
    for number in 0..STREAMS {
        let mut block = request.clone();
        if number == 0 {
            // A literal with indexing; its length is 127 and the rest in groups of seven bits.
            let rest = VALUE_BYTES - 127;
            block.extend([0x40, 1, b'x', 127, rest as u8 | 0x80, (rest >> 7) as u8]);
            block.extend([b'v'; VALUE_BYTES]);
        } else {
            block.extend([0xbe; 8]);
        }
        // END_STREAM and END_HEADERS.
        frame(&mut sent, 1, 0x5, 2 * number + 1, &block);
    }
    sent.into()
}

fn frame(sent: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    sent.extend(&(payload.len() as u32).to_be_bytes()[1..]);
    sent.extend([kind, flags]);
    sent.extend(stream.to_be_bytes());
    sent.extend(payload);
}
