//! Price versions: the prices in force, stored once per version, so that charges can be recomputed.

use std::collections::HashSet;
use std::sync::Arc;

use tollgate_store::{
    Admission, CommitError, Part, PriceRow, ReadError, Store, UnitOfWork, commit_blocking,
};

/// Why the prices in force could not be stored. Without stored prices no request may be charged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PricesError {
    /// The stored versions could not be read.
    #[error("could not read the prices")]
    Read(#[source] ReadError),
    /// A version is stored with other amounts, or the store has stopped.
    #[error("could not store the prices")]
    Commit(#[source] CommitError),
}

/// Stores new versions, and returns their number. A row is never changed: a reintroduced price already has its row. Blocks until the rows
/// are durable.
pub fn record_prices(
    store: &dyn Store,
    in_force: impl IntoIterator<Item = PriceRow>,
) -> Result<usize, PricesError> {
    let mut known: HashSet<(i64, Arc<str>)> = HashSet::new();
    store
        .prices(&mut |row| {
            known.insert((row.version, row.model));
        })
        .map_err(PricesError::Read)?;
    let new: Vec<Part> = in_force
        .into_iter()
        .filter(|row| !known.contains(&(row.version, Arc::clone(&row.model))))
        .map(|row| Part::RecordPrice(Box::new(row)))
        .collect();
    let count = new.len();
    if count == 0 {
        return Ok(0);
    }
    commit_blocking(store, UnitOfWork::of_all(new, Admission::Always))
        .map(|_| count)
        .map_err(PricesError::Commit)
}
