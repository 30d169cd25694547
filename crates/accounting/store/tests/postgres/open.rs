//! Opening: nodes and their leases, the server's settings, and schemas of other releases.

use std::time::Duration;

use tollgate_store::postgres::{self, DatabaseUrl, NodeRole, Options};
use tollgate_store::{OpenError, RootSecret};
use tollgate_testing::{Certificate, Postgres};

use super::commit::{Blocker, assert_chained, available, behind_proxy_with, charge, grant};
use super::sent::{submit, until};
use super::suite::support::{account, new_account, operation, time, write};

fn options(url: &str, node: &str) -> Options {
    let url = DatabaseUrl::parse(url).expect("an address");
    Options {
        node_name: node.to_owned(),
        ..Options::new(url, time(1), RootSecret([7; 32]))
    }
}

fn refused(options: Options) -> OpenError {
    match postgres::open(options) {
        Ok(_) => panic!("it opens"),
        Err(error) => error,
    }
}

fn name(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

#[test]
fn one_process_at_a_time_has_a_database_and_each_run_has_an_epoch_of_its_own() {
    let url = Postgres::shared().database();
    let first = postgres::open(options(&url, "a")).expect("it opens");
    assert_eq!((first.node(), first.epoch()), (1, 1));
    for name in ["a", "b"] {
        match refused(options(&url, name)) {
            OpenError::InUse { holder, .. } => {
                assert_eq!(holder, format!("process {}", std::process::id()), "{name}");
            }
            other => panic!("{name}: {other}"),
        }
    }
    write(&first, [new_account(1)]).expect("the first goes on");
    let reader = postgres::open_read(&options(&url, "b")).expect("a reader beside it");
    assert!(reader.account(account(1)).expect("a read").is_some());
    first.close();
    drop(first);
    let again = postgres::open(options(&url, "b")).expect("it opens at once");
    assert_eq!((again.node(), again.epoch()), (1, 2));
}

/// A check that looked for a store alone said that a first start would make one.
#[test]
fn a_check_of_an_empty_database_fails_as_a_first_start_does_and_leaves_nothing() {
    let server = Postgres::shared();
    let url = server.database();
    let tables = || {
        server.run(
            name(&url),
            "SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'public'",
        )
    };
    for _ in 0..2 {
        postgres::check_empty(&options(&url, "a")).expect("a first start can use it");
        assert_eq!(tables().trim(), "0");
    }
    server.run(name(&url), "CREATE TABLE nodes (number INTEGER)");
    let checked = postgres::check_empty(&options(&url, "a")).expect_err("another program's");
    assert_eq!(tables().trim(), "1", "that of the other program");
    let started = refused(options(&url, "a"));
    for error in [&checked, &started] {
        let cause = std::error::Error::source(error)
            .expect("a cause")
            .to_string();
        assert!(cause.contains("nodes"), "{error}: {cause}");
    }
}

#[test]
fn the_lease_of_a_process_that_is_gone_is_taken_at_once_and_that_of_another_machine_at_its_end() {
    let server = Postgres::shared();
    let url = server.database();
    drop(postgres::open(options(&url, "a")).expect("it opens"));
    let now = "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)";
    let lease = |holder: &str, micros: i64| {
        let lease = format!("INSERT INTO leases VALUES (1, 1, {now} + {micros}, '{holder}')");
        server.run(name(&url), &lease);
    };
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
    let space = std::fs::read_link("/proc/self/ns/pid").expect("a name space");
    lease(
        &format!("{} {} 4194305", boot.trim(), space.display()),
        3_600_000_000,
    );
    let store = postgres::open(options(&url, "a")).expect("nothing runs under its name");
    assert_eq!(store.epoch(), 2);
    store.close();
    drop(store);
    lease("elsewhere 7", 1_000_000);
    let store = postgres::open(options(&url, "a")).expect("the lease ends");
    assert_eq!(store.epoch(), 3);
    let over = format!("SELECT held_until > {now} FROM leases");
    assert_eq!(
        server.run(name(&url), &over),
        "t",
        "it is this process's now"
    );
}

#[test]
fn of_the_processes_that_open_an_empty_database_at_once_one_makes_the_store_and_has_it() {
    let url = Postgres::shared().database();
    let opened: Vec<_> = std::thread::scope(|scope| {
        let openings: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| postgres::open(options(&url, "a"))))
            .collect();
        let ends = openings.into_iter().map(|opening| opening.join());
        ends.map(|end| end.expect("no panic")).collect()
    });
    let (stores, refused): (Vec<_>, Vec<_>) = opened.into_iter().partition(Result::is_ok);
    assert_eq!((stores.len(), refused.len()), (1, 3));
    for refused in refused {
        match refused.err() {
            Some(OpenError::InUse { .. }) => {}
            Some(other) => panic!("{other:?}"),
            None => unreachable!("it is refused"),
        }
    }
}

