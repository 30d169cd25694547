//! Benchmark of event stream processing: the cost of cutting a provider's stream into events and writing them for the client.
//!
//! The stream of 53 events that all measurements use arrives in one chunk, event by event, and in chunks of seven bytes. The baseline, in
//! alternating rounds, searches the same chunks for line feeds and copies them: the minimum of any reader of a stream. The figure is the
//! ratio of the two within a round.
//!
//! ```text
//! cargo bench --bench events [-- --rounds N]
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    missing_docs,
    reason = "a bench measures real time and prints"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use tollgate_openai::event::{self, EventCutter};
use tollgate_openai::{ChunkReader, Family, Patch, Progress};
use tollgate_testing::provider::standard;

/// Streams in one measurement: about ten milliseconds of work.
const STREAMS: u32 = 1_000;

const EVENT_BYTES_MAX: usize = 8 * 1024 * 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let rounds = arguments
        .windows(2)
        .find(|pair| pair[0] == "--rounds")
        .map_or(31, |pair| pair[1].parse().expect("--rounds takes a number"));

    let events = standard::stream();
    let stream = Bytes::from(events.concat());
    let sevens = (0..stream.len())
        .step_by(7)
        .map(|at| stream.slice(at..stream.len().min(at + 7)))
        .collect();
    let arrivals: [(&str, Vec<Bytes>); 3] = [
        ("in one piece", vec![stream.clone()]),
        ("an event a piece", events),
        ("7 bytes a piece", sevens),
    ];
    // The three kinds of work on each kind of chunks; the first is the baseline.
    let patch = Arc::new(Patch::new(Family::CHAT, "x_svc").model("bench"));
    let work: [(&str, Work<'_>); 3] = [
        ("line feeds found, bytes copied", Box::new(baseline)),
        ("cut", Box::new(|pieces, _| cut(pieces))),
        (
            "cut, read, patched, written",
            Box::new(|pieces, out| relay(pieces, &patch, out)),
        ),
    ];
    check(&arrivals, &work);

    // Alternating, so that other load of the machine affects all of them.
    let mut out = BytesMut::with_capacity(2 * stream.len());
    let mut taken = vec![[const { Vec::new() }; 3]; arrivals.len()];
    for round in 0..=rounds {
        for ((_, pieces), taken) in arrivals.iter().zip(&mut taken) {
            for ((_, work), taken) in work.iter().zip(taken) {
                let began = Instant::now();
                for _ in 0..STREAMS {
                    out.clear();
                    black_box(work(black_box(pieces), &mut out));
                }
                // The first round warms up.
                if round > 0 {
                    taken.push(began.elapsed().as_nanos() as f64 / f64::from(STREAMS));
                }
            }
        }
    }

    println!(
        "{} events, {} bytes; median of {rounds} rounds",
        standard::STREAM_EVENTS,
        stream.len()
    );
    println!("{:<50} {:>8} {:>8} {:>8}", "", "ns/event", "MB/s", "ratio");
    for ((arrival, _), taken) in arrivals.iter().zip(&taken) {
        for ((name, _), times) in work.iter().zip(taken) {
            let ratios = times.iter().zip(&taken[0]).map(|(time, base)| time / base);
            let ratio = median(ratios.collect());
            let time = median(times.clone());
            println!(
                "{:<50} {:>8.1} {:>8.0} {ratio:>8.2}",
                format!("{arrival}: {name}"),
                time / standard::STREAM_EVENTS as f64,
                stream.len() as f64 * 1000.0 / time,
            );
        }
    }
}

/// Processes the chunks of a stream, may write to the buffer, and returns the number of items found.
type Work<'a> = Box<dyn Fn(&[Bytes], &mut BytesMut) -> usize + 'a>;

fn baseline(pieces: &[Bytes], out: &mut BytesMut) -> usize {
    let mut found = 0;
    for piece in pieces {
        found += memchr::memchr_iter(b'\n', piece)
            .map(black_box)
            .fold(0, |found, _| found + 1);
        out.extend_from_slice(piece);
    }
    found
}

fn cut(pieces: &[Bytes]) -> usize {
    let mut cutter = EventCutter::new(EVENT_BYTES_MAX);
    let mut found = 0;
    for piece in pieces {
        let mut events = cutter.push(piece);
        while let Some(event) = events.next().expect("no event is too large") {
            black_box(event.data);
            found += 1;
        }
    }
    found
}

/// The gateway's processing of a stream whose client requested the usage, without filters.
fn relay(pieces: &[Bytes], patch: &Arc<Patch>, out: &mut BytesMut) -> usize {
    let mut cutter = EventCutter::new(EVENT_BYTES_MAX);
    let mut reader = ChunkReader::new(Arc::clone(patch), true);
    let mut progress = Progress::default();
    let (mut text, mut written) = (String::new(), BytesMut::new());
    let mut found = 0;
    for piece in pieces {
        let mut events = cutter.push(piece);
        while let Some(event) = events.next().expect("no event is too large") {
            found += 1;
            if event.is_done() {
                event::write(event::DONE, out);
                continue;
            }
            let chunk = reader.read(event.data).expect("every event is a chunk");
            progress.note(&chunk);
            chunk.append_text(&mut text);
            chunk.write(&mut written);
            event::write(&written.split().freeze(), out);
        }
    }
    black_box((&progress, &text));
    found
}

/// Checks the measured code: the same events and bytes for all kinds of chunks.
fn check(arrivals: &[(&str, Vec<Bytes>)], work: &[(&str, Work<'_>)]) {
    let run = |work: &Work<'_>, pieces: &[Bytes]| {
        let mut out = BytesMut::new();
        (work(pieces, &mut out), out)
    };
    for (name, work) in &work[1..] {
        let (found, first) = run(work, &arrivals[0].1);
        assert_eq!(found, standard::STREAM_EVENTS, "{name}");
        for (arrival, pieces) in arrivals {
            assert_eq!(
                run(work, pieces),
                (found, first.clone()),
                "{name}, {arrival}"
            );
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
