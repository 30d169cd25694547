//! Settings that describe themselves: default, range and words are part of a field's type. Reading, check, JSON Schema and the reference
//! page follow from the type. Facts that a type cannot express are in the comment of the field (`Type:`, `Default:`, `Range:`).

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use tollgate_money::Micros;

use super::{At, Problems, words};

/// A whole number with a default and a range. The name in the file says the unit.
#[derive(Clone, Debug, Default)]
pub struct Whole<const DEFAULT: u64, const MIN: u64, const MAX: u64>(Option<At<u64>>);

impl<const DEFAULT: u64, const MIN: u64, const MAX: u64> Whole<DEFAULT, MIN, MAX> {
    /// The number, or the default; `None` after noting that the number is outside the range.
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

/// A whole number with a range. The number is required, or has no default, or has a default that depends on other settings.
#[derive(Clone, Debug, Default)]
pub struct Number<const MIN: u64, const MAX: u64>(Option<At<u64>>);

impl<const MIN: u64, const MAX: u64> Number<MIN, MAX> {
    /// A number that is not in the file.
    pub fn without_span(number: Option<u64>) -> Self {
        Number(number.map(At::without_span))
    }

    /// The number; `None` without a number, or after noting that the number is outside the range.
    pub fn check(&self, key: impl Into<String>, problems: &mut Problems) -> Option<u64> {
        problems.within(key, self.0.as_ref()?, MIN..=MAX)
    }

    /// The number as written.
    pub fn written(&self) -> Option<&At<u64>> {
        self.0.as_ref()
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        At::deserialize(deserializer).map(|at| Number(Some(at)))
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Number<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "format": "uint64", "minimum": MIN, "maximum": MAX })
    }
}

/// A switch with a default.
#[derive(Clone, Debug, Default)]
pub struct Switch<const DEFAULT: bool>(Option<At<bool>>);

impl<const DEFAULT: bool> Switch<DEFAULT> {
    /// The switch as written.
    pub fn written(&self) -> Option<&At<bool>> {
        self.0.as_ref()
    }

    /// Whether the switch is on.
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

/// The words of a setting, with their values. The default value is the setting's default.
pub trait Words: Copy + Default + PartialEq + 'static {
    /// In the order of messages and the reference.
    const WORDS: &'static [(&'static str, Self)];
}

/// One of a few words, with a default.
#[derive(Clone, Debug, Default)]
pub struct Word<T>(Option<At<String>>, PhantomData<T>);

impl<T: Words> Word<T> {
    /// The value of the word, or the default; `None` after noting that the word is unknown.
    pub fn check(&self, key: impl Into<String>, problems: &mut Problems) -> Option<T> {
        match &self.0 {
            None => Some(T::default()),
            Some(at) => value_of(at, key, problems),
        }
    }

    /// The word as written.
    pub fn written(&self) -> Option<&At<String>> {
        self.0.as_ref()
    }
}

/// The value of a word; `None` after noting that the word is unknown.
fn value_of<T: Words>(
    at: &At<String>,
    key: impl Into<String>,
    problems: &mut Problems,
) -> Option<T> {
    let found = T::WORDS.iter().find(|(word, _)| *word == at.value);
    if found.is_none() {
        let message = format_args!("is `{}`; use {}", at.value, words(&all::<T>()));
        problems.note(key, at, message);
    }
    found.map(|(_, value)| *value)
}

fn all<T: Words>() -> Vec<&'static str> {
    T::WORDS.iter().map(|(word, _)| *word).collect()
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
        json_schema!({ "type": "string", "enum": all::<T>(), "default": default })
    }
}

/// One of a few words, without a default, or with a default that depends on other settings.
#[derive(Clone, Debug, Default)]
pub struct OptionalWord<T>(Option<At<String>>, PhantomData<T>);

impl<T: Words> OptionalWord<T> {
    /// A word that is not in the file.
    pub fn without_span(word: Option<String>) -> Self {
        OptionalWord(word.map(At::without_span), PhantomData)
    }

    /// The value of the word; `None` without a word, or after noting that the word is unknown.
    pub fn check(&self, key: impl Into<String>, problems: &mut Problems) -> Option<T> {
        value_of(self.0.as_ref()?, key, problems)
    }
}

impl<'de, T> Deserialize<'de> for OptionalWord<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        At::deserialize(deserializer).map(|at| OptionalWord(Some(at), PhantomData))
    }
}

impl<T: Words> JsonSchema for OptionalWord<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OptionalWord".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": all::<T>() })
    }
}

/// An amount of credits of zero or more, as a decimal string.
#[derive(Clone, Debug, Default)]
pub struct Amount(Option<At<String>>);

impl Amount {
    /// The amount; `None` without an amount, or after noting that the text is not an amount.
    pub fn check(&self, key: impl Into<String>, problems: &mut Problems) -> Option<Micros> {
        let (key, at) = (key.into(), self.0.as_ref()?);
        let amount: Micros = problems.parse(&key, at)?;
        if amount < Micros::ZERO {
            problems.note(key, at, format_args!("is `{}`; use 0 or more", at.value));
            return None;
        }
        Some(amount)
    }

    /// The amount as written.
    pub fn written(&self) -> Option<&At<String>> {
        self.0.as_ref()
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        At::deserialize(deserializer).map(|at| Amount(Some(at)))
    }
}

impl JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "credits" })
    }
}
