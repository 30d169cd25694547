//! The settings from the operator's side: files, variables, messages.

mod acme;
mod admin;
mod cluster_digest;
mod contents;
mod mistakes;
mod reference;
mod shipped;
mod unix_socket;

use std::path::{Path, PathBuf};

use secrecy::ExposeSecret;

use super::*;

/// What the built-in modules declare.
fn modules() -> Declarations {
    crate::registry::declarations(&crate::registry::modules())
}

fn root() -> PathBuf {
    tollgate_testing::package_folder()
}

fn check(text: &str, environment: &Environment) -> Result<Settings, Vec<String>> {
    load_text(Path::new("t.toml"), text, environment, &modules())
        .map_err(|report| report.findings.iter().map(ToString::to_string).collect())
}

fn problems(text: &str) -> Vec<String> {
    check(text, &Environment::default()).expect_err("something is wrong")
}

#[test]
fn empty_settings_have_no_models() {
    let settings = check("", &Environment::default()).expect("defaults are good");
    assert_eq!(settings.listeners.len(), 1);
    assert!(!settings.routes.is_empty());
    assert!(settings.catalog.models().is_empty());
    assert_eq!(settings.service.base_url.as_str(), "http://localhost:8080");
}

#[test]
fn trial_requests_default_to_four_or_the_concurrency_limit() {
    //   settings of the provider                              trial requests
    for (lines, expected) in [
        ("", 4),
        ("concurrency_max = 3", 3),
        ("concurrency_max = 64", 4),
        ("concurrency_max = 3\nhealth = { trial_requests = 7 }", 7),
    ] {
        let text =
            format!("[[provider]]\nname = \"a\"\nbase_url = \"http://127.0.0.1:1/v1\"\n{lines}");
        let settings = check(&text, &Environment::default()).expect("good settings");
        let health = &settings.providers[0].health;
        assert_eq!(health.trial_requests, expected, "{lines}");
    }
}

#[test]
fn a_fallback_is_refused_by_each_part_of_its_price_unless_the_model_allows_it() {
    let own = (1, 2, 3);
    //   price of the fallback: input, output, request          refused for
    for ((input, output, request), expected) in [
        ((1, 2, 3), None),
        ((0, 1, 2), None),
        ((2, 0, 0), Some("input 2 instead of 1")),
        ((0, 3, 0), Some("output 3 instead of 2")),
        ((0, 0, 4), Some("request 4 instead of 3")),
        (
            (9, 9, 9),
            Some("input 9 instead of 1, output 9 instead of 2, request 9 instead of 3"),
        ),
    ] {
        for allowed in [false, true] {
            let model = |id: &str, (input, output, request): (u8, u8, u8)| {
                format!(
                    "[[model]]\nid = \"{id}\"\nproviders = [{{ provider = \"a\" }}]\n\
                     price = {{ input = \"{input}\", output = \"{output}\", request = \"{request}\" }}\n"
                )
            };
            let text = format!(
                "[[provider]]\nname = \"a\"\nbase_url = \"http://127.0.0.1:1/v1\"\n{}fallback = [\"b\"]\n\
                 expensive_fallback = {allowed}\n{}",
                model("own", own),
                model("b", (input, output, request)),
            );
            let found = check(&text, &Environment::default());
            let found = found.err().unwrap_or_default();
            match expected.filter(|_| !allowed) {
                None => assert!(found.is_empty(), "{found:?}"),
                Some(words) => {
                    assert_eq!(found.len(), 1, "{found:?}");
                    assert!(found[0].contains(words), "{found:?}");
                }
            }
        }
    }
}

#[test]
fn the_name_of_a_node_and_the_authority_of_its_database_are_checked() {
    let found = problems("[store]\nurl = \"postgres://t@h/d\"\nnode = \"A_b\"\n");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("has to be 1 to 64 characters") && found[0].contains("it is `A_b`"),
        "{found:?}"
    );
    let found = problems(
        "[store]\nurl = \"postgres://t@h/d?sslmode=verify-full&sslrootcert=/missing/ca.pem\"\n",
    );
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("`/missing/ca.pem`"), "{found:?}");
}

