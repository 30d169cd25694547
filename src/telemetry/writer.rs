//! The thread that writes the access log.
//!
//! Those who log append to a shared buffer, a copy of a few hundred bytes under a lock that is never held for longer. The thread swaps
//! the buffer against an empty one and writes. A disk that is too slow fills the buffer; lines beyond its limit are dropped and counted,
//! and nobody waits.

use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus::IntCounter;

/// Bytes that may wait for the disk: some ten thousand lines.
const WAITING_BYTES_MAX: usize = 4 << 20;
/// Waiting bytes that are written at once, without lingering.
const EAGER_BYTES: usize = 128 << 10;
/// How long the thread lets lines gather after the first: a write for each would cost more than the line.
const LINGER: Duration = Duration::from_millis(50);

/// A writer of lines that never makes anyone wait.
pub(super) struct LineWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Something is there, or the writer shall end.
    work: Condvar,
    /// There is a reason not to linger.
    urgent: Condvar,
    /// Everything taken was written.
    done: Condvar,
    dropped: IntCounter,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// Bytes ever appended, and ever written (or given up).
    appended: u64,
    written: u64,
    flushing: bool,
    closed: bool,
}

impl LineWriter {
    /// Starts the thread. `dropped` counts lines that could not be kept or written.
    pub(super) fn start(out: Box<dyn Write + Send>, dropped: IntCounter) -> LineWriter {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            urgent: Condvar::new(),
            done: Condvar::new(),
            dropped,
        });
        let thread = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn({
                let shared = shared.clone();
                move || shared.run(out)
            })
            .expect("a starting process can make a thread");
        LineWriter {
            shared,
            thread: Some(thread),
        }
    }

    /// Appends a line, or drops it when too many wait.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.shared.lock();
        if state.waiting.len() + line.len() > WAITING_BYTES_MAX {
            drop(state);
            self.shared.dropped.inc();
            return;
        }
        let before = state.waiting.len();
        state.waiting.extend_from_slice(line);
        state.appended += line.len() as u64;
        let after = state.waiting.len();
        drop(state);
        // A wake-up is a system call, so it happens only where it changes something.
        if before == 0 {
            self.shared.work.notify_one();
        } else if before < EAGER_BYTES && after >= EAGER_BYTES {
            self.shared.urgent.notify_one();
        }
    }

    /// Waits until everything appended before is written.
    pub(super) fn flush(&self) {
        let mut state = self.shared.lock();
        let goal = state.appended;
        state.flushing = true;
        self.shared.work.notify_one();
        self.shared.urgent.notify_one();
        while state.written < goal {
            state = self
                .shared
                .done
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_one();
        self.shared.urgent.notify_one();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to write.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut out: Box<dyn Write + Send>) {
        let mut taken = Vec::new();
        loop {
            let mut state = self
                .work
                .wait_while(self.lock(), |state| {
                    state.waiting.is_empty() && !state.closed
                })
                .unwrap_or_else(PoisonError::into_inner);
            if state.waiting.is_empty() {
                return;
            }
            state = self
                .urgent
                .wait_timeout_while(state, LINGER, |state| {
                    state.waiting.len() < EAGER_BYTES && !state.flushing && !state.closed
                })
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            std::mem::swap(&mut state.waiting, &mut taken);
            drop(state);
            if out.write_all(&taken).and_then(|()| out.flush()).is_err() {
                let lines = taken.iter().filter(|&&byte| byte == b'\n').count();
                self.dropped.inc_by(lines as u64);
            }
            let mut state = self.lock();
            state.written += taken.len() as u64;
            state.flushing &= state.written < state.appended;
            drop(state);
            taken.clear();
            self.done.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn counter() -> IntCounter {
        IntCounter::new("dropped", "lines dropped").expect("a metric")
    }

    /// A disk that takes each write only when it is told to, and shows what it got.
    struct Disk {
        go: mpsc::Receiver<()>,
        got: mpsc::Sender<Vec<u8>>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let told = self.go.recv();
            told.map_err(|_| std::io::Error::other("the disk is gone"))?;
            self.got
                .send(bytes.to_vec())
                .map_err(std::io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let (go, orders) = mpsc::channel();
        let (got, lines) = mpsc::channel();
        for _ in 0..100 {
            go.send(()).expect("the disk is there");
        }
        let writer = LineWriter::start(Box::new(Disk { go: orders, got }), counter());
        let mut expected = Vec::new();
        for number in 0..100 {
            let line = format!("{number}\n");
            writer.push(line.as_bytes());
            expected.extend_from_slice(line.as_bytes());
        }
        writer.flush();
        let written: Vec<u8> = lines.try_iter().flatten().collect();
        assert_eq!(written, expected);
    }

    #[test]
    fn a_slow_disk_costs_lines_and_nobody_waits() {
        let (go, orders) = mpsc::channel();
        let (got, lines) = mpsc::channel();
        let dropped = counter();
        let writer = LineWriter::start(Box::new(Disk { go: orders, got }), dropped.clone());
        // Should this test fail, the disk goes before the writer waits for it.
        let go = go;
        let line = vec![b'x'; WAITING_BYTES_MAX / 4];
        for _ in 0..20 {
            writer.push(&line);
        }
        let lost = dropped.get();
        // One buffer may be with the disk already, one is full behind it.
        assert!((12..=16).contains(&lost), "{lost} lines were dropped");
        for _ in 0..3 {
            go.send(()).expect("the disk is there");
        }
        writer.flush();
        let written: usize = lines.try_iter().map(|part| part.len()).sum();
        assert_eq!(written, line.len() * (20 - lost as usize));
    }

    #[test]
    fn a_broken_disk_is_counted_and_nobody_hangs() {
        let (go, orders) = mpsc::channel();
        let (got, _) = mpsc::channel();
        drop(go);
        let dropped = counter();
        let writer = LineWriter::start(Box::new(Disk { go: orders, got }), dropped.clone());
        writer.push(b"one\n");
        writer.push(b"two\n");
        writer.flush();
        assert_eq!(dropped.get(), 2);
    }

    #[test]
    fn the_end_writes_what_waits() {
        let (go, orders) = mpsc::channel();
        let (got, lines) = mpsc::channel();
        go.send(()).expect("the disk is there");
        let writer = LineWriter::start(Box::new(Disk { go: orders, got }), counter());
        writer.push(b"last\n");
        drop(writer);
        assert_eq!(lines.try_iter().flatten().collect::<Vec<u8>>(), b"last\n");
    }
}
