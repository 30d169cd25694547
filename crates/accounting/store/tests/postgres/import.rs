//! Imports from a file: interrupted at each statement, continued, refused.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;
use tollgate_money::AccountId;
use tollgate_store::postgres::{self, DatabaseUrl, ImportError, Options, Progress};
use tollgate_store::{OpenError, RootSecret, Store, sqlite};
use tollgate_testing::Postgres;

use super::proxy::{Cut, Proxy};
use super::suite::support::{account_of, time, write};

/// More than two transactions of an import.
const ACCOUNTS: u64 = 21_000;

fn account(number: u64) -> AccountId {
    AccountId::from_bytes(u128::from(number).to_be_bytes())
}

fn options(url: &str) -> Options {
    let url = DatabaseUrl::parse(url).expect("an address");
    Options::new(url, time(1), RootSecret([7; 32]))
}

fn open_file(path: &Path, secret: u8) -> Arc<dyn Store> {
    let options = sqlite::Options::new(time(1), RootSecret([secret; 32]));
    sqlite::open(path, options).expect("it opens")
}

/// A file with that many accounts, which nothing has open.
fn file(accounts: u64, secret: u8) -> (TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let store = open_file(&path, secret);
    let numbers: Vec<u64> = (1..=accounts).collect();
    for some in numbers.chunks(500) {
        write(
            &store,
            some.iter().map(|number| account_of(account(*number))),
        )
        .expect("accounts");
    }
    store.close();
    (folder, path)
}

fn import(path: &Path, url: &str) -> Result<Vec<Progress>, ImportError> {
    postgres::import(path, &options(url), &mut |_| {}).map(|imported| imported.tables)
}

fn name(url: &str) -> &str {
    url.rsplit('/').next().expect("a name")
}

/// A digest of each table of a database.
fn digests(server: &Postgres, database: &str) -> Vec<String> {
    let tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_name <> 'imports' ORDER BY 1";
    let tables = server.run(database, tables);
    let digest = |table: &str| {
        let sql = format!(
            "SELECT count(*) || md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM {table} t"
        );
        format!("{table} {}", server.run(database, &sql))
    };
    tables.lines().map(digest).collect()
}

#[test]
fn an_import_that_is_interrupted_at_any_statement_continues_and_copies_every_row_once() {
    let server = Postgres::shared();
    let (_folder, path) = file(ACCOUNTS, 8);
    let whole = server.database();
    import(&path, &whole).expect("without interruption");
    let expected = digests(server, name(&whole));

    let url = server.database();
    let proxy = Proxy::start(server.folder());
    let through = proxy.url(name(&url));
    let statements = [
        "UPDATE imports",
        "INSERT INTO accounts",
        "INSERT INTO journal",
        "COMMIT",
    ];
    let mut attempts = 0;
    for round in 0..3 {
        for statement in statements {
            for cut in [Cut::Before, Cut::After] {
                proxy.cut_at(statement, cut);
                let before = proxy.cuts();
                let result = import(&path, &through);
                attempts += 1;
                if proxy.cuts() == before {
                    // The statement is behind it.
                    result.expect("nothing is in its way");
                    continue;
                }
                assert!(result.is_err(), "{round} {statement} {cut:?}");
                match postgres::open(options(&url)) {
                    Err(OpenError::UnfitServer { problem, .. }) => {
                        assert!(problem.contains("`tollgate migrate`"), "{problem}");
                    }
                    Err(other) => panic!("{other}"),
                    Ok(_) => panic!("a part of a store opens"),
                }
            }
        }
    }
    let copied = import(&path, &url).expect("it ends");
    assert!(proxy.cuts() > 8, "{} of {attempts} attempts", proxy.cuts());
    let accounts = copied.iter().find(|table| table.table == "accounts");
    assert_eq!(accounts.expect("the table").rows, ACCOUNTS);
    assert_eq!(digests(server, name(&url)), expected);

    let read = postgres::open_imported(&options(&url)).expect("for the audit");
    assert!(read.account(account(1)).expect("a read").is_some());
    postgres::finish_import(&options(&url)).expect("it is finished");
    // A table of which the server has no statistics has fewer rows than none. These three are of this engine alone, with a row for each node.
    let sql = "SELECT string_agg(relname, ' ') FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        AND relname NOT IN ('node_marks', 'leases', 'schema_lock') AND (reltuples < 0)
            = (query_to_xml(format('SELECT 1 FROM %I LIMIT 1', relname), true, true, '')::text LIKE '%<row%')";
    assert_eq!(server.run(name(&url), sql).trim(), "");
    let store = postgres::open(options(&url)).expect("a store");
    write(&store, [account_of(account(ACCOUNTS + 1))]).expect("it is written");
    let again = import(&path, &url);
    store.close();
    assert!(
        matches!(&again, Err(ImportError::Open(OpenError::InUse { .. }))),
        "{again:?}"
    );
    let again = import(&path, &url);
    assert!(matches!(again, Err(ImportError::NotEmpty(_))), "{again:?}");
}

