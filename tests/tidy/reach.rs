//! Forbidden names and calls: rules over the tokens of the sources.

use crate::check;
use crate::source::{Source, lines_with};
use crate::tree::Tree;

/// A complaint for every line of shipped code under `folders`, but for the `exempt` paths, on which one of `words` stands.
fn words(
    tree: &Tree,
    folders: &[&str],
    exempt: &[&str],
    words: &[&str],
    message: &str,
) -> Vec<String> {
    in_code(
        tree,
        folders,
        exempt,
        words,
        |source| &source.shipped,
        message,
    )
}

fn in_code(
    tree: &Tree,
    folders: &[&str],
    exempt: &[&str],
    words: &[&str],
    code: fn(&Source) -> &str,
    message: &str,
) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, source) in tree.rust(folders) {
        if exempt.iter().any(|exempt| path.starts_with(exempt)) {
            continue;
        }
        for word in words {
            for line in lines_with(code(source), word) {
                complaints.push(format!("{path}:{line}: `{word}`: {message}"));
            }
        }
    }
    complaints
}

const PINGORA: [&str; 8] = [
    "pingora",
    "pingora_cache",
    "pingora_core",
    "pingora_error",
    "pingora_http",
    "pingora_load_balancing",
    "pingora_pool",
    "pingora_proxy",
];

#[test]
fn nothing_under_filters_names_pingora_or_the_root_package() {
    check(
        |tree| {
            let message = "filters and their libraries run without the gateway around them";
            let all: fn(&Source) -> &str = |source| &source.code;
            let mut complaints =
                in_code(tree, &["filters/", "crates/"], &[], &PINGORA, all, message);
            complaints.extend(in_code(
                tree,
                &["filters/", "crates/"],
                &[],
                &["tollgate::"],
                all,
                message,
            ));
            for manifest in tree.manifests() {
                if !["filters/", "crates/"]
                    .iter()
                    .any(|folder| manifest.folder.starts_with(folder))
                {
                    continue;
                }
                for dependency in manifest.dependencies() {
                    if dependency.name == "tollgate" || dependency.name.starts_with("pingora") {
                        complaints.push(format!(
                            "{}: names `{}`: {message}",
                            manifest.path(),
                            dependency.name
                        ));
                    }
                }
            }
            complaints
        },
        &[
            (
                "filters/auth/src/new.rs",
                "use pingora_http::RequestHeader;",
            ),
            ("filters/auth/tests/new.rs", "use tollgate::Gateway;"),
            (
                "filters/auth/Cargo.toml",
                "[package]\nname = 'tollgate-auth'\n[dev-dependencies]\npingora-core.workspace = true",
            ),
        ],
    );
}

#[test]
fn only_proxy_and_upstream_name_pingora() {
    check(
        |tree| {
            let exempt = [
                "src/proxy/",
                "src/proxy.rs",
                "src/upstream/",
                "src/upstream.rs",
            ];
            let message = "only src/proxy and src/upstream know the framework";
            words(tree, &["src/"], &exempt, &PINGORA, message)
        },
        &[(
            "src/admin/new.rs",
            "fn a(session: pingora_core::protocols::Digest) {}",
        )],
    );
}

#[test]
fn only_the_ledger_makes_rows_of_the_ledger() {
    check(
        |tree| {
            let exempt = ["crates/accounting/ledger/", "crates/accounting/store/"];
            let message = "only crates/accounting/ledger makes rows of the ledger; ask it for the part of the unit of work";
            let makers = ["LedgerPart", "Part::Ledger", "entries::Entry"];
            words(
                tree,
                &["src/", "filters/", "crates/"],
                &exempt,
                &makers,
                message,
            )
        },
        &[(
            "filters/meter/src/new.rs",
            "fn a() -> Part { Part::Ledger(hold()) }",
        )],
    );
}

