//! The JSON Schema of the settings, and its traversal.

use std::fmt;

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};
use tollgate_module::SectionType;

use super::raw::RawSettings;

/// The JSON Schema (draft 2020-12) of the settings file, with these sections of modules.
pub fn schema(sections: &[SectionType]) -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let of_modules: Vec<_> = sections
        .iter()
        .map(|section| (section.name(), section.schema(&mut generator).to_value()))
        .collect();
    let mut schema = generator.into_root_schema_for::<RawSettings>().to_value();
    for (name, section) in of_modules {
        insert(&mut schema, name, section);
    }
    schema
}

/// Adds a property of this name; `table.name` goes to the property `table`, created if absent.
fn insert(schema: &mut Value, name: &str, property: Value) {
    let (name, table) = match name.split_once('.') {
        Some((table, name)) => (name, Some(table)),
        None => (name, None),
    };
    let mut properties = &mut schema["properties"];
    if let Some(table) = table {
        if properties[table].is_null() {
            let description = match table {
                "payments" => "The payment providers.",
                _ => "Settings of modules that other programs add.",
            };
            properties[table] = json!({
                "description": description,
                "type": "object",
                "additionalProperties": false,
                "default": {},
            });
        }
        properties = &mut properties[table]["properties"];
    }
    properties[name] = property;
}

/// A node of the schema.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    root: &'a Value,
    here: &'a Value,
}

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A string.
    Text,
    /// An integer of zero or more.
    Whole,
    /// `true` or `false`.
    Switch,
    /// An array.
    List,
    Table,
    /// A value that only the deserialization can check.
    Other,
}

impl fmt::Display for Kind {
    /// With its article, as in "write a string".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Text => "a string",
            Kind::Whole => "a whole number of 0 or more",
            Kind::Switch => "`true` or `false`",
            Kind::List => "a list",
            Kind::Table => "a table",
            Kind::Other => "a value",
        })
    }
}

impl<'a> Node<'a> {
    /// The whole schema.
    pub(crate) fn root(schema: &'a Value) -> Node<'a> {
        Node {
            root: schema,
            here: schema,
        }
    }

    fn at(&self, here: &'a Value) -> Node<'a> {
        let mut here = here;
        // An optional value is "any of: type, null", and a description beside a reference wraps the reference.
        loop {
            if let Some(target) = here.get("$ref").and_then(Value::as_str) {
                let pointer = target.trim_start_matches('#');
                here = self.root.pointer(pointer).unwrap_or(&Value::Null);
            } else if let Some(some) = here
                .get("anyOf")
                .and_then(Value::as_array)
                .and_then(|any| any.iter().find(|one| one["type"] != "null"))
            {
                here = some;
            } else {
                return Node {
                    root: self.root,
                    here,
                };
            }
        }
    }

    /// The type of this node.
    pub(crate) fn kind(&self) -> Kind {
        let kind = match &self.here["type"] {
            Value::Array(kinds) => kinds
                .iter()
                .filter_map(Value::as_str)
                .find(|kind| *kind != "null"),
            other => other.as_str(),
        };
        match kind {
            Some("string") => Kind::Text,
            Some("integer") => Kind::Whole,
            Some("boolean") => Kind::Switch,
            Some("array") => Kind::List,
            Some("object") => Kind::Table,
            _ => Kind::Other,
        }
    }

    /// The node of a key of this table.
    pub(crate) fn child(&self, name: &str) -> Option<Node<'a>> {
        if let Some(child) = self.here["properties"].get(name) {
            return Some(self.at(child));
        }
        let others = self.here.get("additionalProperties")?;
        others.is_object().then(|| self.at(others))
    }

    /// The node of the elements of this list.
    pub(crate) fn element(&self) -> Node<'a> {
        self.at(&self.here["items"])
    }

    /// The node at a path; elements of lists are named by number.
    pub(crate) fn find(&self, path: &[String]) -> Option<Node<'a>> {
        path.iter().try_fold(*self, |node, name| match node.kind() {
            Kind::Table => node.child(name),
            Kind::List => name.parse::<usize>().ok().map(|_| node.element()),
            _ => None,
        })
    }

    /// The keys of this table.
    pub(crate) fn names(&self) -> Vec<&'a str> {
        self.here["properties"]
            .as_object()
            .map(|keys| keys.keys().map(String::as_str).collect())
            .unwrap_or_default()
    }

    /// The required keys of this table, each with its node.
    pub(crate) fn required(&self) -> Vec<(&'a str, Kind)> {
        let names = self.here["required"].as_array();
        names
            .into_iter()
            .flatten()
            .filter_map(|name| Some((name.as_str()?, self.child(name.as_str()?)?.kind())))
            .collect()
    }

    /// The maximum of this integer.
    pub(crate) fn greatest(&self) -> u64 {
        match self.here["format"].as_str() {
            Some("uint32") => u32::MAX.into(),
            // The maximum of a TOML integer.
            _ => i64::MAX as u64,
        }
    }
}
