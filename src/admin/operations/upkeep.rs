//! Upkeep by commands in separate processes.

use serde::{Deserialize, Serialize};
use tollgate_store::{Admission, UnitOfWork, commit};

use super::operation::{Done, Operation, Run};
use crate::admin::changes::ChangeError;
use crate::admin::upkeep::{ACTION, Task};

/// Records completed upkeep, without any further change.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Complete {
    /// The task.
    pub(crate) task: Task,
    /// The violations found by an audit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) violations: Option<u64>,
}

impl Operation for Complete {
    type Output = Done;
    const NAME: &'static str = ACTION;
    const SUBJECT: Option<&'static str> = Some("task");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let unit = UnitOfWork::of(run.recorder.part(), Admission::Normal);
        commit(&*run.service.store, unit).await?;
        run.recorder.set_recorded();
        let violations = self.violations.unwrap_or_default();
        run.service.upkeep.set(self.task, run.now, violations);
        Ok(Done {})
    }
}
