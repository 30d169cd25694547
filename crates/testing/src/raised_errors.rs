//! Errors that a PostgreSQL database raises by triggers: a server that is short of room or memory, or refuses a commit for another cause.

use crate::Postgres;

/// What a trigger does where an error is to be raised: counts it in a sequence, which a rollback leaves as it is.
const SET_UP: &str = "
    CREATE TABLE raised_errors (code TEXT, one_in INT, reference TEXT);
    CREATE SEQUENCE raised_error;
    CREATE FUNCTION raise_error() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        raised RECORD;
    BEGIN
        SELECT * INTO raised FROM raised_errors LIMIT 1;
        IF FOUND AND random() * raised.one_in < 1 AND (raised.reference IS NULL OR to_jsonb(NEW)->>'reference' = raised.reference) THEN
            PERFORM nextval('raised_error');
            RAISE EXCEPTION 'raised by a test' USING ERRCODE = raised.code;
        END IF;
        RETURN NEW;
    END $$;";

/// When an error is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaisedAt {
    /// By the statement that inserts or updates a row.
    Write,
    /// By the `COMMIT` of its transaction, after the statements have succeeded.
    Commit,
}

/// The triggers of a database of the shared server.
pub struct RaisedErrors {
    database: String,
}

impl RaisedErrors {
    /// Adds triggers to a table of a database. They raise nothing yet.
    ///
    /// # Panics
    ///
    /// When the database has no such table.
    pub fn of(database: &str, table: &str, at: RaisedAt) -> RaisedErrors {
        let trigger = match at {
            RaisedAt::Write => format!(
                "CREATE TRIGGER raise_error BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION raise_error()"
            ),
            RaisedAt::Commit => format!(
                "CREATE CONSTRAINT TRIGGER raise_error AFTER INSERT OR UPDATE ON {table} DEFERRABLE INITIALLY DEFERRED
                     FOR EACH ROW EXECUTE FUNCTION raise_error()"
            ),
        };
        Postgres::shared().run(database, &format!("{SET_UP} {trigger}"));
        RaisedErrors {
            database: database.to_owned(),
        }
    }

    /// Raises an error of this SQLSTATE at each row from now on.
    pub fn raise(&self, code: &str) {
        self.set(&format!("'{code}', 1, NULL"));
    }

    /// Raises an error of this SQLSTATE at one row of so many, by chance.
    pub fn raise_at_one_in(&self, code: &str, count: u32) {
        self.set(&format!("'{code}', {count}, NULL"));
    }

    /// Raises an error of this SQLSTATE at rows whose column `reference` has this value.
    pub fn raise_at_reference(&self, code: &str, reference: &str) {
        self.set(&format!("'{code}', 1, '{reference}'"));
    }

    /// Raises no more errors.
    pub fn stop(&self) {
        Postgres::shared().run(&self.database, "DELETE FROM raised_errors");
    }

    /// How many errors were raised.
    pub fn count(&self) -> u64 {
        let sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM raised_error";
        let found = Postgres::shared().run(&self.database, sql);
        found.parse().expect("a number")
    }

    fn set(&self, row: &str) {
        let sql = format!("DELETE FROM raised_errors; INSERT INTO raised_errors VALUES ({row})");
        Postgres::shared().run(&self.database, &sql);
    }
}