#[test]
fn every_example_loads() {
    let environment = Environment::of([("PROVIDER_API_KEY", "sk-test-only")]);
    let mut seen = 0;
    let folder = root().join("conf/examples");
    let files = std::fs::read_dir(folder).expect("there are examples");
    let files = files.map(|entry| entry.expect("an entry").path());
    let cluster = root().join("conf/examples/cluster/tollgate.toml");
    for file in files.chain([cluster]) {
        if file.extension().is_none_or(|kind| kind != "toml") {
            continue;
        }
        seen += 1;
        let text = std::fs::read_to_string(&file).expect("a text");
        // An example names the operator's certificates; here generated ones replace them.
        let (_folder, text) = with_certificates(&text);
        let settings = load_text(&file, &text, &environment, &modules());
        let settings =
            settings.unwrap_or_else(|report| panic!("an example must be good:\n{report}"));
        let warnings = settings.warnings();
        let risk = warnings
            .iter()
            .find(|risk| risk.key.starts_with("listener."));
        assert!(risk.is_none(), "{}: {risk:?}", file.display());
    }
    assert!(seen >= 4, "only {seen} examples were found");
}

/// Creates a certificate and its key, and replaces the paths in `text` by theirs.
fn with_certificates(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let made = tollgate_testing::Certificate::for_localhost();
    let put = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let certificate = put("chain.pem", made.cert_pem);
    let key = put("key.pem", made.key_pem);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, private).expect("its owner");
    let text = text
        .replace("/etc/tollgate/tls/chain.pem", &certificate)
        .replace("/etc/tollgate/tls/key.pem", &key)
        .replace("/etc/tollgate/tls/provider-ca.pem", &certificate);
    let here = folder.path().display().to_string();
    let text = ["/var/lib/tollgate", "/var/log/tollgate", "/run/tollgate"]
        .iter()
        .fold(text, |text, folder| text.replace(folder, &here));
    (folder, text)
}

#[test]
fn all_errors_are_reported_at_once_with_their_place() {
    let file = Path::new("tests/golden/settings.toml");
    let text = std::fs::read_to_string(root().join(file)).expect("the golden settings");
    let wanted = std::fs::read_to_string(root().join("tests/golden/settings.txt"))
        .expect("the golden report");
    let environment = Environment::of([
        ("TOLLGATE__SERVER__IDLE_SECS", "soon"),
        ("TOLLGATE__SERVER__H2_IDLE_SECS", "0"),
        ("TOLLGATE__SERVER__NO_SUCH_KEY", "1"),
        ("TOLLGATE__PROVIDER__9__NAME", "x"),
        ("TOLLGATE__SERVICE__NAME__X", "x"),
        ("EMPTY_KEY", " "),
        ("SHORT_KEY", "not-long"),
    ]);
    // Only some filters, so that the report does not change when more are added.
    let mut some = modules();
    some.filters
        .retain(|filter| ["address-limit", "auth", "cache", "models"].contains(&filter.name()));
    let report = load_text(file, &text, &environment, &some).expect_err("much is wrong");
    let report = format!("{report}\n");
    assert_eq!(
        report, wanted,
        "the report is not the golden one; if it should be, write this to tests/golden/settings.txt:\n{report}"
    );
}

#[test]
fn toml_syntax_errors_are_reported_with_their_line() {
    let found = problems("[server\nworkers = 1\n[service]\nname = = \"a\"\n");
    assert!(
        found.iter().any(|line| line.starts_with("t.toml:1:")),
        "{found:?}"
    );
    assert!(
        found.iter().any(|line| line.starts_with("t.toml:4:")),
        "both errors are reported: {found:?}"
    );
}

