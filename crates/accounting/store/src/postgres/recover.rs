//! Recovery of the ledger in a database that no gateway uses as this node: rebuilds the derived data.

use super::failure::{open_error, row_open_error, write_open_error};
use super::lease;
use super::open::{enter, target};
use super::options::Options;
use super::schema::{self, MIGRATION_MAX};
use crate::error::OpenError;
use crate::recovery;

/// Rebuilds all data derived from the journal, in one transaction; the journal stays unchanged. Refused while a gateway has the database.
/// Also refused if a commit of the journal differs from its seal: the commit's changes would be lost permanently.
pub fn rebuild_postings(options: &Options) -> Result<(), OpenError> {
    let name = options.url.to_string();
    // Always as [`NodeRole::Alone`], also with several nodes: the rebuild changes the shared state of the nodes, so no node may run or be
    // unrecovered.
    let alone = Options {
        password: options.password.clone(),
        ..Options::new(options.url.clone(), options.now, options.random.clone())
    };
    let opened = enter(&target(&alone)?, &alone)?;
    let connection = &opened.connection;
    let failed = |error| open_error(&name, "write", error);
    connection.limit(MIGRATION_MAX).map_err(failed)?;
    // No thread renews the lease. Every start waits for this lock until the rebuild is committed.
    schema::lock(connection).map_err(failed)?;
    let rebuilt = recovery::verify_seals(connection)
        .map_err(|error| row_open_error(&name, error))
        .and_then(|()| {
            recovery::rebuild(connection, options.post_records)
                .map_err(|error| write_open_error(&name, error))
        });
    let ended = match rebuilt {
        Ok(()) => connection.run("COMMIT", &[]).map(|_| ()),
        Err(_) => connection.run("ROLLBACK", &[]).map(|_| ()),
    };
    let released = lease::release(connection, opened.node, opened.epoch);
    rebuilt?;
    ended.and(released).map_err(failed)
}
