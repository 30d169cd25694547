//! `tollgate check`: files and addresses of the settings on the machine.

use std::os::unix::fs::PermissionsExt;

use tollgate_testing::Certificate;

use super::*;

impl Workspace {
    /// The exit code and output of `tollgate check` with the lines `before` and `after` around the usual settings.
    fn check(&self, before: &str, after: &str) -> (u8, String) {
        let settings = SETTINGS.replace("access_log = 'none'", "");
        let log = if after.contains("access_log") {
            ""
        } else {
            "[telemetry]\naccess_log = 'none'\n"
        };
        let settings = settings.replace("[telemetry]", "");
        std::fs::write(self.file(), format!("{before}\n{settings}\n{log}{after}"))
            .expect("written");
        self.run("check").expect("it runs")
    }

    pub(super) fn write(&self, name: &str, text: &str, mode: u32) {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its owner");
    }
}

const LISTENER: &str =
    "[[listener]]\naddress = '127.0.0.1:0'\ntls = [{ certificate = 'a.pem', key = 'key.pem' }]";

#[test]
fn check_refuses_folders_that_do_not_exist() {
    let workspace = Workspace::new();
    for (after, key) in [
        ("[store]\nurl = 'sqlite:missing/t.db'", "store.url"),
        (
            "[telemetry]\naccess_log = 'missing/access.log'",
            "telemetry.access_log",
        ),
    ] {
        let (code, text) = workspace.check("", after);
        assert_eq!(code, FAILURE, "{text}");
        for word in [key, "t.toml:", "whose folder does not exist; create it"] {
            assert!(text.contains(word), "no `{word}` in {text}");
        }
    }
    let (code, text) = workspace.check("", "[store]\nurl = 'sqlite:/sys/kernel/t.db'");
    assert_eq!(code, SUCCESS, "another user may run the gateway: {text}");
    assert!(
        text.contains("warning: store.url: this user cannot create files in `/sys/kernel`"),
        "{text}"
    );
}

#[test]
fn check_warns_of_certificates_that_clients_refuse() {
    let workspace = Workspace::new();
    let base = "[service]\nbase_url = 'https://api.example.com'";
    for (names, end, before, warning) in [
        (
            ["localhost"],
            (2020, 1, 1),
            LISTENER,
            Some("has expired at 2020-01-01"),
        ),
        (["localhost"], (4000, 1, 1), LISTENER, None),
        (
            ["localhost"],
            (4000, 1, 1),
            &format!("{base}\n{LISTENER}"),
            Some("warning: service.base_url: names the host `api.example.com`"),
        ),
        (
            ["*.example.com"],
            (4000, 1, 1),
            &format!("{base}\n{LISTENER}"),
            None,
        ),
    ] {
        let made = Certificate::until(&names, end);
        workspace.write("a.pem", &made.cert_pem, 0o644);
        workspace.write("key.pem", &made.key_pem, 0o600);
        let (code, text) = workspace.check(before, "");
        assert_eq!(code, SUCCESS, "{text}");
        match warning {
            None => assert!(!text.contains("warning"), "{text}"),
            Some(warning) => assert!(text.contains(warning), "{text}"),
        }
    }
}

#[test]
fn check_warns_of_keys_that_every_user_can_read() {
    let workspace = Workspace::new();
    let made = Certificate::for_localhost();
    workspace.write("a.pem", &made.cert_pem, 0o644);
    let provider = "[[provider]]\nname = 'other'\nbase_url = 'http://127.0.0.1:9/v1'\napi_key_file = 'provider.key'";
    for (tls, api, warnings) in [
        (0o600, 0o600, vec![]),
        (0o640, 0o640, vec![]),
        (0o644, 0o600, vec!["warning: listener.0.tls.0.key: names"]),
        (
            0o600,
            0o604,
            vec!["warning: provider.0.api_key_file: names"],
        ),
    ] {
        workspace.write("key.pem", &made.key_pem, tls);
        workspace.write("provider.key", "sk-of-a-test-only", api);
        let (code, text) = workspace.check(&format!("{LISTENER}\n{provider}"), "");
        assert_eq!(code, SUCCESS, "{text}");
        assert_eq!(
            text.matches("every user of this machine can read").count(),
            warnings.len(),
            "{text}"
        );
        for warning in warnings {
            assert!(text.contains(warning), "{text}");
        }
    }
}

#[test]
fn check_warns_of_a_model_whose_providers_are_all_standbys() {
    let workspace = Workspace::new();
    for (weights, warns) in [([0, 0], true), ([0, 1], false)] {
        let [one, two] = weights;
        let model = format!(
            "[[provider]]\nname = 'other'\nbase_url = 'http://127.0.0.1:9/v1'\n[[model]]\nid = 'both'\n\
             providers = [{{ provider = 'local', weight = {one} }}, {{ provider = 'other', weight = {two} }}]\n\
             price = {{ input = '1', output = '2' }}"
        );
        let (code, text) = workspace.check("", &model);
        assert_eq!(code, SUCCESS, "{text}");
        assert_eq!(
            text.contains("warning: model.1.providers: have the weight 0"),
            warns,
            "{text}"
        );
    }
}
