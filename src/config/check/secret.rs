//! Secrets, which the settings reference and never contain.

use secrecy::SecretString;
use tollgate_filter::settings::{At, Problems};

use super::CheckContext;

/// The two settings that can reference one secret: a variable, or a file.
pub(super) struct Named<'a> {
    /// The section that contains them.
    pub(super) section: &'a str,
    /// Name and value of the one for a variable.
    pub(super) variable: (&'a str, Option<&'a At<String>>),
    /// Name and value of the one for a file.
    pub(super) file: (&'a str, Option<&'a At<String>>),
}

impl Named<'_> {
    /// The secret; `None` where none is referenced, or the reference is empty, which is recorded as a problem.
    pub(super) fn secret(
        &self,
        context: &CheckContext<'_>,
        problems: &mut Problems,
    ) -> Option<SecretString> {
        let key = |name: &str| format!("{}.{name}", self.section);
        let ((variable, in_variable), (file, in_file)) = (self.variable, self.file);
        let (name, at, text) = match (in_variable, in_file) {
            (None, None) => return None,
            (Some(_), Some(at)) => {
                let message = format_args!("is set beside `{variable}`; keep one of them");
                problems.note(key(file), at, message);
                return None;
            }
            (Some(at), None) => {
                // The text is not repeated: it is likely the key itself.
                if !is_variable(at) {
                    problems.note(
                        key(variable),
                        at,
                        "is not the name of a variable; name the variable that contains the key; do not write the key itself",
                    );
                    return None;
                }
                let Some(value) = context.environment.get(at) else {
                    problems.note(
                        key(variable),
                        at,
                        format_args!(
                            "names the variable `{}`, which is not set; set it",
                            at.value
                        ),
                    );
                    return None;
                };
                (variable, at, value.to_owned())
            }
            (None, Some(at)) => match std::fs::read_to_string(context.path(at)) {
                Ok(text) => (file, at, text),
                Err(error) => {
                    problems.note(
                        key(file),
                        at,
                        format_args!(
                            "names `{}`, which cannot be read ({error}); name a file that the gateway's user may read",
                            context.path(at).display()
                        ),
                    );
                    return None;
                }
            },
        };
        let secret = text.trim();
        if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            problems.note(
                key(name),
                at,
                format_args!(
                    "names `{}`, which contains no key; a key is one word of visible ASCII",
                    at.value
                ),
            );
            return None;
        }
        Some(SecretString::from(secret.to_owned()))
    }
}

pub(super) fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|letter: char| letter.is_ascii_digit())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