#[test]
fn errors_of_the_export_of_traces_name_the_setting_and_no_secret() {
    for (text, expected) in [
        (
            "otlp_url = 'collector:4317'",
            "telemetry.otlp_url: does not start with `http://`",
        ),
        (
            "otlp_sample = 1.5",
            "telemetry.otlp_sample: is 1.5; use 0 to 1",
        ),
        (
            "otlp_sample = nan",
            "telemetry.otlp_sample: is NaN; use 0 to 1",
        ),
        (
            "otlp_headers_env = 'TOKEN'",
            "telemetry.otlp_headers_env: has no effect without `otlp_url`",
        ),
        (
            "otlp_url = 'http://a'\notlp_headers_env = 'TOKEN'",
            "telemetry.otlp_headers_env: names header fields that cannot be read",
        ),
    ] {
        let environment = Environment::of([("TOKEN", "t0-secret")]);
        let found = check(&format!("[telemetry]\n{text}\n"), &environment);
        let found = found.expect_err(text).join("\n");
        assert!(found.contains(expected), "{text}: {found}");
        assert!(!found.contains("t0-secret"), "{found}");
    }
    let found = check(
        "[telemetry]\notlp_url = 'https://a:4318/base/'\notlp_sample = 1\n",
        &Environment::default(),
    );
    let otlp = found.expect("good settings").telemetry.otlp.expect("on");
    assert_eq!(otlp.url.to_string(), "https://a:4318/base/v1/traces");
    assert_eq!(otlp.sample, 1.0);
}

#[test]
fn a_base_url_with_a_path_is_refused() {
    let found = problems("[service]\nbase_url = 'https://svc.example/gate'\n").join("\n");
    let text = "has the path `/gate`, and every address of the service is at the root of its host";
    assert!(found.contains(text), "{found}");
    let root = "[service]\nbase_url = 'https://svc.example/'\n";
    check(root, &Environment::default()).expect("the root is no path");
}

#[test]
fn a_pasted_secret_is_never_repeated() {
    for text in [
        "[[provider]]\nname = 'a'\nbase_url = 'http://a'\napi_key_env = 'sk-very-secret'\n",
        "[[provider]]\nname = 'a'\nbase_url = 'http://a'\napi_key = 'sk-very-secret'\n",
        "[[provider]]\nname = 'a'\nbase_url = 'https://sk-very-secret@a'\n",
        "[[provider]]\nname = 'a'\nbase_url = 'sk-very-secret'\n",
    ] {
        let found = problems(text).join("\n");
        assert!(!found.contains("very-secret"), "{found}");
    }
}

#[test]
fn a_key_from_the_environment_is_used_and_not_printed() {
    let environment = Environment::of([("MY_KEY", "sk-very-secret\n")]);
    let text = "[[provider]]\nname = 'a'\nbase_url = 'http://a'\napi_key_env = 'MY_KEY'\n";
    let settings = check(text, &environment).expect("good settings");
    let key = settings.providers[0].api_key.as_ref().expect("a key");
    assert_eq!(key.expose_secret(), "sk-very-secret");
    assert!(!format!("{settings:?} {environment:?}").contains("very-secret"));
}

#[test]
fn the_file_with_variables_is_named_by_a_setting_or_a_variable_and_has_precedence() {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let put = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("the folder takes files");
    };
    put("tollgate.toml", "[server]\nenvironment_file = 'one'\n");
    put("one", "TOLLGATE__SERVER__WORKERS=3\n");
    put("two", "TOLLGATE__SERVER__WORKERS=4\n");
    let load = |variable: (&str, &str)| {
        let environment = Environment::of([variable]);
        let file = folder.path().join("tollgate.toml");
        load(&file, &environment, &modules())
    };
    let workers = |variable: (&str, &str)| {
        let loaded = load(variable);
        loaded.expect("good settings").server.workers.to_string()
    };
    assert_eq!(workers(("TOLLGATE__SERVER__WORKERS", "2")), "3");
    let named = "TOLLGATE__SERVER__ENVIRONMENT_FILE";
    assert_eq!(workers((named, "two")), "4");
    let refused = load((named, "three")).expect_err("there is none");
    let refused = refused.to_string();
    assert!(
        refused.starts_with(&format!("${named}: server.environment_file: names `")),
        "{refused}"
    );
}

