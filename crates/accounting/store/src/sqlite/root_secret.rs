//! The root secret of a file.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _};

use super::failure::open_error;
use crate::error::OpenError;
use crate::rows::RootSecret;

/// The root secret of the store.
pub(crate) fn root_secret(connection: &Connection, path: &Path) -> Result<RootSecret, OpenError> {
    let text: Option<String> = connection
        .query_row("SELECT v FROM meta WHERE k = 'secret'", [], |row| {
            row.get(0)
        })
        .optional()
        .map_err(|error| open_error(path, "read", error))?;
    let mut secret = [0; 32];
    let decoded = base16ct::mixed::decode(text.unwrap_or_default(), &mut secret);
    let is_whole = decoded.is_ok_and(|bytes| bytes.len() == 32);
    is_whole
        .then_some(RootSecret(secret))
        .ok_or_else(|| OpenError::Damaged {
            path: path.to_owned(),
            problem: String::from("has no root secret"),
        })
}
