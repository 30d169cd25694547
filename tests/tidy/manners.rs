//! Conventions: rules for the content of files, and for how tests are written.

use crate::check;
use crate::source::lines_with;

/// Files longer than most because each is one table or one state machine.
const LONG_FILES: [(&str, &str); 0] = [];
const LINES_MAX: usize = 700;

#[test]
fn no_file_names_the_machine_it_was_written_on() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, text) in tree.files() {
                for (number, line) in text.lines().enumerate() {
                    if machine_path(line) {
                        complaints.push(format!(
                            "{path}:{}: a path that exists on one machine only",
                            number + 1
                        ));
                    }
                }
            }
            complaints
        },
        &[
            ("conf/new.toml", "url = \"sqlite:/ro\u{6f}t/data\""),
            ("README.md", "cd /ho\u{6d}e/mary/tollgate"),
            ("tests/new.rs", "//! See /wo\u{72}k/main.\n"),
        ],
    );
}

/// Whether a path into a home or work folder of one machine begins on the line. `%h/.cache` and `~` are portable.
fn machine_path(line: &str) -> bool {
    // In pieces, so that this file does not name them.
    let homes = [
        ["/ro", "ot"],
        ["/wo", "rk/"],
        ["/ho", "me/"],
        ["/Us", "ers/"],
    ]
    .map(|parts| parts.concat());
    homes.iter().any(|home| {
        line.match_indices(home.as_str()).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            let after = line[at + home.len()..].chars().next();
            let begins = !before.is_some_and(|c| c.is_alphanumeric() || "._-/}>)".contains(c));
            let ends = home.ends_with('/') == after.is_some_and(|c| c.is_alphanumeric());
            begins && (ends || !home.ends_with('/') && after == Some('/'))
        })
    })
}

#[test]
fn no_file_names_the_host_of_a_package_registry() {
    check(
        |tree| {
            // Addresses differ from place to place; package names and versions do not.
            let hosts = [
                ["py", "pi.org"],
                ["pythonho", "sted.org"],
                ["registry.np", "mjs.org"],
                ["static.cra", "tes.io"],
                ["index.cra", "tes.io"],
                ["deb.deb", "ian.org"],
            ];
            let hosts = hosts.map(|parts| parts.concat());
            let mut complaints = Vec::new();
            for (path, text) in tree.files() {
                for (number, line) in text.lines().enumerate() {
                    if hosts.iter().any(|host| line.contains(host.as_str())) {
                        complaints.push(format!(
                            "{path}:{}: names the host of a package registry",
                            number + 1
                        ));
                    }
                }
            }
            complaints
        },
        &[(
            "package-lock.json",
            "\"resolved\": \"https://registry.np\u{6d}js.org/openai\"",
        )],
    );
}

#[test]
fn no_test_is_switched_off() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, source) in tree.rust(&[""]) {
                let markers = ["#[ignore]", "#[ignore ", "#[ignore="];
                for line in markers
                    .iter()
                    .flat_map(|marker| lines_with(&source.code, marker))
                {
                    complaints.push(format!(
                        "{path}:{line}: a test that does not run; mend it or take it out"
                    ));
                }
            }
            let scripts = tree
                .files()
                .filter(|(path, _)| path.starts_with("tests/clients/"));
            for (path, text) in scripts {
                let markers = [
                    "unittest.skip",
                    "skipTest(",
                    "expectedFailure",
                    "test.skip",
                    "it.skip",
                    "test.todo",
                    ".only(",
                ];
                for (number, line) in text.lines().enumerate() {
                    if markers.iter().any(|marker| line.contains(marker)) {
                        complaints.push(format!("{path}:{}: a test that does not run", number + 1));
                    }
                }
            }
            complaints
        },
        &[
            ("tests/new.rs", "#[test]\n#[ignore = \"slow\"]\nfn a() {}"),
            ("tests/clients/new.py", "@unittest.skip('flaky')"),
        ],
    );
}

#[test]
fn no_test_waits_for_time_to_pass() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            // Measuring takes time on purpose.
            for (path, source) in tree.rust(&["filters/", "crates/", "src/", "tests/"]) {
                for line in ["sleep(", "sleep_until("]
                    .iter()
                    .flat_map(|call| lines_with(&source.tested, call))
                {
                    complaints.push(format!("{path}:{line}: sleeps; wait for the event itself"));
                }
            }
            for (path, text) in tree
                .files()
                .filter(|(path, _)| path.starts_with("tests/") && !path.ends_with(".rs"))
            {
                for (number, line) in text.lines().enumerate() {
                    let words = line.trim_start();
                    if words.starts_with("sleep ")
                        || words.contains("time.sleep(")
                        || words.contains("asyncio.sleep(")
                    {
                        complaints.push(format!(
                            "{path}:{}: sleeps; wait for the event itself",
                            number + 1
                        ));
                    }
                }
            }
            complaints
        },
        &[
            (
                "tests/new.rs",
                "async fn a() { tokio::time::sleep(SECOND).await }",
            ),
            (
                "filters/auth/src/new.rs",
                "#[cfg(test)]\nmod tests { fn a() { std::thread::sleep(SECOND) } }",
            ),
            ("tests/new.sh", "  sleep 1\n"),
        ],
    );
}

