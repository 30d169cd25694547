//! Exit codes of the program, and the error that carries an exit code.

use tollgate_store::OpenError;

/// Exit code of a successful command.
pub(super) const SUCCESS: u8 = 0;
/// Exit code of a command that failed or reports a problem.
pub(super) const FAILURE: u8 = 1;
/// Exit code of an audit or a repair that could not be completed, and of a database that has lost commits. An operator has to decide.
pub(super) const INCOMPLETE: u8 = 2;

/// The exit code for an error.
pub(super) fn of(error: &anyhow::Error) -> u8 {
    if let Some(Exit(code)) = error.downcast_ref() {
        return *code;
    }
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    match causes.any(OpenError::is_loss) {
        true => INCOMPLETE,
        false => FAILURE,
    }
}

/// A separate exit code for an error.
#[derive(Debug)]
pub(super) struct Exit(pub(super) u8);

impl std::fmt::Display for Exit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("could not be completed")
    }
}
