//! The model catalog: models, their limits, prices and providers.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_clock::Timestamp;
use tollgate_money::{Micros, Price};

use crate::CapMember;
use crate::settings::Words;

/// The offered models, in the order of the settings.
#[derive(Debug, Default)]
pub struct Catalog {
    models: Vec<Arc<Model>>,
    by_id: HashMap<Arc<str>, usize>,
    default: Option<usize>,
}

impl Catalog {
    /// A catalog of models; `default` names the model for requests without a model. `None` when `default` is not in the catalog or an id is
    /// duplicated.
    pub fn new(models: Vec<Arc<Model>>, default: Option<&str>) -> Option<Catalog> {
        let by_id: HashMap<Arc<str>, usize> = models
            .iter()
            .enumerate()
            .map(|(at, model)| (model.id.clone(), at))
            .collect();
        if by_id.len() != models.len() {
            return None;
        }
        let default = match default {
            None => None,
            Some(id) => Some(*by_id.get(id)?),
        };
        Some(Catalog {
            models,
            by_id,
            default,
        })
    }

    /// The model with the id.
    pub fn get(&self, id: &str) -> Option<&Arc<Model>> {
        self.by_id.get(id).map(|&at| &self.models[at])
    }

    /// The model for requests without a model name.
    pub fn default_model(&self) -> Option<&Arc<Model>> {
        self.default.map(|at| &self.models[at])
    }

    /// All models, in the order of the settings.
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }
}

/// A model of the catalog.
#[derive(Debug)]
pub struct Model {
    /// The model's public id.
    pub id: Arc<str>,
    /// The model's display name.
    pub name: Option<String>,
    /// The model's creator; the service's name where the settings name no creator.
    pub owned_by: String,
    /// When the model was added to the catalog.
    pub created: Option<Timestamp>,
    /// The model's price, at [`Model::price_version`].
    pub price: Price,
    /// The price version, stored with every charge.
    pub price_version: i64,
    /// Sizes.
    pub limits: ModelLimits,
    /// Output modalities: `text`, `image`, `audio`.
    pub output_modalities: Vec<String>,
    /// Hold amounts for non-text parts of a request.
    pub part_ceilings: PartCeilings,
    /// Factor, in millionths, from counted o200k tokens to the model's tokens.
    pub token_factor_ppm: u32,
    /// The model's providers.
    pub providers: Vec<ProviderModel>,
    /// Whether a text request with a `system` is sent as chat, even if a provider supports text requests.
    pub system_as_chat: bool,
    /// The member for an added cap, in a request without a cap.
    pub cap_member: CapMember,
    /// Provider selection and fallback.
    pub routing: Routing,
    /// Handling of a stream after its client has disconnected, where the handling differs from the default.
    pub after_leaving: Option<AfterLeaving>,
    /// Whether a provider of the model is healthy, as far as known.
    pub working: AtomicBool,
}

impl Model {
    /// Whether a provider of the model is healthy, as far as known.
    pub fn is_working(&self) -> bool {
        self.working.load(Ordering::Relaxed)
    }

    /// Whether a provider offers the model through `api`.
    pub fn speaks(&self, api: Api) -> bool {
        self.providers.iter().any(|place| place.apis.has(api))
    }
}

/// The maximum cost of a non-text part of a request, by kind, where the operator has set a maximum. Without a maximum a part counts as the
/// model's whole context. The actual cost follows from the tokens that the provider reports for the part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCeilings {
    /// An image.
    pub image: Option<Micros>,
    /// An audio clip.
    pub audio: Option<Micros>,
    /// A file.
    pub file: Option<Micros>,
    /// All plugins of a request together.
    pub plugins: Option<Micros>,
    /// A part of unknown kind.
    pub other: Option<Micros>,
}

impl PartCeilings {
    /// One ceiling for every kind.
    pub fn all(ceiling: Micros) -> PartCeilings {
        PartCeilings {
            image: Some(ceiling),
            audio: Some(ceiling),
            file: Some(ceiling),
            plugins: Some(ceiling),
            other: Some(ceiling),
        }
    }
}

