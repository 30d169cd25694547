//! The admin thread over real sockets.

mod beyond_loopback;

use std::any::Any;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_clock::Clock;
use tollgate_module::Declarations;

use super::control::{ControlError, request};
use super::operations::operation::{Applied, Request};
use super::operations::{cache, credits, key};
use super::*;
use crate::config::{self, Environment};

/// Applies or refuses changes without a store.
struct StubService;

impl Changes for StubService {
    fn apply(&self, request: Box<dyn Request>, _: Caller) -> ApplyFuture<'_> {
        let request: Box<dyn Any> = request;
        let answer = if let Some(grant) = request.downcast_ref::<credits::Grant>() {
            Ok(Applied::of::<credits::Grant>(credits::Booking {
                operation: "req_1".to_owned(),
                repeated: false,
                available: grant.amount.clone(),
            }))
        } else if let Some(key::Revoke { key }) = request.downcast_ref() {
            Err(ChangeError::conflict(format!("there is no key `{key}`")))
        } else if request.is::<cache::Purge>() {
            Ok(Applied::of::<cache::Purge>(cache::Purged { removed: 0 }))
        } else {
            Ok(Applied::of::<cache::Show>(cache::CacheState {
                entries: 0,
                bytes: 0,
                bytes_max: 0,
                waiting: 0,
                hits: 0,
                misses: 0,
                stored: 0,
                evicted: 0,
            }))
        };
        Box::pin(std::future::ready(answer))
    }
}

struct TestAdmin {
    admin: Admin,
    folder: tempfile::TempDir,
    ready: Arc<AtomicBool>,
    stuck: Stuck,
}

/// The unresponsive workers, of four workers.
type Stuck = Arc<Mutex<Vec<usize>>>;

impl TestAdmin {
    fn new() -> TestAdmin {
        let folder = tempfile::tempdir().expect("a folder");
        let ready = Arc::new(AtomicBool::new(true));
        let stuck = Stuck::default();
        let socket = folder.path().join("t.db.sock");
        TestAdmin {
            admin: start(&socket, ready.clone(), stuck.clone()).expect("it starts"),
            folder,
            ready,
            stuck,
        }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("t.db.sock")
    }

    fn get(&self, line: &str) -> String {
        self.get_from(line, "host: localhost\r\n")
    }

    fn get_from(&self, line: &str, fields: &str) -> String {
        let answer = self.bytes_from(line, fields);
        String::from_utf8(answer).expect("UTF-8")
    }

    fn bytes_from(&self, line: &str, fields: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.admin.address()).expect("it listens");
        write!(
            stream,
            "{line} HTTP/1.1\r\n{fields}connection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        answer
    }
}

pub(super) fn default_settings() -> config::Settings {
    let (file, modules) = (Path::new("t.toml"), Declarations::default());
    let read = config::load_text(file, "", &Environment::default(), &modules);
    read.expect("defaults are good")
}

fn start(socket: &Path, ready: Arc<AtomicBool>, stuck: Stuck) -> Result<Admin, AdminError> {
    start_with(socket, ready, stuck, |_| {})
}

/// Starts with settings of access changed by `change`. The address is a loopback address in any case.
fn start_with(
    socket: &Path,
    ready: Arc<AtomicBool>,
    stuck: Stuck,
    change: impl FnOnce(&mut config::Admin),
) -> Result<Admin, AdminError> {
    let mut settings = default_settings();
    change(&mut settings.admin);
    Admin::start(Options {
        adopted: None,
        address: "127.0.0.1:0".parse().expect("an address"),
        socket: socket.to_owned(),
        telemetry: Telemetry::with_log(&settings, Clock::system(), None).expect("it starts"),
        liveness: Box::new(move || {
            let unresponsive = stuck.lock().expect("not poisoned").clone();
            Box::pin(async move {
                Workers {
                    all: 4,
                    unresponsive,
                }
            })
        }),
        readiness: Box::new(move || Ready {
            reasons: if ready.load(Ordering::SeqCst) {
                Vec::new()
            } else {
                vec!["draining".to_owned()]
            },
            warnings: vec!["store.durability".to_owned()],
        }),
        providers: Arc::new(|| serde_json::json!([{"name": "local", "state": "working"}])),
        service: Arc::new(StubService),
        access: Arc::new(Access::new(&settings.admin, Clock::system())),
        api: None,
    })
}

