//! Reloads and upgrades under load: what clients notice of other settings, and of a new process in place of the old one.
//!
//! Connections that stay open send completions as fast as they are answered, streams that last longer than an upgrade are open all the time,
//! and one client connects each millisecond. Nothing may fail: no connection is refused, each stream has the contents that its provider sent,
//! in their order, and after each reload the new price is charged.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use memchr::memmem;
use serde_json::Value;
use tokio::net::TcpStream;
use tollgate_testing::provider::standard;

use crate::target::Target;
use crate::wire::{Connection, Workload, body, workload_body};

/// Between two upgrades.
const PAUSE: Duration = Duration::from_millis(500);

/// Between two connections of the client that does nothing else.
const CONNECT_INTERVAL: Duration = Duration::from_millis(1);

/// Tokens of the provider's completion, of its prompt and of its text.
const TOKENS: [i64; 2] = [24, 128];

/// The end of an answer in chunks.
const LAST_CHUNK: &str = "\r\n0\r\n\r\n";

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where the gateway listens.
    #[arg(long)]
    address: SocketAddr,
    /// The key that the requests bear.
    #[arg(long)]
    key: String,
    /// The program, whose commands `reload` and `upgrade` are run.
    #[arg(long)]
    program: PathBuf,
    /// The settings of the gateway, whose one price is changed before each reload.
    #[arg(long)]
    config: PathBuf,
    /// Number of reloads, and of upgrades.
    #[arg(long, default_value_t = 10)]
    times: usize,
    /// Connections that send completions.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Open streams.
    #[arg(long, default_value_t = 500)]
    streams: usize,
    /// Completions a second below which the run fails: less load proves less.
    #[arg(long, default_value_t = 3000)]
    rate: usize,
}

/// What all clients count.
#[derive(Default)]
struct Counts {
    is_over: AtomicBool,
    next: AtomicUsize,
    completions: AtomicUsize,
    slowest_us: AtomicUsize,
    streams: AtomicUsize,
    connections: AtomicUsize,
    refused: AtomicUsize,
    slowest_connection_us: AtomicUsize,
}

/// Runs the load, reloads and upgrades, and prints what was counted.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let target = Target::at(options.address, &options.key);
    let counts = Arc::<Counts>::default();
    let sent: Arc<[String]> = contents(&standard::stream().concat())?.into();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..options.streams {
        clients.spawn(streams(target.clone(), counts.clone(), sent.clone()));
    }
    for _ in 0..options.in_flight {
        clients.spawn(completions(target.clone(), counts.clone()));
    }
    clients.spawn(connections(options.address, counts.clone()));
    let began = Instant::now();
    let took = changes(options, &target, &counts).await?;
    counts.is_over.store(true, Relaxed);
    let secs = began.elapsed().as_secs_f64();
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let completions = counts.completions.load(Relaxed);
    let rate = completions as f64 / secs;
    println!(
        "{} reloads and {} upgrades in {secs:.1} s: {completions} completions ({rate:.0} a second), {} streams, none failed",
        options.times,
        options.times,
        counts.streams.load(Relaxed),
    );
    let (connected, refused) = (
        counts.connections.load(Relaxed),
        counts.refused.load(Relaxed),
    );
    println!("{connected} connections one after another, {refused} refused");
    let ms = |us: &AtomicUsize| us.load(Relaxed) as f64 / 1e3;
    let took: Vec<String> = took.iter().map(|ms| format!("{ms:.0}")).collect();
    println!(
        "slowest completion {:.0} ms, slowest connection {:.0} ms; `upgrade` took {} ms",
        ms(&counts.slowest_us),
        ms(&counts.slowest_connection_us),
        took.join(", ")
    );
    ensure!(refused == 0, "{refused} connections were refused");
    ensure!(
        rate >= options.rate as f64,
        "{rate:.0} completions a second are less than {}: the machine is busy or slow (`--rate`)",
        options.rate
    );
    Ok(())
}

/// Changes the price, reloads and upgrades, again and again; returns how long each upgrade took in milliseconds.
async fn changes(options: &Options, target: &Target, counts: &Counts) -> Result<Vec<f64>> {
    let settings = std::fs::read_to_string(&options.config)?;
    let mut took = Vec::new();
    for time in 0..options.times {
        tokio::time::sleep(PAUSE).await;
        // The usual price is 2.
        let price = 3 + i64::try_from(time)?;
        let changed = with_price(&settings, price)?;
        std::fs::write(&options.config, changed)?;
        let reloaded = command(options, "reload").await?;
        ensure!(
            reloaded.contains("price.output"),
            "a reload changed something else than the price: {reloaded}"
        );
        ensure_price(target, counts, price).await?;
        let began = Instant::now();
        command(options, "upgrade").await?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
        ensure_price(target, counts, price).await?;
    }
    tokio::time::sleep(PAUSE).await;
    Ok(took)
}

/// The settings with another price of what the model writes.
fn with_price(settings: &str, output: i64) -> Result<String> {
    const BEFORE: &str = "price = { input = \"1\", output = \"2\",";
    ensure!(
        settings.matches(BEFORE).count() == 1,
        "the settings have one model, with the price `{BEFORE}`"
    );
    let after = format!("price = {{ input = \"1\", output = \"{output}\",");
    Ok(settings.replacen(BEFORE, &after, 1))
}

