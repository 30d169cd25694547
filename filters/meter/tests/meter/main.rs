//! Integration tests of the meter: through the driver, over a real ledger, between a test client and a test provider.

mod admission;
mod durability;
mod endings;
mod support;

/// `tests/tidy` checks that every test in the table exists; this checks the opposite direction.
#[test]
fn every_row_of_the_table_of_endings_names_a_test_and_every_test_of_endings_is_listed() {
    let readme = include_str!("../../README.md");
    let table = readme
        .split("## Every way a request can end")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the table");
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cell = row.rsplit('|').nth(1).expect("a last cell");
        let names = cell.split('`').count() / 2;
        assert!(
            cell.trim() == "Test" || names > 0,
            "no test stands in {row:?}"
        );
    }
    let mut checked = 0;
    for test in include_str!("endings.rs")
        .split("#[tokio::test]\nasync fn ")
        .skip(1)
    {
        let name = test.split('(').next().expect("a name");
        assert!(table.contains(&format!("`{name}`")), "`{name}` has no row");
        checked += 1;
    }
    assert!(checked >= 25, "only {checked} tests were looked for");
}
