//! `tollgate check`, `tollgate schema` and `tollgate openapi`: validation and description of the settings.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use tollgate_clock::Clock;
use tollgate_filter::settings::Warning;
use tollgate_module::Declarations;
use tollgate_onboarding::Installation;

use super::exit_code::{FAILURE, SUCCESS};
use super::output::Output;
use crate::admin::control;
use crate::config::{self, Environment, Settings, StoreUrl};
use crate::gateway::services;
use crate::{database, telemetry};

/// Reports every error of the settings, or the warnings of valid settings.
pub(super) fn check(
    file: &Path,
    modules: &Declarations,
    environment: &Environment,
    out: &mut Output<'_>,
) -> anyhow::Result<u8> {
    let checked = config::load(file, environment, modules);
    let findings = checked.as_ref().err().map(|report| &report.findings[..]);
    let warnings = checked.as_ref().map(warnings).unwrap_or_default();
    let answer = serde_json::json!({
        "good": checked.is_ok(),
        "findings": findings.unwrap_or_default(),
        "warnings": warnings,
    });
    out.show(&answer, |out| match &checked {
        Ok(settings) => {
            for warning in &warnings {
                writeln!(out, "{}: warning: {warning}", file.display()).context("cannot print")?;
            }
            writeln!(
                out,
                "{}: good (listeners: {}, routes: {}, providers: {}, models: {})",
                file.display(),
                settings.listeners.len(),
                settings.routes.len(),
                settings.providers.len(),
                settings.catalog.models().len()
            )
            .context("cannot print")
        }
        Err(report) => {
            let count = report.findings.len();
            let problems = if count == 1 { "problem" } else { "problems" };
            writeln!(out, "{report}\n{count} {problems}").context("cannot print")
        }
    })?;
    Ok(if checked.is_ok() { SUCCESS } else { FAILURE })
}

/// The risks of the settings, and the risks of files and services named in the settings, on this machine and today.
fn warnings(settings: &Settings) -> Vec<Warning> {
    let mut found = settings.warnings();
    found.extend(settings.expiring_certificates(Clock::system().now()));
    if settings.catalog.models().is_empty() {
        found.push(Warning {
            key: String::from("model"),
            message: "is missing: every completion is refused; add a `[[model]]` with `id`, `providers` and `price`".into(),
        });
    }
    let StoreUrl::Sqlite(database) = &settings.store.url else {
        if let Err(error) = control::Socket::check(&database::control_socket(&settings.store)) {
            found.push(Warning {
                key: String::from("admin.socket"),
                message: telemetry::chain(&error).into(),
            });
        }
        return found;
    };
    let folder = database
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // A file without a name. The file disappears when the file is closed.
    if let Err(error) = tempfile::tempfile_in(folder) {
        let message = format!(
            "this user cannot create files in `{}` ({error}), where the database and its log are; run the gateway as the owner of the \
             folder, or name another one",
            folder.display()
        );
        found.push(Warning {
            key: String::from("store.url"),
            message: message.into(),
        });
    }
    found
}

/// Prints the JSON Schema of the settings.
pub(super) fn schema(modules: &Declarations, out: &mut Output<'_>) -> anyhow::Result<u8> {
    let mut text = serde_json::to_string_pretty(&config::schema(&modules.sections))
        .context("cannot write JSON")?;
    text.push('\n');
    out.document(text.as_bytes())?;
    Ok(SUCCESS)
}

/// Prints the OpenAPI document.
pub(super) fn openapi(settings: Settings, out: &mut Output<'_>) -> anyhow::Result<u8> {
    let mut services = services(&Arc::new(settings));
    services.provide(tollgate_pay::configured_protocols(&services)?);
    let documents = services
        .find()
        .context("this gateway has no onboarding documents")?;
    let document = tollgate_onboarding::openapi(&documents, &Installation::of(&services)?);
    print_document(&document, out)
}

/// Prints the OpenAPI document of the admin API.
pub(super) fn admin_openapi(out: &mut Output<'_>) -> anyhow::Result<u8> {
    print_document(&crate::admin::openapi(), out)
}

fn print_document(document: &serde_json::Value, out: &mut Output<'_>) -> anyhow::Result<u8> {
    let mut text = serde_json::to_string_pretty(document).context("cannot write JSON")?;
    text.push('\n');
    out.document(text.as_bytes())?;
    Ok(SUCCESS)
}
