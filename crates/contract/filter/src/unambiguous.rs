//! A JSON parser that refuses duplicate member names at any depth.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// A value in which no object has duplicate names, at any depth.
///
/// Of two members with an equal name some programs take the first and some the last. A payment that is verified here and settled elsewhere
/// must have a single meaning.
#[derive(Debug)]
pub struct Unambiguous(
    /// The value.
    pub Value,
);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unambiguous, D::Error> {
        deserializer.deserialize_any(Reader).map(Unambiguous)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((name, Unambiguous(value))) = members.next_entry::<String, _>()? {
            if map.contains_key(&name) {
                return Err(A::Error::custom("duplicate member name"));
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_member_is_refused_at_any_depth() {
        for (text, sound) in [
            (
                r#"{"a":1,"b":[{"a":1},{"a":2}],"c":null,"d":-1.5,"e":true}"#,
                true,
            ),
            (r#"{"a":1,"a":1}"#, false),
            (r#"{"x":{"a":1,"b":2,"a":3}}"#, false),
            (r#"[{"a":1},[{"b":1,"b":2}]]"#, false),
            (r#"{"a":1,"\u0061":2}"#, false),
        ] {
            let read = serde_json::from_str::<Unambiguous>(text);
            assert_eq!(read.is_ok(), sound, "{text}");
            if let Ok(Unambiguous(value)) = read {
                let plain: Value = serde_json::from_str(text).expect("JSON");
                assert_eq!(value, plain);
            }
        }
    }
}
