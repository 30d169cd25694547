//! `tollgate backup`: copies the database.

use std::io::Write;
use std::path::Path;

use anyhow::Context as _;
use tollgate_store::sqlite;

use super::control_client::ControlClient;
use super::exit_code::SUCCESS;

/// Copies the store to a file.
pub(super) fn backup(
    client: &ControlClient,
    to: &Path,
    replace: bool,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let database = client.file("copy the database with `pg_dump` or `pg_basebackup`")?;
    if replace {
        sqlite::backup_replacing(&database, to)?;
    } else {
        sqlite::backup(&database, to)?;
    }
    writeln!(out, "{}: backup of {}", to.display(), database.display()).context("cannot print")?;
    Ok(SUCCESS)
}
