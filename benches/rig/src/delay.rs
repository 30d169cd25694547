//! How long an event stays in a gateway.
//!
//! The provider writes into an event when it sent it, and the reader looks at the clock when it has come. What is left after
//! the same figure of the way straight to the provider is subtracted is what the gateway and one more pair of sockets take.

use std::path::PathBuf;

use anyhow::{Context, Result};
use memchr::memmem;

use crate::provider::nanos;
use crate::stats::{median, quantile};
use crate::target::Target;
use crate::wire::{Connection, body};

/// What to measure, and how often.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The list of targets.
    #[arg(long)]
    targets: PathBuf,
    /// Streams from each target.
    #[arg(long, default_value_t = 300)]
    streams: usize,
    /// The target whose figures are subtracted.
    #[arg(long, default_value = "direct")]
    base: String,
}

struct Reader {
    name: String,
    connection: Connection,
    first_us: Vec<f64>,
    second_us: Vec<f64>,
}

/// Reads stamped streams from all targets in turn and prints the table.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let mut readers = Vec::new();
    for target in Target::list(&options.targets)? {
        let connection = Connection::open(&target, &body("stamped", true)).await?;
        readers.push(Reader {
            name: target.name,
            connection,
            first_us: Vec::new(),
            second_us: Vec::new(),
        });
    }
    for number in 0..options.streams {
        for reader in &mut readers {
            reader.connection.send(number).await?;
            let first = late_us(&mut reader.connection).await?;
            let second = late_us(&mut reader.connection).await?;
            reader.connection.read_until("\r\n0\r\n\r\n").await?;
            reader.first_us.push(first);
            reader.second_us.push(second);
        }
    }
    let base = readers.iter().find(|reader| reader.name == options.base);
    let base = base.with_context(|| format!("no target `{}`", options.base))?;
    let (base_first, base_second) = (median(&base.first_us), median(&base.second_us));
    println!(
        "\n### Time an event stays in the gateway: {} streams, one at a time\n",
        options.streams
    );
    println!(
        "Microseconds from the provider's sending to the reader, less the median of the direct way ({base_first:.0} and {base_second:.0}).\n"
    );
    println!("| Target | first event, median | 99 % | a later event, median | 99 % |");
    println!("|---|---:|---:|---:|---:|");
    for Reader {
        name,
        first_us,
        second_us,
        ..
    } in &readers
    {
        let first = (
            median(first_us) - base_first,
            quantile(first_us, 0.99) - base_first,
        );
        let second = (
            median(second_us) - base_second,
            quantile(second_us, 0.99) - base_second,
        );
        println!(
            "| {name} | {:.0} | {:.0} | {:.0} | {:.0} |",
            first.0, first.1, second.0, second.1
        );
    }
    Ok(())
}

/// Reads up to the next stamp; how long ago it was made, in microseconds.
async fn late_us(connection: &mut Connection) -> Result<f64> {
    const MARK: &str = "sent:";
    let seen = connection.read_until(";\"}").await?;
    let now = nanos();
    let at = memmem::find(&seen, MARK.as_bytes()).context("an event with a stamp")? + MARK.len();
    let digits: Vec<u8> = seen[at..]
        .iter()
        .copied()
        .take_while(u8::is_ascii_digit)
        .collect();
    let sent: u64 = std::str::from_utf8(&digits)?.parse()?;
    Ok((now as f64 - sent as f64) / 1000.0)
}
