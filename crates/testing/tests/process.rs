//! Child processes are observed, signalled and always cleaned up.

use std::path::Path;
use std::process::Command;

use tollgate_testing::Process;

fn shell(script: &str) -> Process {
    Process::spawn(Command::new("sh").args(["-c", script])).expect("a shell")
}

#[test]
fn output_is_kept_from_both_pipes() {
    let mut process = shell("echo one; echo two >&2; exit 3");
    assert_eq!(process.wait().code(), Some(3));
    let output = process.output();
    assert!(
        output.contains("one\n") && output.contains("two\n"),
        "{output}"
    );
}

#[test]
fn a_line_is_waited_for_and_a_signal_arrives() {
    let mut process = shell("echo ready; exec sleep 600");
    assert_eq!(
        process.line_where("the line of a ready program", |line| line
            .starts_with("ready")),
        "ready"
    );
    process.signal("KILL");
    assert_eq!(process.wait().code(), None, "ended by a signal");
}

#[test]
#[should_panic(expected = "ended without a greeting")]
fn a_missing_line_is_a_failure_that_shows_the_output() {
    shell("echo goodbye").line_where("a greeting", |line| line.contains("hello"));
}

#[test]
fn a_dropped_process_is_killed() {
    let process = shell("echo ready; exec sleep 600");
    process.line_where("the start", |line| line.starts_with("ready"));
    let place = format!("/proc/{}", process.id());
    assert!(Path::new(&place).exists());
    drop(process);
    assert!(!Path::new(&place).exists(), "{place} is still there");
}
