//! Statements that are run, queued and sent on a connection to a real server.

use tollgate_testing::Postgres;

use super::*;
use tollgate_sql::Select as _;

use crate::profile::TESTS;

#[test]
fn parameters_are_written_in_the_servers_form_outside_of_texts() {
    let sql = "SELECT '?1', a FROM t WHERE b = ?1 AND c = ?12";
    assert_eq!(
        with_dollars(sql),
        "SELECT '?1', a FROM t WHERE b = $1 AND c = $12"
    );
}

fn connect(url: &str) -> Connection {
    let url = DatabaseUrl::parse(url).expect("an address");
    let target = Target::new(url, None, &TESTS).expect("no TLS");
    Connection::open(&target).expect("it opens")
}

#[test]
fn sessions_have_settings_of_their_own_where_the_defaults_of_the_database_are_others() {
    let server = Postgres::shared();
    let url = server.database();
    let name = url.rsplit('/').next().expect("a name");
    for (setting, default, own) in [
        ("synchronous_commit", "off", "on"),
        (
            "default_transaction_isolation",
            "repeatable read",
            "read committed",
        ),
        ("statement_timeout", "30s", "0"),
        ("lock_timeout", "30s", "0"),
        ("search_path", "pg_catalog", "public"),
    ] {
        let set = format!("ALTER DATABASE {name} SET {setting} = '{default}'");
        server.run("postgres", &set);
        let show = format!("SHOW {setting}");
        assert_eq!(server.run(name, &show), default);
        let found = connect(&url).first(&show, &[], |row| row.get::<String>(0));
        assert_eq!(found.expect("a setting").as_deref(), Some(own), "{setting}");
    }
}

#[test]
fn other_statements_run_while_the_rows_of_a_large_result_are_visited() {
    let connection = connect(&Postgres::shared().database());
    let many = "SELECT g FROM generate_series(1, 10000) g";
    for begin in [None, Some("BEGIN")] {
        if let Some(begin) = begin {
            connection.run(begin, &[]).expect("a transaction");
        }
        let mut sum = 0;
        let visited = connection.query(many, &[], &mut |row| {
            let number: i64 = row.get(0)?;
            sum += connection.number("SELECT ?1 * 2", &[Value::Integer(number)])?;
            Ok(ControlFlow::Continue(()))
        });
        visited.expect("a read");
        assert_eq!(sum, 10_000 * 10_001);
        // A portal that ends early leaves no messages behind.
        let first = connection.first(many, &[], |row| row.get::<i64>(0));
        assert_eq!(first.expect("a row"), Some(1));
        let last = connection.number("SELECT 7", &[]);
        assert_eq!(last.expect("a row"), 7);
    }
}

#[test]
fn statements_that_are_sent_together_are_all_run_and_the_first_error_is_returned() {
    let connection = connect(&Postgres::shared().database());
    connection
        .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY, body BYTEA NOT NULL)")
        .expect("a table");
    let insert = "INSERT INTO t (id, body) VALUES (?1, ?2)";
    // More bytes than both sides buffer.
    let body = vec![7; 1000];
    let ids = |ids: std::ops::Range<i64>| {
        connection.execute_each(insert, &mut |run| {
            ids.clone()
                .try_for_each(|id| run(&[Value::Integer(id), Value::Bytes(&body)]))
        })
    };
    ids(0..5000).expect("they are inserted");
    let count = || {
        connection
            .number("SELECT count(*) FROM t", &[])
            .expect("a count")
    };
    assert_eq!(count(), 5000);
    let error = ids(4990..5010).expect_err("some are there");
    assert_eq!(error.fault, Fault::Key);
    assert_eq!(
        count(),
        5000,
        "those that are sent together are one transaction"
    );
}

