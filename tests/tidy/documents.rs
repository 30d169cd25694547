//! Rules for documents, and for unused files.

use std::collections::{BTreeSet, HashMap};

use crate::check;
use crate::source::lines_with;
use crate::tree::Tree;

/// What the README of a filter tells, in this order, so that two filters can be compared side by side.
const CONTRACT: [&str; 12] = [
    "What it does",
    "Phase and position",
    "Reads",
    "Writes",
    "Answers",
    "Settings",
    "State",
    "When it cannot decide",
    "Metrics and log fields",
    "Specifications",
    "Trust",
    "Limits",
];

#[test]
fn every_filter_states_its_contract_in_the_one_shape() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for folder in tree.filters() {
                let path = format!("{folder}/README.md");
                let Some(text) = tree.text(&path) else {
                    complaints.push(format!("{path}: is missing"));
                    continue;
                };
                let headings = text
                    .lines()
                    .filter_map(|line| line.strip_prefix("## ").or(line.strip_prefix("### ")));
                let headings: Vec<_> = headings
                    .map(str::trim)
                    .filter(|heading| CONTRACT.contains(heading))
                    .collect();
                // A folder with two filters states two contracts, one after the other.
                let whole = !headings.is_empty()
                    && headings
                        .chunks(CONTRACT.len())
                        .all(|chunk| chunk == CONTRACT);
                if !whole {
                    complaints.push(format!(
                        "{path}: has the headings {headings:?}, not {CONTRACT:?}"
                    ));
                }
                let library = format!("{folder}/src/lib.rs");
                if !tree
                    .text(&library)
                    .is_some_and(|text| text.contains("#![doc = include_str!(\"../README.md\")]"))
                {
                    complaints.push(format!(
                        "{library}: does not show ../README.md as the crate's documentation"
                    ));
                }
            }
            complaints
        },
        &[
            (
                "filters/auth/README.md",
                "# auth\n\n## What it does\n\n## Reads\n",
            ),
            ("filters/auth/src/lib.rs", "//! Checks keys."),
        ],
    );
}

#[test]
fn the_catalogue_lists_every_filter() {
    check(
        |tree| {
            let catalogue = tree.text("filters/README.md").unwrap_or_default();
            let mut complaints = Vec::new();
            for folder in tree.filters() {
                let name = folder.trim_start_matches("filters/");
                if !catalogue.contains(&format!("({name}/README.md)"))
                    && !catalogue.contains(&format!("`{name}`"))
                {
                    complaints.push(format!("filters/README.md: does not list {folder}"));
                }
            }
            complaints
        },
        &[("filters/README.md", "# Filters\n")],
    );
}

/// The class names that the selectors of a style sheet use.
fn classes(sheet: &str) -> BTreeSet<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let after_dots = sheet.match_indices('.').map(|(at, _)| &sheet[at + 1..]);
    after_dots
        .filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(|rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())])
        .collect()
}

#[test]
fn every_class_of_a_style_sheet_is_used_by_a_page() {
    check(
        |tree| {
            let code = tree.files().filter(|(path, _)| {
                (path.starts_with("filters/") || path.starts_with("crates/"))
                    && (path.ends_with(".rs") || path.ends_with(".js"))
            });
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let words: BTreeSet<&str> = code
                .flat_map(|(_, text)| text.split(|c| !is_name(c)))
                .collect();
            let mut complaints = Vec::new();
            for (path, sheet) in tree.files().filter(|(path, _)| path.ends_with(".css")) {
                for class in classes(sheet) {
                    // `pick-3` is written as `pick-` and a number.
                    let stem = class.trim_end_matches(|c: char| c.is_ascii_digit());
                    if !words.contains(class) && !words.contains(stem) {
                        complaints.push(format!("{path}: no page uses the class `{class}`"));
                    }
                }
            }
            complaints
        },
        &[(
            "crates/identity/pages/src/assets/new.css",
            ".renamed-in-the-markup { color: red; }",
        )],
    );
}

#[test]
fn every_module_says_what_it_is() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, _) in tree.rust(&[""]) {
                let text = tree.text(path).unwrap_or_default();
                let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                let first =
                    lines.find(|line| !line.starts_with("#![") || line.starts_with("#![doc"));
                if !first.is_some_and(|line| line.starts_with("//! ") || line.starts_with("#![doc"))
                {
                    complaints.push(format!(
                        "{path}: does not begin with what it is (`//! ...`)"
                    ));
                }
            }
            complaints
        },
        &[("filters/auth/src/new.rs", "use std::fmt;\n")],
    );
}

