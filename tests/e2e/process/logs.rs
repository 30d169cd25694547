//! Logs with a slow, blocked or missing reader, with a full disk, and with a rotated file. No client waits for a log.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde_json::Value;
use tollgate::config::{AccessLog, ClientAddressForm, LogFormat, LogLevel, Telemetry};
use tollgate_testing::{Client, Script, within};

use super::installation::{Installation, ended, metric};
use crate::rig::{CHAT, chat, poll, poll_mut};

const DROPPED_DIAGNOSTICS: &str = "tollgate_log_lines_dropped_total{log=\"diagnostics\"}";
const SUPPRESSED: &str = "tollgate_log_lines_suppressed_total";

/// The program with an output under the control of the test.
struct Unread {
    child: Child,
    url: String,
    tls_address: String,
    admin_url: String,
}

impl Unread {
    /// Starts `command` and reads the diagnostics from `lines` until the program serves.
    async fn start(mut command: Command, lines: impl Read + Send + 'static) -> Unread {
        let child = command.stdin(Stdio::null()).spawn();
        // The far ends of the pipes belong to the child alone.
        drop(command);
        let reading = tokio::task::spawn_blocking(move || {
            let mut lines = BufReader::new(lines).lines();
            let mut address = |words: &str| {
                let mut of = lines.by_ref().map_while(Result::ok);
                let line = of.find(|line| line.contains(words));
                let line = line.unwrap_or_else(|| panic!("no line with `{words}`"));
                let address = line.split("address=").nth(1).expect("an address");
                address.split(' ').next().expect("a word").to_owned()
            };
            ["tls=false", "tls=true", "health and metrics"].map(&mut address)
        });
        let [plain, tls_address, admin] = within("the start of the program", reading)
            .await
            .expect("the program serves");
        Unread {
            child: child.expect("the program starts"),
            url: format!("http://{plain}"),
            tls_address,
            admin_url: format!("http://{admin}"),
        }
    }

    fn client(&self, installation: &Installation) -> Client {
        Client::new(&self.url).with_key(&installation.key)
    }

    async fn metric(&self, name: &str) -> u64 {
        metric(&self.admin_url, name).await
    }