#[test]
fn a_server_that_loses_what_it_confirms_is_refused() {
    let server = Postgres::start();
    let url = server.database();
    server.run("postgres", "ALTER SYSTEM SET fsync = off");
    server.run("postgres", "SELECT pg_reload_conf()");
    while server.run("postgres", "SHOW fsync") != "off" {
        std::thread::yield_now();
    }
    let error = refused(options(&url, "a")).to_string();
    assert!(error.contains("set `fsync = on`"), "{error}");
}

#[test]
fn a_database_of_another_program_or_a_later_release_is_refused() {
    let server = Postgres::shared();
    let url = server.database();
    server.run(
        name(&url),
        "CREATE TABLE meta (k TEXT PRIMARY KEY, v TEXT NOT NULL)",
    );
    let error = refused(options(&url, "a")).to_string();
    assert!(error.contains("has tables of another program"), "{error}");

    let url = server.database();
    drop(postgres::open(options(&url, "a")).expect("it opens"));
    let set = |key: &str, value: u32| {
        server.run(
            name(&url),
            &format!("UPDATE meta SET v = '{value}' WHERE k = '{key}'"),
        );
    };
    set("schema", 1_000);
    drop(postgres::open(options(&url, "a")).expect("it says that this release can use it"));
    set("compatible", 1_000);
    match refused(options(&url, "a")) {
        OpenError::Newer { found: 1_000, .. } => {}
        other => panic!("{other}"),
    }
}

#[test]
fn a_table_of_rows_that_change_has_room_for_that_unless_an_operator_has_decided_or_it_is_locked() {
    let server = Postgres::shared();
    for (before, room) in [
        ("SELECT 1", "{fillfactor=50}"),
        (
            "ALTER TABLE allotments SET (fillfactor = 90)",
            "{fillfactor=90}",
        ),
        ("LOCK TABLE allotments IN SHARE UPDATE EXCLUSIVE MODE", ""),
    ] {
        let url = server.database();
        drop(postgres::open(options(&url, "a")).expect("it opens"));
        server.run(name(&url), "ALTER TABLE allotments RESET (fillfactor)");
        let is_lock = before.starts_with("LOCK");
        let blocker = is_lock.then(|| Blocker::lock(name(&url), before));
        if !is_lock {
            server.run(name(&url), before);
        }
        let store = postgres::open(options(&url, "a")).expect("it opens");
        let sql = "SELECT reloptions FROM pg_class WHERE relname = 'allotments'";
        assert_eq!(server.run(name(&url), sql), room, "{before}");
        write(&store, [new_account(1)]).expect("its connection is as before");
        drop(blocker);
    }
}

