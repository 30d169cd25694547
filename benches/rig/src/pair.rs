//! Comparison of two targets: throughput, processor time of the gateways and of the servers behind them, in alternating rounds.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::load::Load;
use crate::stats::{median, quantile};
use crate::target::{Target, cpu_us};
use crate::wire::{Connection, Workload, workload_body};

/// What to compare.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The list of targets.
    #[arg(long)]
    targets: PathBuf,
    /// The name of the target that the ratios are to.
    #[arg(long)]
    base: String,
    /// The name of the other one.
    #[arg(long)]
    other: String,
    /// What the row of the table is about.
    #[arg(long)]
    title: String,
    /// The workload.
    #[arg(long, default_value = "json")]
    workload: Workload,
    /// Number of rounds.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Requests per target and round; with `--per-sec` for each of its nodes.
    #[arg(long)]
    requests: usize,
    /// Requests a second to each node of a target. Without, as many as it answers.
    #[arg(long)]
    per_sec: Option<f64>,
    /// The nodes of a target serve one after the other, each an equal part of a round with an equal part of the requests in flight. On one
    /// processor each has its caches to itself then, as on a machine of its own.
    #[arg(long, conflicts_with = "per_sec")]
    in_turn: bool,
    /// Requests to each target before the first round.
    #[arg(long, default_value_t = 2000)]
    warm_up: usize,
    /// Concurrent requests.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// Where to write how many requests the other target was sent, for counts of statements.
    #[arg(long)]
    sent: PathBuf,
}

/// The rounds of one target.
struct Side {
    target: Target,
    /// To all its nodes at once, or to one after the other.
    loads: Vec<Load>,
    /// Requests a second to all its nodes.
    per_sec_max: Option<f64>,
    sent: usize,
    /// Those of them after the warm-up.
    in_rounds: f64,
    per_sec: Vec<f64>,
    gateway_us: Vec<f64>,
    /// Of all rounds together, since their processor time comes in steps of 10 ms.
    postgres_us: f64,
    redis_us: f64,
}

impl Side {
    async fn open(name: &str, options: &Options) -> Result<Side> {
        let target = Target::named(&options.targets, name)?;
        let parts = match options.in_turn {
            true => target.nodes(),
            false => vec![target.clone()],
        };
        let mut loads = Vec::new();
        let in_flight = options.in_flight / parts.len();
        for part in &parts {
            loads.push(Load::open(part, options.workload, in_flight).await?);
        }
        let nodes = 1 + target.more.len();
        let mut side = Side {
            per_sec_max: options.per_sec.map(|each| each * nodes as f64),
            target,
            loads,
            sent: 0,
            in_rounds: 0.0,
            per_sec: Vec::new(),
            gateway_us: Vec::new(),
            postgres_us: 0.0,
            redis_us: 0.0,
        };
        side.send(options.warm_up).await?;
        Ok(side)
    }

    async fn send(&mut self, requests: usize) -> Result<()> {
        let requests = requests / self.loads.len();
        for load in &mut self.loads {
            let sent = load.run(self.sent, requests, self.per_sec_max).await;
            sent.with_context(|| format!("in {}", self.target.name))?;
            self.sent += requests;
        }
        Ok(())
    }

    async fn round(&mut self, options: &Options) -> Result<()> {
        let requests = match options.per_sec {
            Some(_) => options.requests * (1 + self.target.more.len()),
            None => options.requests,
        };
        let sent = self.sent;
        let gateway = self.target.cpu_us()?;
        self.postgres_us -= cpu_us(&self.target.postgres)?;
        self.redis_us -= cpu_us(&self.target.redis)?;
        let began = Instant::now();
        self.send(requests).await?;
        let count = (self.sent - sent) as f64;
        self.in_rounds += count;
        self.per_sec.push(count / began.elapsed().as_secs_f64());
        let gateway = self.target.cpu_us()? - gateway;
        self.gateway_us.push(gateway / count);
        self.postgres_us += cpu_us(&self.target.postgres)?;
        self.redis_us += cpu_us(&self.target.redis)?;
        Ok(())
    }
}

/// Runs all rounds and prints a row.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let mut base = Side::open(&options.base, options).await?;
    let mut other = Side::open(&options.other, options).await?;
    for round in 0..options.rounds {
        // In turn the first, so that neither always follows the same one.
        let (first, second) = match round % 2 {
            0 => (&mut base, &mut other),
            _ => (&mut other, &mut base),
        };
        first.round(options).await?;
        second.round(options).await?;
    }
    println!(
        "| {} | {:.0} | {:.0} | {} | {:.1} | {:.1} | {} | {:.1} | {:.1} |",
        options.title,
        median(&base.per_sec),
        median(&other.per_sec),
        ratio(&base.per_sec, &other.per_sec),
        median(&base.gateway_us),
        median(&other.gateway_us),
        ratio(&base.gateway_us, &other.gateway_us),
        other.postgres_us / other.in_rounds,
        other.redis_us / other.in_rounds,
    );
    Ok(std::fs::write(&options.sent, other.sent.to_string())?)
}

/// The median of the ratios within a round, with the lowest and the highest.
fn ratio(base: &[f64], other: &[f64]) -> String {
    let ratios: Vec<f64> = base.iter().zip(other).map(|(one, two)| two / one).collect();
    format!(
        "**{:.2}** ({:.2} to {:.2})",
        median(&ratios),
        quantile(&ratios, 0.0),
        quantile(&ratios, 1.0)
    )
}

/// Options of the comparison of latencies.
#[derive(clap::Args)]
pub(crate) struct LatencyOptions {
    /// The list of targets.
    #[arg(long)]
    targets: PathBuf,
    /// The name of the target whose median is subtracted.
    #[arg(long)]
    base: String,
    /// The names of the others.
    #[arg(long, required = true)]
    other: Vec<String>,
    /// Requests to each.
    #[arg(long, default_value_t = 1500)]
    requests: usize,
}

/// Sends requests to all targets in turn, one at a time, and prints the medians.
pub(crate) async fn latency(options: &LatencyOptions) -> Result<()> {
    let body = workload_body(Workload::Json);
    let mut sides = Vec::new();
    for name in std::iter::once(&options.base).chain(&options.other) {
        let target = Target::named(&options.targets, name)?;
        sides.push((name, Connection::open(&target, &body).await?, Vec::new()));
    }
    for number in 0..options.requests {
        for (_, connection, took) in &mut sides {
            let began = Instant::now();
            connection.ask(10_000_000 + number).await?;
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    let base = median(&sides[0].2);
    println!("| Target | median us | more than {} |", options.base);
    println!("|---|---:|---:|");
    for (name, _, took) in &sides {
        println!(
            "| {name} | {:.0} | {:.0} |",
            median(took),
            median(took) - base
        );
    }
    Ok(())
}
