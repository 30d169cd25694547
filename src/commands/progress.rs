//! Progress of long commands on the standard error output: a rewritten line on a terminal, separate lines with `--progress`.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use tollgate_clock::Clock;

/// Interval between two updates of the line on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);

/// Interval between two lines in a file or a journal.
const LINES_INTERVAL: Duration = Duration::from_secs(2);

/// Erases the line of a terminal from the cursor on (ECMA-48, "EL").
const ERASE: &str = "\r\x1b[K";

/// Where progress goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// No progress is shown.
    None,
    /// A terminal: the line is replaced.
    Terminal,
    /// Lines.
    Lines,
}

/// The progress of a command. The drop erases the line on a terminal.
pub(super) struct Progress {
    form: Form,
    clock: Clock,
    output: Box<dyn Write>,
    /// When the last update was written, on the monotonic clock.
    last: Option<Duration>,
}

impl Progress {
    /// On the standard error output: if it is a terminal, or `wanted`.
    pub(super) fn new(wanted: bool, clock: &Clock) -> Progress {
        let form = match (io::stderr().is_terminal(), wanted) {
            (true, _) => Form::Terminal,
            (false, true) => Form::Lines,
            (false, false) => Form::None,
        };
        Progress::to(form, clock, Box::new(io::stderr()))
    }

    fn to(form: Form, clock: &Clock, output: Box<dyn Write>) -> Progress {
        Progress {
            form,
            clock: clock.clone(),
            output,
            last: None,
        }
    }

    /// Writes the progress, unless the last update was just before.
    pub(super) fn report(&mut self, line: impl FnOnce() -> String) {
        let interval = match self.form {
            Form::None => return,
            Form::Terminal => TERMINAL_INTERVAL,
            Form::Lines => LINES_INTERVAL,
        };
        let now = self.clock.elapsed();
        if self.last.is_some_and(|last| now < last + interval) {
            return;
        }
        self.last = Some(now);
        let line = line();
        // A failed write of the progress is no reason to fail.
        let _ = match self.form {
            Form::Terminal => write!(self.output, "{ERASE}{line}"),
            _ => writeln!(self.output, "{line}"),
        };
        let _ = self.output.flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.form == Form::Terminal && self.last.is_some() {
            let _ = write!(self.output, "{ERASE}");
            let _ = self.output.flush();
        }
    }
}

/// A share in percent, without decimal places.
pub(super) fn percent(done: u64, total: u64) -> u64 {
    match total {
        0 => 100,
        total => (u128::from(done) * 100 / u128::from(total)) as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tollgate_clock::Timestamp;

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("one thread").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The output of thirty reports, a report per 100 ms.
    fn written(form: Form) -> String {
        let (clock, hand) = Clock::manual(Timestamp::UNIX_EPOCH);
        let written = Written::default();
        let mut progress = Progress::to(form, &clock, Box::new(written.clone()));
        for number in 0..30 {
            progress.report(|| format!("{number} rows"));
            hand.advance(Duration::from_millis(100));
        }
        drop(progress);
        let bytes = written.0.lock().expect("one thread").clone();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn updates_are_limited_and_a_terminal_is_left_clean() {
        assert_eq!(written(Form::None), "");
        assert_eq!(written(Form::Lines), "0 rows\n20 rows\n");
        let terminal = written(Form::Terminal);
        assert_eq!(terminal.matches(ERASE).count(), 16, "{terminal:?}");
        assert!(terminal.starts_with("\r\x1b[K0 rows\r\x1b[K2 rows"));
        assert!(terminal.ends_with("28 rows\r\x1b[K"), "{terminal:?}");
    }

    #[test]
    fn a_share_is_rounded_down_and_nothing_of_nothing_is_everything() {
        for (done, total, wanted) in [(0, 0, 100), (0, 3, 0), (2, 3, 66), (3, 3, 100)] {
            assert_eq!(percent(done, total), wanted, "{done} of {total}");
        }
    }
}