#[test]
fn a_server_that_is_not_there_is_named_with_its_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().display().to_string().replace('/', "%2F");
    match refused(options(&format!("postgres://a@{folder}/b"), "a")) {
        error @ OpenError::Unreachable { .. } => {
            assert!(error.is_transient(), "it may start");
            assert!(
                error.to_string().contains("check that the database runs"),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
    let url = Postgres::shared().url("absent");
    let error = refused(options(&url, "a"));
    let source = std::error::Error::source(&error)
        .expect("a cause")
        .to_string();
    assert!(source.contains("\"absent\" does not exist"), "{source}");
}

/// An opening is not tried again: it failed after five seconds, the limit of a connection that requests wait for.
#[test]
fn a_server_that_is_slow_to_answer_is_waited_for() {
    let url = Postgres::shared().database();
    let rename = format!("ALTER DATABASE {} RENAME TO another", name(&url));
    let mut blocker = Blocker::lock("postgres", &rename);
    let (opened, result) = std::sync::mpsc::channel();
    let opening = std::thread::spawn(move || {
        let store = postgres::open(options(&url, "a")).map(|store| store.node());
        opened.send(store).expect("it is received");
    });
    let early = result.recv_timeout(Duration::from_secs(6));
    assert!(early.is_err(), "before the server answered: {early:?}");
    blocker.release();
    let node = result.recv().expect("it ends").expect("it opens");
    assert_eq!(node, 1);
    opening.join().expect("it ends");
}

#[test]
fn a_refusal_of_the_server_has_its_remedy() {
    let server = Postgres::shared();
    let [own, foreign, closed, hidden] = [(); 4].map(|()| server.database());
    server.run(
        "postgres",
        "CREATE ROLE poor LOGIN; CREATE ROLE full_role LOGIN CONNECTION LIMIT 0",
    );
    server.run(name(&foreign), "CREATE TABLE accounts (id BIGINT)");
    server.run(name(&closed), "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
    server.run(name(&hidden), "REVOKE ALL ON SCHEMA public FROM PUBLIC");
    let as_user = |url: &str, user: &str| url.replacen("test@", &format!("{user}@"), 1);
    for (url, remedy, may_pass) in [
        (server.url("absent"), "`createdb -O USER", false),
        (as_user(&own, "stranger"), "`createuser", false),
        (as_user(&own, "full_role"), "`max_connections`", true),
        (as_user(&closed, "poor"), "OWNER TO", false),
        (as_user(&hidden, "poor"), "OWNER TO", false),
        (foreign, "tables of another program", false),
    ] {
        let error = refused(options(&url, "a"));
        assert_eq!(error.is_transient(), may_pass, "{url}: {error}");
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let text = format!("{error}: {}", source.unwrap_or_default());
        assert!(text.contains(remedy), "{url}: {text}");
        assert!(!text.contains("restore a backup"), "{url}: {text}");
    }
}

#[test]
fn tls_and_passwords_are_as_the_address_says() {
    let certificate = Certificate::for_names(&["localhost"]);
    let server = Postgres::start_with_tls(&certificate.cert_pem, &certificate.key_pem);
    let database = server.database();
    let folder = tempfile::tempdir().expect("a folder");
    let authority = folder.path().join("ca.pem");
    std::fs::write(&authority, &certificate.ca_pem).expect("a file");
    let own = format!("sslrootcert={}", authority.display());
    let opened = |host: &str, parameters: &str, password: Option<&str>| {
        let url = format!(
            "postgres://gateway@{host}:{}/{}?{parameters}",
            server.port(),
            name(&database)
        );
        let options = Options {
            password: password.map(|password| password.as_bytes().into()),
            ..options(&url, "a")
        };
        match postgres::open(options) {
            Ok(store) => {
                store.close();
                String::from("open")
            }
            Err(error) => {
                assert!(!error.is_transient(), "{error}");
                match std::error::Error::source(&error) {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                }
            }
        }
    };
    let right = Some("secret word");
    for parameters in ["", "sslmode=prefer", "sslmode=require"] {
        assert_eq!(
            opened("127.0.0.1", parameters, right),
            "open",
            "{parameters}"
        );
    }
    // The certificate names `localhost`, of an authority that the system does not know.
    for (host, mode, authority, is_open) in [
        ("localhost", "verify-full", own.as_str(), true),
        ("127.0.0.1", "verify-ca", &own, true),
        ("127.0.0.1", "verify-full", &own, false),
        ("localhost", "verify-full", "", false),
    ] {
        let found = opened(host, &format!("sslmode={mode}&{authority}"), right);
        assert_eq!(found == "open", is_open, "{host} {mode}: {found}");
        assert!(is_open || found.contains("certificate"), "{found}");
    }
    for (parameters, password, problem) in [
        ("sslmode=disable", right, "no pg_hba.conf entry"),
        ("", Some("another"), "password authentication failed"),
        (
            "",
            None,
            "set `store.password_file` or `store.password_env`",
        ),
    ] {
        let refused = opened("127.0.0.1", parameters, password);
        assert!(refused.contains(problem), "{parameters}: {refused}");
    }
}

#[test]
fn a_password_that_has_changed_is_waited_for_by_the_writer() {
    let certificate = Certificate::for_names(&["localhost"]);
    let server = Postgres::start_with_tls(&certificate.cert_pem, &certificate.key_pem);
    let database = server.database();
    let address = format!("gateway@127.0.0.1:{}/{}", server.port(), name(&database));
    let options = Options {
        password: Some("secret word".as_bytes().into()),
        ..options(&format!("postgres://{address}"), "a")
    };
    let store = postgres::open(options).expect("it opens");
    write(&store, [new_account(1)]).expect("the first goes on");
    server.run(
        "postgres",
        "ALTER ROLE gateway PASSWORD 'another word';
         SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE usename = 'gateway'",
    );
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| write(&store, [new_account(2)]));
        for _ in 0..50 {
            let refused = store.account(account(1)).expect_err("no connection");
            let cause = std::error::Error::source(&refused).map(ToString::to_string);
            let cause = cause.unwrap_or_else(|| refused.to_string());
            assert!(cause.contains("password authentication failed"), "{cause}");
        }
        assert!(store.failure().is_none(), "the writer waits");
        store.replace_password(Some(b"another word"));
        waiting.join().expect("a thread").expect("written");
    });
    assert!(store.account(account(2)).expect("a read").is_some());
}

