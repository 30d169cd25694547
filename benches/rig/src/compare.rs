//! Comparison of CPU time per request, in alternating rounds of all targets.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::load::Load;
use crate::stats::median;
use crate::target::{Named, Target};
use crate::wire::Workload;

/// What stands behind the name of a target that is measured with requests it has to forward.
const MISSES: &str = ", forwarded";

/// Options of a comparison.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The list of targets.
    #[arg(long)]
    targets: PathBuf,
    /// The workload.
    #[arg(long)]
    workload: Workload,
    /// Number of rounds.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Requests per target and round.
    #[arg(long)]
    requests: usize,
    /// Concurrent requests.
    #[arg(long, default_value_t = 16)]
    in_flight: usize,
    /// The baseline of the ratios.
    #[arg(long, default_value = "nginx")]
    base: String,
}

/// Options of a load on one target.
#[derive(clap::Args)]
pub(crate) struct SendOptions {
    #[command(flatten)]
    target: Named,
    /// The workload.
    #[arg(long)]
    workload: Workload,
    /// Number of requests.
    #[arg(long)]
    requests: usize,
    /// The number of the first request. Repeated numbers are cache hits.
    #[arg(long, default_value_t = 0)]
    first: usize,
    /// Concurrent requests.
    #[arg(long, default_value_t = 16)]
    in_flight: usize,
}

/// One target's part in a comparison.
struct Runner {
    target: Target,
    load: Load,
    cpu_us: Vec<f64>,
    per_sec: Vec<f64>,
}

/// Runs all rounds and prints the table.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let mut runners = Vec::new();
    for (target, workload) in contestants(options)? {
        if options.workload == Workload::Tls && target.tls_address.is_none() {
            continue;
        }
        let mut load = Load::open(&target, workload, options.in_flight).await?;
        // Warm-up: caches, pools and branch predictors.
        load.run(0, options.requests / 4 + 1, None)
            .await
            .with_context(|| format!("warming up {}", target.name))?;
        runners.push(Runner {
            target,
            load,
            cpu_us: Vec::new(),
            per_sec: Vec::new(),
        });
    }
    for round in 0..options.rounds {
        for runner in &mut runners {
            let cpu = runner.target.cpu_us()?;
            let start = Instant::now();
            let first = (round + 1) * options.requests;
            runner
                .load
                .run(first, options.requests, None)
                .await
                .with_context(|| format!("in {}", runner.target.name))?;
            runner
                .per_sec
                .push(options.requests as f64 / start.elapsed().as_secs_f64());
            runner
                .cpu_us
                .push((runner.target.cpu_us()? - cpu) / options.requests as f64);
        }
    }
    print(options, &runners)
}

/// The target and workload of each row. For hits, the last target (tollgate) has an additional row with misses.
fn contestants(options: &Options) -> Result<Vec<(Target, Workload)>> {
    let mut all: Vec<_> = Target::list(&options.targets)?
        .into_iter()
        .map(|target| (target, options.workload))
        .collect();
    if options.workload == Workload::Hits
        && let Some((own, _)) = all.last()
    {
        let mut misses = own.clone();
        misses.name.push_str(MISSES);
        all.push((misses, Workload::Json));
    }
    Ok(all)
}

fn print(options: &Options, runners: &[Runner]) -> Result<()> {
    let base = runners
        .iter()
        .find(|runner| runner.target.name == options.base);
    let base = base.with_context(|| format!("no target `{}`", options.base))?;
    ensure!(
        base.cpu_us.iter().all(|cpu| *cpu > 0.0),
        "rounds are too short for the clock; take more requests"
    );
    let workload = match options.workload {
        Workload::Json => "1 KB completion",
        Workload::Stream => "53-event stream",
        Workload::Paced => "53-event stream, 1 ms between events",
        Workload::Tls => "1 KB completion over TLS and HTTP/2",
        Workload::Hits => "1 KB completion from a cache",
        Workload::Code => "1 KB completion for 60 KB of code",
        Workload::Tools => "1 KB completion for 39 KB of tools",
    };
    println!(
        "\n### {workload}: {} rounds of {} requests, {} in flight\n",
        options.rounds, options.requests, options.in_flight
    );
    println!(
        "| Target | CPU us per request | ratio to {} | lowest and highest ratio | requests/s |",
        options.base
    );
    println!("|---|---:|---:|---:|---:|");
    for Runner {
        target,
        cpu_us,
        per_sec,
        ..
    } in runners
    {
        let name = &target.name;
        let rate = median(per_sec);
        if target.pids.is_empty() {
            println!("| {name} | | | | {rate:.0} |");
            continue;
        }
        // Within one round, since disturbances of the machine last longer than a round.
        let mut ratios: Vec<f64> = cpu_us
            .iter()
            .zip(&base.cpu_us)
            .map(|(own, base)| own / base)
            .collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (
            ratios.first().unwrap_or(&0.0),
            ratios.last().unwrap_or(&0.0),
        );
        println!(
            "| {name} | {:.1} | {:.2} | {low:.2} to {high:.2} | {rate:.0} |",
            median(cpu_us),
            median(&ratios)
        );
    }
    if let [.., hits, misses] = runners
        && options.workload == Workload::Hits
    {
        let times: Vec<f64> = hits
            .per_sec
            .iter()
            .zip(&misses.per_sec)
            .map(|(hits, misses)| hits / misses)
            .collect();
        println!(
            "\n{} answers {:.2} times as many hits a second as forwarded requests.",
            hits.target.name,
            median(&times)
        );
    }
    Ok(())
}

/// Sends requests to one target and prints their cost.
pub(crate) async fn send(options: &SendOptions) -> Result<()> {
    let target = options.target.read()?;
    let mut load = Load::open(&target, options.workload, options.in_flight).await?;
    let cpu = target.cpu_us()?;
    load.run(options.first, options.requests, None).await?;
    let cpu = (target.cpu_us()? - cpu) / options.requests as f64;
    println!(
        "{}: {} requests, {cpu:.1} us of CPU each",
        target.name, options.requests
    );
    Ok(())
}
