//! The environment, read once.

use std::collections::BTreeMap;

/// The prefix of variables that override a setting.
pub const PREFIX: &str = "TOLLGATE__";

/// The variables of the process, or of a test.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process. Those that are not Unicode cannot be settings and are left out.
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

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The variables that override settings, in the order of their names, with the key of each.
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
    /// Its value.
    pub(crate) value: &'a str,
}
