//! Dependency direction between crates: rules over the manifests.

use std::collections::BTreeSet;

use crate::check;
use crate::source::lines_with;
use crate::tree::{Manifest, Tree};

/// The layers of `crates/`: a crate names crates of its own layer and of lower ones; layers of one rank never name each other. Filters stand
/// above all of them, then the root package, then the benchmarks.
const LAYERS: [(&str, u8); 6] = [
    ("contract", 0),
    ("forwarding", 1),
    ("accounting", 1),
    ("identity", 2),
    ("payments", 2),
    ("testing", 3),
];
const FILTER_RANK: u8 = 4;
const ROOT_RANK: u8 = 5;
const BENCH_RANK: u8 = 6;

/// Crates that speak HTTP. A crate that depends on one of them, directly or not, knows HTTP.
const HTTP_CRATES: [&str; 12] = [
    "axum",
    "h2",
    "headers",
    "http",
    "http-body",
    "http-body-util",
    "httparse",
    "hyper",
    "hyper-util",
    "reqwest",
    "tower",
    "tower-http",
];

/// Crates that open data.
const DATA_CRATES: [&str; 9] = [
    "deadpool-postgres",
    "diesel",
    "libsqlite3-sys",
    "redb",
    "redis",
    "rusqlite",
    "sled",
    "sqlx",
    "tokio-postgres",
];

/// What the feature of one crate is set for by naming it where nothing else of it is used.
const NAMED_FOR_FEATURES: [(&str, &str); 0] = [];

/// The layer of a crate, with its rank.
fn layer(folder: &str) -> Option<(&str, u8)> {
    if folder.is_empty() {
        return Some(("", ROOT_RANK));
    }
    let (top, rest) = folder.split_once('/').unwrap_or((folder, ""));
    match top {
        "filters" => Some(("filters", FILTER_RANK)),
        "crates" => {
            let name = rest.split('/').next().unwrap_or_default();
            LAYERS.into_iter().find(|(known, _)| *known == name)
        }
        _ => Some((top, BENCH_RANK)),
    }
}

#[test]
fn crates_depend_only_downwards() {
    check(
        |tree| {
            let manifests = tree.manifests();
            let mut complaints = Vec::new();
            for manifest in &manifests {
                let path = manifest.path();
                let Some((own, rank)) = layer(&manifest.folder) else {
                    complaints.push(format!(
                        "{path}: `{}` is in no layer; move it to one of tests/tidy/crates.rs",
                        manifest.name()
                    ));
                    continue;
                };
                for dependency in manifest.dependencies() {
                    // Tests may use the stand-ins whatever their place.
                    let for_tests = dependency.section == "dev-dependencies";
                    if for_tests && dependency.name == "tollgate-testing" {
                        continue;
                    }
                    let other = manifests
                        .iter()
                        .find(|other| other.name() == dependency.name);
                    let other = other.and_then(|other| layer(&other.folder));
                    if let Some((other, other_rank)) = other
                        && other != own
                        && other_rank >= rank
                    {
                        complaints.push(format!(
                            "{path}: `{}` names `{}`, which is not below it",
                            manifest.name(),
                            dependency.name
                        ));
                    }
                }
            }
            complaints
        },
        &[
            (
                "crates/contract/money/Cargo.toml",
                "[package]\nname = 'tollgate-money'\n[dependencies]\ntollgate-store.workspace = true",
            ),
            (
                "crates/accounting/store/Cargo.toml",
                "[package]\nname = 'tollgate-store'\n[dev-dependencies]\ntollgate-openai.workspace = true",
            ),
            (
                "crates/new/new/Cargo.toml",
                "[package]\nname = 'tollgate-new'",
            ),
        ],
    );
}

#[test]
fn no_filter_imports_another_filter() {
    check(
        |tree| {
            let filters = tree.filters();
            let mut complaints = Vec::new();
            for folder in &filters {
                for other in filters.iter().filter(|other| *other != folder) {
                    let package = package_of(other);
                    let manifest = tree.manifests();
                    let manifest = manifest.iter().find(|manifest| manifest.folder == *folder);
                    if manifest.is_some_and(|manifest| {
                        manifest
                            .dependencies()
                            .iter()
                            .any(|line| line.name == package)
                    }) {
                        complaints
                            .push(format!("{folder}/Cargo.toml: names the filter `{package}`"));
                    }
                    let word = package.replace('-', "_");
                    for (path, source) in tree.rust(&[&format!("{folder}/")]) {
                        for line in lines_with(&source.code, &word) {
                            complaints.push(format!("{path}:{line}: names the filter `{package}`"));
                        }
                    }
                }
            }
            let meeting = "; filters meet through typed values on the exchange, and in crates/";
            complaints
                .into_iter()
                .map(|complaint| complaint + meeting)
                .collect()
        },
        &[
            (
                "filters/auth/Cargo.toml",
                "[package]\nname = 'tollgate-auth'\n[dev-dependencies]\ntollgate-meter.workspace = true",
            ),
            ("filters/auth/src/new.rs", "use tollgate_rate_limit::Quota;"),
        ],
    );
}

