//! Measurement of failover: the additional time when the first provider of a model refuses the connection and another one serves.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::Result;

use crate::stats::{median, quantile};
use crate::target::Target;
use crate::wire::{Connection, body};

/// Options of the measurement.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The address of the gateway.
    #[arg(long)]
    address: SocketAddr,
    /// An API key.
    #[arg(long)]
    key: String,
    /// The model whose first provider refuses, beside `bench`, whose first provider serves.
    #[arg(long)]
    model: String,
    /// Requests for each model.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
}

/// Sends requests for both models, alternating, one at a time, and prints the table.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let target = Target::at(options.address, &options.key);
    let body = body("json", false);
    let other = body.replacen("\"bench\"", &format!("\"{}\"", options.model), 1);
    let mut serves = Connection::open(&target, &body).await?;
    let mut refuses = Connection::open(&target, &other).await?;
    let (mut alone, mut after) = (Vec::new(), Vec::new());
    for number in 0..options.requests {
        alone.push(took_us(&mut serves, 2 * number).await?);
        after.push(took_us(&mut refuses, 2 * number + 1).await?);
    }
    println!(
        "\n### Failover after a refused connection: {} requests each, one at a time\n",
        options.requests
    );
    println!("Microseconds from sending a request to the last byte of its answer.\n");
    println!("| First provider | median | 99 % |");
    println!("|---|---:|---:|");
    for (what, times) in [("serves", &alone), ("refuses, the second serves", &after)] {
        println!(
            "| {what} | {:.0} | {:.0} |",
            median(times),
            quantile(times, 0.99)
        );
    }
    println!(
        "| **extra** | **{:.0}** | |",
        median(&after) - median(&alone)
    );
    Ok(())
}

async fn took_us(connection: &mut Connection, number: usize) -> Result<f64> {
    let began = Instant::now();
    connection.ask(number).await?;
    Ok(began.elapsed().as_secs_f64() * 1e6)
}
