//! Fatal errors at start and at run time: an error has a message with a remedy, and exit code 1.

use rusqlite::Connection;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tollgate_store::sqlite;
use tollgate_testing::{Event, Script, within};

use super::installation::{Installation, Serving, ended};
use super::upgrade::Successor;
use crate::rig::{CHAT, audited, chat, micros};

/// Fails unless the program exits with 1 and the output has every word.
async fn fails_with(installation: &Installation, what: &str, words: &[&str]) {
    let (status, output) = installation.fail().await;
    assert_eq!(status.code(), Some(1), "{what}:\n{output}");
    for word in words {
        assert!(output.contains(word), "{what}: no `{word}` in:\n{output}");
    }
    assert!(!output.contains("panicked"), "{what}:\n{output}");
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_named_with_what_to_do() {
    let installation = Installation::new("").await;
    let path = installation.database();
    let copy = installation.folder.path().join("copy.db");
    installation.run(&["backup", &copy.to_string_lossy()]).await;
    let good = std::fs::read(&copy).expect("the copy");
    let put = |bytes: &[u8]| {
        for beside in ["-wal", "-shm"] {
            let mut name = path.clone().into_os_string();
            name.push(beside);
            // The file may be missing.
            let _ = std::fs::remove_file(name);
        }
        std::fs::write(&path, bytes).expect("written");
    };
    let name = path.to_string_lossy().into_owned();
    let backup = "put a backup in its place";
    let connection = Connection::open(&copy).expect("a database");
    // A schema that the release cannot use.
    let raised = "UPDATE meta SET v = CAST((SELECT v FROM meta WHERE k = 'schema') + 1 AS TEXT) WHERE k IN ('schema', 'compatible')";
    connection.execute(raised, []).expect("a schema number");
    connection.close().expect("closed");
    let later = std::fs::read(&copy).expect("the copy");
    let other = b"Dear diary, today I became a database.".to_vec();
    for (what, bytes, words) in [
        ("half of it", good[..good.len() / 2].to_vec(), backup),
        ("its first bytes", good[..100].to_vec(), backup),
        ("another file", other, backup),
        ("a later version", later, "run the version that wrote it"),
    ] {
        put(&bytes);
        fails_with(&installation, what, &[&name, words]).await;
    }
    put(&good);
    let mut serving = installation.serve().await;
    let answer = serving.client(&installation).get("/v1/models").await;
    assert_eq!(answer.status, 200, "the copy is as good");
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
}

#[tokio::test]
async fn a_second_gateway_on_the_same_database_is_refused_and_the_first_goes_on() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let holder = format!("process {}", serving.process.id());
    fails_with(
        &installation,
        "a second gateway",
        &["is in use by", &holder, "stop that gateway first"],
    )
    .await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    audited(&installation.database());
}

/// The reader of the script closes the pipe before the program writes, like `head` after the last line.
#[test]
fn a_completion_script_that_is_read_in_part_is_no_failure() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["completions", "bash"]).stdout(writer);
    let ended = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), &*said), (Some(0), ""));
}

#[tokio::test]
async fn the_accept_queue_of_each_listener_is_as_set_and_one_that_the_system_cuts_is_reported() {
    let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a limit");
    let allowed: u32 = allowed.trim().parse().expect("a number");
    for length in [1, 65_535] {
        let installation = Installation::new(&format!("[server]\naccept_queue = {length}")).await;
        let mut serving = installation.serve().await;
        for url in [&serving.url, &serving.tls_url] {
            assert_eq!(accept_queue(url), length.min(allowed), "{url}");
        }
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
        let output = serving.process.output();
        let is_reported = output.contains("accept queue is shorter than configured");
        assert_eq!(is_reported, length > allowed, "{length}: {output}");
    }
}

#[tokio::test]
async fn the_socket_for_relayed_requests_has_the_accept_queue_of_the_listeners() {
    let installation = Installation::new("[server]\naccept_queue = 77").await;
    let serving = installation.serve().await;
    // The relay exists for as long as the first process has open requests.
    installation.provider.script(Script::pace("piece").once());
    installation.provider.gate("piece").release(1);
    let client = serving.client(&installation);
    let stream = client.stream(CHAT, &chat(true)).await;
    assert_eq!(stream.status, 200);
    let successor = Successor::of(&installation).await;
    let owner = format!("pid={},", successor.0);
    let sockets = listening(&["-p"]);
    let own = sockets.lines().filter(|line| line.contains(&owner));
    // Without TLS, with TLS, and the relay; the admin address has another.
    let as_set = own.filter(|line| queue(line) == 77).count();
    assert_eq!(as_set, 3, "{sockets}");
    installation.provider.gate("piece").open();
    stream.whole().await;
    drop(client);
    successor.stop().await;
}

