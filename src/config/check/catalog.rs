//! `[[model]]` and `service.default_model`.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tollgate_clock::Timestamp;
use tollgate_filter::settings::{Amount, At, Problems, words};
use tollgate_filter::{
    Api, Apis, Catalog, Model, ModelLimits, PartCeilings, ProviderModel, Routing,
};
use tollgate_money::{Micros, Price, TokenPrice};

use super::required;
use crate::config::price;
use crate::config::raw::{RawModel, RawPrice, RawProviderModel, RawSettings};
use crate::config::settings::{Provider, Service};

/// Default output tokens of a request without a cap.
const OUTPUT_TOKENS: u64 = 4096;
/// Maximum number of providers of one model, and of fallback models.
const PROVIDERS_MAX: usize = 16;
const FALLBACKS_MAX: usize = 3;
const MODALITIES: &[&str] = &["text", "image", "audio", "video"];
/// The factor 1: one billed token for one token of the model.
const FACTOR_ONE: u32 = 1_000_000;

pub(super) fn catalog(
    raw: &RawSettings,
    providers: &[Arc<Provider>],
    service: &Service,
    problems: &mut Problems,
) -> Option<Arc<Catalog>> {
    let mut ids = BTreeSet::new();
    let mut models = Vec::new();
    for (index, one) in raw.model.iter().enumerate() {
        let key = format!("model.{index}.id");
        if let Some(at) = required(problems, &key, one.id.as_ref(), "`id = \"small\"`") {
            check_id(&key, at, problems);
            if !ids.insert(at.value.clone()) {
                problems.note(
                    &key,
                    at,
                    format_args!("is `{}`, which another model has; use another id", at.value),
                );
            }
        }
        models.extend(model(index, one, raw, service, providers, problems));
    }
    let default = raw.service.default_model.as_ref();
    if let Some(at) = default
        && !ids.contains(&at.value)
    {
        let known: Vec<&str> = ids.iter().map(String::as_str).collect();
        problems.note(
            "service.default_model",
            at,
            format_args!(
                "is `{}`, which is not a model of this file; use {}",
                at.value,
                words(&known)
            ),
        );
    }
    Catalog::new(models, default.map(|at| at.value.as_str())).map(Arc::new)
}

/// An id is printed in JSON, in logs and in metrics without escapes.
fn check_id(key: &str, at: &At<String>, problems: &mut Problems) {
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"\"\\{}<>".contains(&byte);
    if at.value.is_empty() || at.value.len() > 128 || !at.value.bytes().all(plain) {
        problems.note(
            key,
            at,
            format_args!(
                "is `{}`; use 1 to 128 visible ASCII characters without quotes, braces or backslashes",
                at.value
            ),
        );
    }
}

fn model(
    index: usize,
    raw: &RawModel,
    all: &RawSettings,
    service: &Service,
    providers: &[Arc<Provider>],
    problems: &mut Problems,
) -> Option<Arc<Model>> {
    let key = |name: &str| format!("model.{index}.{name}");
    let price = price(index, raw, problems);
    let context_length = raw.context_length.check(key("context_length"), problems);
    let output = raw
        .max_output_tokens
        .check(key("max_output_tokens"), problems)
        .unwrap_or_else(|| {
            context_length.map_or(OUTPUT_TOKENS, |length| length.min(OUTPUT_TOKENS))
        });
    if let (Some(at), Some(length)) = (raw.max_output_tokens.written(), context_length)
        && output > length
    {
        problems.note(
            key("max_output_tokens"),
            at,
            format_args!("is {output}, more than `context_length`; use {length} or less"),
        );
    }
    let created = raw.created.check(key("created"), problems);
    let part_ceilings = part_ceilings(index, raw, problems);
    let token_factor_ppm = factor(&key("token_factor"), raw.token_factor.as_ref(), problems);
    let output_modalities = modalities(index, raw, problems);
    let places = places(index, raw, all, providers, problems);
    let routing = routing(index, raw, all, problems);
    let id = raw.id.as_ref()?.value.as_str();
    Some(Arc::new(Model {
        id: id.into(),
        name: raw.name.as_ref().map(|at| at.value.clone()),
        owned_by: raw
            .owned_by
            .as_ref()
            .map_or_else(|| service.name.to_string(), |at| at.value.clone()),
        created: created.map(|secs| Timestamp::from_secs(secs as i64)),
        price,
        price_version: price::version(id, &price),
        limits: ModelLimits {
            context_length: context_length.and_then(NonZeroU64::new),
            output_tokens_default: NonZeroU64::new(output).unwrap_or(NonZeroU64::MIN),
            output_tokens_bound: raw.max_output_tokens.written().is_some(),
        },
        output_modalities,
        part_ceilings,
        token_factor_ppm,
        providers: places,
        cap_member: raw
            .cap_member
            .check(key("cap_member"), problems)
            .unwrap_or_default(),
        system_as_chat: raw.system_as_chat.is_on(),
        routing,
        after_leaving: raw.after_leaving.check(key("after_leaving"), problems),
        working: AtomicBool::new(true),
    }))
}