/// The rows of purchases, by the words that change one, and the file of the transitions.
const PURCHASES: [(&[&str], &str); 5] = [
    (
        &["AuthorizationPart", "Part::Authorization"],
        "filters/pay/src/x402/transfer.rs",
    ),
    (
        &["TopUpPart::Change", "Versioned<TopUpRow>"],
        "crates/payments/purchase/src/topups/top_up.rs",
    ),
    (
        &["MandatePart::Change", "Versioned<MandateRow>"],
        "crates/payments/purchase/src/mandates/mandate.rs",
    ),
    (
        &[
            "CheckoutPart::Begin",
            "CheckoutPart::Change",
            "Versioned<CheckoutRow>",
        ],
        "crates/payments/purchase/src/checkouts/session.rs",
    ),
    (
        &["PlanPart::ChangePayment"],
        "crates/payments/purchase/src/plan/payment.rs",
    ),
];

#[test]
fn only_transitions_change_a_purchase() {
    check(
        |tree| {
            let complaints = PURCHASES.iter().flat_map(|(makers, owner)| {
                let exempt = [
                    "crates/accounting/store/",
                    "crates/payments/purchase/src/versioned.rs",
                    *owner,
                ];
                let message =
                    format!("only {owner} changes this row; use or add a transition there");
                words(
                    tree,
                    &["src/", "filters/", "crates/"],
                    &exempt,
                    makers,
                    &message,
                )
            });
            complaints.collect()
        },
        &[
            (
                "filters/pay/src/x402/new.rs",
                "fn a(row: AuthorizationRow) { write(AuthorizationPart::Change(row)) }",
            ),
            (
                "crates/payments/purchase/src/topups/new.rs",
                "fn a(row: TopUpRow) { write(TopUpPart::Change(row)) }",
            ),
            (
                "crates/payments/purchase/src/mandates/new.rs",
                "fn a(row: MandateRow) { write(MandatePart::Change(row)) }",
            ),
            (
                "crates/payments/purchase/src/checkouts/new.rs",
                "fn a(row: CheckoutRow) { write(CheckoutPart::Change(row)) }",
            ),
            (
                "crates/payments/purchase/src/plan/new.rs",
                "fn a(row: PaymentRow) { write(PlanPart::ChangePayment { row, before }) }",
            ),
        ],
    );
}

/// A row that implements it could be written without its transitions.
#[test]
fn only_the_transitions_of_purchases_wrap_versioned_rows() {
    check(
        |tree| {
            let owners = PURCHASES.iter().map(|(_, owner)| *owner);
            let own = [
                "crates/payments/purchase/src/scheduled.rs",
                "crates/payments/purchase/src/versioned.rs",
            ];
            let exempt: Vec<_> = own.into_iter().chain(owners).collect();
            let message = "a versioned row is wrapped and changed by its transitions alone";
            let makers = [
                "VersionedRow",
                "Versioned::stored",
                "ScheduledRow",
                "Scheduled::stored",
                "Scheduled::asked",
            ];
            words(
                tree,
                &["src/", "filters/", "crates/"],
                &exempt,
                &makers,
                message,
            )
        },
        &[(
            "crates/payments/purchase/src/topups/new.rs",
            "fn a(row: TopUpRow) { write(Versioned::stored(row).next(now, |row| row.state = x).part()) }",
        )],
    );
}

#[test]
fn only_the_store_speaks_sql() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, source) in tree.rust(&["src/", "filters/", "crates/"]) {
                // The last file makes the database raise errors.
                let speaks = [
                    "crates/accounting/postgres/",
                    "crates/accounting/simulation/",
                    "crates/accounting/sql/",
                    "crates/accounting/store/",
                    "crates/testing/src/raised_errors.rs",
                ];
                if speaks.iter().any(|known| path.starts_with(known)) {
                    continue;
                }
                for (line, text) in &source.strings {
                    let statements = [
                        "SELECT ",
                        "INSERT INTO ",
                        "UPDATE ",
                        "DELETE FROM ",
                        "CREATE TABLE ",
                        "PRAGMA ",
                    ];
                    if statements
                        .iter()
                        .any(|statement| text.trim_start().starts_with(statement))
                    {
                        complaints.push(format!(
                            "{path}:{line}: a statement of SQL outside crates/accounting/store"
                        ));
                    }
                }
            }
            complaints
        },
        &[(
            "crates/accounting/ledger/src/new.rs",
            "fn a() { b(\"DELETE FROM holds\") }",
        )],
    );
}

