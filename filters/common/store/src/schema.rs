//! The numbered steps from nothing to the schema of this version.
//!
//! Forward only. A release may add what the one before it does not know, and change nothing that the one before it needs: the
//! previous release must run on the next schema while an upgrade is under way. The fifth step, which takes the first books away, came before
//! there was a release.

/// The schema that this version writes.
pub(crate) const SCHEMA: i64 = MIGRATIONS.len() as i64;

const MIGRATIONS: &[&str] = &[
    include_str!("migrations/001.sql"),
    include_str!("migrations/002.sql"),
    include_str!("migrations/003.sql"),
    include_str!("migrations/004.sql"),
    include_str!("migrations/005.sql"),
    include_str!("migrations/006.sql"),
];

/// What an engine calls the words that differ.
pub(crate) struct Dialect {
    pub(crate) int: &'static str,
    pub(crate) bin: &'static str,
    pub(crate) rows: &'static str,
    pub(crate) keyed: &'static str,
}

impl Dialect {
    /// The statements that lead from schema `from` to [`SCHEMA`], one text per step.
    pub(crate) fn steps(&self, from: i64) -> impl Iterator<Item = String> {
        let done = usize::try_from(from).unwrap_or(0);
        MIGRATIONS.iter().skip(done).map(|step| {
            step.replace("$INT", self.int)
                .replace("$BIN", self.bin)
                .replace("$ROWS", self.rows)
                .replace("$KEYED", self.keyed)
        })
    }
}