fn price(index: usize, raw: &RawModel, problems: &mut Problems) -> Price {
    let key = |name: &str| format!("model.{index}.price.{name}");
    let mut tokens = |name: &str, at: Option<&At<String>>| -> TokenPrice {
        required(
            problems,
            key(name),
            at,
            "credits per million tokens, `\"0\"` for nothing",
        )
        .and_then(|at| problems.parse(key(name), at))
        .unwrap_or_default()
    };
    let input = tokens("input", raw.price.input.as_ref());
    let output = tokens("output", raw.price.output.as_ref());
    let request = raw
        .price
        .request
        .check(key("request"), problems)
        .unwrap_or_default();
    Price {
        input,
        output,
        request,
    }
}

/// The hold for parts other than text: a ceiling for each kind, or a ceiling for all kinds, if any.
fn part_ceilings(index: usize, raw: &RawModel, problems: &mut Problems) -> PartCeilings {
    let mut ceiling = |name: &str, written: &Amount, otherwise: Option<Micros>| {
        written
            .check(format!("model.{index}.{name}"), problems)
            .or(otherwise)
    };
    let any = ceiling("part_ceiling", &raw.part_ceiling, None);
    PartCeilings {
        image: ceiling("price.image", &raw.price.image, any),
        audio: ceiling("price.audio", &raw.price.audio, any),
        file: ceiling("price.file", &raw.price.file, any),
        plugins: ceiling("price.plugins", &raw.price.plugins, any),
        other: any,
    }
}

fn factor(key: &str, at: Option<&At<String>>, problems: &mut Problems) -> u32 {
    let Some(at) = at else { return FACTOR_ONE };
    // Six decimal places, as an amount has: the digits are the millionths.
    let Some(factor) = problems.parse::<Micros>(key, at) else {
        return FACTOR_ONE;
    };
    let one = i64::from(FACTOR_ONE);
    if !(one / 10..=one * 10).contains(&factor.get()) {
        problems.note(key, at, format_args!("is `{}`; use 0.1 to 10", at.value));
    }
    u32::try_from(factor.get()).unwrap_or(FACTOR_ONE)
}

fn modalities(index: usize, raw: &RawModel, problems: &mut Problems) -> Vec<String> {
    let Some(list) = &raw.modalities else {
        return vec!["text".to_owned()];
    };
    if list.value.is_empty() {
        problems.note(
            format!("model.{index}.modalities"),
            list,
            "is empty; leave it out for `text`",
        );
    }
    for (at, word) in list.value.iter().enumerate() {
        if !MODALITIES.contains(&word.value.as_str()) {
            problems.note(
                format!("model.{index}.modalities.{at}"),
                word,
                format_args!("is `{}`; use {}", word.value, words(MODALITIES)),
            );
        }
    }
    list.value.iter().map(|word| word.value.clone()).collect()
}

fn places(
    index: usize,
    raw: &RawModel,
    all: &RawSettings,
    providers: &[Arc<Provider>],
    problems: &mut Problems,
) -> Vec<ProviderModel> {
    const EXAMPLE: &str = "`providers = [{ provider = \"local\", model = \"llama3.2\" }]`";
    let key = format!("model.{index}.providers");
    if raw.providers.is_empty() {
        problems.note_missing(&key, format_args!("is missing; write {EXAMPLE}"));
    }
    let mut places = Vec::new();
    for (place_at, place) in raw.providers.iter().enumerate() {
        let list = &key;
        let key = format!("{list}.{place_at}.provider");
        let Some(at) = required(problems, &key, place.provider.as_ref(), "a provider's name")
        else {
            continue;
        };
        // A provider with an error of its own is not also reported as unknown.
        let mut names = all.provider.iter().filter_map(|one| one.name.as_ref());
        if !names.any(|name| name.value == at.value) {
            let known: BTreeSet<&str> = providers.iter().map(|one| &*one.name).collect();
            let known: Vec<&str> = known.into_iter().collect();
            problems.note(
                &key,
                at,
                format_args!(
                    "is `{}`, which is not a provider of this file; use {}",
                    at.value,
                    words(&known)
                ),
            );
        }
        let model = place.model.as_ref().or(raw.id.as_ref());
        let own = providers.iter().find(|one| *one.name == *at.value);
        let weight = place
            .weight
            .check(format!("{list}.{place_at}.weight"), problems)
            .unwrap_or_else(|| own.map_or(1, |one| u64::from(one.weight)));
        places.push(ProviderModel {
            provider: at.value.as_str().into(),
            address: own.map_or_else(Arc::default, |one| one.base_url.to_string().into()),
            model: model.map_or("", |at| at.value.as_str()).into(),
            apis: apis(
                &format!("model.{index}.providers.{place_at}.api"),
                place,
                problems,
            ),
            weight: weight as u32,
            removed_members: own.map_or_else(Arc::default, |one| one.remove_members.clone()),
            refused_members: own.map_or_else(Arc::default, |one| one.refuse_members.clone()),
            developer_role: own.is_some_and(|one| one.developer_role),
        });
    }
    if places.len() > 1 && places.iter().all(|place| place.weight == 0) {
        problems.warn(
            &key,
            "have the weight 0, which marks a standby, so that each gets an equal share; give those a weight that are to be called first",
        );
    }
    if raw.providers.len() > PROVIDERS_MAX {
        problems.note_missing(
            key,
            format_args!(
                "has {} elements; use {PROVIDERS_MAX} or fewer",
                raw.providers.len()
            ),
        );
    }
    places
}

