//! Tells the program the commit of a release build: `TOLLGATE_COMMIT`, or the commit of the clone. Other builds know no commit, so that a commit
//! compiles nothing again.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=TOLLGATE_COMMIT");
    let named = variable("TOLLGATE_COMMIT");
    let commit = match variable("PROFILE").as_deref() {
        Some("release") if named.is_none() => {
            if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
                println!("cargo::rerun-if-changed={log}");
            }
            git(&["rev-parse", "--short=12", "HEAD"])
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

/// The answer of git, where this is a clone and git is there.
fn git(arguments: &[&str]) -> Option<String> {
    let answer = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(answer.stdout).ok()?;
    answer.status.success().then(|| text.trim().to_owned())
}
