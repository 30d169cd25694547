//! The result of one check.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "FindingStatus")]
pub(crate) enum Status {
    /// Good.
    Ok,
    /// The gateway works, but a limit is near or a promise weaker than it looks.
    Warning,
    /// The gateway cannot do a part of its work.
    Failed,
    /// Not to be had on this machine.
    Skipped,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Warning => "warning",
            Status::Failed => "failed",
            Status::Skipped => "skipped",
        }
    }
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Finding {
    /// What was checked.
    pub(super) check: String,
    pub(crate) status: Status,
    /// What was measured, or the error.
    pub(super) measured: String,
    /// What the operator can do about it.
    pub(super) remedy: Option<String>,
    /// How long the check took.
    pub(super) duration_ms: u64,
}

impl Finding {
    fn new(check: impl Into<String>, status: Status, measured: impl Into<String>) -> Finding {
        Finding {
            check: check.into(),
            status,
            measured: measured.into(),
            remedy: None,
            duration_ms: 0,
        }
    }

    pub(super) fn ok(check: impl Into<String>, measured: impl Into<String>) -> Finding {
        Finding::new(check, Status::Ok, measured)
    }

    pub(super) fn warning(check: impl Into<String>, measured: impl Into<String>) -> Finding {
        Finding::new(check, Status::Warning, measured)
    }

    pub(super) fn failed(check: impl Into<String>, measured: impl Into<String>) -> Finding {
        Finding::new(check, Status::Failed, measured)
    }

    pub(super) fn skipped(check: impl Into<String>, measured: impl Into<String>) -> Finding {
        Finding::new(check, Status::Skipped, measured)
    }

    /// Adds a remedy.
    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<8} {}: {}",
            self.status.word(),
            self.check,
            self.measured
        )?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n         {remedy}"),
            None => Ok(()),
        }
    }
}