/// A request that begins now is charged by this price.
async fn ensure_price(target: &Target, counts: &Counts, output: i64) -> Result<()> {
    let mut connection = Connection::open(target, &workload_body(Workload::Json)).await?;
    connection.ask(counts.next.fetch_add(1, Relaxed)).await?;
    let answer = connection.answer();
    let head_end = memmem::find(answer, b"\r\n\r\n").context("a head")?;
    let answer: Value = serde_json::from_slice(&answer[head_end + 4..])?;
    let charged = answer["x_svc"]["credits_used"]
        .as_f64()
        .context("a charge")?;
    let expected = TOKENS[0] + TOKENS[1] * output;
    let charged = (charged * 1e6).round() as i64;
    ensure!(
        charged == expected,
        "{charged} micro-credits were charged in place of {expected}"
    );
    Ok(())
}

/// Runs a command of the program; returns its output.
async fn command(options: &Options, word: &str) -> Result<String> {
    let (program, config) = (options.program.clone(), options.config.clone());
    let arguments: [OsString; 3] = [word.into(), "--config".into(), config.into()];
    let started = program.clone();
    let ran = tokio::task::spawn_blocking(move || Command::new(started).args(arguments).output());
    let ran = ran.await?;
    let ran = ran.with_context(|| format!("cannot start {}", program.display()))?;
    let problem = String::from_utf8_lossy(&ran.stderr);
    ensure!(ran.status.success(), "`{word}` failed: {problem}");
    Ok(String::from_utf8(ran.stdout)?)
}

async fn completions(target: Target, counts: Arc<Counts>) -> Result<()> {
    let body = workload_body(Workload::Json);
    let mut connection = Connection::open(&target, &body).await?;
    while !counts.is_over.load(Relaxed) {
        let began = Instant::now();
        connection.ask(counts.next.fetch_add(1, Relaxed)).await?;
        let us = began.elapsed().as_micros() as usize;
        counts.slowest_us.fetch_max(us, Relaxed);
        counts.completions.fetch_add(1, Relaxed);
        if connection.is_closing() {
            connection = Connection::open(&target, &body).await?;
        }
    }
    Ok(())
}

async fn streams(target: Target, counts: Arc<Counts>, sent: Arc<[String]>) -> Result<()> {
    let body = body("lasting", true);
    while !counts.is_over.load(Relaxed) {
        let mut connection = Connection::open(&target, &body).await?;
        connection.send(counts.next.fetch_add(1, Relaxed)).await?;
        let answer = connection.read_until(LAST_CHUNK).await?;
        let head_end = memmem::find(&answer, b"\r\n\r\n").context("a head")? + 4;
        let (head, chunks) = answer.split_at(head_end);
        ensure!(
            head.starts_with(b"HTTP/1.1 200"),
            "answered {:?}",
            String::from_utf8_lossy(&answer)
        );
        let events = unchunked(chunks)?;
        let received = contents(&events)?;
        ensure!(
            *received == *sent,
            "a stream has {received:?} in place of {sent:?}"
        );
        let charges = memmem::find_iter(&events, b"credits_used").count();
        ensure!(charges == 1, "a stream ended with {charges} charges");
        counts.streams.fetch_add(1, Relaxed);
    }
    Ok(())
}

/// Connects again and again, and does nothing else.
async fn connections(address: SocketAddr, counts: Arc<Counts>) -> Result<()> {
    let mut often = tokio::time::interval(CONNECT_INTERVAL);
    often.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !counts.is_over.load(Relaxed) {
        often.tick().await;
        let began = Instant::now();
        let connected = TcpStream::connect(address).await;
        let us = began.elapsed().as_micros() as usize;
        counts.slowest_connection_us.fetch_max(us, Relaxed);
        counts.connections.fetch_add(1, Relaxed);
        counts
            .refused
            .fetch_add(usize::from(connected.is_err()), Relaxed);
    }
    Ok(())
}

/// The data of a body in chunks (RFC 9112 section 7.1), the last one included.
fn unchunked(mut chunks: &[u8]) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    loop {
        let line_end = memmem::find(chunks, b"\r\n").context("the size of a chunk")?;
        let size = usize::from_str_radix(std::str::from_utf8(&chunks[..line_end])?, 16)?;
        let rest = &chunks[line_end + 2..];
        let (chunk, rest) = rest.split_at_checked(size).context("a whole chunk")?;
        data.extend_from_slice(chunk);
        if size == 0 {
            return Ok(data);
        }
        chunks = rest.strip_prefix(b"\r\n").context("the end of a chunk")?;
    }
}

/// The contents of a stream's events in their order; the last event is `[DONE]`.
fn contents(events: &[u8]) -> Result<Vec<String>> {
    let text = std::str::from_utf8(events)?;
    let events = text
        .strip_suffix("data: [DONE]\n\n")
        .context("a stream ended without `[DONE]`")?;
    let mut contents = Vec::new();
    for event in events.split("\n\n").filter(|event| !event.is_empty()) {
        let data = event.strip_prefix("data: ");
        let data = data.with_context(|| format!("an event without data: {event}"))?;
        let event: Value = serde_json::from_str(data)?;
        let content = event["choices"][0]["delta"]["content"].as_str();
        contents.extend(content.map(str::to_owned));
    }
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_and_a_doubled_event_are_noticed_whatever_the_chunks_are() {
        let events = standard::stream();
        let sent = contents(&events.concat()).expect("events");
        assert_eq!(sent.len(), standard::STREAM_EVENTS - 3);
        let mut other = events.clone();
        other[7] = events[6].clone();
        assert_eq!(other.len(), events.len());
        assert_ne!(contents(&other.concat()).expect("events"), sent);
        let whole = events.concat();
        let mut chunks = Vec::new();
        for chunk in whole.chunks(100) {
            chunks.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            chunks.extend_from_slice(chunk);
            chunks.extend_from_slice(b"\r\n");
        }
        chunks.extend_from_slice(b"0\r\n\r\n");
        assert_eq!(unchunked(&chunks).expect("chunks"), whole);
        contents(&events[..5].concat()).expect_err("it has no end");
    }
}
