//! The client against a real server.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tollgate_clock::{Clock, Entropy};
use tollgate_module::{Module as _, Services, check_text};
use tollgate_shared::{
    ProbeError, RawShared, Script, Shared, SharedModule, SharedSettings, Unavailable, probe,
};
use tollgate_testing::{Certificate, Redis, RedisLink, Secrets, within};

static SECRETS: Secrets = Secrets::new();

fn settings(url: &str) -> SharedSettings {
    let checked = check_text::<RawShared>(&format!("url = '{url}'"), &Services::default());
    checked.expect("a good URL").expect("a server")
}

/// A node whose calls may take as long as a busy machine needs.
fn node(mut settings: SharedSettings) -> Shared {
    settings.call_limit = Duration::from_secs(60);
    start(settings)
}

fn start(settings: SharedSettings) -> Shared {
    let shared = Shared::new(settings, Entropy::system()).expect("a name");
    tokio::spawn(shared.clone().run());
    shared
}

async fn poll(what: &str, is_so: impl Fn() -> bool) {
    let polled = async {
        let mut often = tokio::time::interval(Duration::from_millis(2));
        while !is_so() {
            often.tick().await;
        }
    };
    within(what, polled).await;
}

fn increment() -> Script {
    Script::new("return {redis.call('INCRBY', KEYS[1], ARGV[1]), #ARGV[2]}")
}

#[tokio::test]
async fn a_server_with_tls_and_a_password_is_reached() {
    let certificate = Certificate::for_localhost();
    let password = SECRETS.used("the password of the server", "correct-horse-battery");
    let redis = Redis::start_with_tls(&certificate, password);
    let mut settings = settings(&redis.url());
    let root = CertificateDer::from_pem_slice(certificate.ca_pem.as_bytes()).expect("PEM");
    settings.roots = [root].into();
    let without = node(settings.clone());
    settings.password = Some(password.to_owned().into());
    let shared = node(settings);
    poll("the connection", || shared.is_reachable()).await;
    let answer = shared.invoke(&increment(), "tollgate:test", &[5]).await;
    assert_eq!(answer, Ok(vec![5, 32]), "the sum, and the length of the id");
    assert!(!without.is_reachable(), "without the password");
}

#[tokio::test]
async fn a_reload_brings_the_password_and_leaves_the_server() {
    let certificate = Certificate::for_localhost();
    let first = SECRETS.used("the first password", "correct-horse-battery-1");
    let second = SECRETS.used("the second password", "correct-horse-battery-2");
    let mut redis = Redis::start_with_tls(&certificate, first);
    let mut known = settings(&redis.url());
    let root = CertificateDer::from_pem_slice(certificate.ca_pem.as_bytes()).expect("PEM");
    known.roots = [root].into();
    let with = |password: &str| SharedSettings {
        password: Some(password.to_owned().into()),
        ..known.clone()
    };
    let services = |settings: Option<SharedSettings>| {
        let mut services = Services::default();
        services.provide(settings);
        services
    };
    let shared = node(with(first));
    let mut running = services(Some(with(first)));
    running.provide(shared.clone());
    poll("the connection", || shared.is_reachable()).await;
    let reload = |new: Option<SharedSettings>| {
        let reload = SharedModule.reload(&running, &services(new));
        reload.expect("it was built").apply()
    };
    redis.change_password(second);
    poll("the loss of the connection", || !shared.is_reachable()).await;
    assert_eq!(reload(Some(with(second))), Ok(()));
    poll("the connection", || shared.is_reachable()).await;

    let other = SharedSettings {
        database: 3,
        ..with(second)
    };
    for (new, key) in [(None, "url"), (Some(other), "url")] {
        assert_eq!(reload(new), Err(vec![key]));
    }
    let without = SharedModule.reload(&services(None), &services(Some(with(first))));
    assert_eq!(
        without.expect("nothing was built").apply(),
        Err(vec!["url"])
    );
}