/// A failover, after which the name leads to a standby for some time. A node of several begins its transactions anew after a loss, and the fence
/// of the first one on a new connection, which is refused there, is sent with the preparation of the next statement: it is waited for.
#[test]
fn a_server_that_only_reads_is_waited_for_by_the_writer() {
    let server = Postgres::shared();
    for (role, part, expected) in [
        (NodeRole::Alone, charge(operation(1), account(1)), 99),
        (NodeRole::OneOfMany, grant(1), 101),
    ] {
        let case = format!("{role:?} {part:?}");
        let (proxy, store, database) = behind_proxy_with(&|options| options.role = role);
        let is_standby = |is: &str| {
            let set = format!(
                "ALTER DATABASE {database} SET default_transaction_read_only = {is};
                 SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '{database}'"
            );
            server.run("postgres", &set);
        };
        is_standby("on");
        let connections = proxy.connections();
        let answer = submit(&store, part);
        until("it is not tried again", || {
            server.run("postgres", "SELECT 1");
            proxy.connections() >= connections + 4
        });
        for _ in 0..30 {
            server.run("postgres", "SELECT 1");
            assert!(
                store.failure().is_none() && answer.try_recv().is_err(),
                "{case}"
            );
        }
        is_standby("off");
        answer.recv().expect("an answer").expect("it is durable");
        assert_eq!(available(&store), expected, "{case}");
        assert_chained(&store);
        store.close();
    }
}