/// What CockroachDB or YugabyteDB lack, what ends silently with a connection or holds a lock of the whole server, and what SQLite alone has.
const ONE_ENGINE: [&str; 16] = [
    "pg_notify",
    "NOTIFY",
    "LISTEN",
    "SERIAL",
    "BIGSERIAL",
    "SEQUENCE",
    "nextval",
    "TEMP",
    "TEMPORARY",
    "UNLOGGED",
    "INHERITS",
    "TRIGGER",
    "FUNCTION",
    "PROCEDURE",
    "rowid",
    "PRAGMA",
];

/// The same in two words.
const ONE_ENGINE_PHRASES: [&str; 3] = ["INSERT OR", "LIMIT -1", "IS ?"];

#[test]
fn statements_of_all_engines_use_what_all_engines_have() {
    check(
        |tree| {
            let store = "crates/accounting/store/src/";
            let folders = ["tables/", "postgres/", "migrations/"].map(|at| format!("{store}{at}"));
            let mut complaints = Vec::new();
            let mut see = |path: &str, line: usize, text: &str| {
                let words = |c: char| !c.is_alphanumeric() && c != '_';
                let is_one = |word: &&str| ONE_ENGINE.contains(word) || word.contains("advisory");
                let word = text.split(words).find(is_one);
                let phrase = ONE_ENGINE_PHRASES.iter().find(|part| text.contains(**part));
                if let Some(found) = word.or(phrase.copied()) {
                    complaints.push(format!(
                        "{path}:{line}: `{found}` is not SQL of every engine"
                    ));
                }
            };
            for (path, source) in tree.rust(&folders.each_ref().map(String::as_str)) {
                for (line, text) in &source.strings {
                    see(path, *line, text);
                }
            }
            for (path, text) in tree.files().filter(|(path, _)| path.ends_with(".sql")) {
                if folders.iter().any(|folder| path.starts_with(folder)) {
                    for (line, text) in (1..).zip(text.lines()) {
                        see(path, line, text);
                    }
                }
            }
            complaints
        },
        &[
            (
                "crates/accounting/store/src/tables/new.rs",
                "fn a() { b(\"DELETE FROM holds WHERE rowid = ?1\") }",
            ),
            (
                "crates/accounting/store/src/postgres/new.rs",
                "fn a() { b(\"SELECT pg_advisory_lock(1)\") }",
            ),
            (
                "crates/accounting/store/src/postgres/schema.sql",
                "CREATE TABLE t (id BIGSERIAL PRIMARY KEY)",
            ),
            (
                "crates/accounting/store/src/tables/replace.rs",
                "fn a() { b(\"INSERT OR REPLACE INTO t VALUES (?1)\") }",
            ),
        ],
    );
}

/// Files that read something other than settings, each with what.
const READERS: [(&str, &str); 5] = [
    (
        "src/commands/backup.rs",
        "the folder of backups, for its lock and its sync",
    ),
    ("src/commands/key.rs", "the secret of a key that was found"),
    ("src/doctor/machine.rs", "the limits of the running gateway"),
    ("src/telemetry/log_file.rs", "the access log"),
    (
        "src/telemetry/process.rs",
        "what the kernel counts for the process, and allows",
    ),
];

