//! The benchmark rig behind `benches/run`: an instant provider, a load generator, and the measurements made with them.
//!
//! All measurements take the same list of targets, a JSON array of [`target::Target`]s in a file, and alternate between
//! them (A B C A B C ...), so that other load on the machine affects all of them alike.
#![allow(
    clippy::disallowed_methods,
    reason = "a measurement reads the machine's own clocks"
)]
#![allow(
    clippy::print_stdout,
    reason = "the tables are what the program is for"
)]

mod compare;
mod delay;
mod distance;
mod failover;
mod gateway;
mod heads;
mod load;
mod pages;
mod pair;
mod prepare;
mod processors;
mod provider;
mod refusals;
mod silent;
mod start;
mod stats;
mod target;
mod upgrade;
mod wire;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// That of the program: a gateway without filters is measured here, and only the filters should make the difference.
#[global_allocator]
static ALLOCATOR: tollgate::Allocator = tollgate::Allocator;

#[derive(Parser)]
#[command(about = "Measures gateways side by side; `benches/run` sets them up")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the provider of all measurements until it is killed.
    Provider {
        /// Its port on 127.0.0.1.
        #[arg(long)]
        port: u16,
    },
    /// Writes ca.pem, cert.pem and key.pem for `localhost` into a directory.
    Certificate {
        /// The directory.
        dir: PathBuf,
    },
    /// Prints ports that are free now.
    Ports {
        /// How many.
        count: usize,
    },
    /// Prints CPU time per request, and its ratio to the base target.
    Compare(compare::Options),
    /// Prints the delay that a target adds to an event.
    Delay(delay::Options),
    /// Prints how much longer an answer takes when its first provider refuses the connection.
    Failover(failover::Options),
    /// Prints the memory of open idle streams.
    Silent(silent::Options),
    /// Prints the time from starting a program to its first successful answer.
    Start(start::Options),
    /// Runs tollgate with one more filter, `pass`, which forwards without reading anything.
    Gateway(gateway::Options),
    /// Makes a database with accounts, keys and credits, and prints one of the keys.
    Prepare(prepare::Options),
    /// Reloads and upgrades a gateway under load, and fails when a client notices.
    Upgrade(upgrade::Options),
    /// Prints throughput and processor time of two targets beside each other.
    Pair(pair::Options),
    /// Prints what a request costs the processors of a gateway, PostgreSQL and Redis, and how many a second fill each.
    Processors(processors::Options),
    /// Prints how long an answer takes at several targets, one request at a time.
    Latency(pair::LatencyOptions),
    /// Prints what refused requests cost those of other accounts.
    Refusals(refusals::Options),
    /// Prints what stalled HTTP/2 streams with large heads cost another customer.
    Heads(heads::Options),
    /// Relays a server's Unix socket and delays its answers until it is killed.
    Distance(distance::Options),
    /// Prints how long the reads of a usage page take.
    Pages(pages::Options),
    /// Sends a number of requests to one target while a profiler observes it.
    Send(compare::SendOptions),
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    match args.command {
        Command::Provider { port } => runtime.block_on(provider::run(port)),
        Command::Certificate { dir } => certificate(&dir),
        Command::Ports { count } => ports(count),
        Command::Compare(options) => runtime.block_on(compare::run(&options)),
        Command::Delay(options) => runtime.block_on(delay::run(&options)),
        Command::Failover(options) => runtime.block_on(failover::run(&options)),
        Command::Silent(options) => runtime.block_on(silent::run(&options)),
        Command::Start(options) => start::run(&options),
        Command::Gateway(options) => gateway::run(&options),
        Command::Prepare(options) => runtime.block_on(prepare::run(&options)),
        Command::Send(options) => runtime.block_on(compare::send(&options)),
        Command::Pair(options) => runtime.block_on(pair::run(&options)),
        Command::Processors(options) => runtime.block_on(processors::run(&options)),
        Command::Latency(options) => runtime.block_on(pair::latency(&options)),
        Command::Refusals(options) => runtime.block_on(refusals::run(&options)),
        Command::Heads(options) => runtime.block_on(heads::run(&options)),
        Command::Distance(options) => distance::run(&options),
        Command::Pages(options) => pages::run(&options),
        Command::Upgrade(options) => runtime.block_on(upgrade::run(&options)),
    }
}

fn certificate(dir: &std::path::Path) -> anyhow::Result<()> {
    let certificate = tollgate_testing::Certificate::for_localhost();
    std::fs::write(dir.join("ca.pem"), certificate.ca_pem)?;
    std::fs::write(dir.join("cert.pem"), certificate.cert_pem)?;
    std::fs::write(dir.join("key.pem"), certificate.key_pem)?;
    Ok(())
}

fn ports(count: usize) -> anyhow::Result<()> {
    // All bound at the same time, else one port may be printed twice.
    let listeners = (0..count).map(|_| std::net::TcpListener::bind(("127.0.0.1", 0)));
    let listeners = listeners.collect::<std::io::Result<Vec<_>>>()?;
    for listener in listeners {
        println!("{}", listener.local_addr()?.port());
    }
    Ok(())
}
