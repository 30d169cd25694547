//! Settings: the single place that reads files and the environment.
//!
//! [`load`] reads the file and the file of `server.environment_file`, applies overrides from variables named `TOLLGATE__SECTION__KEY`, and
//! returns either validated [`Settings`] or a [`Report`] of all errors, each with its place. Relative paths start from the folder of the
//! settings file, so a command uses one database from every folder of its start.

mod acme;
mod address;
mod certificate;
mod check;
mod cluster_digest;
mod difference;
mod document;
mod environment;
mod memory;
mod named_file;
mod pattern;
mod price;
mod proxies;
mod raw;
mod report;
mod schema;
mod settings;
mod source;
mod warnings;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tollgate_filter::settings::{Problem, Problems};
use tollgate_module::{Declarations, SectionType, Services};
use toml::Spanned;
use toml::de::DeTable;

pub use acme::{AcmeChallenge, AcmeOrder, ExternalAccount};
pub use address::ListenAddress;
pub(crate) use certificate::EXPIRY_WARNING;
pub use certificate::{Certificate, CertificateError, CertificateOrigin};
pub use check::CheckContext;
pub(crate) use difference::is_in;
pub use difference::{Difference, DifferenceKind};
pub(crate) use environment::fuzz as fuzz_environment;
pub use environment::{Environment, PREFIX};
pub use memory::Memory;
pub(crate) use named_file::Stamp;
pub use pattern::{PathPattern, PatternError};
pub use proxies::{ForwardedField, Network, NetworkError, TrustedProxies};
pub use report::{Finding, Place, Report};
pub use schema::schema;
pub use settings::{
    AccessLog, Admin, AdminRole, AdminTls, AdminToken, ClientAddressForm, Concurrency,
    ConnectionLimits, Cors, Durability, Lifecycle, Listener, LogFormat, LogLevel, Otlp, Probe,
    Provider, ProviderHealth, ProviderTimeouts, Retention, RetryBudget, Route, Sections, Server,
    Service, Settings, Store, StoreUrl, Telemetry, TlsSource, Upstream,
};
pub use source::Source;

pub use tollgate_filter::settings::{BaseUrl, PublicUrl, UrlError, Warning};

use document::{Origin, Origins};
use raw::RawSettings;
use report::Lines;
use schema::Node;

/// Reads and checks the settings of a file.
///
/// `modules`: the filters for chains, and the sections of modules.
///
/// # Errors
///
/// All errors, at once.
pub fn load(
    file: &Path,
    environment: &Environment,
    modules: &Declarations,
) -> Result<Settings, Report> {
    let stamp = Stamp::of(file);
    let text = std::fs::read_to_string(file).map_err(|error| {
        let place = Place::File {
            file: file.to_owned(),
        };
        let message = format!("cannot be read ({error}); name the settings with `--config FILE`");
        finding(place, "", message)
    })?;
    let variables = with_environment_file(file, &text, environment)?;
    let mut settings = load_text(file, &text, &variables, modules)?;
    settings.source.process = environment.clone();
    settings.source.record_files(stamp, modules);
    Ok(settings)
}

/// The key of the file with variables, read before all other settings.
const ENVIRONMENT_FILE: &str = "server.environment_file";

/// The variable for the override.
const ENVIRONMENT_FILE_VARIABLE: &str = "TOLLGATE__SERVER__ENVIRONMENT_FILE";

/// The environment with the variables of the file named in the settings.
fn with_environment_file(
    file: &Path,
    text: &str,
    environment: &Environment,
) -> Result<Environment, Report> {
    if let Some(name) = environment.get(ENVIRONMENT_FILE_VARIABLE) {
        let named = file.parent().unwrap_or(Path::new("")).join(name);
        let place = Place::Variable {
            variable: ENVIRONMENT_FILE_VARIABLE.to_owned(),
        };
        return read_environment_file(named, place, environment);
    }
    // Problems with the text are reported when it is checked as a whole.
    let table = document::parse(text, &mut Problems::default());
    let server = table
        .get("server")
        .and_then(|server| server.get_ref().as_table());
    let Some(written) = server.and_then(|server| server.get("environment_file")) else {
        return Ok(environment.clone());
    };
    let Some(name) = written.get_ref().as_str() else {
        return Ok(environment.clone());
    };
    let named = file.parent().unwrap_or(Path::new("")).join(name);
    let place = Lines::of(file, text).place(&written.span());
    read_environment_file(named, place, environment)
}

fn read_environment_file(
    named: PathBuf,
    place: Place,
    environment: &Environment,
) -> Result<Environment, Report> {
    let lines = std::fs::read_to_string(&named).map_err(|error| {
        let message = format!(
            "names `{}`, which cannot be read ({error}); name a file that the gateway's user may read",
            named.display()
        );
        finding(place, ENVIRONMENT_FILE, message)
    })?;
    environment.with_file(&lines).map_err(|(line, message)| {
        let place = Place::Line {
            file: named,
            line,
            column: 1,
        };
        finding(place, "", message.to_owned())
    })
}

