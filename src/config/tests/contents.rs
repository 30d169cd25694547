//! Files that settings name: a changed content is a difference like a changed name.

use super::*;

#[test]
fn a_secret_that_changes_inside_its_file_is_a_difference() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the folder takes files");
        path
    };
    write("key", "sk-before");
    write("secret", "0123456789");
    let file = write(
        "t.toml",
        "[[provider]]\nname = 'a'\nbase_url = 'http://127.0.0.1:9/v1'\napi_key_file = 'key'\n\
         [payments.paypal]\nclient_id_env = 'ID'\nclient_secret_file = 'secret'\n[credits]\nusd_per_credit = '0.01'\n",
    );
    let load = || {
        let environment = Environment::of([("ID", "client")]);
        super::load(&file, &environment, &modules()).expect("good settings")
    };
    let before = load();
    let differences = |new: &Settings| -> Vec<(String, DifferenceKind)> {
        let found = before
            .source
            .differences(&new.source, &modules(), |_| false);
        found.into_iter().map(|one| (one.key, one.change)).collect()
    };
    assert_eq!(differences(&load()), []);
    write("key", "sk-after");
    write("secret", "9876543210");
    let changed = |key: &str| (key.to_owned(), DifferenceKind::Changed);
    assert_eq!(
        differences(&load()),
        [
            changed("provider[a].api_key_file"),
            changed("payments.paypal.client_secret_file"),
        ]
    );
    write("key", "sk-before");
    write("secret", "0123456789");
    assert_eq!(differences(&load()), [], "restored");
}
