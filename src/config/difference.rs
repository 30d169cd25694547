//! Differences between two versions of the settings, key by key; and reading the file of a version again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tollgate_filter::settings::Problems;
use tollgate_module::Declarations;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::{self, Origin, Origins};
use super::named_file::is_of_certificate;
use super::report::{Lines, Place, Report};
use super::schema::{Node, schema};
use super::settings::Settings;
use super::source::Source;
use super::{inherited, load};

/// Keys that name an element of a list of tables.
const NAMES: [&str; 5] = ["name", "id", "provider", "address", "certificate"];

/// A setting that differs between two versions, without its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Its key. Elements of lists are named by their name, id, path or address.
    pub key: String,
    /// Where the new version has it, or the file where it has not.
    pub place: String,
    /// What became of it.
    pub change: DifferenceKind,
    /// Whether only a new process can use it: `tollgate upgrade`.
    pub needs_restart: bool,
}

/// What became of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// It is new.
    Added,
    /// It has another value.
    Changed,
    /// It is gone: its default applies.
    Removed,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let change = match self.change {
            DifferenceKind::Added => "added",
            DifferenceKind::Changed => "changed",
            DifferenceKind::Removed => "removed",
        };
        let effect = match self.needs_restart {
            true => ", needs `tollgate upgrade`",
            false => "",
        };
        write!(f, "{}: {}: {change}{effect}", self.place, self.key)
    }
}

impl Source {
    /// Reads the file again. The variables of the process stay as before; the file for variables is read again.
    ///
    /// # Errors
    ///
    /// All errors, at once.
    pub fn read(&self, modules: &Declarations) -> Result<Settings, Report> {
        load(&self.file, &self.process, modules)
    }

    /// A difference in a setting absent from this version, for use by a new process only.
    pub(crate) fn difference(&self, key: &str, change: DifferenceKind) -> Difference {
        Difference {
            key: key.to_owned(),
            place: self.file.display().to_string(),
            change,
            needs_restart: true,
        }
    }

    /// The files that settings name, by the keys of the settings: certificates, keys and secrets.
    pub(super) fn named_files(&self, modules: &Declarations) -> Vec<(String, PathBuf)> {
        let folder = self.file.parent().unwrap_or(Path::new(""));
        let named = self.values(modules).into_iter().filter(|(key, _)| {
            let name = key.rsplit('.').next().unwrap_or(key);
            name.ends_with("_file") || name == "client_ca" || is_of_certificate(key)
        });
        named
            .map(|(key, (file, _))| (key, folder.join(file)))
            .collect()
    }

    /// The variables that settings name for secrets, by the keys of the settings.
    pub(super) fn named_variables(&self, modules: &Declarations) -> Vec<(String, String)> {
        let values = self.values(modules).into_iter();
        let named = values.filter(|(key, _)| key.ends_with("_env"));
        named.map(|(key, (name, _))| (key, name)).collect()
    }

    /// The keys with differences, in the order of `new`; a changed content of a named file or variable counts too. `needs_restart` decides
    /// by the key.
    pub fn differences(
        &self,
        new: &Source,
        modules: &Declarations,
        needs_restart: impl Fn(&str) -> bool,
    ) -> Vec<Difference> {
        let (before, after) = (self.values(modules), new.values(modules));
        let difference = |key: &String, place: &Place, change| Difference {
            needs_restart: needs_restart(key),
            key: key.clone(),
            place: place.to_string(),
            change,
        };
        let mut found = Vec::new();
        for (key, (value, place)) in &after {
            match before.get(key) {
                None => found.push((place, difference(key, place, DifferenceKind::Added))),
                Some((other, _))
                    if other != value || self.contents.get(key) != new.contents.get(key) =>
                {
                    found.push((place, difference(key, place, DifferenceKind::Changed)));
                }
                Some(_) => {}
            }
        }
        let file = Place::File {
            file: new.file.clone(),
        };
        let removed = before.keys().filter(|key| !after.contains_key(*key));
        found.extend(removed.map(|key| {
            let removed = difference(key, &file, DifferenceKind::Removed);
            (&file, removed)
        }));
        found.sort_by(|one, other| one.0.cmp(other.0));
        found
            .into_iter()
            .map(|(_, difference)| difference)
            .collect()
    }