#[test]
fn a_gateway_reads_nothing_from_a_standby_and_goes_on_when_it_is_promoted() {
    let mut server = Postgres::start();
    let url = server.database();
    let store = postgres::open(options(&url, "a")).expect("it opens");
    write(&store, [new_account(1), grant(100)]).expect("they are durable");
    server.become_standby();
    let opening = refused(options(&url, "b"));
    assert!(opening.is_transient(), "it may be promoted: {opening}");
    let error = store
        .account(account(1))
        .expect_err("what it has may be old");
    let source = std::error::Error::source(&error).expect("a source");
    assert!(source.to_string().contains("is a standby"), "{source}");
    let report = postgres::open_read(&options(&url, "a")).expect("an audit may read it");
    assert!(report.account(account(1)).expect("a read").is_some());
    let answer = submit(&store, charge(operation(1), account(1)));
    server.run("postgres", "SELECT pg_promote()");
    answer.recv().expect("an answer").expect("it is durable");
    assert_eq!(available(&store), 0);
    assert_chained(&store);
    store.close();
}

#[test]
fn the_server_does_not_end_the_session_of_a_writer_without_units() {
    let server = Postgres::shared();
    let url = server.database();
    let set = format!(
        "ALTER DATABASE {} SET idle_session_timeout = '100ms'",
        name(&url)
    );
    server.run("postgres", &set);
    // A slow machine may be slower than the timeout before the session has set its own.
    let mut opened = None;
    until("the store opens", || {
        match postgres::open(options(&url, "a")) {
            Ok(store) => opened = Some(store),
            Err(error) => assert!(error.is_transient(), "{error}"),
        }
        opened.is_some()
    });
    let store = opened.expect("it is open");
    let stays = format!(
        "SELECT count(*) > 0 FROM pg_stat_activity
         WHERE datname = '{}' AND state = 'idle' AND clock_timestamp() - state_change > '300 ms'",
        name(&url)
    );
    until("each was ended", || server.run("postgres", &stays) == "t");
    write(&store, [new_account(1)]).expect("it is durable");
    store.close();
}

#[test]
fn a_commit_that_waits_for_a_lock_outlasts_the_limits_of_the_database_and_a_cancelled_one_is_repeated()
 {
    let server = Postgres::shared();
    let url = server.database();
    let database = name(&url);
    for limit in ["statement_timeout", "lock_timeout"] {
        let set = format!("ALTER DATABASE {database} SET {limit} = '100ms'");
        server.run("postgres", &set);
    }
    let store = postgres::open(options(&url, "a")).expect("it opens");
    write(&store, [new_account(1), grant(100)]).expect("they are durable");
    let mut blocker = Blocker::lock(database, "LOCK TABLE journal IN EXCLUSIVE MODE");
    let answer = submit(&store, charge(operation(1), account(1)));
    let waiting = format!(
        "FROM pg_stat_activity WHERE datname = '{database}'
         AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > '300 ms'"
    );
    let waits = format!("SELECT count(*) > 0 {waiting}");
    until("a limit ended it", || server.run("postgres", &waits) == "t");
    let cancel = format!("SELECT pg_cancel_backend(pid) {waiting}");
    server.run("postgres", &cancel);
    until("it is not repeated", || {
        server.run("postgres", &waits) == "t"
    });
    blocker.release();
    answer.recv().expect("an answer").expect("it is durable");
    assert_eq!(available(&store), 0);
    assert_chained(&store);
    store.close();
}

/// The database of a store as an earlier release has left it: this one has columns to make.
fn of_an_earlier_release() -> String {
    let server = Postgres::shared();
    let url = server.database();
    postgres::open(options(&url, "a"))
        .expect("it opens")
        .close();
    server.run(
        name(&url),
        "DROP TABLE node_settings;
         ALTER TABLE recalls DROP COLUMN need, DROP COLUMN short_at;
         ALTER TABLE cap_recalls DROP COLUMN need, DROP COLUMN short_at;
         ALTER TABLE oauth_clients DROP COLUMN network;
         DROP TABLE signup_grant_addresses; DROP TABLE notices;
         ALTER TABLE cluster DROP COLUMN pruned; UPDATE meta SET v = '20' WHERE k = 'schema'",
    );
    url
}

