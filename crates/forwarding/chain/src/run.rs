//! One exchange in progress: a drop guard reports the end exactly once.

use bytes::Bytes;
use smallvec::SmallVec;
use tollgate_filter::{
    ApiError, Ending, ErrorCode, Event, Exchange, FailureMode, FilterError, Outcome, Step, Tail,
};

use crate::chain::{Chain, Link};
use crate::downstream::{Downstream, Gone, Head};

/// An observer of every finished exchange.
pub trait Observer: Send + Sync {
    /// The exchange is finished. Must not block and must not panic.
    fn ended(&self, exchange: &Exchange, ending: Ending);

    /// The exchange is about to be forwarded: the cost limit is decided, and no filter refuses any more.
    fn forwarded(&self) {}

    /// The provider's response text, with known secrets redacted. Read when a response is at fault.
    fn redact(&self, exchange: &Exchange, text: String) -> String {
        let _ = exchange;
        text
    }

    fn filter_failed(&self, filter: &'static str) {
        let _ = filter;
    }
}

/// An exchange and its progress through the chain.
///
/// A drop ends the exchange: with the ending set before, or as aborted after a panic or a cancelled task.
pub struct Run<'c> {
    pub exchange: Exchange,
    chain: &'c Chain,
    observer: &'c dyn Observer,
    /// The number of filters that have seen the request; responses pass these filters in reverse.
    seen: usize,
    ending: Ending,
    /// Whether `on_end` has been called.
    is_ended: bool,
}

/// The result of a filter's step, awaited if necessary. A macro, since a function would be a separate future, created, moved and polled for
/// each filter, though nearly every step returns at once.
macro_rules! finished {
    ($exchange:expr, $step:expr) => {{
        let (result, waited) = match $step {
            Step::Now(result) => (result, false),
            Step::Later(waits) => (waits.await, true),
        };
        if waited {
            $exchange.invalidate_now();
        }
        result
    }};
}

/// Awaits the write of a ready answer. If the write waits for the client, the request's head is freed first.
macro_rules! waited {
    ($exchange:expr, $write:expr) => {{
        let mut write = std::pin::pin!($write);
        let first = std::future::poll_fn(|cx| {
            std::task::Poll::Ready(std::future::Future::poll(write.as_mut(), cx))
        });
        match first.await {
            std::task::Poll::Ready(written) => written,
            std::task::Poll::Pending => {
                $exchange.request.free_head();
                write.await
            }
        }
    }};
}
pub(crate) use waited;

