//! A model provider that plays a list of steps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::Notify;
use tollgate_chain::{Upstream, UpstreamCall, UpstreamError};
use tollgate_filter::{Exchange, Forward, UpstreamFault};

/// The next action of a provider.
#[derive(Clone)]
pub(crate) enum Step {
    /// Sends a piece.
    Send(String),
    /// Fails.
    Fail(UpstreamFault),
    /// Never does anything again.
    Hang,
    /// Runs a function, and continues.
    Meanwhile(Arc<dyn Fn() + Send + Sync>),
}

impl Step {
    /// A step that notifies the test when it is reached.
    pub(crate) fn signal() -> (Step, Arc<Notify>) {
        let reached = Arc::new(Notify::new());
        let step = Step::Meanwhile(Arc::new({
            let reached = Arc::clone(&reached);
            move || reached.notify_one()
        }));
        (step, reached)
    }
}

/// The cap that the test double for the request's body was given; zero for none.
#[derive(Clone, Default)]
pub(crate) struct Caps(pub(crate) Arc<AtomicU64>);

pub(crate) struct Provider {
    refusal: Option<UpstreamFault>,
    steps: Mutex<VecDeque<Step>>,
    caps: Caps,
}

impl Provider {
    /// A provider that sends these events, each as a piece of its own, then ends.
    pub(crate) fn streaming<'a>(events: impl IntoIterator<Item = &'a str>) -> Provider {
        let steps = events
            .into_iter()
            .map(|data| Step::Send(format!("data: {data}\n\n")));
        Provider::playing(steps)
    }

    /// A provider that sends one whole body.
    pub(crate) fn answering(body: &str) -> Provider {
        Provider::playing([Step::Send(body.to_owned())])
    }

    pub(crate) fn playing(steps: impl IntoIterator<Item = Step>) -> Provider {
        Provider {
            refusal: None,
            steps: Mutex::new(steps.into_iter().collect()),
            caps: Caps::default(),
        }
    }

    /// A provider that fails with `fault`.
    pub(crate) fn refusing(fault: UpstreamFault) -> Provider {
        Provider {
            refusal: Some(fault),
            ..Provider::playing([])
        }
    }

    /// The same provider with `step` appended.
    pub(crate) fn then(self, step: Step) -> Provider {
        self.steps
            .lock()
            .expect("no panic under the lock")
            .push_back(step);
        self
    }

    pub(crate) fn caps(&self) -> Caps {
        self.caps.clone()
    }

    pub(crate) fn cap(&self) -> Option<u64> {
        Some(self.caps.0.load(Ordering::Relaxed)).filter(|&tokens| tokens > 0)
    }
}

pub(crate) struct Call {
    stream: bool,
    steps: VecDeque<Step>,
}

impl Upstream for Provider {
    type Call = Call;

    async fn call(&self, exchange: &mut Exchange) -> Result<Call, UpstreamError> {
        exchange.record.provider = Some("stand-in".into());
        match self.refusal {
            Some(fault) => Err(UpstreamError::new(fault, "", "as the test wants")),
            None => Ok(Call {
                stream: exchange.get::<Forward>().expect("something to send").stream,
                steps: std::mem::take(&mut *self.steps.lock().expect("no panic under the lock")),
            }),
        }
    }
}

impl UpstreamCall for Call {
    fn is_stream(&self) -> bool {
        self.stream
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        loop {
            match self.steps.pop_front() {
                None => return Ok(None),
                Some(Step::Send(piece)) => return Ok(Some(piece.into())),
                Some(Step::Fail(fault)) => {
                    return Err(UpstreamError::new(fault, "", "as the test wants"));
                }
                Some(Step::Meanwhile(happens)) => happens(),
                Some(Step::Hang) => {
                    // A read may be dropped and made again.
                    self.steps.push_front(Step::Hang);
                    std::future::pending().await
                }
            }
        }
    }

    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        None
    }

    async fn finish(self) {}
}
