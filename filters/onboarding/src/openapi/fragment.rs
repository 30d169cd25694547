//! OpenAPI: fragments of YAML as JSON values, with their parts and placeholders filled in.

use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Value};

/// The member that names the parts of a mapping.
const PARTS: &str = "<<";

/// The text of a fragment as a JSON value.
///
/// # Panics
///
/// The text is not YAML with string keys. Fragments are constants of the program, and a test of this crate reads each.
pub(super) fn parse(text: &str) -> Value {
    let documents = Yaml::load_from_str(text).expect("a fragment is YAML");
    documents.first().map(json).unwrap_or_default()
}

fn json(yaml: &Yaml<'_>) -> Value {
    match yaml {
        Yaml::Value(Scalar::Boolean(flag)) => Value::from(*flag),
        Yaml::Value(Scalar::Integer(number)) => Value::from(*number),
        Yaml::Value(Scalar::FloatingPoint(number)) => Value::from(number.into_inner()),
        Yaml::Value(Scalar::String(text)) => Value::from(&**text),
        Yaml::Sequence(items) => items.iter().map(json).collect(),
        Yaml::Mapping(members) => members
            .iter()
            .map(|(name, member)| {
                let name = name.as_str().expect("a fragment has string keys");
                (name.to_owned(), json(member))
            })
            .collect(),
        _ => Value::Null,
    }
}

/// Adds the members of `more` to `document`, at every depth.
pub(super) fn merge(document: &mut Value, more: Value) {
    match (document, more) {
        (Value::Object(members), Value::Object(more)) => {
            for (name, member) in more {
                merge(members.entry(name).or_insert(Value::Null), member);
            }
        }
        (document, more) => *document = more,
    }
}

/// What fragments are filled with.
pub(super) struct Filling {
    /// Mappings by name, for `<<: name`.
    pub(super) parts: Value,
    /// Values by name, for `{{name}}`.
    pub(super) values: Map<String, Value>,
}

impl Filling {
    /// The fragment with its parts and values.
    ///
    /// A string that consists of one placeholder becomes the value; within a longer string, the value is a string. A name without a value
    /// stays as written.
    pub(super) fn fill(&self, fragment: &Value) -> Value {
        match fragment {
            Value::String(text) => self.string(text),
            Value::Array(items) => items.iter().map(|item| self.fill(item)).collect(),
            Value::Object(members) => self.object(members),
            other => other.clone(),
        }
    }

    fn object(&self, members: &Map<String, Value>) -> Value {
        let mut filled = Map::new();
        let parts = match members.get(PARTS) {
            Some(Value::Array(names)) => names.iter().collect(),
            one => Vec::from_iter(one),
        };
        for part in parts.into_iter().filter_map(Value::as_str) {
            if let Value::Object(members) = self.fill(&self.parts[part]) {
                filled.extend(members);
            }
        }
        let own = members.iter().filter(|(name, _)| *name != PARTS);
        filled.extend(own.map(|(name, member)| (self.text(name), self.fill(member))));
        Value::Object(filled)
    }

    fn string(&self, text: &str) -> Value {
        let name = text
            .strip_prefix("{{")
            .and_then(|text| text.strip_suffix("}}"));
        let value = name.and_then(|name| self.values.get(name));
        value
            .cloned()
            .unwrap_or_else(|| Value::from(self.text(text)))
    }

    fn text(&self, text: &str) -> String {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let named = after.split_once("}}");
            let value =
                named.and_then(|(name, after)| Some((self.values.get(name)?.as_str()?, after)));
            filled += before;
            let (value, after) = value.unwrap_or(("{{", after));
            filled += value;
            rest = after;
        }
        filled + rest
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn parts_come_before_own_members_and_values_keep_their_type() {
        let values = json!({"name": "a: \"b\" {{count}}", "count": 3, "key": "k"});
        let filling = Filling {
            parts: parse("one: {a: 1, b: '{{count}}'}\ntwo: {<<: one, c: [true, null, 1.5]}"),
            values: values.as_object().expect("an object").clone(),
        };
        let fragment = parse(
            "x_{{key}}: {<<: two, a: 'is {{name}}.'}\ny: {<<: [one, two], d: '{{unknown}} {{'}",
        );
        assert_eq!(
            filling.fill(&fragment),
            json!({
                "x_k": {"a": "is a: \"b\" {{count}}.", "b": 3, "c": [true, null, 1.5]},
                "y": {"a": 1, "b": 3, "c": [true, null, 1.5], "d": "{{unknown}} {{"},
            })
        );
    }

    #[test]
    fn a_merge_adds_at_every_depth() {
        let mut document = json!({"a": {"b": 1}});
        merge(&mut document, json!({"a": {"c": 2}, "d": [1]}));
        assert_eq!(document, json!({"a": {"b": 1, "c": 2}, "d": [1]}));
    }
}
