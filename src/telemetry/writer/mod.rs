//! A non-blocking log writer: a bounded buffer, and a writer thread.
//!
//! Callers append a line to the buffer: a copy of a few hundred bytes, and the lock is never held for longer than the copy. The thread
//! swaps the buffer for an empty buffer and writes. When the destination is slow, blocked or broken, the buffer fills. Lines beyond the
//! limit of the buffer are dropped and counted, and the count is reported once writing works again. Lines that failed with an error are
//! kept and retried. Only a pipe without a reader (EPIPE) loses its lines immediately.
//!
//! `tracing-appender` is not used: its queue is bounded in lines instead of bytes and allocates for each line, a failed write is neither
//! counted nor retried, and a file cannot be reopened (tokio-rs/tracing issue 1276).

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tollgate_clock::Clock;

use super::log_file::{Followed, Output};

/// Number of buffered bytes that are written immediately, without lingering.
const EAGER_BYTES: usize = 128 << 10;
/// Maximum size of a write, so that a slow reader's progress is seen.
const PIECE_BYTES: usize = 64 << 10;
/// Pause before a failed write is retried.
const RETRY: Duration = Duration::from_millis(100);
/// Minimum interval between reports of dropped lines.
const REPORT: Duration = Duration::from_secs(10);
/// Minimum interval between reports of a persistent failure.
const REPORT_FAILURE: Duration = Duration::from_secs(60);
/// Time limit for the last lines at the end of a log.
pub(super) const FINAL_FLUSH: Duration = Duration::from_secs(1);

/// The name and the buffering of a log.
pub(super) struct LogOptions {
    /// The name of the log in metrics and diagnostics.
    pub(super) log: &'static str,
    /// Buffer size in bytes.
    pub(super) waiting_bytes_max: usize,
    /// How long lines are batched after the first line, where a write for each line would cost more than the line.
    pub(super) linger: Duration,
    /// Counts dropped lines.
    pub(super) dropped: Arc<AtomicU64>,
    pub(super) clock: Clock,
}

/// A non-blocking writer of lines. The drop writes the buffered lines for at most [`FINAL_FLUSH`].
pub(super) struct LineWriter {
    shared: Arc<Shared>,
}

struct Shared {
    options: LogOptions,
    state: Mutex<State>,
    /// Signals work for the thread.
    work: Condvar,
    /// Signals a reason not to linger, and not to pause after a failure.
    urgent: Condvar,
    /// A write has completed, or the thread has ended.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    waiting_lines: u64,
    /// Lines that the thread has taken and not yet written.
    taken_lines: u64,
    /// Total bytes appended, and total bytes written or abandoned.
    appended: u64,
    finished: u64,
    flushing: bool,
    reopen: bool,
    /// The thread must end when everything is written.
    closed: bool,
    /// The thread must end without writing the rest.
    abandoned: bool,
    ended: bool,
}

impl LineWriter {
    /// Starts the thread.
    pub(super) fn start(options: LogOptions, output: Box<dyn Output>) -> io::Result<LineWriter> {
        let shared = Arc::new(Shared {
            options,
            state: Mutex::default(),
            work: Condvar::new(),
            urgent: Condvar::new(),
            progress: Condvar::new(),
        });
        std::thread::Builder::new()
            .name(format!("log-{}", shared.options.log))
            .spawn({
                let shared = shared.clone();
                move || shared.run(output)
            })?;
        Ok(LineWriter { shared })
    }

    /// Appends a line, or drops it when the buffer is full.
    pub(super) fn push(&self, line: &[u8]) {
        let mut state = self.shared.lock();
        let accepts = !state.ended && !state.abandoned;
        if !accepts || state.waiting.len() + line.len() > self.shared.options.waiting_bytes_max {
            drop(state);
            self.shared.options.dropped.fetch_add(1, Relaxed);
            return;
        }
        let before = state.waiting.len();
        state.waiting.extend_from_slice(line);
        state.waiting_lines += 1;
        state.appended += line.len() as u64;
        let after = state.waiting.len();
        drop(state);
        // A wake-up is a system call. The wake-up is made only where it has an effect.
        if before == 0 {
            self.shared.work.notify_one();
        } else if before < EAGER_BYTES && after >= EAGER_BYTES {
            self.shared.urgent.notify_one();
        }
    }

    /// Makes the thread reopen the destination before the next line, or without a next line.
    pub(super) fn reopen(&self) {
        self.shared.lock().reopen = true;
        self.shared.rouse();
    }