#[test]
fn only_config_reads_files_or_environment_for_settings() {
    check(
        |tree| {
            let mut exempt = vec![
                "src/config",
                // Writes the settings it then reads.
                "src/demo",
                // They open data and certificates of a database, which are no settings.
                "crates/accounting/postgres/",
                "crates/accounting/store/",
                "crates/testing/",
            ];
            exempt.extend(READERS.iter().map(|(path, _)| *path));
            let readers = [
                "env::var",
                "env::vars",
                "env::var_os",
                "env::vars_os",
                "fs::read",
                "fs::read_to_string",
                "File::open",
                "OpenOptions",
            ];
            words(
                tree,
                &["src/", "filters/", "crates/"],
                &exempt,
                &readers,
                "only src/config reads files and environment; take the checked setting",
            )
        },
        &[
            (
                "filters/auth/src/new.rs",
                "fn a() { std::env::var(\"KEY\"); }",
            ),
            (
                "src/admin/new.rs",
                "fn a() { let text = fs::read_to_string(path); }",
            ),
        ],
    );
}

#[test]
fn time_is_asked_of_the_clock() {
    check(
        |tree| {
            let exempt = ["crates/contract/clock/src/clock.rs", "benches/"];
            let clocks = [
                "SystemTime::now",
                "Instant::now",
                "Timestamp::now",
                "Zoned::now",
                "Utc::now",
                "Local::now",
                "Uuid::now_v7",
                "Uuid::now_v1",
                "clock_gettime",
            ];
            // Tests too: one that reads a real clock depends on how busy the machine is.
            let folders = ["src/", "filters/", "crates/", "tests/"];
            let code: fn(&Source) -> &str = |source| &source.code;
            let message = "take the time from tollgate_clock::Clock";
            let complaints = in_code(tree, &folders, &exempt, &clocks, code, message);
            // A timer of tokio is moved and read by instants of tokio; nothing of that is kept.
            let moves_timer = |place: &str| {
                let (path, line) = place.split_once(':').unwrap_or_default();
                let line = line.parse::<usize>().map_or("", |number| {
                    let text = tree.text(path).unwrap_or_default();
                    text.lines().nth(number - 1).unwrap_or_default()
                });
                let known = [
                    "reset(Instant::now() + ",
                    "= Some(Instant::now() + limits.",
                    "|at| at <= Instant::now()",
                    "saturating_duration_since(Instant::now())",
                ];
                known.iter().any(|known| line.contains(known))
            };
            let kept = complaints
                .into_iter()
                .filter(|complaint| !moves_timer(complaint.split(": ").next().unwrap_or_default()));
            kept.collect()
        },
        &[
            (
                "filters/meter/src/new.rs",
                "fn a() { let now = std::time::Instant::now(); }",
            ),
            ("tests/new.rs", "fn a() { let now = SystemTime::now(); }"),
        ],
    );
}

#[test]
fn randomness_is_drawn_from_entropy() {
    check(
        |tree| {
            let exempt = ["crates/contract/clock/src/entropy.rs"];
            let sources = [
                "getrandom",
                "rand::",
                "fastrand",
                "thread_rng",
                "OsRng",
                "SystemRandom",
                "RandomState",
                "Uuid::new_v4",
            ];
            words(
                tree,
                &["src/", "filters/", "crates/"],
                &exempt,
                &sources,
                "draw from tollgate_clock::Entropy",
            )
        },
        &[(
            "filters/auth/src/new.rs",
            "fn a() { getrandom::fill(&mut bytes); }",
        )],
    );
}

/// Where a ban of .clippy.toml may be lifted in code that ships.
const BANS_LIFTED: [&str; 5] = [
    "crates/contract/clock/src/clock.rs",
    "crates/contract/clock/src/entropy.rs",
    "crates/testing/",
    "src/config",
    // The pause before another attempt to reach a database server.
    "crates/accounting/store/src/threads.rs",
];

