//! Settings that describe themselves: default and range are part of the type of the field, and reading, check, JSON Schema and the reference
//! page follow from it.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::{At, Problems, words};

/// A whole number with a default and a range. Its name in the file says the unit.
#[derive(Clone, Debug, Default)]
pub struct Whole<const DEFAULT: u64, const MIN: u64, const MAX: u64>(Option<At<u64>>);

impl<const DEFAULT: u64, const MIN: u64, const MAX: u64> Whole<DEFAULT, MIN, MAX> {
    /// The number, or the default; `None` after noting that it is not in the range.
    pub fn check(&self, key: impl Into<String>, problems: &mut Problems) -> Option<u64> {
        match &self.0 {
            Some(at) => problems.within(key, at, MIN..=MAX),
            None => Some(DEFAULT),
        }
    }

    /// The number as written.
    pub fn written(&self) -> Option<&At<u64>> {
        self.0.as_ref()
    }
}

impl<'de, const DEFAULT: u64, const MIN: u64, const MAX: u64> Deserialize<'de>
    for Whole<DEFAULT, MIN, MAX>
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        At::deserialize(deserializer).map(|at| Whole(Some(at)))
    }
}

impl<const DEFAULT: u64, const MIN: u64, const MAX: u64> JsonSchema for Whole<DEFAULT, MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Whole".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer", "format": "uint64", "minimum": MIN, "maximum": MAX, "default": DEFAULT,
        })
    }
}

/// A switch with a default.
#[derive(Clone, Debug, Default)]
pub struct Switch<const DEFAULT: bool>(Option<At<bool>>);

impl<const DEFAULT: bool> Switch<DEFAULT> {
    /// Whether it is on.
    pub fn is_on(&self) -> bool {
        self.0.as_ref().map_or(DEFAULT, |at| at.value)
    }
}

impl<'de, const DEFAULT: bool> Deserialize<'de> for Switch<DEFAULT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        At::deserialize(deserializer).map(|at| Switch(Some(at)))
    }
}

impl<const DEFAULT: bool> JsonSchema for Switch<DEFAULT> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Switch".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "boolean", "default": DEFAULT })
    }
}

/// The words of a setting, each with its value. The default value is the setting's default.
pub trait Words: Copy + Default + PartialEq + 'static {
    /// In the order of messages and the reference.
    const WORDS: &'static [(&'static str, Self)];
}

/// One of a few words, with a default.
#[derive(Clone, Debug, Default)]
pub struct Word<T>(Option<At<String>>, PhantomData<T>);

impl<T: Words> Word<T> {
    /// The value of the word, or the default; `None` after noting that it is none of them.
    pub fn check(&self, key: impl Into<String>, problems: &mut Problems) -> Option<T> {
        let Some(at) = &self.0 else {
            return Some(T::default());
        };
        let found = T::WORDS.iter().find(|(word, _)| *word == at.value);
        if found.is_none() {
            let message = format_args!("is `{}`; use {}", at.value, words(&Self::words()));
            problems.note(key, at, message);
        }
        found.map(|(_, value)| *value)
    }

    /// The word as written.
    pub fn written(&self) -> Option<&At<String>> {
        self.0.as_ref()
    }

    fn words() -> Vec<&'static str> {
        T::WORDS.iter().map(|(word, _)| *word).collect()
    }
}

impl<'de, T> Deserialize<'de> for Word<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        At::deserialize(deserializer).map(|at| Word(Some(at), PhantomData))
    }
}

impl<T: Words> JsonSchema for Word<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Word".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let default = T::WORDS.iter().find(|(_, value)| *value == T::default());
        let default = default.map(|(word, _)| *word);
        json_schema!({ "type": "string", "enum": Self::words(), "default": default })
    }
}
