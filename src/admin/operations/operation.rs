//! An operation of the operator: arguments, record in the audit log, act and result.
//!
//! The control socket, the admin API and the command line build the struct of an operation, and show the result.

use std::any::Any;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_clock::Timestamp;

use crate::admin::audit::Recorder;
use crate::admin::changes::{Caller, ChangeError};
use crate::admin::service::AdminService;

/// An operation: the fields are the arguments, and [`Operation::run`] is the act.
pub trait Operation: Debug + Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The result.
    type Output: Debug + Serialize + DeserializeOwned + Send + 'static;

    /// The name: `change` on the control socket, and the action in the audit log.
    const NAME: &'static str;
    /// The name of the result: `applied` on the control socket.
    const RESULT: &'static str = "done";
    /// When the operation is recorded in the audit log.
    const RECORDED: Recorded = Recorded::AtEnd;
    /// The argument with the subject's id. For `None`, the subject is the account or key created by the unit of work.
    const SUBJECT: Option<&'static str> = None;
    /// Time limit for the answer on the control socket.
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Performs the operation. The effect is durable before the result is returned.
    fn run(self, run: &Run<'_>) -> impl Future<Output = Result<Self::Output, ChangeError>> + Send;

    /// Members added by the result to the record.
    fn detail(_: &Self::Output) -> Value {
        Value::Null
    }

    /// The id of the created subject.
    fn created(_: &Self::Output) -> Option<&str> {
        None
    }
}

/// When an operation is recorded in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// An operation without changes.
    Never,
    /// With the effect, or when the effect is durable.
    AtEnd,
    /// Before the begin: another process has the store at the end.
    AtBegin,
}

/// A run of an operation.
pub struct Run<'r> {
    pub(super) service: &'r AdminService,
    /// Unused by an operation without changes.
    pub(super) recorder: &'r Recorder<'r>,
    pub(super) now: Timestamp,
}

impl<'r> Run<'r> {
    /// A run at `now`.
    pub(in crate::admin) fn new(
        service: &'r AdminService,
        recorder: &'r Recorder<'r>,
        now: Timestamp,
    ) -> Run<'r> {
        Run {
            service,
            recorder,
            now,
        }
    }
}

/// The result of an operation whose state is as requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Done {}

/// An operation in progress.
pub type ApplyFuture<'a> = Pin<Box<dyn Future<Output = Result<Applied, ChangeError>> + Send + 'a>>;

/// The service for operations.
pub trait Changes: Send + Sync {
    /// Performs an operation and waits until the effect is durable.
    fn apply(&self, request: Box<dyn Request>, caller: Caller) -> ApplyFuture<'_>;
}

impl dyn Changes + '_ {
    /// Performs an operation of a known type.
    ///
    /// # Errors
    ///
    /// Why the operation was not performed.
    pub async fn perform<O: Operation>(
        &self,
        operation: O,
        caller: Caller,
    ) -> Result<O::Output, ChangeError> {
        let applied = self.apply(Box::new(operation), caller).await?;
        let lost = || ChangeError::unavailable("the change was made; its result was lost");
        applied.into_output::<O>().ok_or_else(lost)
    }
}

/// An operation of any type.
pub trait Request: Any + Debug + Send {
    /// Performs the operation.
    fn perform(self: Box<Self>, service: &AdminService, caller: Caller) -> ApplyFuture<'_>;
}

impl<O: Operation> Request for O {
    fn perform(self: Box<Self>, service: &AdminService, caller: Caller) -> ApplyFuture<'_> {
        Box::pin(async move { Ok(Applied::of::<O>(service.perform(*self, caller).await?)) })
    }
}

/// The result of an operation of any type.
#[derive(Debug)]
pub struct Applied(Box<dyn Outcome>);

impl Applied {
    /// The result of an operation.
    pub fn of<O: Operation>(output: O::Output) -> Applied {
        Applied(Box::new(Named::<O>(output)))
    }

    /// The result; `None` for a result of another operation.
    pub fn into_output<O: Operation>(self) -> Option<O::Output> {
        let outcome: Box<dyn Any> = self.0;
        let named = outcome.downcast::<Named<O>>().ok()?;
        Some(named.0)
    }

    /// The answer on the control socket.
    pub(in crate::admin) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        self.0.to_json()
    }
}

trait Outcome: Any + Debug + Send {
    fn to_json(&self) -> serde_json::Result<Vec<u8>>;
}

#[derive(Debug)]
struct Named<O: Operation>(O::Output);

impl<O: Operation> Outcome for Named<O> {
    fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Answer::Ok(NamedOutput {
            applied: O::RESULT,
            output: &self.0,
        }))
    }
}

/// An answer on the control socket: a result, or a sentence with the reason for the refusal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::admin) enum Answer<T> {
    /// The effect is durable.
    Ok(T),
    /// Nothing was changed.
    Error(String),
}

#[derive(Serialize)]
struct NamedOutput<'o, T> {
    applied: &'static str,
    #[serde(flatten)]
    output: &'o T,
}

/// A request on the control socket.
pub(in crate::admin) fn request_line<O: Operation>(operation: &O) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct NamedOperation<'o, O> {
        change: &'static str,
        #[serde(flatten)]
        operation: &'o O,
    }
    let mut line = serde_json::to_vec(&NamedOperation {
        change: O::NAME,
        operation,
    })?;
    line.push(b'\n');
    Ok(line)
}

/// The result in an answer on the control socket; `None` for a result of another operation.
pub(in crate::admin) fn read_output<O: Operation>(mut applied: Value) -> Option<O::Output> {
    let name = applied.as_object_mut()?.remove("applied")?;
    match name == O::RESULT {
        true => serde_json::from_value(applied).ok(),
        false => None,
    }
}