#[test]
fn bans_are_lifted_only_where_they_point() {
    check(
        |tree| {
            let message = "lifts a ban of .clippy.toml; use what the ban names instead";
            words(
                tree,
                &["src/", "filters/", "crates/"],
                &BANS_LIFTED,
                &["disallowed_methods"],
                message,
            )
        },
        &[(
            "filters/auth/src/new.rs",
            "#[expect(clippy::disallowed_methods, reason = \"handy\")] fn a() {}",
        )],
    );
}

#[test]
fn no_float_holds_money_quota_or_usage() {
    check(
        |tree| {
            let folders = [
                "crates/contract/money/",
                "crates/accounting/",
                "crates/payments/purchase/",
                "crates/forwarding/openai/src/usage",
                "filters/meter/",
                "filters/rate-limit/",
            ];
            words(
                tree,
                &folders,
                &[],
                &["f32", "f64"],
                "money, quota and usage are whole numbers",
            )
        },
        &[(
            "filters/meter/src/new.rs",
            "struct Price { per_token: f64 }",
        )],
    );
}

#[test]
fn no_filter_sees_a_whole_body_without_a_byte_maximum() {
    check(
        |tree| {
            let path = "crates/contract/filter/src/filter.rs";
            let mut complaints = Vec::new();
            let contract = [path];
            let source = tree
                .rust(&contract)
                .map(|(_, source)| source.code.as_str())
                .next();
            let variants = source
                .and_then(|code| code.split_once("pub enum Body {"))
                .map(|(_, rest)| rest);
            let variants = variants.map(|rest| rest.split("\n}").next().unwrap_or_default());
            for variant in top_level(variants.unwrap_or_default()) {
                if variant != "Unread" && !variant.contains("bytes_max: usize") {
                    complaints.push(format!("{path}: `Body::{variant}` has no `bytes_max`"));
                }
            }
            if variants.is_none() {
                complaints.push(format!(
                    "{path}: the contract no longer says with `Body` what a filter sees"
                ));
            }
            let exempt = ["crates/testing/"];
            let collectors = ["BodyExt", "to_bytes", "Incoming", "Collected"];
            let message = "collects a body; ask for it in the contract, with a maximum";
            complaints.extend(words(
                tree,
                &["filters/", "crates/"],
                &exempt,
                &collectors,
                message,
            ));
            complaints
        },
        &[
            (
                "crates/contract/filter/src/filter.rs",
                "pub enum Body {\n    Unread,\n    Json { bytes_max: usize },\n    Raw,\n}\n",
            ),
            ("filters/auth/src/new.rs", "use http_body_util::BodyExt;"),
        ],
    );
}

/// The variants of an enum's body, white space joined.
fn top_level(body: &str) -> Vec<String> {
    let mut depth = 0;
    let mut variants = vec![String::new()];
    for character in body.chars() {
        match character {
            '{' | '(' => depth += 1,
            '}' | ')' => depth -= 1,
            _ => {}
        }
        if character == ',' && depth == 0 {
            variants.push(String::new());
        } else if let Some(last) = variants.last_mut() {
            last.push(character);
        }
    }
    let joined = variants
        .iter()
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    joined.filter(|text| !text.is_empty()).collect()
}

/// Where the default name of the service is written.
const NAME_IS_SET: [&str; 2] = ["src/config", "src/demo"];

#[test]
fn the_services_own_word_is_a_setting() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, source) in tree.rust(&["src/", "filters/", "crates/"]) {
                if NAME_IS_SET.iter().any(|place| path.starts_with(place)) {
                    continue;
                }
                for (line, text) in &source.strings {
                    // Whole words only, where `_` and `-` end one: `x_svc`, `sk-svc-`.
                    let spelled = text
                        .split(|c: char| !c.is_ascii_alphanumeric())
                        .any(|word| word == "svc" || word == "Svc");
                    if spelled {
                        complaints.push(format!("{path}:{line}: spells the service's own word; it is the setting `service.name`"));
                    }
                }
            }
            complaints
        },
        &[(
            "filters/completions/src/new.rs",
            "const FIELD: &str = \"x_svc\";",
        )],
    );
}