/// Sizes of a model, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Input and output together.
    pub context_length: Option<NonZeroU64>,
    /// Output of a request without a cap, per choice: the amount held.
    pub output_tokens_default: NonZeroU64,
    /// Whether the operator guarantees that no response without a cap is longer. With the guarantee the charge covers at most
    /// `output_tokens_default` tokens.
    pub output_tokens_bound: bool,
}

/// Provider selection for a model, and fallback models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// The selection policy among healthy providers.
    pub choice: Choice,
    /// Ids of the fallback models, in order. A fallback model's providers are called when no provider of the requested model can serve. The
    /// price stays the requested model's price.
    pub fallback: Vec<Arc<str>>,
}

/// The selection policy among several providers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Weighted random.
    #[default]
    Weighted,
    /// Least requests: the provider with the fewest calls in flight relative to its weight.
    LeastBusy,
}

impl Words for Choice {
    const WORDS: &'static [(&'static str, Choice)] = &[
        ("weighted", Choice::Weighted),
        ("least-busy", Choice::LeastBusy),
    ];
}

/// A model as offered by a provider.
#[derive(Clone, Debug)]
pub struct ProviderModel {
    /// The provider's name in the settings.
    pub provider: Arc<str>,
    /// The provider's base URL.
    pub address: Arc<str>,
    /// The provider's id of the model.
    pub model: Arc<str>,
    /// The operations that the provider offers for the model.
    pub apis: Apis,
    /// The provider's share of the calls, relative to the weights of other providers. 0 for a fallback, which is called only when no other
    /// provider can serve.
    pub weight: u32,
    /// Names of top-level members removed from requests to the provider.
    pub removed_members: Arc<[Box<str>]>,
    /// Names of top-level members that make a request refused if the request could go to the provider.
    pub refused_members: Arc<[Box<str>]>,
    /// Whether the provider knows the role `developer`; other providers get `system`.
    pub developer_role: bool,
}

impl ProviderModel {
    /// A model at a provider that offers every operation for the model and accepts every member of a request.
    pub fn new(provider: &str, model: &str) -> ProviderModel {
        ProviderModel {
            provider: provider.into(),
            address: Arc::default(),
            model: model.into(),
            apis: Apis::ALL,
            weight: 1,
            removed_members: Arc::default(),
            refused_members: Arc::default(),
            developer_role: false,
        }
    }
}

/// Handling of a stream after its client has disconnected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLeaving {
    /// Drain: the provider is read for a while longer, for the usage at the end of the stream.
    #[default]
    Drain,
    /// Abort: the provider's connection is closed at once. Cheaper where the provider stops working at the close, but the usage has to be
    /// counted.
    Stop,
}

impl Words for AfterLeaving {
    const WORDS: &'static [(&'static str, AfterLeaving)] =
        &[("drain", AfterLeaving::Drain), ("stop", AfterLeaving::Stop)];
}

/// An operation of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Api {
    /// `POST /chat/completions`
    Chat,
    /// `POST /completions`
    Text,
}

impl Api {
    /// Every operation, at its number.
    pub const ALL: [Api; 2] = [Api::Chat, Api::Text];

    /// The operation's name in settings.
    pub fn name(self) -> &'static str {
        match self {
            Api::Chat => "chat",
            Api::Text => "text",
        }
    }

    /// The path below a provider's base address.
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/chat/completions",
            Api::Text => "/completions",
        }
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Apis(u8);

impl Apis {
    /// Every operation.
    pub const ALL: Apis = Apis((1 << Api::ALL.len()) - 1);

    /// Adds `api` to the set.
    #[must_use]
    pub const fn with(self, api: Api) -> Apis {
        Apis(self.0 | 1 << api as u8)
    }

    /// Whether the set contains `api`.
    pub const fn has(self, api: Api) -> bool {
        self.0 & 1 << api as u8 != 0
    }
}
