//! Secrets, which the settings reference and never contain.

use std::path::Path;

use secrecy::SecretString;
use tollgate_filter::settings::{At, Problems};

use crate::context::Inputs;

/// The two settings that can reference a secret: a variable, or a file.
pub struct Named<'a> {
    /// The section of the two settings.
    pub section: &'a str,
    /// Name and value of the setting for a variable.
    pub variable: (&'a str, Option<&'a At<String>>),
    /// Name and value of the setting for a file.
    pub file: (&'a str, Option<&'a At<String>>),
}

impl Named<'_> {
    /// The secret, called a key in problems. `None` without a reference, or for an empty reference, which is recorded as a problem.
    pub fn secret(&self, inputs: &dyn Inputs, problems: &mut Problems) -> Option<SecretString> {
        self.read("key", inputs, problems)
    }

    /// [`Named::secret`] with another noun in problems.
    pub fn read(
        &self,
        noun: &str,
        inputs: &dyn Inputs,
        problems: &mut Problems,
    ) -> Option<SecretString> {
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        self.text(
            (noun, "one word of visible ASCII"),
            is_word,
            inputs,
            problems,
        )
    }

    /// [`Named::secret`] for a secret of any text, without surrounding space.
    pub fn passphrase(&self, inputs: &dyn Inputs, problems: &mut Problems) -> Option<SecretString> {
        self.text(
            ("secret", "a text that is not empty"),
            |_| true,
            inputs,
            problems,
        )
    }

    fn text(
        &self,
        (noun, form): (&str, &str),
        is_good: impl Fn(&str) -> bool,
        inputs: &dyn Inputs,
        problems: &mut Problems,
    ) -> Option<SecretString> {
        let ((variable, in_variable), (file, in_file)) = (self.variable, self.file);
        let (name, at, text) = match (in_variable, in_file) {
            (None, None) => return None,
            (Some(_), Some(at)) => {
                let message = format_args!("is set beside `{variable}`; keep one of them");
                problems.note(self.key(file), at, message);
                return None;
            }
            (Some(at), None) => {
                let text = self.read_variable(at, noun, inputs, problems)?;
                (variable, at, text)
            }
            (None, Some(at)) => (file, at, self.read_file(at, inputs, problems)?),
        };
        let secret = text.trim();
        if is_quoted(secret) {
            let message = format!(
                "names `{}`, which contains a {noun} in quotes; they are sent as a part of it: leave them out",
                at.value
            );
            problems.warn(self.key(name), message);
        }
        if secret.is_empty() || !is_good(secret) {
            problems.note(
                self.key(name),
                at,
                format_args!(
                    "names `{}`, which contains no {noun}; a {noun} is {form}",
                    at.value
                ),
            );
            return None;
        }
        Some(SecretString::from(secret.to_owned()))
    }

    /// The value of the variable that `at` names. `None` with a problem.
    fn read_variable(
        &self,
        at: &At<String>,
        noun: &str,
        inputs: &dyn Inputs,
        problems: &mut Problems,
    ) -> Option<String> {
        let key = self.key(self.variable.0);
        // The text is not repeated: the text is likely the key itself.
        if !is_variable(at) {
            problems.note(
                key,
                at,
                format_args!(
                    "is not the name of a variable; name the variable that contains the {noun}; do not write the {noun} itself"
                ),
            );
            return None;
        }
        let Some(value) = inputs.variable(at) else {
            problems.note(
                key,
                at,
                format_args!(
                    "names the variable `{}`, which is not set; set it",
                    at.value
                ),
            );
            return None;
        };
        Some(value.to_owned())
    }

    /// The content of the file that `at` names. `None` with a problem. Warns of a file that every user can read.
    fn read_file(
        &self,
        at: &At<String>,
        inputs: &dyn Inputs,
        problems: &mut Problems,
    ) -> Option<String> {
        let key = self.key(self.file.0);
        match inputs
            .file(at)
            .and_then(|bytes| std::io::read_to_string(&*bytes))
        {
            Ok(text) => {
                if inputs.is_world_readable(at) {
                    problems.warn(key, world_readable(&inputs.path(at)));
                }
                Some(text)
            }
            Err(error) => {
                problems.note(
                    key,
                    at,
                    format_args!(
                        "names `{}`, which cannot be read ({error}); name a file that the gateway's user may read",
                        inputs.path(at).display()
                    ),
                );
                None
            }
        }
    }

    /// The key of a setting, with the section.
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.section)
    }
}

/// The warning about a file with a secret that every user can read.
pub fn world_readable(path: &Path) -> String {
    format!(
        "names `{}`, which every user of this machine can read; restrict it to the gateway's user (`chmod 600`, or 640 with its group)",
        path.display()
    )
}

/// Whether a text is between two quotes, as in a shell.
fn is_quoted(text: &str) -> bool {
    text.len() >= 2
        && ['"', '\'']
            .iter()
            .any(|quote| text.starts_with(*quote) && text.ends_with(*quote))
}

/// Whether a text can be the name of an environment variable.
pub fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
