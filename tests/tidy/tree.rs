//! The repository as input of the rules: a map from path to text.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use crate::source::Source;

/// Where a crate lies, and the text of its manifest as a table.
pub(crate) struct Manifest {
    /// Folder, relative to the root; empty for the root package.
    pub(crate) folder: String,
    /// `Cargo.toml`, parsed.
    pub(crate) table: toml::Table,
}

/// One line of a `dependencies` table.
pub(crate) struct Dependency {
    /// `dependencies`, `dev-dependencies` or `build-dependencies`.
    pub(crate) section: &'static str,
    /// The package's name.
    pub(crate) name: String,
    /// Whether version and place come from the workspace, or the root package names a crate of the workspace by its folder.
    pub(crate) inherited: bool,
}

/// Every file that belongs to the project, by its path from the root with `/` between the parts.
#[derive(Clone)]
pub(crate) struct Tree {
    files: BTreeMap<String, Arc<str>>,
    sources: BTreeMap<String, Arc<Source>>,
}

/// The folder of this crate. Cargo names it to a test that it runs; what was compiled in may be that of another checkout with the same target folder.
#[expect(clippy::disallowed_methods, reason = "not a setting")]
fn folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

impl Tree {
    /// The repository on disk, read once: what git tracks, or, where this is no clone, every file that is not built or hidden.
    pub(crate) fn read() -> Tree {
        static READ: LazyLock<Tree> = LazyLock::new(|| {
            let root = &folder().join("../..");
            let mut tree = Tree::of(&[]);
            for path in tracked(root).unwrap_or_else(|| walked(root)) {
                // A file that was deleted and not yet committed is still tracked; one that is no text has no words to check.
                let Ok(bytes) = fs::read(root.join(&path)) else {
                    continue;
                };
                tree.put(&path, String::from_utf8(bytes).unwrap_or_default());
            }
            assert!(
                tree.text("Cargo.toml").is_some(),
                "no Cargo.toml among {} files",
                tree.files.len()
            );
            tree
        });
        READ.clone()
    }

    /// A tree of these files alone.
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree {
            files: BTreeMap::new(),
            sources: BTreeMap::new(),
        };
        for (path, text) in files {
            tree.put(path, (*text).to_owned());
        }
        tree
    }

    /// A copy in which `path` has `text`.
    pub(crate) fn with(&self, path: &str, text: &str) -> Tree {
        let mut tree = self.clone();
        tree.put(path, text.to_owned());
        tree
    }

    fn put(&mut self, path: &str, text: String) {
        if path.ends_with(".rs") {
            let source = Source::new(&text, is_test(path));
            self.sources.insert(path.to_owned(), Arc::new(source));
        }
        self.files.insert(path.to_owned(), text.into());
    }

    /// Path and text of every file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .map(|(path, text)| (path.as_str(), &**text))
    }

    /// The text of one file.
    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(|text| &**text)
    }

    /// One Rust file.
    pub(crate) fn source(&self, path: &str) -> Option<&Source> {
        self.sources.get(path).map(|source| &**source)
    }

    /// Every Rust file whose path starts with one of `folders`.
    pub(crate) fn rust<'a>(
        &'a self,
        folders: &'a [&'a str],
    ) -> impl Iterator<Item = (&'a str, &'a Source)> {
        self.sources
            .iter()
            .filter(|(path, _)| folders.iter().any(|folder| path.starts_with(folder)))
            .map(|(path, source)| (path.as_str(), &**source))
    }

    /// Every crate of the workspace, the root package with an empty folder.
    ///
    /// A manifest that is not TOML would have stopped the build, so it is skipped.
    pub(crate) fn manifests(&self) -> Vec<Manifest> {
        let manifests = self.files().filter_map(|(path, text)| {
            let folder = match path {
                "Cargo.toml" => "",
                // Not built here: `tests/new-filter` makes it a member of a copy, `tests/outside-filter` a program of its own, and `fuzz/run`
                // one for another compiler.
                "tests/template/Cargo.toml" | "tests/outside/Cargo.toml" | "fuzz/Cargo.toml" => {
                    return None;
                }
                _ => path.strip_suffix("/Cargo.toml")?,
            };
            let table: toml::Table = text.parse().ok()?;
            table.contains_key("package").then(|| Manifest {
                folder: folder.to_owned(),
                table,
            })
        });
        manifests.collect()
    }

    /// The folders of the filters, e.g. `filters/auth`.
    pub(crate) fn filters(&self) -> Vec<String> {
        let folders = self.manifests().into_iter().map(|manifest| manifest.folder);
        folders
            .filter(|folder| folder.starts_with("filters/"))
            .collect()
    }
}

impl Manifest {
    /// The package's name.
    pub(crate) fn name(&self) -> &str {
        self.table["package"]
            .get("name")
            .and_then(toml::Value::as_str)
            .unwrap_or_default()
    }

    /// The manifest's own path.
    pub(crate) fn path(&self) -> String {
        match self.folder.as_str() {
            "" => "Cargo.toml".to_owned(),
            folder => format!("{folder}/Cargo.toml"),
        }
    }

    /// What it depends on, on any platform.
    pub(crate) fn dependencies(&self) -> Vec<Dependency> {
        let mut found = Vec::new();
        let platforms = self.table.get("target").and_then(toml::Value::as_table);
        let platforms = platforms.into_iter().flat_map(|targets| targets.values());
        for table in platforms
            .filter_map(toml::Value::as_table)
            .chain([&self.table])
        {
            for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
                let lines = table.get(section).and_then(toml::Value::as_table);
                for (name, value) in lines.into_iter().flatten() {
                    let package = value.get("package").and_then(toml::Value::as_str);
                    let inherited = value.get("workspace").and_then(toml::Value::as_bool);
                    let is_local = self.folder.is_empty() && value.get("path").is_some();
                    found.push(Dependency {
                        section,
                        name: package.unwrap_or(name).to_owned(),
                        inherited: inherited == Some(true) || is_local,
                    });
                }
            }
        }
        found
    }
}

/// Whether all of a Rust file is test code.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path
            .split('/')
            .any(|part| ["tests", "benches", "examples"].contains(&part))
}

fn tracked(root: &Path) -> Option<Vec<String>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .ok()?;
    let paths = String::from_utf8(listing.stdout).ok()?;
    let paths: Vec<_> = paths.split_terminator('\0').map(str::to_owned).collect();
    (listing.status.success() && !paths.is_empty()).then_some(paths)
}

fn walked(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if name == "target" || name == "node_modules" || name == ".git" {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Some(path) = path.strip_prefix(root).ok().and_then(Path::to_str) {
                found.push(path.to_owned());
            }
        }
    }
    found
}
