//! Child processes under test: started, observed, signalled, and always cleaned up.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::guard::HANG;

/// Polling interval for the exit of a process, which cannot be awaited with a time limit otherwise.
const POLL: Duration = Duration::from_millis(5);

/// A child process with captured output. It is killed by its id when this is dropped.
pub struct Process {
    child: Child,
    output: Arc<Output>,
    readers: Vec<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct Output {
    state: Mutex<Text>,
    changed: Condvar,
}

#[derive(Default)]
struct Text {
    lines: Vec<String>,
    /// Pipes that are still open.
    open: usize,
}

impl Process {
    /// Starts `command` with its standard output and its standard error captured, line by line, in order of arrival.
    ///
    /// Both are also written to a file in the folder that the variable `TOLLGATE_TEST_LOGS` names, where that is set: the test run scans it
    /// for secrets. The standard output of commands that print a new key on purpose is excluded.
    ///
    /// # Errors
    ///
    /// When the program cannot be started.
    pub fn spawn(command: &mut Command) -> io::Result<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let output = Arc::new(Output::default());
        let stdout = child
            .stdout
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let stderr = child
            .stderr
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
        let shows_a_key = command
            .get_args()
            .any(|argument| argument == "key" || argument == "demo");
        let log = log(child.id());
        let pipes: Vec<_> = stdout
            .map(|pipe| (pipe, log.clone().filter(|_| !shows_a_key)))
            .into_iter()
            .chain(stderr.map(|pipe| (pipe, log.clone())))
            .collect();
        output.text().open = pipes.len();
        let readers = pipes
            .into_iter()
            .map(|(pipe, log)| output.clone().read(pipe, log))
            .collect();
        Ok(Self {
            child,
            output,
            readers,
        })
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All its output so far.
    pub fn output(&self) -> String {
        self.output.text().lines.concat()
    }

    /// The first line of output that satisfies `is_it`, earlier lines included. Blocks the thread.
    ///
    /// # Panics
    ///
    /// When the process exits without it, or it does not arrive within a minute; the message has the output.
    pub fn line_where(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let mut text = self.output.text();
        let mut seen = 0;
        loop {
            if let Some(line) = text.lines[seen..].iter().find(|line| is_it(line)) {
                return line.trim_end().to_owned();
            }
            seen = text.lines.len();
            assert!(
                text.open > 0,
                "the process ended without {what}:\n{}",
                text.lines.concat()
            );
            let (now, wait) = self
                .output
                .changed
                .wait_timeout(text, HANG)
                .expect("readers do not panic");
            assert!(
                !wait.timed_out(),
                "waited in vain for {what}:\n{}",
                now.lines.concat()
            );
            text = now;
        }
    }

    /// Sends a signal by its name without `SIG`, e.g. `TERM`, `HUP`, `KILL`, `STOP`.
    ///
    /// # Panics
    ///
    /// When the process has exited and was waited for, or the signal does not exist.
    pub fn signal(&mut self, name: &str) {
        assert!(
            self.has_ended().is_none(),
            "the process has ended:\n{}",
            self.output()
        );
        // The shell's own `kill`, which every system has; the id cannot belong to another process, since it was not waited for yet.
        let id = self.id().to_string();
        let sent = Command::new("sh")
            .args(["-c", r#"kill -s "$1" "$2""#, "sh", name, &id])
            .status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "cannot send {name} to {id}"
        );
    }

    /// Its exit status, if it has exited.
    ///
    /// # Panics
    ///
    /// When the system does not know the process.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Waits until it has exited and all its output is read. Blocks the thread.
    ///
    /// # Panics
    ///
    /// When it does not exit within a minute; the message has the output.
    pub fn wait(&mut self) -> ExitStatus {
        let mut left = HANG;
        let status = loop {
            if let Some(status) = self.has_ended() {
                break status;
            }
            assert!(
                !left.is_zero(),
                "the process does not end:\n{}",
                self.output()
            );
            #[expect(
                clippy::disallowed_methods,
                reason = "the end of a child has no event that can be waited for with a limit"
            )]
            thread::sleep(POLL);
            left = left.saturating_sub(POLL);
        };
        for reader in self.readers.drain(..) {
            // It ends with its pipe.
            let _ = reader.join();
        }
        status
    }

    /// Kills it (`SIGKILL`) and waits for its exit: a crash, as far as its files are concerned.
    pub fn kill(&mut self) {
        // Fails when it has exited already, which is the intended state.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Output {
    fn text(&self) -> std::sync::MutexGuard<'_, Text> {
        self.state.lock().expect("readers do not panic")
    }

    fn read(
        self: Arc<Self>,
        pipe: Box<dyn Read + Send>,
        log: Option<Arc<File>>,
    ) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            let mut pipe = BufReader::new(pipe);
            let mut line = Vec::new();
            while matches!(pipe.read_until(b'\n', &mut line), Ok(1..)) {
                if let Some(mut log) = log.as_deref() {
                    log.write_all(&line)
                        .expect("the folder of TOLLGATE_TEST_LOGS takes files");
                }
                self.text()
                    .lines
                    .push(String::from_utf8_lossy(&line).into_owned());
                self.changed.notify_all();
                line.clear();
            }
            self.text().open -= 1;
            self.changed.notify_all();
        })
    }
}

/// The file for the output of process `id`; `None` without the variable.
fn log(id: u32) -> Option<Arc<File>> {
    #[expect(clippy::disallowed_methods, reason = "a setting of the test run")]
    let folder = std::env::var_os("TOLLGATE_TEST_LOGS")?;
    let path = Path::new(&folder).join(format!("process-{id}.log"));
    let file = OpenOptions::new().create(true).append(true).open(path);
    Some(Arc::new(
        file.expect("the folder of TOLLGATE_TEST_LOGS takes files"),
    ))
}
