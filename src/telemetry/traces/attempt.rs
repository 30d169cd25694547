//! The span of one attempt at a provider, by the GenAI semantic conventions.

use std::sync::Arc;
use std::time::Duration;

use tollgate_filter::{AnswerIdentity, Api, Record, UpstreamFault};
use tollgate_openai::Family;

use super::Trace;
use super::otlp::{Kind, Span, Value};
use crate::config::Provider;
use crate::trace_context::TraceContext;

/// The error type of a cancelled attempt: the client left, or another attempt answered first.
const CANCELLED: &str = "cancelled";

/// An attempt under way. A drop before the end counts as a cancellation.
pub(crate) struct AttemptSpan {
    trace: Arc<Trace>,
    attempt: Option<Attempt>,
}

/// An attempt and how it ended.
pub(super) struct Attempt {
    id: [u8; 8],
    provider: Arc<Provider>,
    /// The model's name at the provider.
    model: Box<str>,
    api: Api,
    is_stream: bool,
    started: Duration,
    ended: Duration,
    /// Whether the provider began an answer.
    pub(super) answered: bool,
    /// Clock reading at the first data of the answer.
    first_chunk_at: Option<Duration>,
    status: Option<u16>,
    error: Option<&'static str>,
}

/// The answer of an attempt: as the request was billed, and as the answer itself says.
pub(super) struct Answer<'a> {
    pub(super) record: &'a Record,
    pub(super) identity: Option<&'a AnswerIdentity>,
}

/// Why an attempt failed.
pub(crate) struct AttemptFailure {
    pub(crate) fault: UpstreamFault,
    /// The status of the provider's answer, if the provider answered.
    pub(crate) status: Option<u16>,
}

impl AttemptSpan {
    /// Starts a span now.
    pub(in crate::telemetry) fn start(
        trace: Arc<Trace>,
        provider: Arc<Provider>,
        model: &str,
        (api, is_stream): (Api, bool),
    ) -> AttemptSpan {
        let now = trace.clock.elapsed();
        let attempt = Attempt {
            id: trace.entropy.bytes(),
            provider,
            model: model.into(),
            api,
            is_stream,
            started: now,
            ended: now,
            answered: false,
            first_chunk_at: None,
            status: None,
            error: None,
        };
        AttemptSpan {
            trace,
            attempt: Some(attempt),
        }
    }

    /// The trace context for the provider, with this span as the parent.
    pub(crate) fn context(&self) -> Option<TraceContext> {
        let attempt = self.attempt.as_ref()?;
        Some(TraceContext::sampled(
            &self.trace.id,
            &attempt.id,
            self.trace.state.clone(),
        ))
    }

    /// The provider has begun its answer.
    pub(crate) fn answered(&mut self) {
        if let Some(attempt) = &mut self.attempt {
            attempt.answered = true;
            attempt.status = Some(200);
        }
    }

    /// Data of the answer has been read.
    pub(crate) fn read(&mut self) {
        if let Some(attempt) = &mut self.attempt
            && attempt.first_chunk_at.is_none()
        {
            attempt.first_chunk_at = Some(self.trace.clock.elapsed());
        }
    }

    /// The attempt has failed.
    pub(crate) fn fail(&mut self, failure: &AttemptFailure) {
        if let Some(attempt) = &mut self.attempt {
            attempt.status = attempt.status.or(failure.status);
        }
        self.end(Some(failure.fault.word()));
    }

    /// The answer is complete.
    pub(crate) fn complete(&mut self) {
        self.end(None);
    }

    fn end(&mut self, error: Option<&'static str>) {
        if let Some(mut attempt) = self.attempt.take() {
            attempt.ended = self.trace.clock.elapsed();
            attempt.error = error;
            self.trace.attempt_ended(attempt);
        }
    }
}

impl Drop for AttemptSpan {
    fn drop(&mut self) {
        self.end(Some(CANCELLED));
    }
}

impl Attempt {
    /// The span. The members of the answer are included where this attempt is the only attempt with an answer.
    pub(super) fn span(self, trace: &Trace, answer: Option<Answer<'_>>) -> Span {
        let operation = Family::at(self.api.path()).map_or("", |family| family.operation);
        let url = &self.provider.base_url;
        let mut span = Span {
            trace: trace.id,
            id: self.id,
            parent: Some(trace.span),
            parent_is_remote: false,
            state: trace.state_text(),
            name: format!("{operation} {}", self.model),
            kind: Kind::Client,
            started: trace.unix_nanos(self.started),
            ended: trace.unix_nanos(self.ended),
            failed: self.error.is_some(),
            attributes: vec![
                ("gen_ai.operation.name", operation.into()),
                ("gen_ai.provider.name", Value::text(&*self.provider.name)),
                ("gen_ai.request.model", Value::Text(self.model)),
                ("gen_ai.request.stream", self.is_stream.into()),
                ("server.address", Value::text(url.host.as_str())),
                ("server.port", i64::from(url.port).into()),
            ],
        };
        let mut add = |name, value| span.attributes.push((name, value));
        if let Some(status) = self.status {
            add("http.response.status_code", i64::from(status).into());
        }
        if let Some(error) = self.error {
            add("error.type", error.into());
        }
        if let Some(at) = self.first_chunk_at.filter(|_| self.is_stream) {
            let seconds = at.saturating_sub(self.started).as_secs_f64();
            add(
                "gen_ai.response.time_to_first_chunk",
                Value::Fraction(seconds),
            );
        }
        if let Some(answer) = answer {
            answer.describe(&mut span.attributes);
        }
        span
    }
}

impl Answer<'_> {
    fn describe(self, attributes: &mut Vec<(&'static str, Value)>) {
        let mut add = |name, value| attributes.push((name, value));
        if let Some(identity) = self.identity {
            if let Some(id) = &identity.id {
                add("gen_ai.response.id", Value::text(&**id));
            }
            if let Some(model) = &identity.model {
                add("gen_ai.response.model", Value::text(&**model));
            }
            if !identity.finish_reasons.is_empty() {
                let reasons = identity.finish_reasons.clone();
                add("gen_ai.response.finish_reasons", Value::Words(reasons));
            }
        }
        if self.record.prompt_tokens > 0 {
            let tokens = |count: u64| Value::from(i64::try_from(count).unwrap_or(i64::MAX));
            let (input, output) = (self.record.prompt_tokens, self.record.completion_tokens);
            add("gen_ai.usage.input_tokens", tokens(input));
            add("gen_ai.usage.output_tokens", tokens(output));
            add("tollgate.usage.estimated", self.record.estimated.into());
        }
    }
}
