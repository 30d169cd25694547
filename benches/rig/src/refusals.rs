//! What requests of an account without credit cost the requests of other accounts.
//!
//! Requests of other accounts are sent at fixed times, in turn with and without a load of refused requests beside them. A time is that from the
//! moment at which a request was to be sent until its answer is complete. The quantiles are of all rounds together, since eight requests decide
//! that of one. A disk or a machine that stands still for 50 ms decides that of a round, with refusals or without: the quartiles of the rounds'
//! ratios say what half of them had. The other accounts are in memory at each node before the first round.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::load::Load;
use crate::processors::POSTED;
use crate::stats::{median, quantile};
use crate::target::{Named, Target};
use crate::wire::{Connection, Workload, workload_body};

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    target: Named,
    /// The key of the account without credit.
    #[arg(long)]
    poor_key: String,
    /// Refused requests a second.
    #[arg(long, default_value_t = 10_000)]
    refusals: usize,
    /// How many a second have to be answered in the median of the rounds; else it fails, after its row.
    #[arg(long)]
    at_least: f64,
    /// Connections that send them.
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// Requests of other accounts before the first round, 64 in flight.
    #[arg(long, default_value_t = 0)]
    warm_up: usize,
    /// Requests of other accounts a second.
    #[arg(long, default_value_t = 500)]
    others: usize,
    /// Rounds without and with refusals.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// The length of a round in milliseconds.
    #[arg(long, default_value_t = 1500)]
    round_ms: u64,
}

/// Counts of the refused requests.
#[derive(Default)]
struct Refused {
    is_over: AtomicBool,
    payment_required: AtomicUsize,
    unavailable: AtomicUsize,
}

/// Runs all rounds and prints a row.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let target = options.target.read()?;
    let poor = Target {
        key: options.poor_key.clone(),
        keys: Arc::new([]),
        ..target.clone()
    };
    let body = workload_body(Workload::Json);
    Load::open(&target, Workload::Json, 64)
        .await?
        .run(0, options.warm_up, None)
        .await?;
    sleep(POSTED).await;
    let mut others = Vec::new();
    for index in 0..16 {
        others.push(Connection::open_nth(&target, &body, index).await?);
    }
    let mut senders = Vec::new();
    for index in 0..options.connections {
        senders.push(Connection::open_nth(&poor, &body, index).await?);
    }
    let (mut alone, mut beside, mut ratios, mut rates) = (vec![], vec![], vec![], vec![]);
    let p99 = |took: &[f64]| quantile(took, 0.99);
    let mut unavailable = 0;
    let mut first = 20_000_000;
    for round in 0..=options.rounds {
        let pace = (options.others, options.round_ms);
        let quiet = paced(pace, &mut others, &mut first).await?;
        let refused = Arc::<Refused>::default();
        let began = Instant::now();
        let load = tokio::spawn(refuse(senders, options.refusals, refused.clone()));
        let busy = paced(pace, &mut others, &mut first).await?;
        refused.is_over.store(true, Relaxed);
        let secs = began.elapsed().as_secs_f64();
        senders = load.await??;
        let count = refused.payment_required.load(Relaxed);
        unavailable += refused.unavailable.load(Relaxed);
        ensure!(count > 0, "no request was refused with 402");
        // The first round warms up.
        if round > 0 {
            ratios.push(p99(&busy) / p99(&quiet));
            rates.push(count as f64 / secs);
            alone.extend(quiet);
            beside.extend(busy);
        }
    }
    println!(
        "| {} | {:.0} | {:.0} ({:.0}) | {unavailable} | {:.0}, {:.0} | {:.0} | {:.0} | **{:.2}** ({:.2}, {:.2}, {:.2}) |",
        target.name,
        options.others,
        median(&rates),
        quantile(&rates, 0.0),
        median(&alone),
        median(&beside),
        p99(&alone),
        p99(&beside),
        p99(&beside) / p99(&alone),
        quantile(&ratios, 0.25),
        median(&ratios),
        quantile(&ratios, 0.75),
    );
    ensure!(
        median(&rates) >= options.at_least,
        "{}: {:.0} refusals/s in the median of the rounds, less than {:.0}: the row does not say what {}/s cost. Is the machine slow, or busy?",
        target.name,
        median(&rates),
        options.at_least,
        options.refusals
    );
    Ok(())
}

/// Sends so many requests a second for one round of so many milliseconds; returns their times in microseconds.
pub(crate) async fn paced(
    (others, round_ms): (usize, u64),
    connections: &mut Vec<Connection>,
    first: &mut usize,
) -> Result<Vec<f64>> {
    let count = connections.len();
    let each = others * round_ms as usize / 1000 / count;
    let period = Duration::from_secs(1) * count as u32 / others as u32;
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (index, mut connection) in connections.drain(..).enumerate() {
        let number = *first + index * each;
        tasks.spawn(async move {
            let mut took = Vec::with_capacity(each);
            for nth in 0..each {
                let at = began + period / count as u32 * index as u32 + period * nth as u32;
                sleep_until(at).await;
                connection.ask(number + nth).await?;
                took.push(at.elapsed().as_secs_f64() * 1e6);
            }
            anyhow::Ok((connection, took))
        });
    }
    *first += each * count;
    let mut all = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        let (connection, took) = ended??;
        connections.push(connection);
        all.extend(took);
    }
    Ok(all)
}

/// Sends requests that are refused, at a fixed rate or as fast as they are answered, until the round is over.
async fn refuse(
    connections: Vec<Connection>,
    per_sec: usize,
    refused: Arc<Refused>,
) -> Result<Vec<Connection>> {
    let began = Instant::now();
    let sent = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for mut connection in connections {
        let (sent, refused) = (sent.clone(), refused.clone());
        tasks.spawn(async move {
            while !refused.is_over.load(Relaxed) {
                let number = sent.fetch_add(1, Relaxed);
                sleep_until(began + Duration::from_secs(1) * number as u32 / per_sec as u32).await;
                match connection.ask_status(30_000_000 + number).await? {
                    402 => &refused.payment_required,
                    _ => &refused.unavailable,
                }
                .fetch_add(1, Relaxed);
            }
            anyhow::Ok(connection)
        });
    }
    let mut connections = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        connections.push(ended??);
    }
    Ok(connections)
}
