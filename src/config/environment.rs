//! The environment, read once.

use std::collections::BTreeMap;

/// What starts the name of a variable that stands for a setting.
pub const PREFIX: &str = "TOLLGATE__";

/// The variables of the process, or of a test.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables of this process. Those that are no Unicode text cannot be settings and are left out.
    pub fn of_process() -> Environment {
        Environment {
            variables: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        }
    }

    /// These variables alone.
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

    /// The variables that stand for settings, in the order of their names, with the key each stands for.
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
    /// The names alone: a value may be a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

/// A variable that stands for a setting.
pub(crate) struct Override<'a> {
    /// Its name.
    pub(crate) variable: &'a str,
    /// The key it stands for, in lower case.
    pub(crate) path: Vec<String>,
    /// Its value.
    pub(crate) value: &'a str,
}