    /// Whether the buffer has unwritten lines.
    pub(super) fn is_behind(&self) -> bool {
        let state = self.shared.lock();
        state.finished < state.appended
    }

    /// Waits until every line appended before is written, for at most `limit`. Returns whether the lines are written.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let mut state = self.shared.lock();
        let goal = state.appended;
        state.flushing = true;
        self.shared.rouse();
        let open = |state: &mut State| state.finished < goal && !state.ended;
        let progress = &self.shared.progress;
        progress.wait_while_for(&mut state, open, limit);
        state.finished >= goal
    }

    /// Writes the buffered lines and ends the thread, within `limit`. Returns the number of unwritten lines; unwritten lines count as
    /// dropped.
    pub(super) fn close(&self, limit: Duration) -> u64 {
        let mut state = self.shared.lock();
        if state.abandoned {
            return 0;
        }
        state.closed = true;
        self.shared.rouse();
        let progress = &self.shared.progress;
        progress.wait_while_for(&mut state, |state| !state.ended, limit);
        // The thread may be in a write that never returns. The thread is abandoned in this write and ends with the process. A panicked
        // thread leaves unwritten lines behind, too.
        state.abandoned = true;
        self.shared.urgent.notify_one();
        let lost = state.waiting_lines + state.taken_lines;
        drop(state);
        self.shared.options.dropped.fetch_add(lost, Relaxed);
        lost
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.close(FINAL_FLUSH);
    }
}

/// The next task of the thread.
struct Turn {
    reopen: bool,
    closed: bool,
    abandoned: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn rouse(&self) {
        self.work.notify_one();
        self.urgent.notify_one();
    }

    fn run(&self, mut output: Box<dyn Output>) {
        let _ended = Ended(self);
        let mut batch = Batch::default();
        let mut reports = Reports::default();
        loop {
            let turn = self.turn(&mut batch, &reports);
            if turn.abandoned {
                return;
            }
            if turn.reopen || !batch.is_empty() {
                self.follow(&mut *output, &mut batch, turn.reopen, &mut reports);
                let written = self.write(&mut *output, &mut batch);
                self.wrote(written, &mut batch, &mut reports);
            }
            let reported = batch.is_empty() && reports.dropped(self, turn.closed);
            if turn.closed && batch.is_empty() && !reported {
                // Under a single lock, so that a line is seen here, or dropped and counted by `push`.
                let mut state = self.lock();
                if state.waiting.is_empty() {
                    state.ended = true;
                    return;
                }
            }
        }
    }

    /// Waits for work and takes the buffered lines, unless some of the batch before are still to be written.
    fn turn(&self, batch: &mut Batch, reports: &Reports) -> Turn {
        let mut state = self.lock();
        if batch.is_empty() {
            let idle =
                |state: &mut State| state.waiting.is_empty() && !state.closed && !state.reopen;
            match reports.due_in(self) {
                None => self.work.wait_while(&mut state, idle),
                Some(due) => drop(self.work.wait_while_for(&mut state, idle, due)),
            }
            let gathering = |state: &mut State| {
                let eager = state.waiting.len() >= EAGER_BYTES || state.flushing;
                !eager && !state.closed && !state.reopen
            };
            if !state.waiting.is_empty() && !self.options.linger.is_zero() {
                let linger = self.options.linger;
                self.urgent.wait_while_for(&mut state, gathering, linger);
            }
            batch.take(&mut state.waiting);
            state.taken_lines = std::mem::take(&mut state.waiting_lines);
        } else {
            let pausing = |state: &mut State| !state.reopen && !state.abandoned;
            self.urgent.wait_while_for(&mut state, pausing, RETRY);
        }
        Turn {
            reopen: std::mem::take(&mut state.reopen),
            closed: state.closed,
            abandoned: state.abandoned,
        }
    }

    fn follow(
        &self,
        output: &mut dyn Output,
        batch: &mut Batch,
        reopen: bool,
        reports: &mut Reports,
    ) {
        let log = self.options.log;
        match output.follow(reopen, batch.rest_of_line()) {
            Ok(Followed::Same) => reports.opened = None,
            Ok(Followed::Rotated { line_is_whole }) => {
                let rest = batch.rest_of_line().len();
                if rest > 0 {
                    self.progress(batch.advance(rest));
                }
                if !line_is_whole {
                    self.options.dropped.fetch_add(1, Relaxed);
                }
                reports.opened = None;
                tracing::info!(log, "reopened log file");
            }
            Err(error) => {
                if due(&mut reports.opened, &self.options.clock) {
                    tracing::error!(log, %error, "reopening log file failed, still writing to the old one");
                }
            }
        }
    }

