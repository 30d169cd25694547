//! Processor time of a gateway, of PostgreSQL and of Redis for a request, with all that is done for it later.

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::time::sleep;

use crate::load::Load;
use crate::target::{Named, cpu_us};
use crate::wire::Workload;

/// Until everything is posted: a gateway posts an account's records after ten seconds at the latest.
pub(crate) const POSTED: Duration = Duration::from_secs(13);

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Named,
    /// What the row of the table is about.
    #[arg(long)]
    title: String,
    /// Number of requests.
    #[arg(long)]
    requests: usize,
    /// Requests before them.
    #[arg(long, default_value_t = 0)]
    warm_up: usize,
    /// Concurrent requests.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
}

/// Sends the requests and prints a row.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let target = options.target.read()?;
    let used = || {
        anyhow::Ok([
            target.cpu_us()?,
            cpu_us(&target.postgres)?,
            cpu_us(&target.redis)?,
        ])
    };
    let mut load = Load::open(&target, Workload::Json, options.in_flight).await?;
    load.run(0, options.warm_up, None).await?;
    sleep(POSTED).await;
    // What is used without requests, also by the other gateways of the servers.
    let (idle_from, idle) = (Instant::now(), used()?);
    sleep(POSTED).await;
    let (from, before) = (Instant::now(), used()?);
    let idle_secs = (from - idle_from).as_secs_f64();
    load.run(options.warm_up, options.requests, None).await?;
    let per_sec = options.requests as f64 / from.elapsed().as_secs_f64();
    sleep(POSTED).await;
    let (secs, after) = (from.elapsed().as_secs_f64(), used()?);
    let us: Vec<f64> = (0..3)
        .map(|nth| {
            let without = (before[nth] - idle[nth]) / idle_secs * secs;
            (after[nth] - before[nth] - without) / options.requests as f64
        })
        .collect();
    println!(
        "| {} | {per_sec:.0} | {:.1} | {:.1} | {:.2} | {:.0} | {:.0} | {:.0} |",
        options.title,
        us[0],
        us[1],
        us[2],
        1e6 / us[0],
        1e6 / us[1],
        1e6 / us[2],
    );
    Ok(())
}
