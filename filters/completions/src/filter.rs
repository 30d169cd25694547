//! The filter `completions`: request validation, routing to a model, and rewriting of answers.

use std::collections::HashMap;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use tollgate_filter::{
    AnswerProgress, AnswerUsage, Api, ApiError, Body, Catalog, Contract, DeferredHeaders, Event,
    Exchange, FailureMode, Filter, FilterError, Forward, ForwardBody, Model, Outcome, Phase,
    Principal, Prompts, Step, Tail,
};
use tollgate_memory::{MemoryUse, OverBudget};
use tollgate_openai::text_as_chat::ChatPlan;
use tollgate_openai::{CompletionRequest, Family, Patch};

use crate::answer::AnswerState;
use crate::error::{
    CompletionsError, bad_request, no_chat, no_model, not_for_this_key, prompts_too_large,
    refused_member, unsupported_model,
};
use crate::forward::{ChatBodies, CompletionBody};
use crate::members::{self, Members};
use crate::stamp::stamp;

/// Validates chat and text completion requests, and rewrites their answers.
pub struct Completions {
    on_sale: HashMap<Arc<str>, OnSale>,
    default: Option<Arc<str>>,
    body_bytes_max: usize,
    /// Names of members that some provider removes or refuses.
    listed: Box<[Box<str>]>,
}

/// The provider's operation of each family.
const APIS: [Api; Family::ALL.len()] = [Api::Chat, Api::Text];

/// A model, and the patches for the model's answers in each family.
struct OnSale {
    model: Arc<Model>,
    patches: [Arc<Patch>; Family::ALL.len()],
    members: Members,
}

impl Completions {
    /// A filter over a catalog. `service` is the service's short name, `svc` in `x_svc`; bodies of more than `body_bytes_max` bytes are
    /// refused.
    pub fn new(service: &str, catalog: &Catalog, body_bytes_max: usize) -> Completions {
        let metadata = format!("x_{service}");
        let on_sale = |model: &Arc<Model>| {
            let patch = |family| Arc::new(Patch::new(family, &metadata).model(&model.id));
            let on_sale = OnSale {
                model: Arc::clone(model),
                patches: Family::ALL.map(patch),
                members: Members::of(model, catalog),
            };
            (Arc::clone(&model.id), on_sale)
        };
        Completions {
            on_sale: catalog.models().iter().map(on_sale).collect(),
            listed: members::listed(catalog),
            default: catalog.default_model().map(|model| Arc::clone(&model.id)),
            body_bytes_max,
        }
    }

    fn read(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let path = &exchange.request.path;
        let family =
            Family::at(path).ok_or_else(|| CompletionsError::Path { path: path.clone() })?;
        let asked = APIS[family.place()];
        let principal = exchange
            .get::<Principal>()
            .ok_or(CompletionsError::NoPrincipal)?;
        let body = &exchange.request.body;
        let mut request = match CompletionRequest::read_listing(family, body, &self.listed) {
            Ok(request) => request,
            Err(error) => return Ok(Outcome::refuse(bad_request(error))),
        };
        let Some(name) = request.model.as_deref().or(self.default.as_deref()) else {
            return Ok(Outcome::refuse(no_model()));
        };
        let Some(OnSale {
            model,
            patches,
            members,
        }) = self.on_sale.get(name)
        else {
            return Ok(Outcome::refuse(unsupported_model(name)));
        };
        if !principal.models.allows(name) {
            return Ok(Outcome::refuse(not_for_this_key(name)));
        }
        if let Some(member) = members.refused_in(&request, body) {
            return Ok(Outcome::refuse(refused_member(&member, name)));
        }
        members.leave_out(&mut request, body);
        let patch = Arc::clone(&patches[family.place()]);
        let state = if request.stream {
            let expected = request.n.saturating_mul(request.prompts);
            AnswerState::stream(patch, request.include_usage, expected)
        } else {
            AnswerState::whole(patch)
        };
        let api = api_for(model, asked, &request);
        if api != asked && api == Api::Text {
            return Ok(Outcome::refuse(no_chat(&model.id)));
        }
        let has_system = api == Api::Text && request.system_bytes > 0;
        let body: Result<Box<dyn ForwardBody>, ApiError> = match api == asked {
            true if has_system => with_system(exchange, &request).map(|body| Box::new(body) as _),
            true => Ok(Box::new(CompletionBody::default())),
            false => as_chat(exchange, &request, &self.listed).map(|chats| Box::new(chats) as _),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => return Ok(Outcome::refuse(error)),
        };
        let forward = Forward {
            model: Arc::clone(model),
            api,
            asked,
            tokens_max: 0,
            quote: None,
            stream: request.stream,
            body,
        };
        exchange.record.model = Some(Arc::clone(&model.id));
        exchange.record.stream = request.stream;
        exchange.defer_headers(NotKept);
        if request.prompts > 1 {
            exchange.put(Prompts(request.prompts));
        }
        exchange.put_boxed(request);
        exchange.put(forward);
        exchange.put(state);
        exchange.put(AnswerProgress::default());
        exchange.put(AnswerUsage::default());
        Ok(Outcome::Continue)
    }
}

