//! Validation: from the raw settings to the checked settings.
//!
//! Every function records problems and continues. A missing or invalid value is replaced by its default; the result is discarded then, so
//! it is never used.

mod brand;
mod catalog;
mod lifecycle;
mod mcp;
mod mpp;
mod payments;
mod provider;
mod route;
mod secret;
mod server;
mod signin;
mod values;
mod x402;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tollgate_cache::CacheSettings;
use tollgate_filter::settings::Problems;
use tollgate_rate_limit::Limits;

use super::raw::{RawModel, RawSettings, RawTelemetry};
use super::settings::{
    AccessLog, ClientAddressForm, LogFormat, LogLevel, Provider, Settings, Telemetry,
};
pub use values::CheckContext;
use values::{number, required, seconds, word};

/// A hold has to outlive the call it pays for.
fn holds(raw: &RawSettings, providers: &[Arc<Provider>], hold: Duration, problems: &mut Problems) {
    for (index, one) in raw.provider.iter().enumerate() {
        let Some(at) = &one.timeouts.total_secs else {
            continue;
        };
        if hold <= Duration::from_secs(at.value) {
            let key = format!("provider.{index}.timeouts.total_secs");
            let message = format_args!(
                "is {}, but credit is held for only {} seconds; raise `meter.hold_secs` above it",
                at.value,
                hold.as_secs()
            );
            problems.note(key, at, message);
        }
    }
    // A provider without a value of its own has the default, so the error is reported at the other setting.
    let longest = providers.iter().map(|one| one.timeouts.total).max();
    if let (Some(at), Some(longest)) = (&raw.meter.hold_secs, longest)
        && hold <= longest
        && raw
            .provider
            .iter()
            .all(|one| one.timeouts.total_secs.is_none())
    {
        let message = format_args!(
            "is {}, but a call may take {} seconds; use more",
            at.value,
            longest.as_secs()
        );
        problems.note("meter.hold_secs", at, message);
    }
}

/// Salts must name existing classes.
fn cache(raw: &RawSettings, limits: Option<&Limits>, problems: &mut Problems) -> CacheSettings {
    for (class, at) in &raw.cache.salts {
        if limits.is_some_and(|limits| limits.class(class).is_none()) {
            let message = "is not a rate class; use the name of a class of `limits.classes`";
            problems.note(format!("cache.salts.{class}"), at, message);
        }
    }
    CacheSettings {
        uncached: uncached(raw),
        ..raw.cache.check("cache", problems).unwrap_or_default()
    }
}

/// Models whose answers are never stored.
fn uncached(raw: &RawSettings) -> HashSet<Arc<str>> {
    let off = |one: &&RawModel| one.cache.as_ref().is_some_and(|at| !at.value);
    let ids = raw
        .model
        .iter()
        .filter(off)
        .filter_map(|one| one.id.as_ref());
    ids.map(|at| at.value.as_str().into()).collect()
}

/// Checks all sections.
pub(super) fn settings(
    raw: &RawSettings,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Settings> {
    let listeners = server::listeners(&raw.listener, context, problems);
    let providers = provider::providers(&raw.provider, context, problems);
    let service = server::service(&raw.service, listeners.first(), problems);
    // Invalid classes must not cause errors at the routes that name them.
    let limits = raw.limits.check("limits", problems);
    let catalog = catalog::catalog(raw, &providers, &service, problems);
    let meter = raw.meter.check("meter", problems).unwrap_or_default();
    holds(raw, &providers, meter.hold, problems);
    let cache = cache(raw, limits.as_ref(), problems);
    Some(Settings {
        server: server::server(&raw.server, problems),
        admin: server::admin(&raw.admin, problems),
        store: server::store(&raw.store, context, problems),
        upstream: provider::upstream(&raw.upstream, problems),
        routes: route::routes(&raw.route, &service, context, limits.as_ref(), problems),
        mcp: mcp::mcp(&raw.mcp, context, problems),
        credits: payments::credits(&raw.credits, &service, problems),
        plan: raw.plan.check(&service.name, problems),
        payments: payments::payments(&raw.payments, &raw.credits, context, problems),
        ucp: raw.ucp.check("ucp", problems).unwrap_or_default(),
        signin: signin::signin(&raw.signin, context, problems),
        brand: brand::brand(&raw.brand, &service.name, context, problems),
        onboarding: raw.onboarding.check(
            "onboarding",
            (&service.name, service.base_url.as_str()),
            problems,
        ),
        oauth: raw.oauth.check("oauth", problems).unwrap_or_default(),
        telemetry: telemetry(&raw.telemetry, context, problems),
        meter,
        cache,
        sections: Vec::new(),
        limits: limits.unwrap_or_default(),
        catalog: catalog?,
        service,
        listeners,
        providers,
    })
}

fn telemetry(raw: &RawTelemetry, context: &CheckContext<'_>, problems: &mut Problems) -> Telemetry {
    const FORMATS: &[(&str, LogFormat)] = &[("json", LogFormat::Json), ("text", LogFormat::Text)];
    const LEVELS: &[(&str, LogLevel)] = &[
        ("error", LogLevel::Error),
        ("warn", LogLevel::Warn),
        ("info", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ];
    const ADDRESSES: &[(&str, ClientAddressForm)] = &[
        ("whole", ClientAddressForm::Whole),
        ("prefix", ClientAddressForm::Prefix),
        ("hashed", ClientAddressForm::Hashed),
        ("none", ClientAddressForm::None),
    ];
    Telemetry {
        client_address: word(
            problems,
            "telemetry.client_address",
            raw.client_address.as_ref(),
            ADDRESSES,
        )
        .unwrap_or(ClientAddressForm::None),
        log_format: word(
            problems,
            "telemetry.log_format",
            raw.log_format.as_ref(),
            FORMATS,
        )
        .unwrap_or(LogFormat::Text),
        log_level: word(
            problems,
            "telemetry.log_level",
            raw.log_level.as_ref(),
            LEVELS,
        )
        .unwrap_or(LogLevel::Info),
        access_log: match raw.access_log.as_ref().map(|at| at.value.as_str()) {
            None | Some("stdout") => AccessLog::Stdout,
            Some("none") => AccessLog::None,
            Some("") => {
                if let Some(at) = &raw.access_log {
                    problems.note(
                        "telemetry.access_log",
                        at,
                        "is empty; use `stdout`, `none` or the path of a file",
                    );
                }
                AccessLog::None
            }
            Some(path) => AccessLog::File(context.path(path)),
        },
    }
}
