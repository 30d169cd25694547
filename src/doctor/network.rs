//! Names, model providers, and the shared server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::settings::BaseUrl;
use tollgate_shared::SharedSettings;

use super::checks::{Checks, milliseconds};
use super::finding::Finding;
use super::probe::{self, Probed};
use crate::config::{Provider, Settings};

/// Difference of two clocks that causes a warning. A `Date` has whole seconds, and takes time to arrive.
const SKEW_SECS_MAX: i64 = 5;

pub(super) fn start(checks: &mut Checks, settings: &Arc<Settings>) {
    for (host, public) in hosts(settings) {
        let (name, clock) = (format!("name {host}"), checks.clock.clone());
        checks.start(name.clone(), async move {
            resolve(name, &host, public, &clock).await
        });
    }
    for provider in &settings.providers {
        let (provider, clock) = (provider.clone(), checks.clock.clone());
        let models = models(settings, &provider);
        checks.start(format!("provider {}", provider.name), async move {
            check_provider(&provider, &models, &clock).await
        });
    }
    let shared: Option<SharedSettings> = settings.sections.find().flatten();
    if let Some(shared) = shared {
        let clock = checks.clock.clone();
        checks.start("shared server", async move {
            check_shared(shared, &clock).await
        });
    }
}

/// The names of providers, and the public names. The gateway itself does not need the public names.
fn hosts(settings: &Settings) -> BTreeMap<String, bool> {
    let mut hosts = BTreeMap::new();
    let service = &settings.service;
    for url in [&service.base_url, &service.root_url] {
        let parsed: Option<BaseUrl> = url.as_str().parse().ok();
        if let Some(url) = parsed {
            hosts.insert(url.host, true);
        }
    }
    for provider in &settings.providers {
        hosts.insert(provider.base_url.host.clone(), false);
    }
    // An address needs no lookup.
    hosts.retain(|host, _| host.parse::<std::net::IpAddr>().is_err());
    hosts
}

async fn resolve(name: String, host: &str, public: bool, clock: &Clock) -> Finding {
    let began = clock.elapsed();
    let found = tokio::net::lookup_host((host, 443)).await;
    let took = milliseconds(clock.elapsed() - began);
    match found {
        Ok(addresses) => {
            let addresses: BTreeSet<String> =
                addresses.map(|address| address.ip().to_string()).collect();
            let list: Vec<String> = addresses.into_iter().collect();
            Finding::ok(name, format!("{} in {took}", list.join(", ")))
        }
        Err(error) if public => Finding::warning(name, format!("no address ({error})")).remedy(
            "clients are given this name (`service.base_url`, `service.root_url`): create its DNS record, if it is not one that only clients \
             can resolve",
        ),
        Err(error) => Finding::failed(name, format!("no address ({error})"))
            .remedy("correct the provider's `base_url`, or this machine's DNS servers"),
    }
}

/// The models that the provider has to offer: the provider's ids of the sold models.
fn models(settings: &Settings, provider: &Provider) -> BTreeSet<String> {
    let offers = settings.catalog.models().iter();
    let offers = offers.flat_map(|model| &model.providers);
    offers
        .filter(|offer| *offer.provider == *provider.name)
        .map(|offer| offer.model.to_string())
        .collect()
}

async fn check_provider(provider: &Provider, models: &BTreeSet<String>, clock: &Clock) -> Finding {
    let name = format!("provider {}", provider.name);
    let began = clock.elapsed();
    let probed = probe::list_models(provider).await;
    let took = milliseconds(clock.elapsed() - began);
    match probed {
        Err(error) => Finding::failed(name, error).remedy(format!(
            "see whether `{}` is right and reachable from this machine, and its certificate is of a known authority (`ca_file`)",
            provider.base_url
        )),
        Ok(probed) => describe_models(name, &probed, &took, models, clock.now().as_secs()),
    }
}

