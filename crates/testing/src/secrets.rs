//! Secrets used by tests, and the search for leaks in output.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Mutex;

/// Shorter ones occur by chance.
const SECRET_BYTES_MIN: usize = 8;

/// Every secret a test has used, to be searched for in the output of the programs under test.
#[derive(Debug, Default)]
pub struct Secrets(Mutex<Vec<(String, String)>>);

impl Secrets {
    /// No secret yet.
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Records that `secret` was used, as what (`name` is for the message), and returns it.
    ///
    /// It is appended, as a line, to the file that the variable `TOLLGATE_TEST_SECRETS` names, where that is set: the test run searches all
    /// output for it.
    ///
    /// # Panics
    ///
    /// When the secret is shorter than 8 bytes: finding it would prove nothing.
    pub fn used<'a>(&self, name: &str, secret: &'a str) -> &'a str {
        assert!(
            secret.len() >= SECRET_BYTES_MIN,
            "secret `{name}` is too short to be searched for"
        );
        let mut known = self.0.lock().expect("no panic under the lock");
        if !known.iter().any(|(_, value)| value == secret) {
            known.push((name.to_owned(), secret.to_owned()));
            publish(secret);
        }
        secret
    }

    /// The secrets found in `text`: one line for each, with the secret's name and its line, the secret itself redacted. Searches for the
    /// plain text, and for its URL and JSON encodings.
    pub fn found_in(&self, text: &str) -> Vec<String> {
        let known = self.0.lock().expect("no panic under the lock");
        let mut found = Vec::new();
        for (name, secret) in known.iter() {
            for form in forms(secret) {
                if let Some(line) = text.lines().find(|line| line.contains(&form)) {
                    found.push(format!("{name} in: {}", line.replace(&form, "[secret]")));
                }
            }
        }
        found
    }

    /// Fails when `text` contains a secret; `place` names the source of the text.
    ///
    /// # Panics
    ///
    /// The intended panic.
    pub fn assert_absent(&self, place: &str, text: &str) {
        let found = self.found_in(text);
        assert!(
            found.is_empty(),
            "{place} shows secrets:\n{}",
            found.join("\n")
        );
    }
}

fn publish(secret: &str) {
    #[expect(clippy::disallowed_methods, reason = "a setting of the test run")]
    let Some(path) = std::env::var_os("TOLLGATE_TEST_SECRETS") else {
        return;
    };
    // One write for the whole line: tests run in parallel.
    let line = format!("{secret}\n");
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .expect("the file of TOLLGATE_TEST_SECRETS can be added to");
}

fn forms(secret: &str) -> Vec<String> {
    let mut url = String::with_capacity(secret.len());
    for byte in secret.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                url.push(char::from(byte))
            }
            other => url.push_str(&format!("%{other:02X}")),
        }
    }
    let json = serde_json::Value::from(secret).to_string();
    let mut forms = vec![secret.to_owned(), url, json[1..json.len() - 1].to_owned()];
    forms.sort();
    forms.dedup();
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_each_way_of_writing_it() {
        let secrets = Secrets::new();
        secrets.used("a password", "pass word\"1");
        for text in [
            "x pass word\"1 y",
            "?p=pass%20word%221",
            r#"{"p":"pass word\"1"}"#,
        ] {
            assert_eq!(secrets.found_in(text).len(), 1, "not found in {text}");
        }
        assert!(secrets.found_in("nothing here").is_empty());
    }

    #[test]
    fn a_leak_report_does_not_repeat_the_secret() {
        let secrets = Secrets::new();
        secrets.used("a key", "sk-svc-12345678");
        let found = secrets.found_in("line one\nkey=sk-svc-12345678 end");
        assert_eq!(found, ["a key in: key=[secret] end"]);
    }
}