#[test]
fn environment_variables_override_the_file() {
    const FILE: &str = "
        [server]
        workers = 3
        [[provider]]
        name = 'a'
        base_url = 'http://a/v1'
        [[model]]
        id = 'm'
        providers = [{ provider = 'a' }]
        price = { input = '1', output = '2' }
    ";
    type Value = fn(&Settings) -> String;
    //          variable                              value        what is read
    let cases: [(&str, &str, Value, &str); 8] = [
        (
            "TOLLGATE__SERVER__WORKERS",
            "7",
            |s| s.server.workers.to_string(),
            "7",
        ),
        (
            "TOLLGATE__SERVER__WORKERS",
            "0x10",
            |s| s.server.workers.to_string(),
            "16",
        ),
        (
            "TOLLGATE__SERVICE__NAME",
            "acme",
            |s| s.service.name.to_string(),
            "acme",
        ),
        (
            "TOLLGATE__PROVIDER__0__BASE_URL",
            "http://b/v2",
            |s| s.providers[0].base_url.to_string(),
            "http://b/v2",
        ),
        (
            // A string setting stays text, even when it looks like a number.
            "TOLLGATE__MODEL__0__PRICE__INPUT",
            "0.25",
            |s| s.catalog.models()[0].price.input.per_million().to_string(),
            "0.25",
        ),
        (
            "TOLLGATE__LISTENER__0__ADDRESS",
            "127.0.0.1:0",
            |s| s.listeners[0].address.to_string(),
            "127.0.0.1:0",
        ),
        (
            "TOLLGATE__LIMITS__CLASSES__FREE",
            "{ quota = 5, window_secs = 10 }",
            |s| {
                let limits: tollgate_rate_limit::Limits = s.sections.find().expect("limits");
                limits
                    .class("free")
                    .expect("a class")
                    .quota
                    .limit()
                    .to_string()
            },
            "5",
        ),
        (
            "TOLLGATE__ROUTE",
            "[{ path = '/x', methods = ['GET'], chain = ['portal'] }]",
            |s| s.routes[0].path.to_string(),
            "/x",
        ),
    ];
    for (variable, value, read, wanted) in cases {
        let environment = Environment::of([(variable, value)]);
        match check(FILE, &environment) {
            Ok(settings) => assert_eq!(read(&settings), wanted, "{variable}={value}"),
            Err(found) => panic!("{variable}={value} is good: {found:?}"),
        }
    }
}

#[test]
fn a_certificate_and_its_key_belong_together() {
    let text = "[[listener]]\naddress = '127.0.0.1:0'\n\
        tls = [{ certificate = '/etc/tollgate/tls/chain.pem', key = '/etc/tollgate/tls/key.pem' }]\n";
    let (folder, good) = with_certificates(text);
    let settings = check(&good, &Environment::default()).expect("a pair");
    let pair = settings.certificates().next().expect("a certificate");
    assert!(pair.serves(&"localhost".try_into().expect("a name")));
    assert!(!pair.serves(&"example.net".try_into().expect("a name")));

    let (_other, other) = with_certificates(text);
    let mixed = good.replace(
        &*folder.path().join("key.pem").to_string_lossy(),
        other.split('\'').nth(5).expect("the other key"),
    );
    let found = problems(&mixed);
    assert!(
        found[0].contains("is the key of another certificate"),
        "{found:?}"
    );

    let swapped = good.replace("key.pem", "chain.pem");
    assert!(problems(&swapped)[0].contains("contains no private key"));
    std::fs::write(
        folder.path().join("chain.pem"),
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    )
    .expect("a file");
    assert!(problems(&good)[0].contains("contains an invalid certificate"));
}