fn describe_models(
    name: String,
    probed: &Probed,
    took: &str,
    models: &BTreeSet<String>,
    now: i64,
) -> Finding {
    let measured = format!("{} to GET /models in {took}", probed.status);
    match probed.status {
        200..300 => {}
        401 | 403 => {
            return Finding::failed(name, measured)
                .remedy("the provider refuses the key: correct `api_key_env` or `api_key_file`");
        }
        404 | 405 => {
            return Finding::warning(name, measured).remedy(
                "it is reachable, but does not list its models: see that `base_url` ends where `/chat/completions` begins",
            );
        }
        500.. => {
            return Finding::failed(name, measured)
                .remedy("the provider has a fault; try again later");
        }
        _ => {
            return Finding::warning(name, measured)
                .remedy("it is reachable, but its answer says nothing about the key");
        }
    }
    if let Some(skew) = probed.date.map(|date| date - now)
        && skew.abs() > SKEW_SECS_MAX
    {
        let measured = format!("{measured}; its clock differs by {skew} seconds");
        return Finding::warning(name, measured).remedy("see which clock is wrong (`timedatectl`)");
    }
    let Some(listed) = listed(&probed.body) else {
        return Finding::warning(name, format!("{measured}, but no list of models"))
            .remedy("see that `base_url` names an OpenAI-compatible API");
    };
    let missing: Vec<&str> = models
        .iter()
        .filter(|model| !is_listed(model, &listed))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        return Finding::ok(name, format!("{measured}, {} models", listed.len()));
    }
    let measured = format!("{measured}, without {}", missing.join(", "));
    Finding::warning(name, measured).remedy(
        "these models are sold, but not in the provider's list: correct `model` in `[[model]] providers`, if it does not take names that it \
         does not list",
    )
}

/// Whether a provider lists a model. Ollama lists the tag of a model named without a tag: `llama3` is `llama3:latest`.
fn is_listed(model: &str, listed: &BTreeSet<String>) -> bool {
    const TAG: &str = ":latest";
    let other = match model.strip_suffix(TAG) {
        Some(name) => name.to_owned(),
        None => format!("{model}{TAG}"),
    };
    listed.contains(model) || listed.contains(&other)
}

/// The ids in a list of models.
fn listed(body: &[u8]) -> Option<BTreeSet<String>> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let rows = body.get("data")?.as_array()?;
    let ids = rows.iter().filter_map(|row| row.get("id")?.as_str());
    Some(ids.map(str::to_owned).collect())
}

async fn check_shared(settings: SharedSettings, clock: &Clock) -> Finding {
    let name = "shared server";
    let place = format!("{}:{}", settings.host, settings.port);
    let limit = settings.call_limit;
    match tollgate_shared::probe(settings, clock, &Entropy::system()).await {
        Err(error) => Finding::failed(name, format!("{place}: {error}")).remedy(format!(
            "{}; until then each gateway uses its share of the limits",
            error.remedy()
        )),
        Ok(time) if time > limit => {
            let measured = format!("{place} answers in {}", milliseconds(time));
            Finding::warning(name, measured).remedy(format!(
                "an answer after {} counts as none; use a server in the same network",
                milliseconds(limit)
            ))
        }
        Ok(time) => Finding::ok(name, format!("{place} answers in {}", milliseconds(time))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Status;

    #[test]
    fn a_model_is_listed_with_or_without_the_tag_latest() {
        let listed = BTreeSet::from(["llama3:latest".to_owned(), "qwen".to_owned()]);
        for (model, expected) in [
            ("llama3", true),
            ("llama3:latest", true),
            ("llama3:8b", false),
            ("qwen:latest", true),
            ("qwe", false),
        ] {
            assert_eq!(is_listed(model, &listed), expected, "{model}");
        }
    }

    #[test]
    fn an_answer_tells_the_key_the_models_and_the_clock() {
        let list = r#"{"data": [{"id": "a"}, {"id": "b"}]}"#;
        for (status, date, body, wanted, text) in [
            (200, None, list, Status::Ok, "2 models"),
            (200, Some(1005), list, Status::Ok, "2 models"),
            (
                200,
                Some(1006),
                list,
                Status::Warning,
                "differs by 6 seconds",
            ),
            (
                200,
                None,
                r#"{"data": [{"id": "a"}]}"#,
                Status::Warning,
                "without b",
            ),
            (200, None, "<html>", Status::Warning, "no list of models"),
            (401, None, "", Status::Failed, "401"),
            (404, None, "", Status::Warning, "404"),
            (429, None, "", Status::Warning, "429"),
            (503, None, "", Status::Failed, "503"),
        ] {
            let probed = Probed {
                status,
                date,
                body: body.into(),
            };
            let models = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
            let found = describe_models("p".to_owned(), &probed, "1 ms", &models, 1000);
            assert_eq!(found.status, wanted, "{found}");
            assert!(found.measured.contains(text), "{found}");
        }
    }
}