    /// Asks the program to end and waits for the end.
    async fn end(&mut self) -> ExitStatus {
        let id = self.child.id().to_string();
        let sent = Command::new("sh")
            .args(["-c", "kill -s TERM \"$0\"", &id])
            .status();
        assert!(sent.expect("a shell").success());
        ended_child(&mut self.child).await
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // The child has ended already, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn ended_child(child: &mut Child) -> ExitStatus {
    let mut status = None;
    let wait = poll_mut(|| {
        status = child.try_wait().expect("a child of this process");
        status.is_some()
    });
    within("the end of the program", wait).await;
    status.expect("it has ended")
}

/// An output for a child, and the reading end.
fn output() -> (UnixStream, UnixStream) {
    UnixStream::pair().expect("a pair of sockets")
}

fn stdio(end: UnixStream) -> Stdio {
    Stdio::from(OwnedFd::from(end))
}

/// Fills an output until the output takes no more bytes.
fn fill(mut end: &UnixStream) {
    end.set_nonblocking(true).expect("a socket");
    let full = loop {
        if let Err(error) = end.write(&[b'x'; 4096]) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    end.set_nonblocking(false).expect("a socket");
}

/// A program with diagnostics read only until the program serves, and the reading end.
async fn blocked_diagnostics(installation: &Installation) -> (Unread, UnixStream) {
    let (theirs, ours) = output();
    let full = theirs.try_clone().expect("a socket");
    let unread = ours.try_clone().expect("a socket");
    let mut command = installation.command(&["serve"]);
    command.stderr(stdio(theirs)).stdout(Stdio::null());
    let serving = Unread::start(command, ours).await;
    fill(&full);
    (serving, unread)
}

/// Has the workers write diagnostics until lines are dropped. Meanwhile the workers answer.
async fn overflow(serving: &Unread, installation: &Installation) {
    let client = serving.client(installation);
    while serving.metric(DROPPED_DIAGNOSTICS).await == 0 {
        // A failed handshake is a line at the level `debug`. The level has no limit.
        let address = serving.tls_address.clone();
        let strangers = tokio::task::spawn_blocking(move || {
            let connect = |_| TcpStream::connect(&address).expect("it listens");
            let mut strangers: Vec<_> = (0..200).map(connect).collect();
            for stranger in &mut strangers {
                stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
            }
            for mut stranger in strangers {
                // An alert or a reset: the connection is closed.
                let _ = stranger.read_to_end(&mut Vec::new());
            }
        });
        within("the end of the handshakes", strangers)
            .await
            .expect("they are closed");
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

const VERBOSE: &str = "[telemetry]\nlog_level = \"debug\"\naccess_log = \"none\"";

#[tokio::test]
async fn a_blocked_reader_of_the_diagnostics_costs_their_lines_and_nothing_else() {
    let installation = Installation::new(VERBOSE).await;
    let (mut serving, unread) = blocked_diagnostics(&installation).await;
    overflow(&serving, &installation).await;
    let live = Client::new(&serving.admin_url).get("/live").await;
    assert_eq!(live.status, 200);
    assert_eq!(serving.end().await.code(), Some(0));
    drop(unread);
}

#[tokio::test]
async fn dropped_lines_are_reported_when_the_reader_reads_again() {
    let installation = Installation::new(VERBOSE).await;
    let (mut serving, unread) = blocked_diagnostics(&installation).await;
    overflow(&serving, &installation).await;
    let reading = tokio::task::spawn_blocking(move || {
        let lines = BufReader::new(unread).lines().map_while(Result::ok);
        let is_it = |line: &String| line.contains("dropped log lines");
        lines.filter(is_it).collect::<Vec<_>>()
    });
    assert_eq!(serving.end().await.code(), Some(0));
    let reports = within("the rest", reading).await.expect("lines");
    assert!((1..3).contains(&reports.len()), "{reports:?}");
    assert!(
        reports[0].contains("log=\"diagnostics\" lines="),
        "{reports:?}"
    );
}

#[tokio::test]
async fn a_reader_of_the_diagnostics_that_has_left_costs_their_lines_and_nothing_else() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let (theirs, ours) = output();
    let mut command = installation.command(&["serve"]);
    command.stderr(stdio(theirs)).stdout(Stdio::null());
    // The reader is gone as soon as the program serves.
    let mut serving = Unread::start(command, ours).await;
    installation.provider.script(Script::status(500));
    let client = serving.client(&installation);
    for _ in 0..20 {
        assert!(client.post(CHAT, &chat(false)).await.status >= 500);
    }
    let url = serving.admin_url.clone();
    let counted = async { while metric(&url, DROPPED_DIAGNOSTICS).await == 0 {} };
    within("the count of dropped lines", counted).await;
    installation.provider.clear_scripts();
    assert_eq!(serving.end().await.code(), Some(0));
}

#[tokio::test]
async fn a_blocked_reader_of_the_access_log_keeps_neither_clients_nor_the_end() {
    let installation = Installation::new("[telemetry]\naccess_log = \"stdout\"").await;
    let (theirs, unread) = output();
    fill(&theirs);
    let (diagnostics, ours) = output();
    let mut command = installation.command(&["serve"]);
    command.stdout(stdio(theirs)).stderr(stdio(diagnostics));
    let mut rest = ours.try_clone().expect("a socket");
    let mut serving = Unread::start(command, ours).await;
    let client = serving.client(&installation);
    for _ in 0..20 {
        assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
    }
    assert_eq!(serving.end().await.code(), Some(0));
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    assert!(
        said.contains("log lines not written at shutdown") && said.contains("lines=20"),
        "{said}"
    );
    assert!(said.contains("stopped"), "{said}");
    drop(unread);
}

#[tokio::test]
async fn a_failed_start_exits_although_its_output_is_blocked() {
    let installation = Installation::new("").await;
    std::fs::write(&installation.config, "[server]\nworkers = 0\n").expect("written");
    let (theirs, unread) = output();
    fill(&theirs);
    let mut command = installation.command(&["serve"]);
    command.stderr(stdio(theirs)).stdout(Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    assert_eq!(ended_child(&mut child).await.code(), Some(1));
    drop(unread);
}

#[tokio::test]
async fn an_access_log_on_a_full_disk_is_reported_once_and_requests_go_on() {
    let installation = Installation::new("[telemetry]\naccess_log = \"/dev/full\"").await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    for _ in 0..50 {
        assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
    }
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    let reports: Vec<_> = output
        .lines()
        .filter(|line| line.contains("writing log failed"))
        .collect();
    assert_eq!(reports.len(), 1, "{output}");
    assert!(reports[0].contains("log=\"access\""), "{output}");
    assert!(reports[0].contains("No space left"), "{output}");
    let lost = "log lines not written at shutdown";
    let lost = output.lines().find(|line| line.contains(lost));
    assert!(
        lost.is_some_and(|line| line.contains("lines=50")),
        "{output}"
    );
}

/// The whole lines of an access log.
fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    assert!(text.is_empty() || text.ends_with('\n'), "{path:?}: {text}");
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[tokio::test]
async fn rotating_the_access_log_with_and_without_a_signal_loses_and_cuts_no_line() {
    const REQUESTS: usize = 300;
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let path = installation.folder.path().join("access.log");
    let mut tasks = Vec::new();
    for lane in 0..3 {
        let client = serving.client(&installation);
        tasks.push(tokio::spawn(async move {
            for number in 0..REQUESTS / 3 {
                let mut request = client.request("POST", CHAT, chat(false).to_string().into());
                let id = format!("{lane}-{number}").try_into().expect("a header");
                request.headers_mut().insert("x-request-id", id);
                assert_eq!(client.send(request).await.status, 200);
            }
        }));
    }
    let mut rotated = Vec::new();
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        let has_lines = || std::fs::metadata(&path).is_ok_and(|found| found.len() > 0);
        let done = || tasks.iter().all(tokio::task::JoinHandle::is_finished);
        within("lines", poll(|| has_lines() || done())).await;
        if !has_lines() {
            break;
        }
        let aside = path.with_extension(format!("log.{}", rotated.len() + 1));
        std::fs::rename(&path, &aside).expect("renamed");
        rotated.push(aside);
        if rotated.len() % 2 == 0 {
            serving.process.signal("HUP");
        }
    }
    for task in tasks {
        task.await.expect("every request is answered");
    }
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    assert!(rotated.len() >= 2, "rotated {} times", rotated.len());
    rotated.push(path);
    let mut seen = BTreeMap::<String, u32>::new();
    for line in rotated.iter().flat_map(|path| lines(path)) {
        let id = line["client_request_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        *seen.entry(id).or_default() += 1;
    }
    assert_eq!(seen.len(), REQUESTS);
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
}

#[tokio::test]
async fn a_hangup_reopens_the_access_log_at_once_and_ends_nothing() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let client = serving.client(&installation);
    let path = installation.folder.path().join("access.log");
    let aside = installation.folder.path().join("access.log.1");
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
    within("the first line", poll(|| lines(&path).len() == 1)).await;
    std::fs::rename(&path, &aside).expect("renamed");
    serving.process.signal("HUP");
    // Without any request: the rotation may pack the old file.
    within("the new file", poll(|| path.exists())).await;
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
    within("the new file's line", poll(|| lines(&path).len() == 1)).await;
    assert_eq!(lines(&aside).len(), 1);
    // After copy and truncation, writing continues at the new end.
    let file = std::fs::OpenOptions::new().write(true).open(&path);
    file.and_then(|file| file.set_len(0)).expect("truncated");
    assert_eq!(client.post(CHAT, &chat(false)).await.status, 200);
    within("the line after that", poll(|| lines(&path).len() == 1)).await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
}

#[tokio::test]
async fn a_thousand_failed_requests_are_some_lines_and_the_number_of_the_others() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    installation.provider.script(Script::status(500));
    let client = serving.client(&installation);
    for _ in 0..1000 {
        assert!(client.post(CHAT, &chat(false)).await.status >= 500);
    }
    let suppressed = serving.metric(SUPPRESSED).await;
    assert!(suppressed > 900, "{suppressed} lines were suppressed");
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    let all: Vec<&str> = output.lines().collect();
    // A burst of a few kinds of lines, and a line a second for the duration.
    assert!(all.len() < 120, "{} lines:\n{output}", all.len());
    let reports = all
        .iter()
        .filter(|line| line.contains("suppressed log lines"));
    let reported = reports.map(|line| {
        let number = line.split("lines=").nth(1).expect("a number");
        number
            .split(' ')
            .next()
            .expect("a word")
            .parse::<u64>()
            .expect("a number")
    });
    assert_eq!(reported.sum::<u64>(), suppressed, "{output}");
    assert!(output.contains("model provider failed"), "{output}");
    assert!(output.contains("stopped"), "{output}");
}

/// Set for the panicking process.
const PANICS: &str = "TOLLGATE_TEST_PANICS";

#[test]
fn a_panic_is_a_line_of_the_diagnostics_even_where_it_ends_the_process() {
    #[expect(clippy::disallowed_methods, reason = "the child's orders")]
    let is_child = std::env::var_os(PANICS).is_some();
    if is_child {
        let diagnostics = tollgate::telemetry::diagnostics(&Telemetry {
            log_format: LogFormat::Json,
            log_level: LogLevel::Warn,
            access_log: AccessLog::None,
            access_sample: 1.0,
            client_address: ClientAddressForm::None,
            otlp: None,
        });
        let _diagnostics = diagnostics.expect("once in this process");
        let panicked = std::thread::Builder::new()
            .name("clumsy".to_owned())
            .spawn(|| panic!("out of {}", "luck"))
            .expect("a thread")
            .join();
        assert!(panicked.is_err());
        std::process::abort();
    }
    let name = "process::logs::a_panic_is_a_line_of_the_diagnostics_even_where_it_ends_the_process";
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", name, "--nocapture"])
        .env(PANICS, "1")
        .output()
        .expect("it runs");
    assert!(!child.status.success(), "it aborts");
    let said = String::from_utf8_lossy(&child.stderr);
    let line = said.lines().find(|line| line.contains("thread panicked"));
    let line = line.unwrap_or_else(|| panic!("no line in:\n{said}"));
    let line: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(line["cause"], "out of luck");
    assert_eq!(line["thread"], "clumsy");
    let place = line["location"].as_str().expect("a place");
    assert!(place.contains("logs.rs"), "{place}");
}
