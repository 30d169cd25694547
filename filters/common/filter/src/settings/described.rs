//! Settings that describe themselves: default and range are part of the type of the field, and reading, check, JSON Schema and the reference
//! page follow from it.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::{At, Problems};

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