/// `filters/rate-limit` is `tollgate-rate-limit`, `crates/accounting/store` is `tollgate-store`.
fn package_of(folder: &str) -> String {
    match folder.rsplit('/').next() {
        Some("") | None => "tollgate".to_owned(),
        Some(last) => format!("tollgate-{last}"),
    }
}

#[test]
fn money_ledger_store_identity_and_purchase_know_no_http() {
    check(
        |tree| {
            let manifests = tree.manifests();
            let mut complaints = Vec::new();
            for name in ["money", "ledger", "store", "identity", "purchase"] {
                let name = format!("tollgate-{name}");
                let Some(start) = manifests.iter().find(|manifest| manifest.name() == name) else {
                    continue;
                };
                let mut waiting = vec![start];
                let mut seen = BTreeSet::new();
                while let Some(manifest) = waiting.pop() {
                    for dependency in manifest.dependencies() {
                        if dependency.section == "dev-dependencies"
                            || !seen.insert(dependency.name.clone())
                        {
                            continue;
                        }
                        if HTTP_CRATES.contains(&dependency.name.as_str()) {
                            complaints.push(format!(
                                "{}: `{name}` reaches `{}` through `{}`; money and access are decided without knowing how they were asked",
                                start.path(),
                                dependency.name,
                                manifest.name()
                            ));
                        }
                        waiting.extend(
                            manifests
                                .iter()
                                .filter(|other| other.name() == dependency.name),
                        );
                    }
                }
            }
            complaints
        },
        &[
            (
                "crates/contract/money/Cargo.toml",
                "[package]\nname = 'tollgate-money'\n[dependencies]\nhttp.workspace = true",
            ),
            (
                "crates/accounting/ledger/Cargo.toml",
                "[package]\nname = 'tollgate-ledger'\n[dependencies]\ntollgate-filter.workspace = true",
            ),
        ],
    );
}

#[test]
fn only_the_store_opens_data() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for manifest in tree.manifests() {
                for dependency in manifest.dependencies() {
                    // A test may look into a file, or damage it.
                    let for_tests = dependency.section == "dev-dependencies";
                    let places: &[&str] = match dependency.name.as_str() {
                        // Nodes may lose everything there; durable data is in the store.
                        "redis" => &["crates/forwarding/shared"],
                        "postgres-protocol" => {
                            &["crates/accounting/postgres", "crates/accounting/store"]
                        }
                        _ => &[
                            "crates/accounting/simulation",
                            "crates/accounting/sql",
                            "crates/accounting/store",
                        ],
                    };
                    if DATA_CRATES.contains(&dependency.name.as_str())
                        && !places.contains(&manifest.folder.as_str())
                        && !for_tests
                    {
                        complaints.push(format!(
                            "{}: names `{}`, which only {} opens",
                            manifest.path(),
                            dependency.name,
                            places.join(" and ")
                        ));
                    }
                }
            }
            complaints
        },
        &[(
            "filters/auth/Cargo.toml",
            "[package]\nname = 'tollgate-auth'\n[dependencies]\nrusqlite.workspace = true",
        )],
    );
}

#[test]
fn the_stand_ins_are_for_tests_and_for_the_demo() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for manifest in tree.manifests() {
                for dependency in manifest.dependencies() {
                    let for_tests = dependency.section == "dev-dependencies";
                    if dependency.name == "tollgate-testing"
                        && !for_tests
                        && (manifest.folder.starts_with("filters/")
                            || manifest.folder.starts_with("crates/"))
                    {
                        complaints.push(format!(
                            "{}: ships the stand-ins; make them a dev-dependency",
                            manifest.path()
                        ));
                    }
                }
            }
            for (path, source) in tree.rust(&["src/", "filters/", "crates/"]) {
                if path.starts_with("src/demo") || path.starts_with("crates/testing/") {
                    continue;
                }
                for line in lines_with(&source.shipped, "tollgate_testing") {
                    complaints.push(format!(
                        "{path}:{line}: names the stand-ins outside tests and the demo"
                    ));
                }
            }
            complaints
        },
        &[
            (
                "filters/auth/Cargo.toml",
                "[package]\nname = 'tollgate-auth'\n[dependencies]\ntollgate-testing.workspace = true",
            ),
            ("src/proxy/new.rs", "use tollgate_testing::Provider;"),
        ],
    );
}

