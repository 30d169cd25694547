//! The metrics endpoint.

use std::path::Path;

use tollgate_testing::within;

use crate::rig::Rig;

#[tokio::test]
async fn unlabelled_metrics_exist_from_the_start() {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("conf/README.md");
    let reference = std::fs::read_to_string(reference).expect("the reference");
    let rows: Vec<[&str; 2]> = reference
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `tollgate_")?.split('|');
            let name = cells.next()?.trim().strip_suffix('`')?;
            let kind = cells.next()?.trim();
            cells.next()?.trim().is_empty().then_some([name, kind])
        })
        .collect();
    let rig = Rig::start().await;
    // A task that starts with the gateway reads the sum of all accounts.
    let is_read = async {
        loop {
            let page = rig.admin_get("/metrics").await;
            if page.text().contains("\ntollgate_owed_microcredits ") {
                return page;
            }
        }
    };
    let page = within("the sum of all accounts", is_read).await;
    for [name, kind] in &rows {
        let line = format!("# TYPE tollgate_{name} {kind}");
        assert!(
            page.text().lines().any(|have| have == line),
            "no `{line}` in:\n{}",
            page.text()
        );
        let number = match *kind {
            "histogram" => format!("tollgate_{name}_count"),
            _ => format!("tollgate_{name}"),
        };
        rig.metric(&number).await;
    }
    assert!(rows.len() > 10, "the table reads otherwise: {rows:?}");
    rig.finish().await;
}