#[test]
fn queued_statements_run_before_the_next_one_whose_result_says_that_they_failed() {
    let connection = connect(&Postgres::shared().database());
    connection
        .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        .expect("a table");
    let queue = |sql: &str, expected| {
        let queued = connection.queue(sql, [].into_iter(), expected);
        queued.expect("it is not sent yet");
    };
    let count = || connection.number("SELECT count(*) FROM t", &[]);
    let rollback = || connection.run("ROLLBACK", &[]).expect("a transaction");
    // A statement that is not prepared yet is not queued.
    for _ in 0..2 {
        queue("BEGIN", Expected::Success);
        queue(
            "INSERT INTO t SELECT generate_series(1, 100)",
            Expected::Change,
        );
        // More rows than a fetch returns, in a transaction that has not begun.
        let all = connection.all("SELECT id FROM t", &[], |row| row.get::<i64>(0));
        assert_eq!(all.expect("rows").len(), 100);
        assert_eq!(count().expect("a count"), 100, "it goes on");
        rollback();
    }

    queue("BEGIN", Expected::Success);
    for _ in 0..3 {
        queue("INSERT INTO t VALUES (1)", Expected::Success);
    }
    let Err(RowError::Engine(error)) = count() else {
        panic!("an earlier statement has failed");
    };
    assert_eq!(error.fault, Fault::Key);
    rollback();

    queue("BEGIN", Expected::Success);
    queue("DELETE FROM t", Expected::Change);
    let error = connection.complete().expect_err("it changes no row");
    assert_eq!(error.fault, Fault::Fenced);
    rollback();
    assert_eq!(count().expect("a count"), 0);
}

#[test]
fn a_statement_on_one_row_becomes_one_on_many() {
    let one = "INSERT INTO t (a, b) VALUES (?1, ?2) ON CONFLICT (a) DO NOTHING";
    assert_eq!(of_rows(one, 1, 2), one);
    assert_eq!(
        of_rows(one, 3, 2),
        "INSERT INTO t (a, b) VALUES (?1, ?2), (?3, ?4), (?5, ?6) ON CONFLICT (a) DO NOTHING"
    );
    let one = "UPDATE t SET b = v.b FROM (VALUES (CAST(?1 AS BIGINT))) AS v (a) WHERE t.a = v.a";
    assert_eq!(
        of_rows(one, 2, 1),
        "UPDATE t SET b = v.b FROM (VALUES (CAST(?1 AS BIGINT)), (?2)) AS v (a) WHERE t.a = v.a"
    );
}

#[test]
fn any_number_of_rows_is_written_by_few_statements() {
    let connection = connect(&Postgres::shared().database());
    connection
        .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY, body BYTEA, name TEXT)")
        .expect("a table");
    let insert = "INSERT INTO t (id, body, name) VALUES (?1, ?2, ?3)
        ON CONFLICT (id) DO UPDATE SET name = excluded.name";
    let mut prepared = 0;
    for length in [0, 1, 63, 64, 65, 200, 1000] {
        let body = vec![7; length];
        let row = |id: i64| [Value::Integer(id), Value::Bytes(&body), Value::Null];
        connection
            .execute_rows(insert, &mut |run| {
                (0..length as i64).try_for_each(|id| run(&row(id)))
            })
            .expect("they are inserted");
        let sql = "SELECT count(*) FROM t WHERE length(body) <= ?1 AND name IS NULL";
        assert_eq!(
            connection.number(sql, &[Value::Integer(1000)]).expect("it"),
            length as i64
        );
        prepared = connection.prepared.borrow().len();
    }
    // 1, 2, 4, 8, 16, 32, 64 and 128 rows, and the count.
    assert_eq!(prepared, 9);
    let named = connection.execute_rows(insert, &mut |run| {
        (990..1010)
            .try_for_each(|id| run(&[Value::Integer(id), Value::Bytes(&[1]), Value::Text("new")]))
    });
    named.expect("ten are changed and ten inserted");
    let sql = "SELECT count(*) FROM t WHERE name = ?1";
    let found = connection.number(sql, &[Value::Text("new")]);
    assert_eq!(found.expect("a count"), 20);
    let update = "UPDATE t SET name = v.name FROM (VALUES (CAST(?1 AS BIGINT), CAST(?2 AS TEXT))) AS v (id, name)
        WHERE t.id = v.id";
    let renamed = connection.execute_rows(update, &mut |run| {
        (0..100).try_for_each(|id| run(&[Value::Integer(id), Value::Text("other")]))
    });
    renamed.expect("a hundred are changed");
    let found = connection.number(sql, &[Value::Text("other")]);
    assert_eq!(found.expect("a count"), 100);
}