/// The operations of one provider model; by default every operation.
fn apis(key: &str, place: &RawProviderModel, problems: &mut Problems) -> Apis {
    let Some(list) = &place.api else {
        return Apis::ALL;
    };
    if list.value.is_empty() {
        problems.note(key, list, "is empty; leave it out for `chat` and `text`");
    }
    let mut apis = Apis::default();
    for (at, word) in list.value.iter().enumerate() {
        let mut all = Api::ALL.into_iter();
        match all.find(|api| api.name() == word.value) {
            Some(api) => apis = apis.with(api),
            None => problems.note(
                format!("{key}.{at}"),
                word,
                format_args!("is `{}`; use `chat` or `text`", word.value),
            ),
        }
    }
    apis
}

/// The prices of `other` above the prices of `own`, in words. An unparsable amount has a separate problem.
fn more_expensive(own: &RawPrice, other: &RawPrice) -> Vec<String> {
    let tokens = |at: &Option<At<String>>| at.as_ref()?.value.parse::<Micros>().ok();
    let request = |price: &RawPrice| match price.request.written() {
        Some(at) => at.value.parse::<Micros>().ok(),
        None => Some(Micros::ZERO),
    };
    [
        ("input", tokens(&own.input), tokens(&other.input)),
        ("output", tokens(&own.output), tokens(&other.output)),
        ("request", request(own), request(other)),
    ]
    .into_iter()
    .filter_map(|(name, own, other)| {
        let (own, other) = (own?, other?);
        (other > own).then(|| format!("{name} {other} instead of {own}"))
    })
    .collect()
}

fn routing(index: usize, raw: &RawModel, all: &RawSettings, problems: &mut Problems) -> Routing {
    let choice = raw.choice.check(format!("model.{index}.choice"), problems);
    let key = format!("model.{index}.fallback");
    let may_be_expensive = raw.expensive_fallback.is_on();
    let mut fallback: Vec<Arc<str>> = Vec::new();
    for (number, at) in raw
        .fallback
        .iter()
        .flat_map(|list| list.value.iter().enumerate())
    {
        let key = format!("{key}.{number}");
        let id = at.value.as_str();
        if raw.id.as_ref().is_some_and(|own| own.value == id) {
            problems.note(key, at, "is the model itself; name another model");
            continue;
        }
        if fallback.iter().any(|other| **other == *id) {
            problems.note(
                key,
                at,
                format_args!("is `{id}` again; name each model once"),
            );
            continue;
        }
        let has_id = |one: &&RawModel| one.id.as_ref().is_some_and(|at| at.value == id);
        let Some(other) = all.model.iter().find(has_id) else {
            let known = all.model.iter();
            let known = known.filter_map(|one| Some(one.id.as_ref()?.value.as_str()));
            let known: Vec<&str> = known.collect::<BTreeSet<_>>().into_iter().collect();
            problems.note(
                key,
                at,
                format_args!(
                    "is `{id}`, which is not a model of this file; use {}",
                    words(&known)
                ),
            );
            continue;
        };
        let expensive = more_expensive(&raw.price, &other.price);
        if !expensive.is_empty() && !may_be_expensive {
            problems.note(
                key,
                at,
                format_args!(
                    "is `{id}`, which is more expensive ({}), and a request that it serves is charged at the price of this model; name a \
                     cheaper model, or write `expensive_fallback = true`",
                    expensive.join(", ")
                ),
            );
        }
        fallback.push(id.into());
    }
    if let Some(list) = &raw.fallback
        && list.value.len() > FALLBACKS_MAX
    {
        problems.note(
            key,
            list,
            format_args!(
                "has {} elements; use {FALLBACKS_MAX} or fewer",
                list.value.len()
            ),
        );
    }
    Routing {
        choice: choice.unwrap_or_default(),
        fallback,
    }
}