/// The accept queue of a listening socket, as reported by the system.
fn accept_queue(url: &str) -> u32 {
    let port = url.rsplit(':').next().expect("a port");
    queue(&listening(&[&format!("sport = :{port}")]))
}

fn listening(args: &[&str]) -> String {
    let mut command = std::process::Command::new("ss");
    let shown = command.arg("-ltnH").args(args).output();
    String::from_utf8(shown.expect("`ss` of iproute2").stdout).expect("text")
}

/// `ss` shows the accept queue in the column of the send queue.
fn queue(socket: &str) -> u32 {
    let queue = socket.split_whitespace().nth(2).expect("a socket");
    queue.parse().expect("a number")
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address");
    let installation = Installation::new(&format!("[[listener]]\naddress = \"{address}\"")).await;
    fails_with(
        &installation,
        "a port that is taken",
        &[&address.to_string(), "is another program using it"],
    )
    .await;
}

#[tokio::test]
async fn settings_that_are_wrong_are_all_named_at_once() {
    let installation = Installation::new("").await;
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let broken = text
        .replace("workers = 1", "workers = 0")
        .replace("\"sqlite:", "\"mysql:");
    std::fs::write(&installation.config, broken).expect("written");
    fails_with(
        &installation,
        "two mistakes",
        &["server.workers", "store.url"],
    )
    .await;
}