#[test]
fn the_url_of_a_node_is_validated_from_every_source_and_never_printed() {
    let sold = "[payments.x402]
        facilitator_url = 'https://pay.example.com'
        pay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'";
    for (address, is_good) in [
        ("https://node.example.com/v2/key-1234", true),
        ("https://node.example.com/?key=key-1234", true),
        ("http://127.0.0.1:8545/key-1234", true),
        ("http://[::1]:8545/key-1234", true),
        ("http://localhost:8545/key-1234", true),
        ("http://node.example.com/key-1234", false),
        ("https:///key-1234", false),
        ("https://exa<mple/key-1234", false),
        ("ftp://node.example.com/key-1234", false),
        ("key-1234", false),
    ] {
        let variable = Environment::of([("NODE", address)]);
        for (name, value) in [("rpc_url", address), ("rpc_url_env", "NODE")] {
            let read = check(&format!("{sold}\n{name} = '{value}'"), &variable);
            match read {
                Ok(settings) => {
                    assert!(is_good, "{name}: {address}");
                    assert!(!format!("{settings:?}").contains("key-1234"));
                }
                Err(problems) => {
                    assert!(!is_good, "{name}: {problems:?}");
                    let report = problems.join("\n");
                    assert!(report.contains(name), "{report}");
                    assert!(!report.contains("key-1234"), "{report}");
                }
            }
        }
    }
}

#[test]
fn sections_find_each_other_and_warn() {
    let environment = Environment::of([
        ("PAYPAL_ID", "id"),
        ("PAYPAL_SECRET", "secret"),
        ("MPP_SECRET", "a-secret-that-has-32-characters!"),
    ]);
    let sold = |credits: &str, paypal: &str| {
        let text = format!(
            "credits = {{ {credits} }}\n[payments.mpp]\nsecret_env = 'MPP_SECRET'\n[payments.paypal]\n\
             client_id_env = 'PAYPAL_ID'\nclient_secret_env = 'PAYPAL_SECRET'\n{paypal}"
        );
        let settings = check(&text, &environment)?;
        let warnings = settings.warnings();
        Ok(warnings.into_iter().map(|one| one.key).collect::<Vec<_>>())
    };
    let priced = "usd_per_credit = '0.01'";
    let warned = ["payments.paypal.webhook_id", "payments.mpp"];
    assert_eq!(sold(priced, ""), Ok(warned.map(String::from).to_vec()));
    let whole = "webhook_id = '4JH86294D6297924G'\nplan_id = 'P-5ML4271244454362WXNWU5NQ'";
    let without_credits = vec![String::from("plan.monthly_credits")];
    assert_eq!(sold(priced, whole), Ok(without_credits));
    let with_credits = format!("{whole}\n[plan]\nmonthly_credits = '100'");
    assert_eq!(sold(priced, &with_credits), Ok(Vec::new()));

    // The price is reported once, as missing or as invalid, whatever else is wrong.
    let missing = "credits.usd_per_credit: is missing, but payments are configured";
    for (credits, wanted) in [
        ("", missing),
        ("signup_grant = '-1'", missing),
        ("usd_per_credit = '0'", "credits.usd_per_credit: is `0`"),
        (
            "usd_per_credit = 1",
            "credits.usd_per_credit: is an integer",
        ),
    ] {
        let found: Vec<String> = sold(credits, whole).expect_err("no price");
        let of_price: Vec<&String> = found
            .iter()
            .filter(|line| line.contains("usd_per_credit"))
            .collect();
        assert_eq!(of_price.len(), 1, "{found:?}");
        assert!(of_price[0].contains(wanted), "{found:?}");
    }
}