    /// Every value by key, with the place.
    pub(super) fn values(&self, modules: &Declarations) -> BTreeMap<String, (String, Place)> {
        let mut problems = Problems::default();
        let mut origins = Origins::new();
        let schema = schema(&modules.sections);
        let root = Node::root(&schema);
        let mut table = document::parse(&self.text, &mut problems);
        for over in self.environment.settings() {
            document::apply_env(&mut table, &root, &over, &mut origins, &mut problems);
        }
        let mut values = BTreeMap::new();
        let places = Places {
            lines: Lines::of(&self.file, &self.text),
            origins,
        };
        flatten(&table, ("", ""), &places, &mut values);
        values
    }
}

/// The places of the values of a file.
struct Places<'a> {
    lines: Lines<'a>,
    origins: Origins,
}

impl Places<'_> {
    fn of(&self, path: &str, value: &Spanned<DeValue<'_>>) -> Place {
        match self.origins.get(path) {
            Some(Origin::Variable(_)) => inherited(&self.lines, &self.origins, path),
            _ => self.lines.place(&value.span()),
        }
    }
}

/// `key` names list elements, `path` counts them, as the origins do.
fn flatten(
    table: &DeTable<'_>,
    (key, path): (&str, &str),
    places: &Places<'_>,
    values: &mut BTreeMap<String, (String, Place)>,
) {
    let below = |outer: &str, name: &str| match outer {
        "" => name.to_owned(),
        outer => format!("{outer}.{name}"),
    };
    for (name, value) in table {
        let (key, path) = (below(key, name.get_ref()), below(path, name.get_ref()));
        match value.get_ref() {
            DeValue::Table(inner) => flatten(inner, (&key, &path), places, values),
            DeValue::Array(items) if items.iter().any(|item| item.get_ref().is_table()) => {
                let mut names = BTreeSet::new();
                for (index, item) in items.iter().enumerate() {
                    if let DeValue::Table(inner) = item.get_ref() {
                        // Listeners have one address together only where the system chooses the port, and may change places.
                        let is_own =
                            |name: &String| key == "listener" || names.insert(name.clone());
                        let name = element(inner).filter(is_own);
                        let name = name.unwrap_or_else(|| index.to_string());
                        let at = (format!("{key}[{name}]"), format!("{path}.{index}"));
                        flatten(inner, (&at.0, &at.1), places, values);
                    }
                }
            }
            other => {
                let place = places.of(&path, value);
                values.insert(key, (text(other), place));
            }
        }
    }
}

/// Whether `key` equals `outer`, or is inside `outer`.
pub(crate) fn is_in(key: &str, outer: &str) -> bool {
    let rest = key.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// The name of an element of a list.
fn element(table: &DeTable<'_>) -> Option<String> {
    let written = |name: &str| table.get(name).map(|value| text(value.get_ref()));
    match written("path") {
        Some(path) => Some(match written("methods") {
            Some(methods) => format!("{methods} {path}"),
            None => path,
        }),
        None => NAMES.into_iter().find_map(written),
    }
}

/// A value as text, for comparisons.
fn text(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.to_string(),
        DeValue::Integer(number) => number.to_string(),
        DeValue::Float(number) => number.to_string(),
        DeValue::Boolean(switch) => switch.to_string(),
        DeValue::Datetime(time) => time.to_string(),
        DeValue::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| text(item.get_ref())).collect();
            items.join(", ")
        }
        DeValue::Table(table) => {
            let keys = table.iter();
            let keys =
                keys.map(|(key, value)| format!("{} {}", key.get_ref(), text(value.get_ref())));
            keys.collect::<Vec<_>>().join(", ")
        }
    }
}
