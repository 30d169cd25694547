//! The `Filter` trait and the results of its phases.

use std::error::Error;
use std::future::Future;
use std::ops::BitOr;
use std::pin::Pin;

use crate::{ApiError, Ending, Event, Exchange, Reply, Tail};

/// A step of a chain.
///
/// Every phase has a default that does nothing; [`Contract::phases`] lists the phases that the chain calls. A phase returns a [`Step`]: at
/// once where possible (no allocation), later where the phase must wait.
pub trait Filter: Send + Sync {
    /// The filter's name in the settings, in logs and in metrics.
    fn name(&self) -> &'static str;

    /// The filter's requirements and guarantees; read once, when a chain is built.
    fn contract(&self) -> Contract;

    /// The head has been read, and the request was admitted by every filter before the first filter that requires the body. The body is
    /// read next. The place for refusals that need no body. Called once for every filter of the chain, and only where a filter requires the
    /// body.
    fn on_head<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let _ = exchange;
        Step::now(Outcome::Continue)
    }

    /// The head has been read, and the body too when the contract requires the body.
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let _ = exchange;
        Step::now(Outcome::Continue)
    }

    /// No filter has replied and the upstream is about to be called. The last chance to reply, and the place to start durable work that
    /// runs concurrently with the call.
    fn on_forward<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let _ = exchange;
        Step::now(Outcome::Continue)
    }

    /// The request is refused before the upstream was called, and nothing was sent. May replace `error` with another refusal.
    ///
    /// Called when a filter refuses in [`Filter::on_request`] or [`Filter::on_forward`], and when a filter returns an error from these
    /// phases under [`FailureMode::Deny`]. Also called when the driver refuses while reading a body for a filter (the body's length, time,
    /// framing or media type). Not called for refusals in [`Filter::before_first_byte`] and [`Filter::before_tail`], nor for errors of the
    /// upstream.
    fn on_refusal(&self, exchange: &mut Exchange, error: &mut ApiError) {
        let _ = (exchange, error);
    }

    /// The first piece of a stream is about to be sent. May wait for durable work, and may still turn the response into an error. Not
    /// called for whole responses, which are sent after [`Filter::before_tail`], with its longer waits.
    fn before_first_byte<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let _ = exchange;
        Step::now(Outcome::Continue)
    }

    /// A whole piece of a successful response: an event of a stream, or the body of a whole response. Called for every piece, even after
    /// the client has disconnected and the rest is only read for its usage.
    fn on_event(&self, exchange: &mut Exchange, event: &mut Event<'_>) {
        let _ = (exchange, event);
    }

    /// The response is complete or has failed (see [`Tail::ending`]), and its last bytes are not sent. The place to settle, stamp and
    /// store. An error keeps the tail from being sent.
    fn before_tail<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        tail: &'a mut Tail,
    ) -> Step<'a, Outcome> {
        let _ = (exchange, tail);
        Step::now(Outcome::Continue)
    }

    /// Called exactly once on every exit, for every filter whose `on_request` was called, but not for a filter that has only seen the head.
    /// For a response without success: called before the response is sent, with the intended ending, to release the request's reservations
    /// in time. For any other response: called after the response. Must not block and must not panic.
    fn on_end(&self, exchange: &mut Exchange, ending: Ending) {
        let _ = (exchange, ending);
    }
}

/// A filter's decision on an exchange.
#[derive(Debug)]
#[must_use]
pub enum Outcome {
    /// Pass the exchange to the next filter.
    Continue,
    /// Respond to the downstream now; the upstream is never contacted.
    Reply(Box<Reply>),
    /// Refuse. Boxed, to keep the common outcome small.
    Refuse(Box<ApiError>),
}

impl Outcome {
    /// Responds with `reply`.
    pub fn reply(reply: Reply) -> Outcome {
        Outcome::Reply(Box::new(reply))
    }

    /// Refuses with `error`.
    pub fn refuse(error: ApiError) -> Outcome {
        Outcome::Refuse(Box::new(error))
    }
}

