//! The environment: the variables of the process, and the variables of the file `server.environment_file`.

use std::collections::BTreeMap;

use tollgate_module::is_variable;

/// The prefix of variables that override a setting.
pub const PREFIX: &str = "TOLLGATE__";

/// The variables of the process, or of a test.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process. Variables outside Unicode cannot be settings and are left out.
    pub fn of_process() -> Environment {
        Environment {
            variables: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        }
    }

    /// Only these variables.
    pub fn of<const N: usize>(variables: [(&str, &str); N]) -> Environment {
        Environment {
            variables: variables
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    /// This environment with the variables of a file, which take precedence. Each line of `text` is `NAME=value`, with or without quotes
    /// around the value, as in systemd's `EnvironmentFile=`. Empty lines and lines that begin with `#` or `;` are ignored.
    ///
    /// # Errors
    ///
    /// The number of a line, from 1, and its fault.
    pub(super) fn with_file(&self, text: &str) -> Result<Environment, (usize, &'static str)> {
        let mut variables = self.variables.clone();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            let read = variable(line).map_err(|message| (at + 1, message))?;
            variables.extend([read]);
        }
        Ok(Environment { variables })
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The variables that override settings, ordered by name, with the key of each.
    pub(crate) fn settings(&self) -> impl Iterator<Item = Override<'_>> {
        self.variables.iter().filter_map(|(name, value)| {
            let path = name.strip_prefix(PREFIX)?;
            Some(Override {
                variable: name,
                path: path.split("__").map(str::to_ascii_lowercase).collect(),
                value,
            })
        })
    }
}

/// A variable of a line.
fn variable(line: &str) -> Result<(String, String), &'static str> {
    const NONE: &str = "is no variable; write `NAME=value`";
    let (name, value) = line.split_once('=').ok_or(NONE)?;
    let name = name.trim_end();
    if !is_variable(name) {
        return Err(NONE);
    }
    let value = value.trim_start();
    let inner = |quote| {
        let rest = value.strip_prefix(quote)?;
        Some(
            rest.strip_suffix(quote)
                .filter(|rest| !rest.contains(quote)),
        )
    };
    let value = match inner('\'').or_else(|| inner('"')) {
        None => value,
        Some(Some(inner)) => inner,
        Some(None) => {
            return Err("has a quote without its end; write `NAME='value'` on one line");
        }
    };
    // systemd has escapes and continued lines. A value that means different things to the two is refused.
    if value.contains('\\') {
        return Err("contains a backslash; secrets with one have to be in a file of their own");
    }
    Ok((name.to_owned(), value.to_owned()))
}

/// Entry point of fuzzing: a file with variables.
pub(crate) fn fuzz(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match Environment::default().with_file(text) {
        Err((line, _)) => assert!((1..=text.lines().count()).contains(&line), "line {line}"),
        Ok(read) => {
            for (name, value) in &read.variables {
                assert!(is_variable(name), "`{name}` is no name of a variable");
                assert!(!value.contains(['\n', '\\']), "`{value}`");
                let again = variable(&format!("{name}={value}"));
                assert!(again.is_err() || again.is_ok_and(|(again, _)| again == *name));
            }
            // Those that override settings.
            assert!(read.settings().all(|one| one.variable.starts_with(PREFIX)));
        }
    }
}

impl std::fmt::Debug for Environment {
    /// Only the names: a value may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// A variable that overrides a setting.
pub(crate) struct Override<'a> {
    /// Its name.
    pub(crate) variable: &'a str,
    /// The key of the setting, in lower case.
    pub(crate) path: Vec<String>,
    pub(crate) value: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_a_file_take_precedence_over_those_of_the_process() {
        let process = Environment::of([("ONE", "1"), ("TWO", "2")]);
        let text = "# Keys.\n\n; more\nTWO = two\r\nTHREE=\"a b\"\n  FOUR='it=\"4\"'\nFIVE=\n";
        let read = process.with_file(text).expect("good lines");
        let pairs = ["ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX"].map(|name| read.get(name));
        let wanted = [
            Some("1"),
            Some("two"),
            Some("a b"),
            Some("it=\"4\""),
            Some(""),
            None,
        ];
        assert_eq!(pairs, wanted);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_without_its_text() {
        for (text, line, word) in [
            ("A=1\nsk-secret", 2, "NAME=value"),
            ("2A=1", 1, "NAME=value"),
            ("A B=1", 1, "NAME=value"),
            ("\nA='1", 2, "quote"),
            ("A='1'2'", 1, "quote"),
            ("A=\"", 1, "quote"),
            ("A=1\\", 1, "backslash"),
        ] {
            let refused = Environment::default().with_file(text);
            let (at, message) = refused.expect_err(text);
            assert_eq!(at, line, "{text}");
            assert!(message.contains(word), "{text}: {message}");
        }
    }
}
