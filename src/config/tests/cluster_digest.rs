//! The digest of the settings that nodes of a database must have in common.

use tollgate_store::RootSecret;
use tollgate_testing::Certificate;

use super::super::cluster_digest::MAY_DIFFER;
use super::*;

const SETTINGS: &str = "
    [[provider]]
    name = 'a'
    base_url = 'http://a/v1'
    [[model]]
    id = 'm'
    providers = [{ provider = 'a' }]
    price = { input = '1', output = '2' }
";

fn digest_of(settings: &Settings) -> String {
    let root = RootSecret([7; 32]);
    settings.source.cluster_digest(&root, &modules())
}

/// The digest with these variables over the settings.
fn digest<const N: usize>(text: &str, variables: [(&str, &str); N]) -> String {
    let settings = check(text, &Environment::of(variables));
    digest_of(&settings.expect("good settings"))
}

#[test]
fn what_belongs_to_a_machine_does_not_change_the_digest() {
    let cases = [
        ("admin", "TOLLGATE__ADMIN__ADDRESS", "127.0.0.1:0"),
        ("listener", "TOLLGATE__LISTENER__0__ADDRESS", "127.0.0.1:9"),
        ("store", "TOLLGATE__STORE__URL", "sqlite:other.db"),
        ("telemetry", "TOLLGATE__TELEMETRY__LOG_LEVEL", "debug"),
        ("server.accept_queue", "TOLLGATE__SERVER__ACCEPT_QUEUE", "9"),
        (
            "server.connections_max",
            "TOLLGATE__SERVER__CONNECTIONS_MAX",
            "900",
        ),
        (
            "server.connections_per_address_max",
            "TOLLGATE__SERVER__CONNECTIONS_PER_ADDRESS_MAX",
            "90",
        ),
        (
            "server.drain_delay_secs",
            "TOLLGATE__SERVER__DRAIN_DELAY_SECS",
            "9",
        ),
        (
            "server.environment_file",
            "TOLLGATE__SERVER__ENVIRONMENT_FILE",
            "variables",
        ),
        ("server.grace_secs", "TOLLGATE__SERVER__GRACE_SECS", "9"),
        (
            "server.memory_bytes_max",
            "TOLLGATE__SERVER__MEMORY_BYTES_MAX",
            "99999999",
        ),
        (
            "server.watch_settings",
            "TOLLGATE__SERVER__WATCH_SETTINGS",
            "true",
        ),
        ("server.workers", "TOLLGATE__SERVER__WORKERS", "9"),
        ("cache.max_bytes", "TOLLGATE__CACHE__MAX_BYTES", "99999999"),
        (
            "cache.max_entry_bytes",
            "TOLLGATE__CACHE__MAX_ENTRY_BYTES",
            "9999",
        ),
    ];
    assert_eq!(cases.map(|(key, ..)| key), MAY_DIFFER);
    let before = digest(SETTINGS, []);
    for (key, variable, value) in cases {
        let after = digest(SETTINGS, [(variable, value)]);
        assert_eq!(after, before, "{key}");
    }
}

#[test]
fn every_other_setting_changes_the_digest() {
    let before = digest(SETTINGS, []);
    for (variable, value) in [
        ("TOLLGATE__MODEL__0__PRICE__OUTPUT", "3"),
        ("TOLLGATE__MODEL__0__CACHE", "false"),
        ("TOLLGATE__PROVIDER__0__BASE_URL", "http://b/v1"),
        (
            "TOLLGATE__LIMITS__CLASSES__FREE",
            "{ quota = 5, window_secs = 60 }",
        ),
        (
            "TOLLGATE__ROUTE_CHANGE",
            "[{ path = '/v1/models', body_bytes_max = 0 }]",
        ),
        ("TOLLGATE__METER__HOLD_SECS", "7200"),
        ("TOLLGATE__OAUTH__ACCESS_TOKEN_SECS", "900"),
        ("TOLLGATE__PAYMENTS__X402__MAX_TIMEOUT_SECS", "400"),
        ("TOLLGATE__SERVER__BODY_SECS", "9"),
        ("TOLLGATE__CACHE__TTL_SECS", "9"),
        ("TOLLGATE__SERVICE__NAME", "acme"),
    ] {
        let after = digest(SETTINGS, [(variable, value)]);
        assert_ne!(after, before, "{variable}");
    }
}

/// Both were written at one key, the name, and the second hid the price of the first.
#[test]
fn a_price_counts_also_where_two_models_have_one_name() {
    let settings = |price: u8| {
        let model = |id: &str, price: u8| {
            format!(
                "[[model]]\nid = '{id}'\nname = 'Llama'\nproviders = [{{ provider = 'a' }}]\n\
                 price = {{ input = '1', output = '{price}' }}\n"
            )
        };
        format!("{SETTINGS}{}{}", model("one", price), model("two", 9))
    };
    assert_ne!(digest(&settings(1), []), digest(&settings(2), []));
}

#[test]
fn the_contents_of_secrets_count_and_not_where_they_are() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the folder takes files");
        path
    };
    write("roots.pem", &Certificate::for_localhost().cert_pem);
    let load = |secret: &str, value: &str| {
        let provider = "[[provider]]\nname = 'a'\nbase_url = 'https://a/v1'\n";
        let file = write("t.toml", &format!("{provider}{secret}"));
        let environment = Environment::of([("KEY", value), ("OTHER", value)]);
        super::load(&file, &environment, &modules()).expect("good settings")
    };
    write("one", "sk-one\n");
    write("two", "sk-two\n");
    let one = load("api_key_env = 'KEY'", "sk-one");
    for (secret, value, equal) in [
        ("api_key_env = 'OTHER'", "sk-one", true),
        ("api_key_file = 'one'", "", true),
        ("api_key_env = 'KEY'\nca_file = 'roots.pem'", "sk-one", true),
        ("api_key_env = 'KEY'", "sk-two", false),
        ("api_key_file = 'two'", "", false),
        ("", "", false),
    ] {
        let other = load(secret, value);
        assert_eq!(digest_of(&one) == digest_of(&other), equal, "{secret}");
    }
    let elsewhere = RootSecret([8; 32]);
    let elsewhere = one.source.cluster_digest(&elsewhere, &modules());
    assert_ne!(digest_of(&one), elsewhere, "it is keyed");
}

/// Nodes of two releases compare digests of one form. Where this one changes, raise `FORM`.
#[test]
fn the_form_of_a_digest_says_how_it_is_computed() {
    assert_eq!(digest(SETTINGS, []), "1-7fb6dcb8c4b8b5b2");
}
