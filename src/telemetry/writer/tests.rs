//! The writer with slow, blocked, full and missing destinations.

use std::collections::VecDeque;
use std::sync::mpsc;

use super::*;
use crate::telemetry::log_file::LogFile;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
const MAX: usize = 4 << 20;

/// The result of the next write at the destination.
enum Next {
    Takes,
    TakesOnly(usize),
    Fails(io::ErrorKind),
}

/// A destination that waits for an instruction at every write, and records the accepted bytes. Without instructions the destination is
/// broken.
struct Destination {
    next: mpsc::Receiver<Next>,
    got: mpsc::Sender<Vec<u8>>,
}

impl Output for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = match self.next.recv() {
            Ok(Next::Takes) => bytes.len(),
            Ok(Next::TakesOnly(some)) => some.min(bytes.len()),
            Ok(Next::Fails(kind)) => return Err(kind.into()),
            Err(_) => return Err(io::ErrorKind::StorageFull.into()),
        };
        let sent = self.got.send(bytes[..taken].to_vec());
        sent.map(|()| taken).map_err(io::Error::other)
    }
}

struct TestWriter {
    writer: LineWriter,
    next: mpsc::Sender<Next>,
    got: mpsc::Receiver<Vec<u8>>,
    dropped: Arc<AtomicU64>,
}

fn options(dropped: &Arc<AtomicU64>) -> LogOptions {
    LogOptions {
        log: "test",
        waiting_bytes_max: MAX,
        linger: Duration::from_millis(50),
        dropped: dropped.clone(),
        clock: Clock::system(),
    }
}

impl TestWriter {
    fn new() -> TestWriter {
        let (script, next) = mpsc::channel();
        let (got, lines) = mpsc::channel();
        let dropped = Arc::<AtomicU64>::default();
        let writer = LineWriter::start(options(&dropped), Box::new(Destination { next, got }));
        TestWriter {
            writer: writer.expect("a thread"),
            next: script,
            got: lines,
            dropped,
        }
    }

    fn script(&self, next: impl IntoIterator<Item = Next>) {
        for next in next {
            self.next.send(next).expect("the destination is there");
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    fn written(&self) -> Vec<u8> {
        self.got.try_iter().flatten().collect()
    }
}

fn takes(writes: usize) -> impl Iterator<Item = Next> {
    std::iter::repeat_with(|| Next::Takes).take(writes)
}

#[test]
fn lines_arrive_complete_and_in_order() {
    let fixture = TestWriter::new();
    fixture.script(takes(100));
    let mut expected = Vec::new();
    for number in 0..100 {
        let line = format!("{number}\n");
        fixture.writer.push(line.as_bytes());
        expected.extend_from_slice(line.as_bytes());
    }
    assert!(fixture.writer.flush(LONG));
    assert_eq!(fixture.written(), expected);
}

#[test]
fn a_blocked_destination_drops_lines_and_blocks_no_caller() {
    let fixture = TestWriter::new();
    let mut line = vec![b'x'; MAX / 4];
    line.extend_from_slice(b"\n");
    for _ in 0..20 {
        fixture.writer.push(&line);
    }
    let lost = fixture.dropped();
    // The thread may have a buffer already, with a full buffer behind.
    assert!((14..=17).contains(&lost), "{lost} lines were dropped");
    assert!(fixture.writer.is_behind());
    let bytes = line.len() * (20 - lost as usize);
    fixture.script(takes(bytes.div_ceil(PIECE_BYTES) + 20));
    assert!(fixture.writer.flush(LONG));
    assert_eq!(fixture.written().len(), bytes);
    assert!(!fixture.writer.is_behind());
}

#[test]
fn flush_and_close_respect_their_time_limit_and_count_unwritten_lines() {
    let fixture = TestWriter::new();
    for _ in 0..3 {
        fixture.writer.push(b"line\n");
    }
    let short = Duration::from_millis(10);
    assert!(!fixture.writer.flush(short));
    assert_eq!(fixture.writer.close(short), 3);
    assert_eq!(fixture.dropped(), 3);
    // Later lines may still fit, but are not counted twice; the drop of the writer does not wait again.
    assert_eq!(fixture.writer.close(LONG), 0);
}

#[test]
fn a_failed_write_is_retried_when_the_disk_has_space() {
    let fixture = TestWriter::new();
    fixture.script([
        Next::TakesOnly(6),
        Next::Fails(io::ErrorKind::StorageFull),
        Next::Fails(io::ErrorKind::StorageFull),
        Next::Fails(io::ErrorKind::WouldBlock),
        Next::Fails(io::ErrorKind::Interrupted),
    ]);
    fixture.script(takes(10));
    for line in ["one\n", "two\n", "three\n"] {
        fixture.writer.push(line.as_bytes());
    }
    assert!(fixture.writer.flush(LONG));
    assert_eq!(fixture.written(), b"one\ntwo\nthree\n");
    assert_eq!(fixture.dropped(), 0);
}

#[test]
fn lines_to_a_pipe_without_a_reader_are_dropped_and_counted() {
    let fixture = TestWriter::new();
    fixture.script([Next::Fails(io::ErrorKind::BrokenPipe)]);
    fixture.writer.push(b"one\n");
    fixture.writer.push(b"two\n");
    assert!(fixture.writer.flush(LONG), "given up");
    assert_eq!(fixture.dropped(), 2);
    fixture.script(takes(1));
    fixture.writer.push(b"three\n");
    assert!(fixture.writer.flush(LONG));
    assert_eq!(fixture.written(), b"three\n");
}

#[test]
fn close_writes_the_buffered_lines() {
    let fixture = TestWriter::new();
    fixture.script(takes(1));
    fixture.writer.push(b"last\n");
    let TestWriter { writer, got, .. } = fixture;
    drop(writer);
    assert_eq!(got.try_iter().flatten().collect::<Vec<u8>>(), b"last\n");
}

#[test]
fn a_half_written_line_is_completed_in_the_rotated_file() {
    /// A file on a disk with a limit of bytes per write.
    struct Full(LogFile, VecDeque<usize>);

    impl Output for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.1.pop_front() {
                Some(0) => Err(io::ErrorKind::StorageFull.into()),
                Some(some) => self.0.write(&bytes[..some.min(bytes.len())]),
                None => self.0.write(bytes),
            }
        }

        fn follow(&mut self, reopen: bool, rest: &[u8]) -> io::Result<Followed> {
            self.0.follow(reopen, rest)
        }
    }

    let folder = tempfile::tempdir().expect("a folder");
    let (path, aside) = (folder.path().join("a.log"), folder.path().join("a.log.1"));
    let file = LogFile::open(&path).expect("the file opens");
    let dropped = Arc::<AtomicU64>::default();
    // Half of the second line, and no byte afterwards until the file is renamed.
    let full = Full(file, [6].into_iter().chain([0; 50]).collect());
    let writer = LineWriter::start(options(&dropped), Box::new(full)).expect("a thread");
    for line in ["one\n", "two\n", "three\n"] {
        writer.push(line.as_bytes());
    }
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    while text(&path) != "one\ntw" {
        std::thread::yield_now();
    }
    std::fs::rename(&path, &aside).expect("renamed");
    writer.reopen();
    assert!(writer.flush(LONG));
    assert_eq!(text(&aside), "one\ntwo\n");
    assert_eq!(text(&path), "three\n");
    assert_eq!(dropped.load(Relaxed), 0);
}