    /// Writes the batch, piece by piece.
    fn write(&self, output: &mut dyn Output, batch: &mut Batch) -> io::Result<()> {
        while !batch.is_empty() {
            match output.write(batch.piece()) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.progress(batch.advance(bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Handles the result of a write.
    fn wrote(&self, written: io::Result<()>, batch: &mut Batch, reports: &mut Reports) {
        let Err(error) = written else {
            reports.failed = None;
            return;
        };
        let log = self.options.log;
        if due(&mut reports.failed, &self.options.clock) {
            tracing::error!(log, %error, "writing log failed, retrying");
        }
        if error.kind() == io::ErrorKind::BrokenPipe {
            let lost = self.lock().taken_lines;
            self.options.dropped.fetch_add(lost, Relaxed);
            self.progress(batch.advance(batch.len()));
        }
    }

    /// Records bytes that were written or abandoned, and the lines ended by the bytes.
    fn progress(&self, (bytes, lines): (usize, u64)) {
        let mut state = self.lock();
        state.finished += bytes as u64;
        state.taken_lines = state.taken_lines.saturating_sub(lines);
        state.flushing &= state.finished < state.appended;
        drop(state);
        self.progress.notify_all();
    }
}

/// Signals that the thread has ended, also by a panic.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.0.progress.notify_all();
    }
}

/// Lines that the thread has taken, and the number of written bytes.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    written: usize,
}

impl Batch {
    /// Takes the buffered lines and leaves an empty buffer.
    fn take(&mut self, waiting: &mut Vec<u8>) {
        self.bytes.clear();
        self.written = 0;
        std::mem::swap(&mut self.bytes, waiting);
    }

    fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes for the next write.
    fn piece(&self) -> &[u8] {
        let left = &self.bytes[self.written..];
        &left[..left.len().min(PIECE_BYTES)]
    }

    /// The end of a partially written line.
    fn rest_of_line(&self) -> &[u8] {
        let left = &self.bytes[self.written..];
        match self.bytes[..self.written].last() {
            None | Some(b'\n') => &[],
            Some(_) => {
                let end = memchr::memchr(b'\n', left).map_or(left.len(), |at| at + 1);
                &left[..end]
            }
        }
    }

    /// Advances by `bytes`. Returns `bytes` and the number of lines that end within the bytes.
    fn advance(&mut self, bytes: usize) -> (usize, u64) {
        let passed = &self.bytes[self.written..self.written + bytes];
        let lines = memchr::memchr_iter(b'\n', passed).count() as u64;
        self.written += bytes;
        (bytes, lines)
    }
}

/// The reported failures of the log itself, and the times of the reports.
#[derive(Default)]
struct Reports {
    /// Dropped lines that were reported, and when.
    known: u64,
    reported: Option<Duration>,
    /// When the last failure to open, or to write, was reported; `None` while writes succeed.
    opened: Option<Duration>,
    failed: Option<Duration>,
}

impl Reports {
    /// The time until the report of dropped lines, if lines were dropped.
    fn due_in(&self, shared: &Shared) -> Option<Duration> {
        let new = shared.options.dropped.load(Relaxed) > self.known && self.failed.is_none();
        let since = |at| shared.options.clock.elapsed().saturating_sub(at);
        new.then(|| {
            self.reported
                .map_or(Duration::ZERO, |at| REPORT.saturating_sub(since(at)))
        })
    }

    /// Reports dropped lines when the report is due, or at the end. Returns whether a report was made.
    fn dropped(&mut self, shared: &Shared, at_end: bool) -> bool {
        let Some(due) = self.due_in(shared) else {
            return false;
        };
        if !due.is_zero() && !at_end {
            return false;
        }
        let dropped = shared.options.dropped.load(Relaxed);
        let lines = dropped - self.known;
        self.known = dropped;
        self.reported = Some(shared.options.clock.elapsed());
        tracing::warn!(log = shared.options.log, lines, "dropped log lines");
        true
    }
}

/// Whether a persistent failure is to be reported now. Records the report.
fn due(last: &mut Option<Duration>, clock: &Clock) -> bool {
    let now = clock.elapsed();
    let due = last.is_none_or(|at| now.saturating_sub(at) >= REPORT_FAILURE);
    if due {
        *last = Some(now);
    }
    due
}
