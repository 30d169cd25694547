//! Progress of long commands on the standard error output, without a terminal.

use super::installation::Installation;

/// Every long command with a file, and the start of a reported line. The lines of `migrate` are in `postgres`.
#[tokio::test]
async fn progress_is_reported_where_it_is_asked_for() {
    let installation = Installation::new("").await;
    let folder = installation.folder.path().join("backup");
    std::fs::create_dir(&folder).expect("the folder takes folders");
    let folder = folder.display().to_string();
    let file = installation.folder.path().join("copy.db");
    let file = file.display().to_string();
    for (words, reported) in [
        (&["audit"][..], "\nauditing the books: "),
        (&["backup", "--replace", &file], "\ncopied "),
        (&["backup", "--dir", &folder], "\ncopied "),
    ] {
        let output = |text: String| format!("\n{text}");
        let quiet = output(installation.run(words).await);
        assert!(!quiet.contains(reported), "{quiet}");
        let words = [words, &["--progress"]].concat();
        let shown = output(installation.run(&words).await);
        assert!(shown.contains(reported), "{words:?}: {shown}");
    }
}