#[test]
fn no_crate_is_an_empty_shell() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for manifest in tree.manifests().iter().filter(|manifest| {
                ["filters/", "crates/"]
                    .iter()
                    .any(|folder| manifest.folder.starts_with(folder))
            }) {
                let folder = format!("{}/src/", manifest.folder);
                if !tree
                    .rust(&[&folder])
                    .any(|(_, source)| source.shipped.contains("pub "))
                {
                    complaints.push(format!("{}: a crate that offers nothing", manifest.path()));
                }
            }
            complaints
        },
        &[(
            "filters/new/Cargo.toml",
            "[package]\nname = 'tollgate-new'\n",
        )],
    );
}

#[test]
fn every_example_is_settings_and_is_loaded_by_a_test() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, text) in tree.files() {
                if !path.starts_with("conf/") || !path.ends_with(".toml") {
                    continue;
                }
                if let Err(error) = text.parse::<toml::Table>() {
                    complaints.push(format!("{path}: is not TOML: {error}"));
                }
                let name = path.rsplit('/').next().unwrap_or(path);
                let folder = path
                    .strip_suffix(name)
                    .unwrap_or(path)
                    .trim_end_matches('/');
                let loaded = tree.rust(&[""]).any(|(test, source)| {
                    // A test names the file, or reads the folder of examples as a whole.
                    !test.starts_with("tests/tidy")
                        && source.test_strings.iter().any(|(_, text)| {
                            text.ends_with(name)
                                || (folder != "conf"
                                    && text.trim_end_matches('/').ends_with(folder))
                        })
                });
                if !loaded {
                    complaints.push(format!("{path}: no test loads it"));
                }
            }
            complaints
        },
        &[
            ("conf/examples/new.toml", "[[listener]\n"),
            ("conf/new.toml", "[service]\nname = 'x'\n"),
        ],
    );
}

/// Files that a tool or a person looks for by their name alone.
const FOUND_BY_NAME: [&str; 12] = [
    ".ci/run",
    ".cargo/config.toml",
    ".clippy.toml",
    ".config/nextest.toml",
    ".deny.toml",
    ".dockerignore",
    ".gitignore",
    ".rustfmt.toml",
    "Cargo.lock",
    "Dockerfile",
    "LICENSE",
    "Makefile",
];

#[test]
fn no_file_is_without_a_reader() {
    check(
        |tree| {
            let readers = Readers::of(tree);
            let mut complaints = Vec::new();
            for (path, _) in tree.files() {
                let name = path.rsplit('/').next().unwrap_or(path);
                if FOUND_BY_NAME.contains(&path)
                    || ["Cargo.toml", "README.md", ".npmrc"].contains(&name)
                {
                    continue;
                }
                let read = match path.ends_with(".rs") {
                    true => readers.build(path),
                    false => readers.read(tree, path),
                };
                if !read {
                    complaints.push(format!("{path}: nothing builds, reads or names it"));
                }
            }
            complaints
        },
        &[
            ("conf/unread.json", "{}"),
            ("filters/auth/src/unread.rs", "//! An undeclared module.\n"),
        ],
    );
}

/// Which files name which: built once, since every file is looked for in all others.
struct Readers<'a> {
    /// The files that contain a file name or the path of a folder, outside the rules here: those name files to judge them, not to read them.
    naming: HashMap<&'a str, Vec<&'a str>>,
    /// The Rust files with `mod NAME;` in their code.
    declaring: HashMap<&'a str, Vec<&'a str>>,
    /// The Rust files with a string that ends with a file name, and that string.
    quoting: HashMap<&'a str, Vec<(&'a str, &'a str)>>,
}

