//! Measurement of the delay of events in a gateway.
//!
//! The provider writes the time of sending into an event, and the reader compares it with the time of arrival. The same figure without a
//! gateway is subtracted; the difference is the delay of the gateway and one more pair of sockets.

use std::path::PathBuf;

use anyhow::{Context, Result};
use memchr::memmem;

use crate::provider::nanos;
use crate::stats::{median, quantile};
use crate::target::Target;
use crate::wire::{Connection, body};

/// The stamped events of a stream.
const EVENTS: [&str; 3] = [
    "first event",
    "a later event",
    "the last, its end right behind",
];

/// Options of the measurement.
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
    /// For each stamped event of the stream, in microseconds.
    late_us: [Vec<f64>; EVENTS.len()],
}

/// Reads timestamped streams from all targets, alternating, and prints the table.
pub(crate) async fn run(options: &Options) -> Result<()> {
    let mut readers = Vec::new();
    for target in Target::list(&options.targets)? {
        let connection = Connection::open(&target, &body("stamped", true)).await?;
        readers.push(Reader {
            name: target.name,
            connection,
            late_us: Default::default(),
        });
    }
    for number in 0..options.streams {
        for reader in &mut readers {
            reader.connection.send(number).await?;
            for late in &mut reader.late_us {
                late.push(late_us(&mut reader.connection).await?);
            }
            reader.connection.read_until("\r\n0\r\n\r\n").await?;
        }
    }
    print(options, &readers)
}

fn print(options: &Options, readers: &[Reader]) -> Result<()> {
    let base = readers.iter().find(|reader| reader.name == options.base);
    let base = base.with_context(|| format!("no target `{}`", options.base))?;
    let base: Vec<f64> = base.late_us.iter().map(|late| median(late)).collect();
    println!(
        "\n### Time an event stays in the gateway: {} streams, one at a time\n",
        options.streams
    );
    println!(
        "Microseconds from the provider's sending to the reader, less the median of the direct way ({:.0}, {:.0}, {:.0}).\n",
        base[0], base[1], base[2]
    );
    let heads: Vec<String> = EVENTS
        .iter()
        .map(|event| format!(" {event}, median | 99 % |"))
        .collect();
    println!("| Target |{}", heads.concat());
    println!("|---|{}", "---:|---:|".repeat(EVENTS.len()));
    for Reader { name, late_us, .. } in readers {
        let cells = late_us.iter().zip(&base).map(|(late, base)| {
            format!(
                " {:.0} | {:.0} |",
                median(late) - base,
                quantile(late, 0.99) - base
            )
        });
        println!("| {name} |{}", cells.collect::<String>());
    }
    Ok(())
}

/// Reads up to the next timestamp; returns its age in microseconds.
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
