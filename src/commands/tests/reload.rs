//! `tollgate reload` and `tollgate settings diff`.

use super::json::{Running, difference};
use super::*;

fn serve(workspace: &Workspace, differences: Vec<crate::config::Difference>) -> ControlServer {
    workspace.serve_with(|service, settings| {
        service.with_settings(Arc::new(Running {
            settings: Arc::new(settings),
            differences,
        }))
    })
}

/// The gateway reads the gateway's own file. A different file was silently not compared, and was reported "in force" without a read.
#[test]
fn another_file_than_that_of_the_gateway_is_refused() {
    let workspace = Workspace::new();
    let server = serve(&workspace, vec![difference()]);
    let own = workspace.file();
    let candidate = own.with_file_name("candidate.toml");
    std::fs::copy(&own, &candidate).expect("copied");
    for command in ["settings diff", "reload"] {
        let refused = workspace.run(&format!("{command} --config {}", candidate.display()));
        let refused = refused.expect_err("it is another file");
        for path in [&own, &candidate] {
            assert!(refused.contains(&path.display().to_string()), "{refused}");
        }
        assert!(workspace.good(command).contains("server.workers"));
    }
    // A second name of the file.
    let link = own.with_file_name("link.toml");
    std::os::unix::fs::symlink(&own, &link).expect("linked");
    workspace.good(&format!("reload --config {}", link.display()));
    server.end();
}

#[test]
fn no_difference_is_said_with_the_file() {
    let workspace = Workspace::new();
    let server = serve(&workspace, Vec::new());
    let file = workspace.file().display().to_string();
    let shown = workspace.good("settings diff");
    assert!(shown.starts_with("no differences"), "{shown}");
    assert!(shown.contains(&file), "{shown}");
    assert!(workspace.good("reload").contains(&file));
    assert_eq!(workspace.json("settings diff"), serde_json::json!([]));
    server.end();
}
