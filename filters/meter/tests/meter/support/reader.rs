//! A test double for the filter that reads requests and answers.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tollgate_filter::{
    AnswerFault, AnswerProgress, AnswerUsage, Api, Body, Contract, Disposition, Event, EventKind,
    Exchange, FailureMode, Filter, Forward, ForwardBody, Model, ModelLimits, Outcome, OutputCap,
    PartCeilings, Phase, ProviderModel, Routing, Step, Tokens, UpstreamFault,
};
use tollgate_money::{Micros, Price};
use tollgate_openai::{Answer, ChunkReader, CompletionRequest, Family, Patch, Usage};

use super::provider::Caps;

pub(crate) struct Reader;

/// As the data of an event, makes the test double panic.
pub(crate) struct Panics;

impl Panics {
    pub(crate) const EVENT: &'static str =
        r#"{"choices":[{"index":0,"delta":{"content":"panic!"}}]}"#;
}

struct Recorder(Caps);

impl ForwardBody for Recorder {
    fn render(&self, exchange: &Exchange, _: &ProviderModel) -> Bytes {
        exchange.request.body.clone()
    }

    fn cap_output(&mut self, OutputCap { tokens, .. }: OutputCap) {
        self.0.0.store(tokens, Ordering::Relaxed);
    }
}

impl Filter for Reader {
    fn name(&self) -> &'static str {
        "reader"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::Event,
            body: Body::Json { bytes_max: 1 << 20 },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let request = CompletionRequest::read(Family::CHAT, &exchange.request.body);
        let request = request.expect("tests send good requests");
        let caps = exchange.get::<Caps>().expect("a place for caps").clone();
        let forward = Forward {
            model: exchange.get::<Arc<Model>>().expect("a model").clone(),
            api: Api::Chat,
            asked: Api::Chat,
            tokens_max: 0,
            quote: None,
            stream: request.stream,
            body: Box::new(Recorder(caps)),
        };
        exchange.record.stream = request.stream;
        let patch = Arc::new(Patch::new(Family::CHAT, "x_svc"));
        exchange.put(ChunkReader::new(patch, request.include_usage));
        exchange.put_boxed(request);
        exchange.put(forward);
        exchange.put(AnswerProgress::default());
        exchange.put(AnswerUsage::default());
        Step::now(Outcome::Continue)
    }

    fn on_event(&self, exchange: &mut Exchange, event: &mut Event<'_>) {
        let mut usage = exchange.take::<AnswerUsage>().expect("put above");
        let mut progress = exchange.take::<AnswerProgress>().expect("put above");
        let reader = exchange.get_mut::<ChunkReader>().expect("put above");
        assert_ne!(event.data(), Panics::EVENT.as_bytes(), "as the test wants");
        let reported = match event.kind() {
            EventKind::Done => None,
            EventKind::Data => {
                let chunk = reader.read(event.data()).expect("tests send good events");
                if !progress.client_gone {
                    chunk.append_text(&mut usage.text);
                    usage.media_bytes += chunk.media_bytes();
                }
                progress.finished |= chunk.choices().iter().any(|choice| choice.finish.is_some());
                progress.ended = progress.finished;
                let (usage, failed) = (chunk.usage(), chunk.error().is_some());
                let speaks = !chunk.choices().is_empty();
                if failed {
                    progress.fault = Some(fault());
                }
                if !speaks {
                    event.set_disposition(Disposition::Drop);
                } else if progress.finished {
                    event.set_disposition(Disposition::Hold);
                }
                usage
            }
            EventKind::Whole => {
                let patch = Patch::new(Family::CHAT, "x_svc");
                let answer = Answer::read(event.data(), &patch).expect("tests send good answers");
                answer.append_text(&mut usage.text);
                answer.usage()
            }
        };
        usage.reported = reported.map(tokens).or(usage.reported);
        exchange.put(usage);
        exchange.put(progress);
    }
}

fn tokens(usage: Usage) -> Tokens {
    Tokens {
        prompt: usage.prompt_tokens,
        completion: usage.completion_tokens,
    }
}

fn fault() -> AnswerFault {
    AnswerFault {
        fault: UpstreamFault::Error,
        message: String::new(),
        detail: String::from("as the test wants"),
    }
}

/// A model whose tokens cost 1 micro-credit in and 2 out, and a request 100; an answer has 50 tokens by default.
pub(crate) fn model() -> Arc<Model> {
    Arc::new(Model {
        id: "m".into(),
        name: None,
        owned_by: "svc".into(),
        created: None,
        price: Price {
            input: "1".parse().expect("a price"),
            output: "2".parse().expect("a price"),
            request: Micros::new(100),
        },
        price_version: 7,
        limits: ModelLimits {
            context_length: NonZeroU64::new(1_000),
            output_tokens_default: NonZeroU64::new(50).expect("not zero"),
            output_tokens_bound: false,
        },
        output_modalities: vec!["text".into()],
        part_ceilings: PartCeilings::all(Micros::new(10)),
        token_factor_ppm: 1_000_000,
        providers: Vec::new(),
        system_as_chat: false,
        cap_member: tollgate_filter::CapMember::MaxTokens,
        routing: Routing::default(),
        after_leaving: None,
        working: AtomicBool::new(true),
    })
}