/// The shell limits the size of the program's files: a real write fails like a write on a full disk.
#[tokio::test]
async fn a_full_disk_stops_the_process_and_nothing_undurable_was_delivered() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    // In units of 512 bytes. The signal that would end the process is turned into an error of the write.
    let full = installation.command_after("trap '' XFSZ; ulimit -f 2048", &["serve"]);
    let mut serving = installation.serve_as(full).await;
    // An open read transaction blocks the checkpoint: the commit of a request finds the disk full, instead of the checkpoint. The
    // checkpoint could run after every client has a response.
    let reader = sqlite::open_read(&installation.database()).expect("the store opens");
    let view = reader.snapshot().expect("a view");
    let clients = [
        serving.client(&installation),
        serving.client(&installation).with_http2(),
    ];
    let (mut delivered, mut refused) = (0, 0);
    for client in clients.iter().cycle() {
        if serving.process.has_ended().is_some() {
            break;
        }
        let request = client.request("POST", CHAT, chat(false).to_string().into());
        let Ok(answer) = client.try_send(request).await else {
            continue;
        };
        match answer.status {
            200 => delivered += micros(&answer.json()["x_svc"]["credits_used"]),
            503 => {
                assert_eq!(answer.json()["error"]["code"], "store_unavailable");
                refused += 1;
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    drop(view);
    let status = ended(&mut serving.process).await;
    let output = serving.process.output();
    assert_eq!(status.code(), Some(1), "{output}");
    assert!(output.contains("store failed"), "{output}");
    assert!(
        delivered > 0,
        "the disk was full before the first request:\n{output}"
    );
    assert!(refused > 0, "requests were open at the failure");
    // With free space the gateway recovers at the next start, with exactly the charges received by clients.
    let mut serving = installation.serve().await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let report = audited(&installation.database());
    assert_eq!(report.sums.spent.get(), delivered);
}

#[tokio::test]
async fn a_full_disk_cuts_streams_before_their_tail() {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let full = installation.command_after("trap '' XFSZ; ulimit -f 2048", &["serve"]);
    let mut serving = installation.serve_as(full).await;
    installation
        .provider
        .script(Script::hold(9, "middle").times(2));
    let mut streams = Vec::new();
    for client in [
        serving.client(&installation),
        serving.client(&installation).with_http2(),
    ] {
        let mut stream = client.stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("the role");
        streams.push(stream);
    }
    installation.provider.gate("middle").reached_by(2).await;
    let client = serving.client(&installation);
    loop {
        let request = client.request("POST", CHAT, chat(false).to_string().into());
        match client.try_send(request).await {
            Ok(answer) if answer.status == 200 => {}
            _ => break,
        }
    }
    installation.provider.gate("middle").open();
    for mut stream in streams {
        let (events, _) = stream.rest().await;
        assert!(
            events.iter().all(|event| !event.is_done()),
            "a stream whose charge is nowhere looks whole"
        );
    }
    assert_eq!(ended(&mut serving.process).await.code(), Some(1));
}

/// The ending of a stream on a disk that becomes full.
#[derive(Clone, Copy, Debug, PartialEq)]
enum OnFullDisk {
    /// The stream's hold was not written: 503.
    BeforeTheFirstByte,
    /// The stream's charge was not written: an error event.
    BeforeTheTail,
}

/// Fills the disk at a moment of a stream: before its hold, or between its hold and its charge. Returns the ending of the stream, after a
/// check of the earlier charges. `None` if another write was the first to fail.
async fn fill_at(moment: OnFullDisk) -> Option<OnFullDisk> {
    let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
    let limited = installation.command_after("trap '' XFSZ", &["serve"]);
    let mut serving = installation.serve_as(limited).await;
    // A reader, so that the log of the database grows.
    let reader = sqlite::open_read(&installation.database()).expect("the store opens");
    let view = reader.snapshot().expect("a view");
    let client = serving.client(&installation);
    let mut log = installation.database().into_os_string();
    log.push("-wal");
    let log_bytes = || std::fs::metadata(&log).expect("the log").len();
    let mut delivered = 0;
    // A log that was written from its start again does not grow at once.
    for grows in [false, true, true] {
        let before = log_bytes();
        loop {
            let (events, _) = client.stream(CHAT, &chat(true)).await.rest().await;
            let [.., last, done] = &events[..] else {
                panic!("no tail");
            };
            assert!(done.is_done(), "{}", done.data());
            delivered += micros(&last.json()["x_svc"]["credits_used"]);
            if !grows || log_bytes() > before {
                break;
            }
        }
    }
    let fill = |serving: &Serving| {
        let bytes = Some(log_bytes());
        let process = i32::try_from(serving.process.id()).expect("a process id");
        let limit = Rlimit {
            current: bytes,
            maximum: bytes,
        };
        prlimit(Pid::from_raw(process), Resource::Fsize, limit).expect("a limit");
    };
    let is_before_the_tail = moment == OnFullDisk::BeforeTheTail;
    if is_before_the_tail {
        installation.provider.script(Script::hold(9, "middle"));
    } else {
        fill(&serving);
    }
    let request = client.request("POST", CHAT, chat(true).to_string().into());
    let ending = match client.try_stream(request).await {
        Err(_) => None,
        Ok(answer) if answer.status != 200 => {
            let answer = answer.whole().await;
            assert_eq!(answer.status, 503, "{}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "store_unavailable");
            Some(OnFullDisk::BeforeTheFirstByte)
        }
        Ok(mut stream) => {
            assert!(is_before_the_tail, "its hold is durable");
            installation.provider.gate("middle").reached_by(1).await;
            fill(&serving);
            installation.provider.gate("middle").open();
            let (events, _) = stream.rest().await;
            assert!(events.iter().all(|event| !event.is_done()));
            let last = events.last();
            let is_refused = |event: &Event| event.data().contains("store_unavailable");
            last.is_some_and(is_refused)
                .then_some(OnFullDisk::BeforeTheTail)
        }
    };
    drop(view);
    assert_eq!(ended(&mut serving.process).await.code(), Some(1));
    let mut serving = installation.serve().await;
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let report = audited(&installation.database());
    assert_eq!(report.sums.spent.get(), delivered, "{ending:?}");
    ending
}

#[tokio::test]
async fn a_full_disk_refuses_a_stream_before_its_first_byte_or_ends_it_before_its_tail() {
    for moment in [OnFullDisk::BeforeTheFirstByte, OnFullDisk::BeforeTheTail] {
        // The record of the credential's last use may be the first write to fail, and end the process before the stream.
        let seen = async { while fill_at(moment).await != Some(moment) {} };
        within("the ending of the stream", seen).await;
    }
}
