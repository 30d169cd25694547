//! Validation: from the raw settings to the checked settings.
//!
//! Every function records problems and continues. A default replaces a missing or invalid value. The result with a problem is discarded, so
//! the default is never used.

mod acme;
mod admin;
mod catalog;
mod otlp;
mod provider;
mod route;
mod server;
mod values;

use std::sync::Arc;

use tollgate_filter::UncachedModels;
use tollgate_filter::settings::{CallTimeouts, Problems};
use tollgate_module::Services;
use tollgate_rate_limit::Limits;

use super::raw::{RawModel, RawSettings, RawTelemetry};
use super::settings::{AccessLog, Provider, Sections, Service, Settings, Telemetry};
use super::source::Source;
pub use values::CheckContext;
use values::{in_existing_folder, required, whole};

/// Checked values for the modules' sections, found by type.
fn found_by_modules(
    raw: &RawSettings,
    (service, providers): (&Service, &[Arc<Provider>]),
) -> Services {
    let mut services = Services::default();
    services.provide(service.identity());
    let written = raw.provider.iter().enumerate().filter_map(|(index, one)| {
        let at = one.timeouts.total_secs.written()?.clone();
        Some((format!("provider.{index}.timeouts.total_secs"), at))
    });
    services.provide(CallTimeouts {
        written: written.collect(),
        longest: providers.iter().map(|one| one.timeouts.total).max(),
    });
    let off = |one: &&RawModel| !one.cache.is_on();
    let uncached = raw.model.iter().filter(off);
    let ids = uncached.filter_map(|one| Some(one.id.as_ref()?.value.as_str().into()));
    services.provide(UncachedModels(Arc::new(ids.collect())));
    services
}

/// Checks all sections. `sections` checks the sections of modules, with the values checked before.
pub(super) fn settings(
    raw: &RawSettings,
    context: &CheckContext<'_>,
    sections: impl FnOnce(Services, &mut Problems) -> Sections,
    problems: &mut Problems,
) -> Option<Settings> {
    let listeners = server::listeners(&raw.listener, context, problems);
    let providers = provider::providers(&raw.provider, context, problems);
    let service = server::service(&raw.service, listeners.first(), problems);
    let catalog = catalog::catalog(raw, &providers, &service, problems);
    let admin = admin::admin(&raw.admin, context, problems);
    server::addresses(raw, (&listeners, &admin, &service), problems);
    let sections = sections(found_by_modules(raw, (&service, &providers)), problems);
    // Invalid classes must not cause errors at the routes that name the classes.
    let limits: Option<Limits> = sections.find();
    let mut route_warnings = Vec::new();
    Some(Settings {
        server: server::server(&raw.server, context, problems),
        admin,
        store: server::store(&raw.store, raw.admin.socket.as_ref(), context, problems),
        upstream: provider::upstream(&raw.upstream, problems),
        routes: route::routes(
            raw,
            &service,
            context,
            limits.as_ref(),
            &mut route_warnings,
            problems,
        ),
        route_warnings,
        section_warnings: problems.take_warnings(),
        telemetry: telemetry(&raw.telemetry, context, problems),
        sections,
        source: Source::default(),
        catalog: catalog?,
        service,
        listeners,
        providers,
    })
}

fn telemetry(raw: &RawTelemetry, context: &CheckContext<'_>, problems: &mut Problems) -> Telemetry {
    Telemetry {
        client_address: raw
            .client_address
            .check("telemetry.client_address", problems)
            .unwrap_or_default(),
        otlp: otlp::otlp(raw, context, problems),
        access_sample: otlp::share("access_sample", raw.access_sample.as_ref(), problems)
            .unwrap_or(1.0),
        log_format: raw
            .log_format
            .check("telemetry.log_format", problems)
            .unwrap_or_default(),
        log_level: raw
            .log_level
            .check("telemetry.log_level", problems)
            .unwrap_or_default(),
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
            Some(path) => {
                let path = context.path(path);
                if let Some(at) = &raw.access_log {
                    in_existing_folder(problems, "telemetry.access_log", at, &path);
                }
                AccessLog::File(path)
            }
        },
    }
}