#[test]
fn health_and_metrics_answer_on_loopback() {
    let fixture = TestAdmin::new();
    assert!(fixture.get("GET /live").starts_with("HTTP/1.1 200 "));
    let metrics = fixture.get("GET /metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
    assert!(
        metrics.contains("tollgate_build_info{commit=\"\",version="),
        "{metrics}"
    );
    assert!(
        metrics.contains("tollgate_resident_memory_bytes "),
        "{metrics}"
    );
    let providers = fixture.get("GET /providers");
    assert!(providers.contains(r#""name":"local""#), "{providers}");
    assert!(fixture.get("GET /").starts_with("HTTP/1.1 404 "));
    let refused = fixture.get("POST /ready");
    assert!(refused.starts_with("HTTP/1.1 405 "), "{refused}");
    assert!(refused.contains("allow: GET, HEAD"), "{refused}");
    assert!(
        fixture.get("HEAD /metrics").ends_with("\r\n\r\n"),
        "no body"
    );
}

#[test]
fn metrics_are_compressed_for_a_scraper_that_accepts_gzip() {
    let fixture = TestAdmin::new();
    let plain = fixture.get("GET /metrics");
    let fields = "host: localhost\r\naccept-encoding: gzip;q=0.9, identity;q=0.1\r\n";
    let answer = fixture.bytes_from("GET /metrics", fields);
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let (head, body) = answer.split_at(end.expect("a head") + 4);
    let head = String::from_utf8_lossy(head);
    for field in ["content-encoding: gzip\r\n", "vary: accept-encoding\r\n"] {
        assert!(head.contains(field), "{head}");
    }
    assert!(plain.contains("vary: accept-encoding\r\n") && !plain.contains("content-encoding"));
    assert!(body.len() < plain.len() / 2, "{} bytes", body.len());
    let mut metrics = String::new();
    let mut decoder = flate2::read::GzDecoder::new(body);
    decoder.read_to_string(&mut metrics).expect("gzip");
    assert!(metrics.contains("tollgate_build_info{"), "{metrics}");
}

#[test]
fn a_scrape_takes_the_place_of_a_connection_that_was_answered() {
    let fixture = TestAdmin::new();
    let connect = || TcpStream::connect(fixture.admin.address()).expect("it listens");
    // A connection is answered before the next connection comes.
    let taken: Vec<TcpStream> = std::iter::repeat_with(|| {
        let mut stream = connect();
        write!(stream, "GET /nothing HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("sent");
        stream.read_exact(&mut [0]).expect("an answer");
        stream
    })
    .take(64)
    .collect();
    let mut scrape = connect();
    write!(
        scrape,
        "GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    scrape.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    drop(taken);
}

#[test]
fn readiness_gives_its_reasons() {
    let fixture = TestAdmin::new();
    let ready = fixture.get("GET /ready");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    assert!(ready.contains("store.durability"), "{ready}");
    fixture.ready.store(false, Ordering::SeqCst);
    let refused = fixture.get("GET /ready");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    assert!(refused.contains(r#""reasons":["draining"]"#), "{refused}");
}

#[test]
fn unresponsive_workers_are_named_and_readiness_fails_when_all_are() {
    let fixture = TestAdmin::new();
    let stick = |numbers: &[usize]| {
        *fixture.stuck.lock().expect("not poisoned") = numbers.to_vec();
    };
    stick(&[1, 3]);
    let refused = fixture.get("GET /live");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    let words = "2 of 4 workers do not answer: worker-1, worker-3";
    assert!(refused.ends_with(&format!("{words}\n")), "{refused}");
    let ready = fixture.get("GET /ready");
    assert!(ready.starts_with("HTTP/1.1 200 "), "{ready}");
    assert!(ready.contains(words), "a warning: {ready}");
    stick(&[0, 1, 2, 3]);
    let refused = fixture.get("GET /ready");
    assert!(refused.starts_with("HTTP/1.1 503 "), "{refused}");
    stick(&[]);
    assert!(fixture.get("HEAD /live").starts_with("HTTP/1.1 200 "));
    assert!(fixture.get("POST /live").starts_with("HTTP/1.1 405 "));
}

#[test]
fn changes_are_answered_and_refusals_keep_their_message() {
    let fixture = TestAdmin::new();
    let grant = credits::Grant {
        account: "acct_1".to_owned(),
        amount: "2.5".to_owned(),
        reference: "r".to_owned(),
    };
    match request(&fixture.socket(), &grant) {
        Ok(credits::Booking { available, .. }) => assert_eq!(available, "2.5"),
        other => panic!("the grant is answered: {other:?}"),
    }
    let revoke = key::Revoke {
        key: "key_9".to_owned(),
    };
    match request(&fixture.socket(), &revoke) {
        Err(ControlError::Refused(words)) => assert_eq!(words, "there is no key `key_9`"),
        other => panic!("the refusal arrives: {other:?}"),
    }
}

#[test]
fn an_unknown_change_is_refused_and_the_next_line_is_read() {
    let fixture = TestAdmin::new();
    let mut stream = std::os::unix::net::UnixStream::connect(fixture.socket()).expect("it listens");
    stream
        .write_all(b"{\"change\":\"unknown\"}\n{\"change\":\"key_revoke\",\"key\":\"k\"}\n")
        .expect("sent");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("half closed");
    let mut answers = String::new();
    stream.read_to_string(&mut answers).expect("answers");
    let lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines.len(), 2, "{answers}");
    assert!(lines[0].contains("does not know"), "{answers}");
    assert!(lines[1].contains("there is no key `k`"), "{answers}");
}

#[test]
fn an_unterminated_line_changes_nothing() {
    let fixture = TestAdmin::new();
    let mut stream = std::os::unix::net::UnixStream::connect(fixture.socket()).expect("it listens");
    stream
        .write_all(b"{\"change\":\"key_revoke\",\"key\":\"k\"}")
        .expect("sent");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("half closed");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("is not terminated"), "{answer}");
}

#[test]
fn the_socket_is_private_to_its_owner_and_removed_with_the_gateway() {
    let fixture = TestAdmin::new();
    let socket = fixture.socket();
    let mode = std::fs::metadata(&socket)
        .expect("it is there")
        .permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let TestAdmin { admin, folder, .. } = fixture;
    drop(admin);
    assert!(!socket.exists(), "the file is gone");
    let change = key::Revoke { key: String::new() };
    assert!(matches!(
        request(&socket, &change),
        Err(ControlError::NoGateway { .. })
    ));
    drop(folder);
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let fixture = TestAdmin::new();
    match start(&fixture.socket(), Arc::default(), Stuck::default()) {
        Err(AdminError::Socket(SocketError::InUse { .. })) => {}
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("a live socket was taken over"),
    }
    let stale = fixture.folder.path().join("stale.sock");
    // A listener dropped without a removal of the file, as after a kill.
    drop(std::os::unix::net::UnixListener::bind(&stale).expect("bound"));
    assert!(stale.exists());
    drop(start(&stale, Arc::default(), Stuck::default()).expect("a stale socket is replaced"));

    let file = fixture.folder.path().join("file.sock");
    std::fs::write(&file, "mine").expect("a file");
    assert!(matches!(
        start(&file, Arc::default(), Stuck::default()),
        Err(AdminError::Socket(SocketError::NotASocket { .. }))
    ));
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "mine");
}

/// A connection from an address of loopback.
async fn connect_from(from: [u8; 4], to: SocketAddr) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind(SocketAddr::from((from, 0)))
        .expect("an address of loopback");
    socket.connect(to).await.expect("it listens")
}

/// 64 idle sockets without a token took every place. `/live` was not answered, and an orchestrator ended a working gateway.
#[tokio::test]
async fn idle_connections_to_the_admin_address_give_way_to_new_ones() {
    let fixture = TestAdmin::new();
    let address = fixture.admin.address();
    let mut idle = Vec::new();
    // A single address has a share of 64 places; several addresses fill the 256 places.
    for host in [1, 1, 1, 1, 2, 3, 4, 5, 6, 7] {
        for _ in 0..64 {
            idle.push(connect_from([127, 0, 0, host], address).await);
        }
    }
    for host in [1, 2, 200] {
        let mut probe = connect_from([127, 0, 0, host], address).await;
        let request = b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut probe, request)
            .await
            .expect("sent");
        let mut answer = String::new();
        let read = tokio::io::AsyncReadExt::read_to_string(&mut probe, &mut answer);
        tollgate_testing::within("an answer", read)
            .await
            .expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
    }
    let metrics = tokio::task::spawn_blocking(move || fixture.get("GET /metrics"));
    let metrics = metrics.await.expect("no panic");
    for reason in ["full", "share"] {
        let series = format!("tollgate_admin_connections_closed_total{{reason=\"{reason}\"}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&series));
        let value: u32 = value.expect("the metric").parse().expect("a number");
        assert!(value >= 192, "{reason}: {value}");
    }
}

/// A page whose name was made to resolve to 127.0.0.1 read the metrics and removed the cache's entries.
#[test]
fn a_rebound_page_reads_and_changes_nothing_at_a_loopback_address() {
    let fixture = TestAdmin::new();
    for line in [
        "GET /live",
        "GET /metrics",
        "GET /cache",
        "DELETE /cache?all",
    ] {
        let answer = fixture.get_from(line, "host: rebound.example:9090\r\n");
        assert!(answer.starts_with("HTTP/1.1 421 "), "{line}: {answer}");
        assert!(answer.contains("\"admin.host\""), "{line}: {answer}");
    }
    let foreign = "host: localhost\r\norigin: http://rebound.example\r\n";
    let answer = fixture.get_from("DELETE /cache?all", foreign);
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains("\"admin.origin\""), "{answer}");
}