#[tokio::test]
async fn a_script_that_the_server_has_lost_is_loaded_again() {
    let mut redis = Redis::start();
    let shared = node(settings(&redis.url()));
    let script = increment();
    for _ in 0..2 {
        poll("the connection", || shared.is_reachable()).await;
        for wanted in [1, 2] {
            let answer = shared.invoke(&script, "tollgate:test", &[1]).await;
            assert_eq!(answer, Ok(vec![wanted, 32]));
        }
        redis.restart();
        poll("the loss of the connection", || !shared.is_reachable()).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_unreachable_until_it_does() {
    let mut redis = Redis::start();
    let shared = start(settings(&redis.url()));
    poll("the connection", || shared.is_reachable()).await;
    redis.pause();
    let script = increment();
    // Without a limit the first would never end.
    let failing = async {
        while shared.is_reachable() {
            let _ = shared.invoke(&script, "tollgate:test", &[1]).await;
        }
    };
    within("the end of calls without an answer", failing).await;
    assert!(shared.invoke(&script, "tollgate:test", &[1]).await.is_err());
    redis.resume();
    poll("the next connection", || shared.is_reachable()).await;
}

/// A former primary, or one without memory. Each read that it answered set the count of failures to zero, and each limit waited for an error.
#[tokio::test]
async fn a_server_that_executes_no_writes_is_unreachable() {
    let redis = Redis::start();
    let shared = node(settings(&redis.url()));
    poll("the connection", || shared.is_reachable()).await;
    command(&redis, "REPLICAOF 127.0.0.1 1").await;
    let reading = async {
        while shared.is_reachable() {
            let _ = shared.get("tollgate:test").await;
        }
    };
    within("two failed heartbeats", reading).await;
    command(&redis, "REPLICAOF NO ONE").await;
    poll("the next connection", || shared.is_reachable()).await;
}

/// Executes a command on a connection of its own.
async fn command(redis: &Redis, line: &str) {
    let stream = TcpStream::connect(("127.0.0.1", redis.port())).await;
    let mut stream = BufReader::new(stream.expect("it accepts connections"));
    let sent = stream.write_all(format!("{line}\r\n").as_bytes()).await;
    sent.expect("it reads");
    let mut answer = String::new();
    stream.read_line(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("+OK"), "{line}: {answer}");
}

/// The work of such a connection was over before its first call. It was asked to continue, which is a panic, and no connection was made after it.
#[tokio::test]
async fn connections_that_end_with_the_handshake_are_made_again() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let shared = node(settings(&format!("redis://127.0.0.1:{port}")));
    let accepted = Arc::new(AtomicU32::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("it connects");
            count.fetch_add(1, Relaxed);
            let read = stream.read(&mut [0; 1024]).await.expect("a connection");
            assert!(read > 0, "the handshake");
            // The answers and the end arrive together.
            let _ = stream.write_all(b"+OK\r\n+OK\r\n").await;
            let _ = stream.shutdown().await;
        }
    });
    poll("three connections", || accepted.load(Relaxed) >= 3).await;
    assert!(!shared.is_reachable());
}

/// Three that fail together were three failures in a row: a stall of 20 ms ended the connection.
#[tokio::test]
async fn calls_that_fail_together_are_one_failure() {
    let redis = Redis::start();
    let link = RedisLink::start(&redis);
    let mut settings = settings(&link.url());
    settings.call_limit = Duration::from_millis(500);
    let shared = start(settings);
    poll("the connection", || shared.is_reachable()).await;
    link.delay(Duration::from_secs(30));
    let script = increment();
    let calls: Vec<_> = (0..10)
        .map(|_| {
            let (shared, script) = (shared.clone(), script.clone());
            tokio::spawn(async move { shared.invoke(&script, "tollgate:test", &[1]).await })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.expect("no panic"), Err(Unavailable::NoAnswer));
    }
    assert!(shared.is_reachable());
    link.delay(Duration::ZERO);
}

/// The lines of the log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn lines_with(&self, text: &str) -> usize {
        let log = self.0.lock().expect("not poisoned");
        let lines = String::from_utf8_lossy(&log).into_owned();
        lines.lines().filter(|line| line.contains(text)).count()
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().expect("not poisoned");
        log.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A user without one command, say. The connection was ended and made again for ever; then nothing said that shares of the limits decided.
#[tokio::test]
async fn a_server_that_answers_with_an_error_is_reachable() {
    let log = Log::default();
    let written = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || written.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    let redis = Redis::start();
    let shared = node(settings(&redis.url()));
    poll("the connection", || shared.is_reachable()).await;
    let script = Script::new("return redis.error_reply('NOPERM of this user')");
    for _ in 0..10 {
        let answer = shared.invoke(&script, "tollgate:test", &[]).await;
        assert_eq!(answer, Err(Unavailable::NotExecuted));
    }
    assert!(shared.is_reachable());
    assert_eq!(shared.connections(), 1);
    assert_eq!(log.lines_with("NOPERM of this user"), 1);
}

/// The first heartbeat set it to the shortest delay, so that ten connections a second were made.
#[tokio::test]
async fn the_backoff_grows_while_each_connection_fails_soon() {
    let mut redis = Redis::start();
    let shared = start(settings(&redis.url()));
    let (clock, script) = (Clock::system(), increment());
    let began = clock.elapsed();
    for _ in 0..6 {
        poll("the connection", || shared.is_reachable()).await;
        redis.pause();
        let failing = async {
            while shared.is_reachable() {
                let _ = shared.invoke(&script, "tollgate:test", &[1]).await;
            }
        };
        within("the end of calls without an answer", failing).await;
        redis.resume();
    }
    // Half of 100, 200, 400, 800 and 1600 ms.
    let elapsed = clock.elapsed() - began;
    assert!(elapsed >= Duration::from_millis(1550), "{elapsed:?}");
}

