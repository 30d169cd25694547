//! Measurement of the memory of idle streams.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::target::Target;
use crate::wire::{Connection, Workload, body, workload_body};

/// Time for a gateway to detect that its clients have disconnected and to free memory, which it does with a delay.
const AFTERWARDS: Duration = Duration::from_secs(45);

/// Time for earlier work to end.
const BEFORE: Duration = Duration::from_secs(3);

/// Requests before the first measurement, so that memory that is allocated once is allocated by then.
const WARM_UP: usize = 2000;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The list of targets.
    #[arg(long)]
    targets: PathBuf,
    /// Streams open at once.
    #[arg(long, default_value_t = 1000)]
    streams: usize,
}

/// Opens silent streams through each target and prints the table.
pub(crate) async fn run(options: &Options) -> Result<()> {
    println!(
        "\n### Memory of {} silent streams (resident, all processes)\n",
        options.streams
    );
    println!("| Target | before, MB | open, MB | KB per stream | clients gone, MB | given back |");
    println!("|---|---:|---:|---:|---:|---:|");
    for target in Target::list(&options.targets)?
        .iter()
        .filter(|target| !target.pids.is_empty())
    {
        measure(target, options.streams)
            .await
            .with_context(|| format!("in {}", target.name))?;
    }
    Ok(())
}

async fn measure(target: &Target, streams: usize) -> Result<()> {
    let mut connection = Connection::open(target, &workload_body(Workload::Stream)).await?;
    for number in 0..WARM_UP {
        connection.ask(number).await?;
    }
    drop(connection);
    tokio::time::sleep(BEFORE).await;
    let before = target.resident_kb()?;

    let silent = body("silent", true);
    let mut connections = Vec::with_capacity(streams);
    for number in 0..streams {
        let mut connection = Connection::open(target, &silent).await?;
        connection.send(number).await?;
        connections.push(connection);
    }
    for connection in &mut connections {
        connection.read_until("data: {").await?;
    }
    let open = target.resident_kb()?;

    drop(connections);
    tokio::time::sleep(AFTERWARDS).await;
    let after = target.resident_kb()?;
    let back = match open - before {
        grown if grown > 0.0 => (open - after) / grown * 100.0,
        _ => 100.0,
    };
    println!(
        "| {} | {:.1} | {:.1} | {:.1} | {:.1} | {back:.0} % |",
        target.name,
        before / 1024.0,
        open / 1024.0,
        (open - before) / streams as f64,
        after / 1024.0
    );
    Ok(())
}
