//! The models on sale.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tollgate_money::{Micros, Price};

use crate::CapMember;

/// The models on sale, in the order of the settings.
#[derive(Debug, Default)]
pub struct Catalog {
    models: Vec<Arc<Model>>,
    by_id: HashMap<Arc<str>, usize>,
    default: Option<usize>,
}

impl Catalog {
    /// A catalog of these models; `default` names the one that serves requests without a model. `None` when `default` is not among
    /// them or an id stands twice.
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

    /// The model of this id.
    pub fn get(&self, id: &str) -> Option<&Arc<Model>> {
        self.by_id.get(id).map(|&at| &self.models[at])
    }

    /// The model for requests that name none.
    pub fn default_model(&self) -> Option<&Arc<Model>> {
        self.default.map(|at| &self.models[at])
    }

    /// All models, in the order of the settings.
    pub fn models(&self) -> &[Arc<Model>] {
        &self.models
    }
}

/// One model on sale.
#[derive(Debug)]
pub struct Model {
    /// What clients call it.
    pub id: Arc<str>,
    /// A name for people.
    pub name: Option<String>,
    /// Who made it; the service's own name where the settings say nothing.
    pub owned_by: String,
    /// Seconds since 1970 when it came into the catalog.
    pub created: Option<i64>,
    /// What it costs, at [`Model::price_version`].
    pub price: Price,
    /// The version that is written beside each charge.
    pub price_version: i64,
    /// Sizes.
    pub limits: ModelLimits,
    /// What it can write: `text`, `image`, `audio`.
    pub output_modalities: Vec<String>,
    /// What is held for parts of a request that are not text.
    pub part_ceilings: PartCeilings,
    /// Factor, in millionths, from counted o200k tokens to this model's own.
    pub token_factor_ppm: u32,
    /// Where it can be had.
    pub providers: Vec<ProviderModel>,
    /// Whether a text request that has a `system` goes through chat, although a provider takes text requests.
    pub system_as_chat: bool,
    /// How a cap is written into a request that names none.
    pub cap_member: CapMember,
    /// Which of them is asked, and what serves when none of them can.
    pub routing: Routing,
    /// What becomes of a stream whose client has left, where that is not as for the other models.
    pub after_leaving: Option<AfterLeaving>,
    /// Whether any of its providers works, as far as is known.
    pub working: AtomicBool,
}

impl Model {
    /// Whether any of its providers works, as far as is known.
    pub fn is_working(&self) -> bool {
        self.working.load(Ordering::Relaxed)
    }

    /// Whether it can be had at any provider through `api`.
    pub fn speaks(&self, api: Api) -> bool {
        self.providers.iter().any(|place| place.apis.has(api))
    }
}

/// What a part of a request that is not text costs at most, each by its kind. What it does cost shows in the tokens that the provider
/// reports for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCeilings {
    /// A picture.
    pub image: Micros,
    /// A sound.
    pub audio: Micros,
    /// A file.
    pub file: Micros,
    /// All plugins of a request together.
    pub plugins: Micros,
    /// A part of a kind that nobody here knows.
    pub other: Micros,
}

impl PartCeilings {
    /// The same for every kind.
    pub fn all(ceiling: Micros) -> PartCeilings {
        PartCeilings {
            image: ceiling,
            audio: ceiling,
            file: ceiling,
            plugins: ceiling,
            other: ceiling,
        }
    }
}

/// Sizes of a model, in tokens.
#[derive(Clone, Copy, Debug)]
pub struct ModelLimits {
    /// Input and output together.
    pub context_length: Option<NonZeroU64>,
    /// Output of a request that names no cap, for each answer: what is held for.
    pub output_tokens_default: NonZeroU64,
    /// Whether the operator says that no such answer is longer: then no more is charged for.
    pub output_tokens_bound: bool,
}

/// Which provider of a model is asked, and what serves when none of them can.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// How one of those that work is chosen.
    pub choice: Choice,
    /// Ids of the models whose providers are asked, in this order, when none of the model's own can serve. The price stays that of the
    /// model that was asked for.
    pub fallback: Vec<Arc<str>>,
}

/// How one of several providers is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// At random, in proportion to their weights.
    #[default]
    Weighted,
    /// The one with the fewest calls under way for its weight.
    LeastBusy,
}

/// A model as one provider sells it.
#[derive(Clone, Debug)]
pub struct ProviderModel {
    /// The provider's name in the settings.
    pub provider: Arc<str>,
    /// What the provider calls the model.
    pub model: Arc<str>,
    /// The operations that the provider has for this model.
    pub apis: Apis,
    /// Its share of the calls, beside the weights of the others; 0 for one that is asked only when no other can serve.
    pub weight: u32,
    /// Names of top-level members of a request that the provider does not get.
    pub removed_members: Arc<[Box<str>]>,
    /// Names of top-level members with which a request is refused that the provider might get.
    pub refused_members: Arc<[Box<str>]>,
}

impl ProviderModel {
    /// A model at a provider that has every operation for it and gets every member of a request.
    pub fn new(provider: &str, model: &str) -> ProviderModel {
        ProviderModel {
            provider: provider.into(),
            model: model.into(),
            apis: Apis::ALL,
            weight: 1,
            removed_members: Arc::default(),
            refused_members: Arc::default(),
        }
    }
}

/// What becomes of a stream whose client has left in the middle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLeaving {
    /// The provider is listened to a while longer, for the usage it reports at the end.
    #[default]
    Drain,
    /// The provider is hung up on at once: cheaper where it then stops to work, and the usage has to be counted.
    Stop,
}

impl std::str::FromStr for AfterLeaving {
    type Err = String;

    fn from_str(word: &str) -> Result<AfterLeaving, String> {
        match word {
            "drain" => Ok(AfterLeaving::Drain),
            "stop" => Ok(AfterLeaving::Stop),
            _ => Err(format!("is `{word}`; use `drain` or `stop`")),
        }
    }
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
    /// The path below a provider's base address.
    pub fn path(self) -> &'static str {
        match self {
            Api::Chat => "/chat/completions",
            Api::Text => "/completions",
        }
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Apis {
    /// Has [`Api::Chat`].
    pub chat: bool,
    /// Has [`Api::Text`].
    pub text: bool,
}

impl Apis {
    /// Every operation.
    pub const ALL: Apis = Apis {
        chat: true,
        text: true,
    };

    /// Whether `api` is among them.
    pub fn has(self, api: Api) -> bool {
        match api {
            Api::Chat => self.chat,
            Api::Text => self.text,
        }
    }
}
