//! SQLite's compile options, compared with `.cargo/config.toml`. A program that depends on tollgate has to copy the options in
//! `.cargo/config.toml`.

use rusqlite::Connection;

/// The option that SQLite reports. `HAVE_FDATASYNC`, which makes commits faster, stands in the same variable of `.cargo/config.toml`.
const REPORTED: &str = "DEFAULT_MEMSTATUS=0";

/// Whether SQLite was compiled with the options of `.cargo/config.toml`. Reads the program, not a database.
pub fn has_compile_options() -> bool {
    reports(REPORTED).unwrap_or_default()
}

fn reports(option: &str) -> rusqlite::Result<bool> {
    let connection = Connection::open_in_memory()?;
    let mut options = connection.prepare("PRAGMA compile_options")?;
    let mut rows = options.query([])?;
    while let Some(row) = rows.next()? {
        if row.get_ref(0)?.as_str()? == option {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_compiles_sqlite_with_its_options() {
        assert!(has_compile_options(), "see `.cargo/config.toml`");
        assert_eq!(reports("DEFAULT_MEMSTATUS=1"), Ok(false));
    }
}