#[test]
fn features_add_no_behaviour() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for manifest in tree.manifests() {
                let default = manifest
                    .table
                    .get("features")
                    .and_then(|features| features.get("default"));
                if default
                    .and_then(toml::Value::as_array)
                    .is_some_and(|names| !names.is_empty())
                {
                    complaints.push(format!(
                        "{}: has default features; what is always on is no feature",
                        manifest.path()
                    ));
                }
            }
            for (path, source) in tree.rust(&["src/", "filters/", "crates/"]) {
                let branches = ["cfg!(feature", "not(feature", "cfg_attr(feature"];
                for line in branches
                    .iter()
                    .flat_map(|word| lines_with(&source.shipped, word))
                {
                    complaints.push(format!(
                        "{path}:{line}: does something else when a feature is off; a feature may add an item, settings decide what happens"
                    ));
                }
            }
            complaints
        },
        &[
            (
                "filters/auth/Cargo.toml",
                "[package]\nname = 'tollgate-auth'\n[features]\ndefault = ['fast']\nfast = []",
            ),
            (
                "filters/auth/src/new.rs",
                "fn a() { if cfg!(feature = \"fast\") {} }",
            ),
        ],
    );
}

#[test]
fn a_crate_whose_documentation_is_not_tested_has_no_example_in_it() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for manifest in tree.manifests() {
                let library = manifest.table.get("lib");
                let doctest = library.and_then(|library| library.get("doctest"));
                if doctest.and_then(toml::Value::as_bool) != Some(false) {
                    continue;
                }
                let sources = match manifest.folder.as_str() {
                    "" => "src/".to_owned(),
                    folder => format!("{folder}/"),
                };
                // A README of a crate is its documentation; the one of the root is not.
                let is_documentation = |path: &str| {
                    path.starts_with(&sources)
                        && (path.ends_with(".rs") || path == format!("{sources}README.md"))
                };
                for (path, text) in tree.files().filter(|(path, _)| is_documentation(path)) {
                    for line in examples(text) {
                        complaints.push(format!(
                            "{path}:{line}: is an example that no test compiles; remove `doctest = false` from {}",
                            manifest.path()
                        ));
                    }
                }
            }
            complaints
        },
        &[
            (
                "filters/auth/src/new.rs",
                "//! Text.\n//!\n//! ```\n//! a();\n//! ```\n",
            ),
            ("filters/auth/README.md", "```rust\na();\n```\n"),
            (
                "src/new.rs",
                "/// A.\n///\n/// ```compile_fail\n/// a();\n/// ```\nfn a() {}\n",
            ),
        ],
    );
}

/// The lines that begin a block of code which rustdoc compiles.
fn examples(text: &str) -> Vec<usize> {
    let mut is_open = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let line = ["//! ", "/// "]
            .iter()
            .find_map(|start| line.strip_prefix(start))
            .unwrap_or(line);
        let Some(language) = line.strip_prefix("```") else {
            continue;
        };
        let is_code = [
            "",
            "rust",
            "compile_fail",
            "no_run",
            "should_panic",
            "ignore",
        ]
        .contains(&language.split([',', ' ']).next().unwrap_or_default());
        if !is_open && is_code {
            found.push(number);
        }
        is_open = !is_open;
    }
    found
}

/// The folders that the root manifest makes members: those it lists, and path dependencies.
fn members(root: &toml::Table) -> Vec<&str> {
    let listed = root["workspace"].get("members");
    let listed = listed.and_then(toml::Value::as_array).into_iter().flatten();
    let tables = [
        root.get("dependencies"),
        root["workspace"].get("dependencies"),
    ];
    let tables = tables.into_iter().flatten();
    let dependencies = tables.filter_map(toml::Value::as_table).flatten();
    let paths = dependencies.filter_map(|(_, dependency)| dependency.get("path"));
    listed
        .chain(paths)
        .filter_map(toml::Value::as_str)
        .collect()
}

