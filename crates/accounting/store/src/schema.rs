//! Schema migrations: the numbered steps from an empty file to the schema of this version.
//!
//! Forward only. A release may add data that the previous release does not know. A release changes nothing that the previous release needs:
//! the previous release must run on the next schema during an upgrade. The fifth step, which removes the first ledger tables, predates the
//! first release.

/// The schema that this version writes.
pub(crate) const SCHEMA: i64 = MIGRATIONS.len() as i64;

/// The oldest schema whose release can use a store of the present schema: no later step changes or removes existing data. A release before
/// 16 still refuses an SQLite file of a later schema.
pub(crate) const COMPATIBLE_FROM: i64 = 12;

const MIGRATIONS: &[&str] = &[
    include_str!("migrations/001.sql"),
    include_str!("migrations/002.sql"),
    include_str!("migrations/003.sql"),
    include_str!("migrations/004.sql"),
    include_str!("migrations/005.sql"),
    include_str!("migrations/006.sql"),
    include_str!("migrations/007.sql"),
    include_str!("migrations/008.sql"),
    include_str!("migrations/009.sql"),
    include_str!("migrations/010.sql"),
    include_str!("migrations/011.sql"),
    include_str!("migrations/012.sql"),
    include_str!("migrations/013.sql"),
    include_str!("migrations/014.sql"),
    include_str!("migrations/015.sql"),
    include_str!("migrations/016.sql"),
    include_str!("migrations/017.sql"),
    include_str!("migrations/018.sql"),
    include_str!("migrations/019.sql"),
    include_str!("migrations/020.sql"),
    include_str!("migrations/021.sql"),
    include_str!("migrations/022.sql"),
    include_str!("migrations/023.sql"),
    include_str!("migrations/024.sql"),
];

/// The SQL keywords that differ between engines.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::MIGRATIONS;

    #[test]
    fn the_readme_names_each_table_with_the_number_of_the_step_that_creates_it() {
        let mut created = BTreeMap::new();
        for (at, step) in MIGRATIONS.iter().enumerate() {
            for line in step.lines() {
                let words: Vec<&str> = line.split([' ', '(', ';']).collect();
                match words[..] {
                    ["CREATE", "TABLE", name, ..] => {
                        created.insert(name, at + 1);
                    }
                    ["DROP", "TABLE", name, ..] => {
                        created.remove(name);
                    }
                    _ => {}
                }
            }
        }
        assert!(created.len() > 40, "{created:?}");
        let readme = include_str!("../README.md");
        let tables = readme
            .split("\n## ")
            .find(|part| part.starts_with("Tables\n"));
        let tables = tables.expect("the section of tables");
        for (name, step) in created {
            let mut rows = tables.lines();
            let row = rows.find(|row| row.contains(&format!("`{name}`")));
            let row = row.unwrap_or_else(|| panic!("no row names `{name}`"));
            assert!(
                row.contains(&format!("{step:03}")),
                "`{name}` is of step {step}: {row}"
            );
        }
    }
}
