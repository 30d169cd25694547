//! The meter from outside: through the driver, over real books, between a stand-in client and a stand-in provider.

mod admission;
mod durability;
mod endings;
mod support;

#[test]
fn every_test_in_the_table_of_endings_exists() {
    let readme = include_str!("../../README.md");
    let tests = include_str!("endings.rs");
    let table = readme
        .split("## Every way a request can end")
        .nth(1)
        .and_then(|rest| rest.split("\n## ").next())
        .expect("the table");
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1);
    let mut checked = 0;
    for row in rows {
        let cell = row.rsplit('|').nth(1).expect("a last cell");
        let names: Vec<_> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test stands in {row:?}");
        for name in names {
            let test = format!("async fn {name}()");
            assert!(tests.contains(&test), "there is no test `{name}`");
            checked += 1;
        }
    }
    assert!(checked >= 25, "only {checked} tests were looked for");
}