impl<'c> Run<'c> {
    pub fn new(exchange: Exchange, chain: &'c Chain, observer: &'c dyn Observer) -> Run<'c> {
        Run {
            exchange,
            chain,
            observer,
            seen: 0,
            ending: Ending::Aborted,
            is_ended: false,
        }
    }

    /// The provider's response text, safe to report and log.
    pub(crate) fn redact(&self, text: String) -> String {
        self.observer.redact(&self.exchange, text)
    }

    /// Reports that the exchange is about to be forwarded.
    pub(crate) fn forwarded(&self) {
        self.observer.forwarded();
    }

    /// Sets the recorded ending.
    pub fn set_ending(&mut self, ending: Ending) {
        self.ending = ending;
    }

    /// The next filter that has not seen the request; marks the filter as having seen the request.
    pub(crate) fn advance(&mut self) -> Option<&'c Link> {
        let link = self.chain.links.get(self.seen)?;
        self.seen += 1;
        Some(link)
    }

    /// The next filter that has not seen the request.
    pub(crate) fn peek(&self) -> Option<&'c Link> {
        self.chain.links.get(self.seen)
    }

    /// Applies a filter's failure mode to its decision or failure. Only called where [`continues`] does not decide.
    #[cold]
    pub(crate) fn apply_failure_mode(
        &self,
        link: &Link,
        result: Result<Outcome, FilterError>,
    ) -> Outcome {
        let error = match result {
            Ok(outcome) => return outcome,
            Err(error) => error,
        };
        let causes = chain_of_causes(&error);
        let filter = link.filter.name();
        self.observer.filter_failed(filter);
        match link.on_failure {
            FailureMode::Deny => {
                tracing::error!(filter, cause = %causes, "filter failed: request refused");
                Outcome::Refuse(error.answer)
            }
            FailureMode::Allow => {
                tracing::warn!(filter, cause = %causes, "filter failed: request continues without it");
                Outcome::Continue
            }
        }
    }

    /// The given filters that have seen the request, outermost first.
    fn seen(&self, numbers: &'c [usize]) -> impl DoubleEndedIterator<Item = &'c Link> + use<'c> {
        // Usually every filter has.
        let unseen = numbers.iter().rev().take_while(|&&at| at >= self.seen);
        let seen = &numbers[..numbers.len() - unseen.count()];
        let links = &self.chain.links;
        seen.iter().map(move |&at| &links[at])
    }

    /// Asks the filters that have not seen the request, before the body is read.
    pub(crate) async fn on_head(&mut self) -> Outcome {
        let chain = self.chain;
        for &at in &chain.head {
            if at < self.seen {
                continue;
            }
            let link = &chain.links[at];
            let result = finished!(self.exchange, link.filter.on_head(&mut self.exchange));
            if continues(&result) {
                continue;
            }
            match self.apply_failure_mode(link, result) {
                Outcome::Continue => {}
                reply => return reply,
            }
        }
        Outcome::Continue
    }

    pub(crate) async fn on_forward(&mut self) -> Outcome {
        for link in self.seen(&self.chain.forward) {
            let result = finished!(self.exchange, link.filter.on_forward(&mut self.exchange));
            if continues(&result) {
                continue;
            }
            match self.apply_failure_mode(link, result) {
                Outcome::Continue => {}
                reply => return reply,
            }
        }
        Outcome::Continue
    }

    pub(crate) fn on_refusal(&mut self, error: &mut ApiError) {
        for link in self.seen(&self.chain.refusal).rev() {
            link.filter.on_refusal(&mut self.exchange, error);
        }
    }

    pub(crate) async fn before_first_byte(&mut self) -> Result<(), Box<ApiError>> {
        for link in self.seen(&self.chain.first_byte).rev() {
            let result = finished!(
                self.exchange,
                link.filter.before_first_byte(&mut self.exchange)
            );
            if continues(&result) {
                continue;
            }
            only_refusal(link, self.apply_failure_mode(link, result))?;
        }
        Ok(())
    }

    pub(crate) fn on_event(&mut self, event: &mut Event<'_>) {
        for link in self.seen(&self.chain.event).rev() {
            link.filter.on_event(&mut self.exchange, event);
        }
    }

    /// Calls `on_end` of each filter. A refusal calls this before the write, so that the request's reservations are released: the client's
    /// next request may come right after the write.
    fn end(&mut self, ending: Ending) {
        self.is_ended = true;
        self.exchange.invalidate_now();
        for link in self.seen(&self.chain.end).rev() {
            link.filter.on_end(&mut self.exchange, ending);
        }
    }

    /// Sends a response without success; returns the ending: `ending`, unless the client has disconnected.
    pub(crate) async fn send_refusal<D: Downstream>(
        &mut self,
        downstream: &mut D,
        (head, body): (Head, Bytes),
        ending: Ending,
    ) -> Ending {
        self.exchange.record.bytes_sent += body.len() as u64;
        self.end(ending);
        match waited!(self.exchange, downstream.send(head, body)) {
            Ok(()) => ending,
            Err(Gone) => Ending::GoneBefore,
        }
    }

    pub(crate) async fn before_tail(&mut self, tail: &mut Tail) -> Result<(), Box<ApiError>> {
        for link in self.seen(&self.chain.tail).rev() {
            let result = finished!(
                self.exchange,
                link.filter.before_tail(&mut self.exchange, tail)
            );
            if continues(&result) {
                continue;
            }
            only_refusal(link, self.apply_failure_mode(link, result))?;
        }
        Ok(())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if !self.is_ended {
            self.end(self.ending);
        }
        self.observer.ended(&self.exchange, self.ending);
    }
}

/// Whether the exchange continues, the usual case.
pub(crate) fn continues(result: &Result<Outcome, FilterError>) -> bool {
    matches!(result, Ok(Outcome::Continue))
}

fn chain_of_causes(error: &FilterError) -> String {
    let mut parts: SmallVec<[String; 4]> = SmallVec::new();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        parts.push(cause.to_string());
        source = cause.source();
    }
    if parts.is_empty() {
        error.to_string()
    } else {
        parts.join(": ")
    }
}

/// From the first byte on a filter can only agree or refuse: a started response cannot be replaced.
fn only_refusal(link: &Link, outcome: Outcome) -> Result<(), Box<ApiError>> {
    match outcome {
        Outcome::Continue => Ok(()),
        Outcome::Refuse(error) => Err(error),
        Outcome::Reply(_) => {
            let filter = link.filter.name();
            tracing::error!(
                filter,
                "filter replied after the upstream response: reply refused"
            );
            Err(Box::new(ApiError::new(
                ErrorCode::InternalError,
                "The gateway could not finish this answer. Try again.",
            )))
        }
    }
}
