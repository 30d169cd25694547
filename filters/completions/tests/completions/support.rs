//! A test harness that drives one exchange step by step.

use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::Value;
use tollgate_completions::Completions;
use tollgate_filter::{
    AnswerFault, AnswerProgress, AnswerUsage, ApiError, Catalog, Charge, ClientAddress,
    CredentialKind, Disposition, Ending, Event, EventKind, Exchange, Filter, Forward, HeldEvent,
    Model, ModelAccess, ModelLimits, Outcome, PartCeilings, Principal, Protocol, ProviderModel,
    Request, Routing, Scopes, Step, Tail, Tokens,
};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId, Price};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const TEXT: &str = "/v1/completions";

/// The provider's name of the model `m`.
pub(crate) const PROVIDER_MODEL: &str = "org/m-7b";

pub(crate) fn model(id: &str) -> Arc<Model> {
    Arc::new(Model {
        id: id.into(),
        name: None,
        owned_by: "svc".into(),
        created: None,
        price: Price::default(),
        price_version: 1,
        limits: ModelLimits {
            context_length: None,
            output_tokens_default: NonZeroU64::MIN,
            output_tokens_bound: false,
        },
        output_modalities: vec!["text".into()],
        part_ceilings: PartCeilings::default(),
        token_factor_ppm: 1_000_000,
        providers: vec![ProviderModel::new("stand-in", PROVIDER_MODEL)],
        system_as_chat: false,
        cap_member: tollgate_filter::CapMember::MaxTokens,
        routing: Routing::default(),
        after_leaving: None,
        working: AtomicBool::new(false),
    })
}

/// The filter over the models `m` (the default) and `n`.
pub(crate) fn filter() -> Completions {
    let catalog = Catalog::new(vec![model("m"), model("n")], Some("m")).expect("a catalog");
    Completions::new("svc", &catalog, 1 << 20)
}

pub(crate) fn owner() -> AccountId {
    AccountId::from_parts(1, [1; 10])
}

pub(crate) fn exchange(path: &str, body: &str, models: ModelAccess) -> Exchange {
    let mut exchange = Exchange::new(Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::POST,
        path: path.into(),
        query: None,
        headers: HeaderMap::new(),
        body: Bytes::copy_from_slice(body.as_bytes()),
        client: ClientAddress::direct(Ipv4Addr::LOCALHOST.into()),
        tls: false,
        protocol: Protocol::Http11,
    });
    exchange.put(Principal {
        account: owner(),
        credential: CredentialId::from_bytes([1; 16]),
        kind: CredentialKind::ApiKey,
        scopes: Scopes::API,
        class: "free".into(),
        models,
        sharing: tollgate_filter::CacheSharing::Shared,
        spending_cap: None,
    });
    exchange
}

/// The outcome of a step that does not wait.
pub(crate) fn now(step: Step<'_, Outcome>) -> Result<Outcome, tollgate_filter::FilterError> {
    match step {
        Step::Now(result) => result,
        Step::Later(_) => panic!("nothing here waits"),
    }
}

/// The refusal of a request, if any.
pub(crate) fn refusal(exchange: &mut Exchange) -> Option<ApiError> {
    match now(filter().on_request(exchange)).expect("a decision") {
        Outcome::Continue => None,
        Outcome::Refuse(error) => Some(*error),
        Outcome::Reply(_) => panic!("it never replies"),
    }
}

/// The upstream body of a request.
pub(crate) fn forwarded(path: &str, body: &str) -> String {
    let mut exchange = exchange(path, body, ModelAccess::All);
    assert!(refusal(&mut exchange).is_none(), "{body} is refused");
    let forward = exchange.get::<Forward>().expect("something to send");
    let sent = forward
        .body
        .render(&exchange, &ProviderModel::new("stand-in", PROVIDER_MODEL));
    String::from_utf8(sent.to_vec()).expect("UTF-8")
}

/// An answer during its relay through the filter.
pub(crate) struct Answer {
    filter: Completions,
    pub(crate) exchange: Exchange,
    /// The output so far.
    pub(crate) sent: Vec<String>,
    held: Vec<HeldEvent>,
}

impl Answer {
    /// The answer to a request.
    pub(crate) fn to(path: &str, body: &str) -> Answer {
        let filter = filter();
        let mut exchange = exchange(path, body, ModelAccess::All);
        let outcome = now(filter.on_request(&mut exchange)).expect("a decision");
        assert!(matches!(outcome, Outcome::Continue), "{outcome:?}");
        Answer {
            filter,
            exchange,
            sent: Vec::new(),
            held: Vec::new(),
        }
    }

    /// Relays one piece, as the driver does.
    pub(crate) fn pass(&mut self, kind: EventKind, data: &str) -> &mut Answer {
        let mut event = Event::new(kind, data.as_bytes());
        self.filter.on_event(&mut self.exchange, &mut event);
        let disposition = event.disposition();
        let data = Bytes::copy_from_slice(event.data());
        match disposition {
            Disposition::Drop => {}
            Disposition::Send => {
                self.release();
                self.sent.push(text(&data));
            }
            Disposition::Hold => {
                if kind != EventKind::Done {
                    self.release();
                }
                self.held.push(HeldEvent { kind, data });
            }
        }
        self
    }

    pub(crate) fn events(&mut self, events: &[&str]) -> &mut Answer {
        for data in events {
            let kind = match *data {
                "[DONE]" => EventKind::Done,
                _ => EventKind::Data,
            };
            self.pass(kind, data);
        }
        self
    }

    fn release(&mut self) {
        let held = self.held.drain(..);
        self.sent.extend(held.map(|event| text(&event.data)));
    }

    /// Charges 2,000 micro-credits, ends the answer, and returns all output.
    pub(crate) fn end(&mut self, ending: Ending, deliverable: bool) -> Vec<String> {
        let estimated = self.usage().is_none();
        self.exchange.put(Charge {
            used: Micros::new(2_000),
            remaining: Micros::new(41_498_000),
            tokens: Tokens {
                prompt: 5,
                completion: 4,
            },
            estimated,
        });
        let held = self.held.drain(..).collect();
        let mut tail = Tail::new(held, ending, deliverable);
        let outcome = now(self.filter.before_tail(&mut self.exchange, &mut tail));
        assert!(matches!(outcome, Ok(Outcome::Continue)), "{outcome:?}");
        let held = tail.held.iter().map(|event| text(&event.data));
        self.sent.extend(held);
        std::mem::take(&mut self.sent)
    }

    pub(crate) fn usage(&self) -> Option<Tokens> {
        self.exchange
            .get::<AnswerUsage>()
            .expect("put on request")
            .reported
    }

    pub(crate) fn text(&self) -> &str {
        &self
            .exchange
            .get::<AnswerUsage>()
            .expect("put on request")
            .text
    }

    pub(crate) fn progress(&mut self) -> &mut AnswerProgress {
        self.exchange
            .get_mut::<AnswerProgress>()
            .expect("put on request")
    }

    pub(crate) fn fault(&mut self) -> Option<AnswerFault> {
        self.progress().fault.clone()
    }
}

/// The metadata object of [`Answer::end`].
pub(crate) fn metadata(estimated: bool) -> String {
    format!(
        r#""x_svc":{{"cache_hit":false,"cache_entry_id":null,"cache_store_status":"bypass","credits_used":0.002,"credits_remaining":41.498,"owner":"{}","resolved_owner":null,"usage_estimated":{estimated}}}"#,
        owner()
    )
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text} is no JSON: {error}"))
}

fn text(data: &Bytes) -> String {
    String::from_utf8(data.to_vec()).expect("UTF-8")
}