/// Whether a statement waits for a lock.
pub(super) fn is_waiting(database: &str, statement: &str) -> bool {
    let sql = format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = '{database}'
         AND wait_event_type = 'Lock' AND query LIKE '%{statement}%'"
    );
    Postgres::shared().run("postgres", &sql) == "t"
}

#[test]
fn a_migration_that_waits_for_a_table_does_not_keep_others_waiting_behind_it() {
    let url = of_an_earlier_release();
    let database = name(&url);
    std::thread::scope(|scope| {
        // As a backup does.
        let mut blocker = Blocker::lock(database, "LOCK TABLE cluster IN ACCESS SHARE MODE");
        let start = scope.spawn(|| postgres::open(options(&url, "a")));
        until("it does not wait", || is_waiting(database, "ALTER TABLE"));
        let commits =
            "SET lock_timeout = '10s'; SELECT number FROM cluster WHERE id = 1 FOR UPDATE";
        Postgres::shared().run(database, commits);
        until("it is not tried again", || {
            is_waiting(database, "ALTER TABLE")
        });
        blocker.release();
        let store = start.join().expect("no panic").expect("it opens");
        write(&store, [new_account(1)]).expect("it is durable");
        store.close();
    });
}

#[test]
fn a_column_that_is_there_is_not_waited_for() {
    let url = of_an_earlier_release();
    let database = name(&url);
    let server = Postgres::shared();
    server.run(
        database,
        "ALTER TABLE cluster ADD COLUMN pruned BIGINT NOT NULL DEFAULT 0",
    );
    let mut blocker = Blocker::lock(database, "LOCK TABLE cluster IN ACCESS SHARE MODE");
    let store = postgres::open(options(&url, "a")).expect("it opens");
    blocker.release();
    store.close();
}

#[test]
fn no_gateway_starts_while_what_is_derived_is_rebuilt() {
    let server = Postgres::shared();
    let url = server.database();
    let database = name(&url);
    let store = postgres::open(options(&url, "a")).expect("it opens");
    write(&store, [new_account(1), grant(100)]).expect("they are durable");
    store.close();
    std::thread::scope(|scope| {
        let mut blocker = Blocker::lock(database, "LOCK TABLE postings IN EXCLUSIVE MODE");
        let rebuild = scope.spawn(|| postgres::rebuild_postings(&options(&url, "a")));
        until("it does not wait", || is_waiting(database, "postings"));
        server.run(database, "UPDATE leases SET held_until = 0");
        let start = scope.spawn(|| postgres::open(options(&url, "a")));
        until("it has started", || is_waiting(database, "schema_lock"));
        blocker.release();
        rebuild.join().expect("no panic").expect("it is rebuilt");
        let store = start.join().expect("no panic").expect("it opens");
        assert_eq!(available(&store), 1);
        assert_chained(&store);
        store.close();
    });
}

/// A node that continued after it was found to have ended, and was cut off once more, was recovered at the end of that lease.
#[test]
fn an_automatic_recovery_leaves_a_node_alone_whose_process_may_end_answers() {
    let server = Postgres::shared();
    for (is_automatic, since_end_secs, opens) in [
        (true, -3_600, false),
        (true, 50, false),
        (true, 70, true),
        (false, 50, true),
    ] {
        let url = server.database();
        let node = |role, is_automatic| Options {
            role,
            is_automatic,
            ..options(&url, "a")
        };
        let store = postgres::open(node(NodeRole::OneOfMany, false)).expect("it opens");
        let (number, epoch) = (store.node(), store.epoch());
        store.close();
        let lease = format!(
            "INSERT INTO leases VALUES ({number}, {epoch},
                CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT) - ({since_end_secs}000000), 'elsewhere 7')"
        );
        server.run(name(&url), &lease);
        let recovered = postgres::open(node(NodeRole::Recovery(number), is_automatic));
        let case = format!("{is_automatic}, {since_end_secs} s after its end");
        assert_eq!(recovered.is_ok(), opens, "{case}");
    }
}