#[test]
fn every_crate_inherits_and_is_named_for_its_folder() {
    check(
        |tree| {
            let manifests = tree.manifests();
            let root = manifests.iter().find(|manifest| manifest.folder.is_empty());
            let members = root.map(|root| members(&root.table)).unwrap_or_default();
            let mut complaints = Vec::new();
            for manifest in &manifests {
                let path = manifest.path();
                if !manifest.folder.starts_with("benches/")
                    && manifest.name() != package_of(&manifest.folder)
                {
                    complaints.push(format!(
                        "{path}: is `{}`; its folder spells `{}`",
                        manifest.name(),
                        package_of(&manifest.folder)
                    ));
                }
                if !manifest.folder.is_empty() && !members.contains(&manifest.folder.as_str()) {
                    complaints.push(format!("{path}: is no member of the workspace"));
                }
                let inherits = |value: Option<&toml::Value>| {
                    value
                        .and_then(|value| value.get("workspace"))
                        .and_then(toml::Value::as_bool)
                        == Some(true)
                };
                if !inherits(manifest.table.get("lints")) {
                    complaints.push(format!(
                        "{path}: does not inherit the lints; add `[lints] workspace = true`"
                    ));
                }
                for key in ["version", "edition", "rust-version", "license", "publish"] {
                    if !inherits(manifest.table["package"].get(key)) {
                        complaints.push(format!(
                            "{path}: does not inherit `{key}`; add `{key}.workspace = true`"
                        ));
                    }
                }
            }
            complaints
        },
        &[
            (
                "filters/auth/Cargo.toml",
                "[package]\nname = 'tollgate-auth'\n",
            ),
            ("filters/new/Cargo.toml", "[package]\nname = 'new'\n"),
        ],
    );
}

#[test]
fn every_dependency_is_versioned_once_and_used() {
    check(
        |tree| {
            let manifests = tree.manifests();
            let mut complaints = Vec::new();
            let mut named = BTreeSet::new();
            for manifest in &manifests {
                let path = manifest.path();
                for dependency in manifest.dependencies() {
                    named.insert(dependency.name.clone());
                    // The root package is the program itself, and has no line there.
                    if !dependency.inherited && dependency.name != "tollgate" {
                        complaints.push(format!(
                            "{path}: gives `{}` a version of its own; name it in [workspace.dependencies]",
                            dependency.name
                        ));
                    }
                    if !is_used(tree, manifest, &dependency.name) {
                        complaints.push(format!(
                            "{path}: `{}` is named and never used",
                            dependency.name
                        ));
                    }
                }
            }
            let root = manifests.iter().find(|manifest| manifest.folder.is_empty());
            let offered = root.and_then(|root| root.table["workspace"].get("dependencies"));
            for (name, _) in offered
                .and_then(toml::Value::as_table)
                .into_iter()
                .flatten()
            {
                if !named.contains(name) {
                    complaints.push(format!(
                        "Cargo.toml: no crate uses `{name}` of [workspace.dependencies]"
                    ));
                }
            }
            complaints
        },
        &[
            (
                "filters/auth/Cargo.toml",
                "[package]\nname = 'tollgate-auth'\n[dependencies]\nserde = '1'",
            ),
            (
                "filters/new/Cargo.toml",
                "[package]\nname = 'tollgate-new'\n[dependencies]\nserde.workspace = true",
            ),
        ],
    );
}

/// Whether some code of the crate names the dependency. Macros of a crate are named with it or imported from it.
fn is_used(tree: &Tree, manifest: &Manifest, name: &str) -> bool {
    if NAMED_FOR_FEATURES.iter().any(|(known, _)| *known == name) {
        return true;
    }
    let word = name.replace('-', "_");
    let own = match manifest.folder.as_str() {
        "" => vec![
            "src/".to_owned(),
            "tests/".to_owned(),
            "benches/".to_owned(),
            "examples/".to_owned(),
        ],
        folder => vec![format!("{folder}/")],
    };
    let own: Vec<_> = own.iter().map(String::as_str).collect();
    let included: Vec<_> = tree
        .rust(&own)
        .flat_map(|(path, source)| {
            let strings = source.test_strings.iter();
            strings.filter_map(move |(_, text)| included_folder(path, text))
        })
        .collect();
    let included: Vec<_> = included.iter().map(String::as_str).collect();
    tree.rust(&own)
        .chain(tree.rust(&included))
        .any(|(_, source)| !lines_with(&source.code, &word).is_empty())
}

/// The folder of test support that `file` includes with `#[path = "../support/mod.rs"]`, which may be that of another crate.
fn included_folder(file: &str, include: &str) -> Option<String> {
    let include = include.strip_suffix("/mod.rs")?;
    let mut folder: Vec<_> = file.split('/').collect();
    folder.pop();
    for step in include.split('/') {
        match step {
            ".." => drop(folder.pop()?),
            step => folder.push(step),
        }
    }
    Some(folder.join("/") + "/")
}
