//! JSON with case-insensitive member names, as decoders such as Go's `encoding/json` read it.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A JSON text with all member names in lower case; of duplicates the last one wins.
pub fn parse(text: &[u8]) -> Option<Value> {
    let Folded(value) = serde_json::from_slice(text).ok()?;
    Some(value)
}

struct Folded(Value);

/// A name under Unicode simple case folding, as far as it can become ASCII.
fn fold_case(name: &str) -> String {
    let letter = |letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        _ => letter.to_ascii_lowercase(),
    };
    name.chars().map(letter).collect()
}

impl<'de> Deserialize<'de> for Folded {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Folder).map(Folded)
    }
}

struct Folder;

impl<'de> Visitor<'de> for Folder {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Map::new();
        while let Some((name, Folded(value))) = map.next_entry::<String, Folded>()? {
            members.insert(fold_case(&name), value);
        }
        Ok(Value::Object(members))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Folded(item)) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_last_of_several_names_that_differ_in_case_counts_at_every_level() {
        let text = r#"{"model":"a","MODEL":"b","me\u017f\u017fAGE\u017f":[{"Role":1.5,"roLE":null}],"n":-1,"N":true}"#;
        let expected = json!({"model": "b", "messages": [{"role": null}], "n": true});
        assert_eq!(parse(text.as_bytes()), Some(expected));
        assert_eq!(parse(b"{"), None);
    }
}
