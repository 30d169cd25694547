//! Measurement of start-up time: from starting a program to its first successful answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::stats::median;
use crate::wire::{Workload, workload_body};

/// Between two attempts to connect.
const POLL: Duration = Duration::from_millis(1);

/// Time limit for the first answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// What to start.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Where it will listen.
    #[arg(long)]
    address: SocketAddr,
    /// The key that the request bears.
    #[arg(long)]
    key: String,
    /// How many times.
    #[arg(long, default_value_t = 5)]
    times: usize,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Starts the program several times and prints the median.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut secs = Vec::new();
    for _ in 0..options.times {
        let start = Instant::now();
        let child = Command::new(&options.command[0])
            .args(&options.command[1..])
            .stdin(Stdio::null())
            .spawn();
        let mut child =
            Ended(child.with_context(|| format!("cannot start {}", options.command[0]))?);
        while !answers(options)? {
            ensure!(
                child.0.try_wait()?.is_none(),
                "the program ended before it answered"
            );
            ensure!(
                start.elapsed() < PATIENCE,
                "no answer in {} s",
                PATIENCE.as_secs()
            );
            std::thread::sleep(POLL);
        }
        secs.push(start.elapsed().as_secs_f64());
    }
    let all: Vec<String> = secs.iter().map(|time| format!("{time:.3}")).collect();
    println!(
        "start to first answer: {:.3} s, median of {}",
        median(&secs),
        all.join(", ")
    );
    Ok(())
}

/// A child that does not outlive its measurement.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a completion is answered with 200; a refused connection is a no, a wrong answer an error.
fn answers(options: &Options) -> Result<bool> {
    let Ok(mut socket) = TcpStream::connect(options.address) else {
        return Ok(false);
    };
    let body = workload_body(Workload::Json);
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        options.key,
        body.len()
    );
    socket.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    // A gateway that listens before it is ready answers 503.
    ensure!(
        answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 503"),
        "answered {answer}"
    );
    Ok(answer.starts_with("HTTP/1.1 200"))
}
