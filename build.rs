//! Tells the program the commit of a release build: `TOLLGATE_COMMIT`, or the commit of the clone. Other builds know no commit, so that a commit
//! compiles nothing again.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=TOLLGATE_COMMIT");
    let named = variable("TOLLGATE_COMMIT");
    let commit = match variable("PROFILE").as_deref() {
        Some("release") if named.is_none() => {
            println!("cargo::rerun-if-changed=.git/logs/HEAD");
            of_the_clone()
        }
        _ => named,
    };
    let commit = commit.unwrap_or_default();
    println!("cargo::rustc-env=TOLLGATE_COMMIT={commit}");
    let version = variable("CARGO_PKG_VERSION").unwrap_or_default();
    let described = match commit.as_str() {
        "" => version,
        commit => format!("{version} ({commit})"),
    };
    println!("cargo::rustc-env=TOLLGATE_RELEASE={described}");
}

#[expect(clippy::disallowed_methods, reason = "a setting of the build")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn of_the_clone() -> Option<String> {
    let mut git = Command::new("git");
    let answer = git
        .args(["rev-parse", "--short=12", "HEAD"])
        .output()
        .ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    answer.status.success().then(|| text.trim().to_owned())
}