#[test]
fn an_import_is_not_continued_from_a_file_that_was_used_meanwhile_or_from_another_one() {
    let server = Postgres::shared();
    let (_folder, path) = file(3, 8);
    let url = server.database();
    import(&path, &url).expect("the copy");
    import(&path, &url).expect("there is nothing left to copy");
    let (_other_folder, other) = file(3, 9);
    let store = open_file(&path, 8);
    store.close();
    for path in [path, other] {
        let again = import(&path, &url);
        assert!(
            matches!(again, Err(ImportError::OtherSource(_))),
            "{again:?}"
        );
    }
}

#[test]
fn of_two_imports_at_once_one_ends() {
    let server = Postgres::shared();
    let (_folder, path) = file(ACCOUNTS, 8);
    let url = server.database();
    let mut is_first = true;
    let result = postgres::import(&path, &options(&url), &mut |progress| {
        if progress.table == "accounts" && std::mem::take(&mut is_first) {
            // What another one has done meanwhile.
            let sql = "UPDATE imports SET copied = copied + 1 WHERE name = 'accounts'";
            server.run(name(&url), sql);
        }
    });
    match result {
        Err(ImportError::Overtaken(table)) => assert_eq!(table, "accounts"),
        other => panic!("{other:?}"),
    }
}

/// One that used the file before it is renamed would sell credit that the copy has as well.
#[test]
fn no_gateway_opens_the_file_of_an_import_while_the_copy_is_verified() {
    let server = Postgres::shared();
    let (_folder, path) = file(3, 8);
    let imported = postgres::import(&path, &options(&server.database()), &mut |_| {});
    let imported = imported.expect("the copy");
    let open = || sqlite::open(&path, sqlite::Options::new(time(1), RootSecret([8; 32])));
    assert!(matches!(open(), Err(OpenError::InUse { .. })));
    drop(imported);
    open().expect("it is free").close();
}

/// Litestream, which ships a file to another machine, leaves two tables of its own in it. The first of them failed each import.
#[test]
fn the_tables_of_litestream_are_not_copied_and_an_unknown_table_is_refused() {
    let server = Postgres::shared();
    let (_folder, path) = file(3, 8);
    let execute = |sql| {
        let connection = rusqlite::Connection::open(&path).expect("it opens");
        connection.execute_batch(sql).expect("it is written");
    };
    execute(
        "CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER);
         CREATE TABLE _litestream_lock (id INTEGER);
         INSERT INTO _litestream_seq VALUES (1, 4)",
    );
    let url = server.database();
    let copied = import(&path, &url).expect("the copy");
    let is_own = |table: &Progress| table.table.starts_with("_litestream");
    assert!(!copied.iter().any(is_own), "{copied:?}");
    let accounts = copied.iter().find(|table| table.table == "accounts");
    assert_eq!(accounts.expect("the table").rows, 3);

    execute("CREATE TABLE litestream_notes (id INTEGER)");
    let refused = import(&path, &server.database()).expect_err("no such table");
    let refused = format!("{refused:?}");
    assert!(refused.contains("litestream_notes"), "{refused}");
}