/// Marks an answer that belongs to a single request and must not be stored.
struct NotKept;

impl DeferredHeaders for NotKept {
    fn write(&self, headers: &mut HeaderMap) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
}

/// The upstream operation of a request. The request's operation is used unless no provider of the model has the operation, or the model's
/// settings require chat for a text request with a `system`.
fn api_for(model: &Model, asked: Api, request: &CompletionRequest) -> Api {
    let (other, unless) = match asked {
        Api::Chat => (Api::Text, false),
        Api::Text => (Api::Chat, model.system_as_chat && request.system_bytes > 0),
    };
    if (unless || !model.speaks(asked)) && model.speaks(other) {
        other
    } else {
        asked
    }
}

/// Translates a text request into chats, and puts the translation of their answers on the exchange.
#[cold]
fn as_chat(
    exchange: &mut Exchange,
    request: &CompletionRequest,
    listed: &[Box<str>],
) -> Result<ChatBodies, ApiError> {
    let plan = ChatPlan::read(request, &exchange.request.body).map_err(bad_request)?;
    // The bodies as written here, and the bodies as edited for the provider, all in memory at a time.
    hold_prompts(&mut exchange.memory, plan.bytes_max().saturating_mul(2))?;
    let chats = plan.write();
    let bodies = ChatBodies::read(&chats, listed).map_err(bad_request)?;
    exchange.put(Arc::new(chats));
    Ok(bodies)
}

/// Counts the copies of `system`, a copy for each prompt: a short body may have very many prompts.
#[cold]
fn with_system(
    exchange: &mut Exchange,
    request: &CompletionRequest,
) -> Result<CompletionBody, ApiError> {
    let bytes = request.system_bytes.saturating_mul(request.prompts);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    hold_prompts(&mut exchange.memory, bytes)?;
    Ok(CompletionBody::default())
}

fn hold_prompts(memory: &mut MemoryUse, bytes: usize) -> Result<(), ApiError> {
    if !memory.can_ever_hold(bytes) {
        return Err(prompts_too_large(bytes));
    }
    memory.grow(bytes).map_err(|OverBudget| {
        ApiError::no_memory(
            "The prompts, each with the `system` text, do not fit into the memory that is left at the moment.",
        )
    })
}

impl Filter for Completions {
    fn name(&self) -> &'static str {
        "completions"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::Event | Phase::Tail,
            body: Body::Json {
                bytes_max: self.body_bytes_max,
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        Step::Now(self.read(exchange))
    }

    fn on_event(&self, exchange: &mut Exchange, event: &mut Event<'_>) {
        AnswerState::take(exchange, event);
    }

    fn before_tail<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        tail: &'a mut Tail,
    ) -> Step<'a, Outcome> {
        // A disconnected client needs no metadata.
        if !tail.deliverable() {
            return Step::now(Outcome::Continue);
        }
        Step::Now(
            stamp(exchange, tail)
                .map(|()| Outcome::Continue)
                .map_err(FilterError::from),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_providers_operation_of_each_family_has_its_path() {
        for family in Family::ALL {
            assert_eq!(APIS[family.place()].path(), family.path, "{family:?}");
        }
    }
}