/// A phase's result: ready, or pending.
#[must_use]
pub enum Step<'a, T> {
    /// Decided without waiting.
    Now(Result<T, FilterError>),
    /// Waits.
    Later(Pin<Box<dyn Future<Output = Result<T, FilterError>> + Send + 'a>>),
}

impl<'a, T> Step<'a, T> {
    /// A decision.
    pub fn now(value: T) -> Step<'a, T> {
        Step::Now(Ok(value))
    }

    /// A failure to decide.
    pub fn failed(error: FilterError) -> Step<'a, T> {
        Step::Now(Err(error))
    }

    /// A decision that needs waiting.
    pub fn later(future: impl Future<Output = Result<T, FilterError>> + Send + 'a) -> Step<'a, T> {
        Step::Later(Box::pin(future))
    }

    /// The result, awaited if necessary.
    pub async fn finish(self) -> Result<T, FilterError> {
        match self {
            Step::Now(result) => result,
            Step::Later(future) => future.await,
        }
    }
}

/// A filter failure: the store is down, an invariant is broken. Not a refusal.
///
/// [`Contract::on_failure`] says whether the exchange continues. If the exchange ends, the client gets `answer`, and the log the cause.
#[derive(Debug, thiserror::Error)]
#[error("{answer}")]
pub struct FilterError {
    /// The error for the client.
    pub answer: Box<ApiError>,
    /// The cause, for the log alone.
    #[source]
    pub source: Option<Box<dyn Error + Send + Sync>>,
}

impl FilterError {
    /// An error with its cause.
    pub fn new(answer: ApiError, source: impl Into<Box<dyn Error + Send + Sync>>) -> FilterError {
        FilterError {
            answer: Box::new(answer),
            source: Some(source.into()),
        }
    }
}

/// A filter's contract with the chain.
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// The phases to call.
    pub phases: Phases,
    /// Whether the request's body is read before `on_request`.
    pub body: Body,
    /// The failure mode of the filter.
    pub on_failure: FailureMode,
}

/// A filter's access to the request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Not read.
    Unread,
    /// Required as JSON. Before the filter is called, a body beyond `bytes_max` or the route's limit is refused with 413, and another media
    /// type or encoding with 415.
    Json {
        /// Maximum size in bytes.
        bytes_max: usize,
    },
    /// Required in any media type and encoding: forms, and bodies whose refusal has a special format. Before the filter is called, a body
    /// beyond `bytes_max` or the route's limit is refused with 413.
    Bytes {
        /// Maximum size in bytes.
        bytes_max: usize,
    },
}

/// The failure mode: the chain's reaction to a filter's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureMode {
    /// Fail closed: the exchange ends with the error. For access and money.
    Deny,
    /// Fail open: the exchange continues without the filter; the failure is logged and counted.
    Allow,
}

/// A phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Phase {
    /// [`Filter::on_request`]
    Request = 1,
    /// [`Filter::on_forward`]
    Forward = 2,
    /// [`Filter::before_first_byte`]
    FirstByte = 4,
    /// [`Filter::on_event`]
    Event = 8,
    /// [`Filter::before_tail`]
    Tail = 16,
    /// [`Filter::on_end`]
    End = 32,
    /// [`Filter::on_refusal`]
    Refusal = 64,
    /// [`Filter::on_head`]
    Head = 128,
}

/// A set of phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases(u8);

impl Phases {
    /// Whether the set has `phase`.
    pub const fn has(self, phase: Phase) -> bool {
        self.0 & phase as u8 != 0
    }
}

impl From<Phase> for Phases {
    fn from(phase: Phase) -> Phases {
        Phases(phase as u8)
    }
}

impl BitOr for Phase {
    type Output = Phases;

    fn bitor(self, other: Phase) -> Phases {
        Phases(self as u8 | other as u8)
    }
}

impl BitOr<Phase> for Phases {
    type Output = Phases;

    fn bitor(self, other: Phase) -> Phases {
        Phases(self.0 | other as u8)
    }
}
