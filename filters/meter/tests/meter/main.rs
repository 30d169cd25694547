//! The meter from outside: through the driver, over real books, between a stand-in client and a stand-in provider.

mod admission;
mod durability;
mod endings;
mod support;

/// That every test the table names exists is a house rule; here it is the other way round.
#[test]
fn every_row_of_the_table_of_endings_names_a_test_and_every_test_of_endings_stands_there() {
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
