//! Reloads and upgrades under load: what clients notice of a new process in place of the old one.
//!
//! Connections that stay open send completions as fast as they are answered, and streams that last longer than an upgrade are open all the
//! time. Nothing may fail, and each stream has to have all its events once.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::target::Target;
use crate::wire::{Connection, Workload, body, workload_body};

/// Between two upgrades.
const PAUSE: Duration = Duration::from_millis(500);

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
    /// The settings of the gateway.
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
}

/// What all clients count.
#[derive(Default)]
struct Counts {
    is_over: AtomicBool,
    next: AtomicUsize,
    completions: AtomicUsize,
    slowest_us: AtomicUsize,
    streams: AtomicUsize,
}

/// Runs the load, reloads and upgrades, and prints what was counted.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let target = Target::at(options.address, &options.key);
    let counts = Arc::<Counts>::default();
    let mut connection = Connection::open(&target, &workload_body(Workload::Stream)).await?;
    connection.send(0).await?;
    let stream = connection.read_until("data: [DONE]\n\n").await?;
    let expected = String::from_utf8(stream)?.matches("\ndata: {").count();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..options.streams {
        clients.spawn(streams(target.clone(), counts.clone(), expected));
    }
    for _ in 0..options.in_flight {
        clients.spawn(completions(target.clone(), counts.clone()));
    }
    let began = Instant::now();
    let commands = tokio::task::spawn_blocking({
        let (program, config, times) = (
            options.program.clone(),
            options.config.clone(),
            options.times,
        );
        move || commands(&program, &config, times)
    });
    let took = commands.await??;
    counts.is_over.store(true, Relaxed);
    let secs = began.elapsed().as_secs_f64();
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    let completions = counts.completions.load(Relaxed);
    println!(
        "{} reloads and {} upgrades in {secs:.1} s: {completions} completions ({:.0} a second), {} streams, none failed",
        options.times,
        options.times,
        completions as f64 / secs,
        counts.streams.load(Relaxed),
    );
    let slowest = counts.slowest_us.load(Relaxed) as f64 / 1e3;
    let took: Vec<String> = took.iter().map(|ms| format!("{ms:.0}")).collect();
    println!(
        "slowest completion {slowest:.0} ms; `upgrade` took {} ms",
        took.join(", ")
    );
    Ok(())
}

/// Runs the commands; returns how long each upgrade took in milliseconds.
fn commands(program: &PathBuf, config: &PathBuf, times: usize) -> Result<Vec<f64>> {
    let run = |word: &str| {
        let arguments: [OsString; 3] = [word.into(), "--config".into(), config.into()];
        let ran = Command::new(program).args(arguments).output();
        let ran = ran.with_context(|| format!("cannot start {}", program.display()))?;
        let output = String::from_utf8_lossy(&ran.stderr);
        ensure!(ran.status.success(), "`{word}` failed: {output}");
        anyhow::Ok(())
    };
    let mut took = Vec::new();
    for _ in 0..times {
        std::thread::sleep(PAUSE);
        run("reload")?;
        let began = Instant::now();
        run("upgrade")?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
    }
    std::thread::sleep(PAUSE);
    Ok(took)
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

async fn streams(target: Target, counts: Arc<Counts>, expected: usize) -> Result<()> {
    let body = body("lasting", true);
    while !counts.is_over.load(Relaxed) {
        let mut connection = Connection::open(&target, &body).await?;
        connection.send(counts.next.fetch_add(1, Relaxed)).await?;
        let answer = connection.read_until("data: [DONE]\n\n").await?;
        let answer = String::from_utf8(answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "answered {answer}");
        let events = answer.matches("\ndata: {").count();
        ensure!(
            events == expected,
            "a stream has {events} events in place of {expected}"
        );
        ensure!(
            answer.contains("credits_used"),
            "a stream ended without its charge"
        );
        counts.streams.fetch_add(1, Relaxed);
    }
    Ok(())
}