/// A posting was sent behind a row for which the server had no memory. The posting's error says that the row is missing, and ended the
/// node.
#[test]
fn a_transaction_that_fails_with_one_before_it_has_the_error_of_that_one() {
    let connection = connect(&Postgres::shared().database());
    connection
        .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        .expect("a table");
    let refused = "DO 'BEGIN RAISE EXCEPTION USING ERRCODE = ''53200''; END'";
    let depends = "INSERT INTO t VALUES (NULL)";
    for sql in ["BEGIN", "COMMIT", refused, depends] {
        connection.prepared(sql).expect("a statement");
    }
    connection
        .send(refused, [].into_iter(), Expected::Success)
        .expect("it is sent");
    for sql in ["BEGIN", depends] {
        let queued = connection.queue(sql, [].into_iter(), Expected::Success);
        queued.expect("it is not sent yet");
    }
    connection
        .send("COMMIT", [].into_iter(), Expected::Commit)
        .expect("it is sent");
    // The preparation of a statement reads the results of both transactions.
    let error = match connection.prepared("SELECT 1") {
        Ok(_) => panic!("the transaction is open"),
        Err(error) => error,
    };
    assert_eq!(error.fault, Fault::Short, "{}", error.source);
}

#[test]
fn the_number_of_rows_is_the_last_word_of_a_tag() {
    for (tag, rows) in [("INSERT 0 5", 5), ("UPDATE 3", 3), ("COMMIT", 0), ("", 0)] {
        assert_eq!(changed(tag), rows, "{tag}");
    }
}

#[test]
fn transactions_that_are_sent_are_run_in_order_and_each_has_its_own_result() {
    let connection = connect(&Postgres::shared().database());
    connection
        .run_all("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        .expect("a table");
    let insert = "INSERT INTO t VALUES (?1)";
    // The preparation of a statement would read the results of queued statements.
    let twice = "INSERT INTO t VALUES (2), (2)";
    let all = ["BEGIN", "COMMIT", twice, "DELETE FROM t"];
    for sql in all
        .into_iter()
        .chain([insert, "DELETE FROM t WHERE id = 7"])
    {
        connection.prepared(sql).expect("a statement");
    }
    let send = |id, expected| {
        let values = [Value::Integer(id)];
        let sent = connection.send(insert, values.into_iter(), expected);
        sent.expect("it is sent");
    };
    let end = |sql: &str, expected| {
        let sent = connection.send(sql, [].into_iter(), expected);
        sent.expect("it is sent");
    };
    let queue = |sql: &str| {
        let queued = connection.queue(sql, [].into_iter(), Expected::Success);
        queued.expect("it is not sent yet");
    };
    let fault = || connection.result_of_sent().err().map(|error| error.fault);
    for is_read_before in [false, true] {
        send(1, Expected::Change);
        send(1, Expected::Change);
        end("DELETE FROM t WHERE id = 7", Expected::Change);
        queue("BEGIN");
        queue("DELETE FROM t");
        end("COMMIT", Expected::Commit);
        if is_read_before {
            // A new statement is prepared after the sent transactions, and reads their durable rows.
            let found = connection.number("SELECT 100 + count(*) FROM t", &[]);
            assert_eq!(found.expect("a count"), 100);
        }
        queue("BEGIN");
        queue(twice);
        end("COMMIT", Expected::Commit);
        send(3, Expected::Change);
        let (key, fenced, aborted) = (Some(Fault::Key), Some(Fault::Fenced), Some(Fault::Other));
        let faults: Vec<_> = (0..6).map(|_| fault()).collect();
        assert_eq!(
            faults,
            [None, key, fenced, None, key, aborted],
            "{is_read_before}"
        );
        // The failed transaction is open until the rollback.
        connection.run("ROLLBACK", &[]).expect("a transaction");
    }
    assert!(
        connection.result_of_sent().is_err(),
        "nothing more was sent"
    );
}