#[test]
fn no_test_takes_a_fixed_port() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, source) in tree.rust(&[""]) {
                let calls = ["bind(", "connect(", "listen(", "from(("];
                for (number, line) in source.tested.lines().enumerate() {
                    if !calls.iter().any(|call| line.contains(call)) {
                        continue;
                    }
                    let literals = source
                        .test_strings
                        .iter()
                        .filter(|(at, _)| *at == number + 1);
                    let mut ports = literals
                        .filter_map(|(_, text)| text.rsplit_once(':'))
                        .map(|(_, port)| port);
                    let in_text = ports.any(|port| port.parse::<u16>().is_ok_and(|port| port != 0));
                    // `bind((LOCALHOST, 8080))`
                    let tuples = line.split("((").skip(1);
                    let in_tuple = tuples
                        .filter_map(|rest| rest.split("))").next()?.rsplit_once(", "))
                        .any(|(_, port)| port.parse::<u16>().is_ok_and(|port| port != 0));
                    if in_text || in_tuple {
                        complaints.push(format!(
                            "{path}:{}: a port that may be taken; use 0 and ask which it became",
                            number + 1
                        ));
                    }
                }
            }
            complaints
        },
        &[
            (
                "tests/new.rs",
                "fn a() { TcpListener::bind(\"127.0.0.1:8080\") }",
            ),
            (
                "filters/auth/src/new.rs",
                "#[cfg(test)]\nmod tests { fn a() { TcpListener::bind((LOCALHOST, 8080)); }\n}",
            ),
        ],
    );
}

#[test]
fn no_log_line_has_a_field_of_the_line_itself() {
    check(
        |tree| {
            // The members that every line has in JSON, where a field of the same name would be a second one.
            let taken = ["message", "level", "target", "timestamp"];
            let mut complaints = Vec::new();
            for (path, source) in tree.rust(&["filters/", "crates/", "src/"]) {
                for (at, _) in source.code.match_indices("tracing::") {
                    let call = &source.code[at + "tracing::".len()..];
                    let Some((name, rest)) = call.split_once("!(") else {
                        continue;
                    };
                    if !name.chars().all(char::is_alphabetic) {
                        continue;
                    }
                    let mut depth = 0_u32;
                    let ends = |letter: char| {
                        match letter {
                            '(' => depth += 1,
                            ')' if depth == 0 => return true,
                            ')' => depth -= 1,
                            _ => {}
                        }
                        false
                    };
                    let arguments = rest.split(ends).next().unwrap_or_default();
                    for argument in arguments.split(',') {
                        let name = argument.split('=').next().unwrap_or_default().trim();
                        if taken.contains(&name.trim_start_matches(['%', '?'])) {
                            let line = source.code[..at].lines().count();
                            complaints.push(format!("{path}:{line}: `{name}` is a member of each log line; name the field otherwise"));
                        }
                    }
                }
            }
            complaints
        },
        &[
            (
                "src/new.rs",
                "fn a() { tracing::error!(kind = f(a), message = %error, \"store failed\"); }",
            ),
            (
                "src/newer.rs",
                "fn a() { tracing::info!(%level, \"set level\"); }",
            ),
        ],
    );
}

#[test]
fn no_file_is_longer_than_one_idea() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, text) in tree.files() {
                let written = [".rs", ".py", ".mjs", ".js", ".sh"]
                    .iter()
                    .any(|kind| path.ends_with(kind))
                    || !path.contains('.');
                let table = LONG_FILES.iter().any(|(known, _)| *known == path);
                let lines = text.lines().count();
                if written && !table && lines > LINES_MAX && path != "LICENSE" {
                    complaints.push(format!("{path}: has {lines} lines; more than {LINES_MAX} are one idea only in a table"));
                }
            }
            complaints
        },
        &[(
            "filters/auth/src/new.rs",
            &"// more\n".repeat(LINES_MAX + 1),
        )],
    );
}

#[test]
fn no_module_is_named_for_nothing() {
    check(
        |tree| {
            let empty = [
                "common.rs",
                "helper.rs",
                "helpers.rs",
                "misc.rs",
                "types.rs",
                "util.rs",
                "utils.rs",
            ];
            let folders = ["helper", "helpers", "misc", "types", "util", "utils"];
            let mut complaints = Vec::new();
            // The published schemas of a protocol, which name each other by their own folders.
            let ours = |path: &str| !path.starts_with("tests/ucp-schemas/");
            for (path, _) in tree.files().filter(|(path, _)| ours(path)) {
                let parts: Vec<_> = path.split('/').collect();
                if parts.last().is_some_and(|name| empty.contains(name))
                    || parts.iter().any(|part| folders.contains(part))
                {
                    complaints.push(format!(
                        "{path}: a name that says nothing; name it for what it holds"
                    ));
                }
                if parts
                    .last()
                    .is_some_and(|name| [".gitkeep", ".keep", ".empty"].contains(name))
                {
                    complaints.push(format!("{path}: keeps an empty folder"));
                }
            }
            complaints
        },
        &[
            ("filters/auth/src/utils.rs", ""),
            ("tests/new/.gitkeep", ""),
        ],
    );
}

#[test]
fn nothing_says_how_it_was_written() {
    check(
        |tree| {
            // A file describes its content and its reasons; its author and tools are of no use to a maintainer.
            let phrases = [
                ["co-author", "ed-by"],
                ["ai-gener", "ated"],
                ["generated by ", "an ai"],
                ["as an ", "ai "],
            ];
            let phrases = phrases.map(|parts| parts.concat());
            let mut complaints = Vec::new();
            for (path, text) in tree.files() {
                for (number, line) in text.lines().enumerate() {
                    let line = line.to_lowercase();
                    if phrases.iter().any(|phrase| line.contains(phrase.as_str())) {
                        complaints.push(format!("{path}:{}: tells how it was written", number + 1));
                    }
                }
            }
            complaints
        },
        &[("filters/auth/src/new.rs", "//! AI-gener\u{61}ted.")],
    );
}
