//! Programs under test: started, watched, signalled, and never left behind.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use crate::guard::HANG;

/// How often a process is asked whether it has ended; its end cannot be waited for with a limit otherwise.
const POLL: Duration = Duration::from_millis(5);

/// A child process whose output is kept. It is killed by its id when this is dropped.
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
    /// Starts `command` with its standard output and its standard error kept, line by line, in the order they come.
    ///
    /// Both also go to a file in the folder that the variable `TOLLGATE_TEST_LOGS` names, where that is set: whoever runs the
    /// tests looks there for secrets. Left out is the standard output of commands that show a new key on purpose.
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

    /// All it has printed so far.
    pub fn output(&self) -> String {
        self.output.text().lines.concat()
    }

    /// The first line it prints that `is_it` says yes to, those printed already included. Blocks the thread.
    ///
    /// # Panics
    ///
    /// When the process ends without it, or it does not come within a minute; the message has the output.
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
    /// When the process has ended and was waited for, or there is no such signal.
    pub fn signal(&mut self, name: &str) {
        assert!(
            self.has_ended().is_none(),
            "the process has ended:\n{}",
            self.output()
        );
        // The shell's own `kill`, which every system has; the id cannot belong to another, since nobody has waited yet.
        let id = self.id().to_string();
        let sent = Command::new("sh")
            .args(["-c", r#"kill -s "$1" "$2""#, "sh", name, &id])
            .status();
        assert!(
            sent.is_ok_and(|status| status.success()),
            "cannot send {name} to {id}"
        );
    }

    /// How it ended, if it has.
    ///
    /// # Panics
    ///
    /// When the system does not know the process.
    pub fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of this process")
    }

    /// Waits until it has ended and all its output is read. Blocks the thread.
    ///
    /// # Panics
    ///
    /// When it does not end within a minute; the message has the output.
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

    /// Kills it (`SIGKILL`) and waits for its end: a crash, as far as its files are concerned.
    pub fn kill(&mut self) {
        // Fails when it has ended already, which is what was wanted.
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

/// The file that the output of process `id` is added to; none where nobody asked for it.
fn log(id: u32) -> Option<Arc<File>> {
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever runs the tests says so in the environment"
    )]
    let folder = std::env::var_os("TOLLGATE_TEST_LOGS")?;
    let path = Path::new(&folder).join(format!("process-{id}.log"));
    let file = OpenOptions::new().create(true).append(true).open(path);
    Some(Arc::new(
        file.expect("the folder of TOLLGATE_TEST_LOGS takes files"),
    ))
}