#[tokio::test]
async fn live_nodes_are_counted_and_expire() {
    let redis = Redis::start();
    let one = node(settings(&redis.url()));
    let (other, ends) = {
        let mut settings = settings(&redis.url());
        settings.call_limit = Duration::from_secs(60);
        let shared = Shared::new(settings, Entropy::system()).expect("a name");
        let task = tokio::spawn(shared.clone().run());
        (shared, task)
    };
    poll("both nodes", || one.nodes() == 2 && other.nodes() == 2).await;
    ends.abort();
    poll("the end of one", || one.nodes() == 1).await;
}

/// The first one that was connected again counted itself alone, and used the whole of each limit.
#[tokio::test]
async fn nodes_that_lose_the_server_together_stay_counted() {
    let mut redis = Redis::start();
    let nodes = [(); 3].map(|()| node(settings(&redis.url())));
    let are_counted = || nodes.iter().all(|node| node.nodes() == 3);
    poll("all nodes", are_counted).await;
    redis.restart();
    poll("the next connections", || {
        assert!(are_counted());
        nodes.iter().all(|node| node.connections() == 2)
    })
    .await;
}

const CONF: &str = include_str!("../../../../conf/README.md");

/// The rights that the reference names.
fn rights() -> Vec<&'static str> {
    let line = CONF
        .lines()
        .find_map(|line| line.split_once("on >PASSWORD "));
    line.expect("a line with the rights").1.split(' ').collect()
}

/// Settings of a user with these rights.
fn user(redis: &Redis, rights: &[&str]) -> SharedSettings {
    let password = SECRETS.used("the password of a user", "correct-horse-battery-3");
    let secret = format!(">{password}");
    let user = ["ACL", "SETUSER", "tollgate", "reset", "on", &secret];
    redis.command(&[&user, rights].concat());
    SharedSettings {
        user: Some("tollgate".into()),
        password: Some(password.to_owned().into()),
        ..settings(&redis.url())
    }
}

async fn check(settings: SharedSettings) -> Result<Duration, ProbeError> {
    probe(settings, &Clock::system(), &Entropy::system()).await
}

/// `tollgate doctor` sent a `PING`, which says nothing of them.
#[tokio::test]
async fn the_documented_rights_are_enough_and_each_is_missed() {
    let redis = Redis::start();
    let rights = rights();
    // A database other than 0 needs `+select`. `+script|load` is missing before the script was loaded: it comes early in the list.
    for missing in rights.iter().filter(|right| !right.starts_with("+select")) {
        if missing.starts_with(['+', '~']) {
            let others: Vec<&str> = rights
                .iter()
                .filter(|right| *right != missing)
                .copied()
                .collect();
            let error = check(user(&redis, &others)).await.expect_err(missing);
            assert!(
                error.remedy().contains("conf/README.md"),
                "{missing}: {error}"
            );
        }
    }
    redis.command(&["FLUSHALL"]);
    let known = user(&redis, &rights);
    check(known.clone()).await.expect("all rights");
    assert_eq!(redis.command(&["DBSIZE"]).trim(), "0", "nothing is left");
    let shared = node(known);
    poll("the connection", || shared.is_reachable()).await;
    let set = shared.set("tollgate:test", b"1", Some(Duration::from_secs(60)));
    assert_eq!(set.await, Ok(()));
    assert_eq!(shared.get("tollgate:test").await, Ok(Some(b"1".to_vec())));
    assert_eq!(shared.get("other").await, Err(Unavailable::NotExecuted));
}

#[tokio::test]
async fn a_server_that_writes_nothing_is_found_out_by_the_check() {
    let redis = Redis::start();
    for (command, remedy) in [
        (["CONFIG", "SET", "maxmemory", "1"], "volatile-lru"),
        (["CONFIG", "SET", "maxmemory", "0"], ""),
        (["REPLICAOF", "127.0.0.1", "1", ""], "the primary"),
    ] {
        let command: Vec<&str> = command
            .into_iter()
            .filter(|word| !word.is_empty())
            .collect();
        redis.command(&command);
        match check(settings(&redis.url())).await {
            Ok(_) => assert_eq!(remedy, ""),
            Err(error) => assert!(error.remedy().contains(remedy), "{error}"),
        }
    }
}

/// The commands that the scripts of all filters call, and those of the client.
#[test]
fn the_documented_rights_are_the_commands_that_are_sent() {
    let mut used: BTreeSet<String> = ["evalsha", "script|load", "select", "get", "set"]
        .map(str::to_owned)
        .into();
    let root = tollgate_testing::package_folder().join("../../..");
    let mut folders = vec![root.join("filters"), root.join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs")
                && !path.iter().any(|part| part == "tests")
                && !path.ends_with("probe.rs")
            {
                let text = std::fs::read_to_string(&path).expect("text");
                let calls = text.split("redis.call('").skip(1);
                used.extend(calls.filter_map(|call| Some(call.split_once('\'')?.0.to_lowercase())));
            }
        }
    }
    let named = rights()
        .into_iter()
        .filter_map(|right| right.strip_prefix('+'));
    assert_eq!(named.map(str::to_owned).collect::<BTreeSet<_>>(), used);
}