fn finding(place: Place, key: &str, message: String) -> Report {
    let key = key.to_owned();
    Report {
        findings: vec![Finding {
            place,
            key,
            message,
        }],
    }
}

/// Checks the settings of a text, as the content of `file`.
///
/// # Errors
///
/// All errors, at once.
pub fn load_text(
    file: &Path,
    text: &str,
    environment: &Environment,
    modules: &Declarations,
) -> Result<Settings, Report> {
    let mut problems = Problems::default();
    let mut origins = Origins::new();
    let (raw, tables) = read(text, environment, modules, &mut origins, &mut problems);
    let folder = file.parent().unwrap_or(Path::new(""));
    let context = CheckContext {
        folder,
        environment,
        modules,
    };
    let settings = check::settings(
        &raw,
        &context,
        |before, problems| checked_sections(tables, before, &context, problems),
        &mut problems,
    );
    match settings {
        Some(settings) if problems.is_empty() => Ok(Settings {
            source: Source::new(file.to_owned(), text, environment),
            ..settings
        }),
        _ => Err(report(file, text, &origins, problems.into_vec())),
    }
}

/// A section of a module, with its part of the file.
type SectionTable<'a> = (SectionType, Spanned<DeTable<'a>>);

/// From text to the raw settings and the sections of modules; invalid parts are recorded and left out.
fn read<'a>(
    text: &'a str,
    environment: &'a Environment,
    modules: &Declarations,
    origins: &mut Origins,
    problems: &mut Problems,
) -> (RawSettings, Vec<SectionTable<'a>>) {
    let schema = schema(&modules.sections);
    let root = Node::root(&schema);
    let mut table = document::parse(text, problems);
    for over in environment.settings() {
        document::apply_env(&mut table, &root, &over, origins, problems);
    }
    document::validate(&mut table, &root, origins, problems);
    let tables = section_tables(&mut table, modules, problems);
    let deserializer = toml::de::Deserializer::from(Spanned::new(0..text.len(), table));
    let raw = RawSettings::deserialize(deserializer).unwrap_or_else(|error| {
        // Constraints outside the schema, such as the range of an integer type.
        let at = tollgate_filter::settings::At {
            value: (),
            span: error.span(),
        };
        problems.note("", &at, error.message().trim());
        RawSettings::default()
    });
    (raw, tables)
}

/// Takes the sections of modules out of the tree.
fn section_tables<'a>(
    table: &mut DeTable<'a>,
    modules: &Declarations,
    problems: &mut Problems,
) -> Vec<SectionTable<'a>> {
    let own = schema(&[]);
    let is_own = |name: &str| own["properties"].get(name).is_some();
    let mut tables = Vec::new();
    for section in &modules.sections {
        let name = section.name();
        if is_own(name) {
            let message =
                "is a section of the gateway itself; name the module's section `filter.NAME`";
            problems.note_missing(name, message);
        }
        tables.push((*section, document::take_table(table, name)));
    }
    for section in &modules.sections {
        // What is left of the table around nested sections are tables without a key.
        if let Some((outer, _)) = section.name().split_once('.')
            && !is_own(outer)
        {
            table.remove(outer);
        }
    }
    tables
}

/// Checks the sections of modules, each with the sections before.
fn checked_sections(
    tables: Vec<SectionTable<'_>>,
    before: Services,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Sections {
    let mut sections = Sections::new(before);
    for (section, table) in tables {
        if let Some(checked) = section.read(table, sections.services(), context, problems) {
            sections.add(checked);
        }
    }
    sections
}

/// Assigns a place to every problem: the problem's place, the place of the source variable, or the place of the table without the key.
fn report(file: &Path, text: &str, origins: &Origins, problems: Vec<Problem>) -> Report {
    let lines = Lines::of(file, text);
    let mut findings: Vec<Finding> = Vec::new();
    let mut reported = HashSet::new();
    for problem in problems {
        let place = match &problem.span {
            Some(span) => lines.place(span),
            None => inherited(&lines, origins, &problem.key),
        };
        // A value that was removed as invalid is not reported as missing too.
        let is_new = reported.insert(problem.key.clone());
        if is_new || problem.span.is_some() {
            findings.push(Finding {
                place,
                key: problem.key,
                message: problem.message,
            });
        }
    }
    findings.sort_by(|one, other| one.place.cmp(&other.place));
    Report { findings }
}

fn inherited(lines: &Lines<'_>, origins: &Origins, key: &str) -> Place {
    let mut key = key;
    loop {
        match origins.get(key) {
            Some(Origin::File(span)) => return lines.place(span),
            Some(Origin::Variable(variable)) => {
                return Place::Variable {
                    variable: variable.clone(),
                };
            }
            None => match key.rsplit_once('.') {
                Some((parent, _)) => key = parent,
                None => return lines.whole(),
            },
        }
    }
}

#[cfg(test)]
mod tests;