impl<'a> Readers<'a> {
    fn of(tree: &'a Tree) -> Readers<'a> {
        let mut readers = Readers {
            naming: HashMap::new(),
            declaring: HashMap::new(),
            quoting: HashMap::new(),
        };
        for (path, text) in tree.files() {
            if path.starts_with("tests/tidy/") {
                continue;
            }
            let mut names = |name| {
                let files = readers.naming.entry(name).or_default();
                if files.last() != Some(&path) {
                    files.push(path);
                }
            };
            let in_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            for word in text.split(|c| !in_path(c)) {
                let word = word.trim_end_matches(['.', '/']);
                word.split('/').for_each(&mut names);
                // A program may read a whole folder, which it names by its path from the root.
                let word = word.trim_start_matches(['.', '/']);
                for (end, _) in word.match_indices('/').skip(1).chain([(word.len(), "")]) {
                    names(&word[..end]);
                }
            }
        }
        for (path, source) in tree.rust(&[""]) {
            for line in source.code.lines() {
                let module = line.trim().strip_suffix(';');
                if let Some((_, module)) = module.and_then(|line| line.rsplit_once("mod ")) {
                    readers.declaring.entry(module).or_default().push(path);
                }
            }
            for (_, text) in source.strings.iter().chain(&source.test_strings) {
                let name = text.rsplit('/').next().unwrap_or(text);
                let quoting = readers.quoting.entry(name).or_default();
                quoting.push((path, text.trim_start_matches("./")));
            }
        }
        readers
    }

    /// Whether another file names the file, or reads the whole folder.
    fn read(&self, tree: &Tree, path: &str) -> bool {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let named = |name, by: fn(&str) -> bool| {
            let files = self.naming.get(name).into_iter().flatten();
            files.into_iter().any(|other| *other != path && by(other))
        };
        // A script may run all tests that lie beside it.
        let runs_all = || {
            let script = tree.text(&format!("{folder}/run"));
            name.ends_with(".test.mjs") && script.is_some_and(|text| text.contains("/*.test.mjs"))
        };
        // Python imports a file by its name alone.
        let module = name.strip_suffix(".py").unwrap_or(name);
        named(name, |_| true)
            || named(module, |other| other.ends_with(".py"))
            || folder.contains('/') && named(folder, |other| other.ends_with(".rs"))
            || runs_all()
    }

    /// Whether Cargo finds the file by itself, or another file of its crate declares it as a module.
    fn build(&self, path: &str) -> bool {
        let parts: Vec<_> = path.split('/').collect();
        let (name, folders) = parts.split_last().expect("a path has a last part");
        let folder = folders.last().copied().unwrap_or_default();
        let found_by_cargo = ["lib.rs", "main.rs", "build.rs"].contains(name)
            || ["tests", "benches", "examples", "bin"].contains(&folder);
        if found_by_cargo {
            return true;
        }
        let module = match *name {
            "mod.rs" => folder,
            name => name.trim_end_matches(".rs"),
        };
        let root = folders
            .iter()
            .position(|part| ["src", "tests", "benches", "examples"].contains(part));
        let root = folders[..root.map_or(0, |at| at + 1)].join("/");
        let of_crate = |other: &str| other != path && other.starts_with(&root);
        let declaring = self.declaring.get(module).into_iter().flatten();
        let quoting = self.quoting.get(name).into_iter().flatten();
        declaring.into_iter().any(|other| of_crate(other))
            || quoting
                .into_iter()
                .any(|(other, text)| of_crate(other) && path.ends_with(text))
    }
}

#[test]
fn every_document_that_is_named_exists() {
    check(
        |tree| {
            let names: BTreeSet<_> = tree
                .files()
                .filter_map(|(path, _)| path.rsplit('/').next())
                .collect();
            let mut complaints = Vec::new();
            for (path, text) in tree.files() {
                if path.starts_with("tests/tidy") {
                    continue;
                }
                for (number, line) in text.lines().enumerate() {
                    let words =
                        line.split(|c: char| !(c.is_ascii_alphanumeric() || "._-/".contains(c)));
                    for word in words.filter(|word| word.ends_with(".md")) {
                        let name = word.rsplit('/').next().unwrap_or(word);
                        if name != ".md" && !names.contains(name) {
                            complaints.push(format!(
                                "{path}:{}: names `{word}`, which is not here",
                                number + 1
                            ));
                        }
                    }
                }
            }
            complaints
        },
        &[(
            "filters/auth/src/new.rs",
            "//! Keys, as `keys-explained.md` has it.\n",
        )],
    );
}

#[test]
fn every_test_that_a_table_names_exists() {
    check(
        |tree| {
            let code: Vec<_> = tree
                .rust(&[""])
                .map(|(_, source)| source.tested.as_str())
                .collect();
            let mut complaints = Vec::new();
            for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".md")) {
                let mut column = None;
                for (number, line) in text.lines().enumerate() {
                    if !line.starts_with('|') {
                        column = None;
                        continue;
                    }
                    let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
                    if column.is_none() {
                        // The heading decides: a table has a column of tests or it has none.
                        let at = cells
                            .iter()
                            .position(|cell| ["Test", "Tests"].contains(cell));
                        column = Some(at);
                        continue;
                    }
                    let Some(cell) = column.flatten().and_then(|at| cells.get(at)) else {
                        continue;
                    };
                    for name in cell.split('`').skip(1).step_by(2) {
                        let name = name.rsplit("::").next().unwrap_or(name);
                        if !code
                            .iter()
                            .any(|code| !lines_with(code, &format!("fn {name}")).is_empty())
                        {
                            complaints.push(format!(
                                "{path}:{}: names the test `{name}`, which is not here",
                                number + 1
                            ));
                        }
                    }
                }
            }
            complaints
        },
        &[(
            "filters/meter/README.md",
            "| Ending | Test |\n|---|---|\n| cut | `a_cut_stream_without_a_test` |\n",
        )],
    );
}
