//! Frequent mistakes in settings, and what their messages say to write.

use super::*;

#[test]
fn a_mistake_that_cannot_work_is_refused_with_what_to_write() {
    for (text, words) in [
        ("[model]\nid = 'small'", "write `[[model]]`"),
        (
            "[server]\ngrace_secs = '10m'",
            "of seconds without quotes: `600`",
        ),
        ("[server]\ngrace_secs = '600'", "without quotes: `600`"),
        ("[server]\ngrace_secs = 'soon'", "of seconds"),
        (
            "[server]\nhead_bytes_max = '32768'",
            "without quotes: `32768`",
        ),
        (
            "[admin]\naddress = '127.0.0.1:8080'",
            "`admin.address = \"127.0.0.1:9090\"`",
        ),
        (
            "[[listener]]\naddress = '0.0.0.0:9090'",
            "`admin.address = \"127.0.0.1:9091\"`",
        ),
    ] {
        let found = problems(text);
        assert!(
            found.len() == 1 && found[0].contains(words),
            "{text}: {found:?}"
        );
    }
}

/// The warnings about settings with one provider and one model.
fn warnings(base_url: &str, key: &str, model: bool) -> Vec<String> {
    let model = if model {
        "[[model]]\nid = 'small'\nproviders = [{ provider = 'p' }]\nprice = { input = '1', output = '2' }"
    } else {
        ""
    };
    let text =
        format!("[[provider]]\nname = 'p'\nbase_url = '{base_url}'\napi_key_env = 'KEY'\n{model}");
    let settings = check(&text, &Environment::of([("KEY", key)])).expect("they can be loaded");
    let warnings = settings.warnings().into_iter();
    let named =
        |warning: &Warning| warning.key.starts_with("provider") || warning.key.starts_with("model");
    let warnings = warnings.filter(named);
    warnings
        .map(|warning| format!("{}: {}", warning.key, warning.message))
        .collect()
}

#[test]
fn a_mistake_that_may_be_meant_is_warned_of_with_what_to_write() {
    let good = "https://h.example/v1";
    assert_eq!(warnings(good, "sk-test-only", true), [""; 0]);
    assert_eq!(warnings("https://h.example/openai", "sk", true), [""; 0]);
    for (base_url, key, model, words) in [
        (
            "https://h.example/v1/v1/",
            "sk",
            true,
            "`base_url = \"https://h.example/v1\"`",
        ),
        (
            "https://h.example/v1/chat/completions",
            "sk",
            true,
            "`base_url = \"https://h.example/v1\"`",
        ),
        (
            "http://127.0.0.1:11434",
            "sk",
            true,
            "`base_url = \"http://127.0.0.1:11434/v1\"`",
        ),
        (good, "'sk-test-only'", true, "leave them out"),
        (good, "\"sk-test-only\"", true, "leave them out"),
    ] {
        let found = warnings(base_url, key, model);
        assert!(
            found.len() == 1 && found[0].contains(words),
            "{base_url} {key}: {found:?}"
        );
    }
}

#[test]
fn a_plain_base_url_where_every_listener_has_tls_is_warned_of() {
    let tls = "tls = [{ certificate = '/etc/tollgate/tls/chain.pem', key = '/etc/tollgate/tls/key.pem' }]";
    for (base_url, plain, warned) in [
        ("http://api.example.com", "", true),
        ("https://api.example.com", "", false),
        (
            "http://api.example.com",
            "[[listener]]\naddress = '127.0.0.1:8081'",
            false,
        ),
    ] {
        let text = format!(
            "[service]\nbase_url = '{base_url}'\n[[listener]]\naddress = '127.0.0.1:8443'\n{tls}\n{plain}"
        );
        let (_folder, text) = with_certificates(&text);
        let settings = check(&text, &Environment::default()).expect("they can be loaded");
        let found = settings.warnings().into_iter().any(|warning| {
            warning.key == "service.base_url"
                && warning
                    .message
                    .contains("`base_url = \"https://api.example.com\"`")
        });
        assert_eq!(found, warned, "{base_url} {plain}");
    }
}
