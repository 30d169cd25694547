//! JSON without duplicate members: parsers that keep the first and parsers that keep the last would read different requests.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// Maximum nesting depth of metadata.
const DEPTH_MAX: usize = 64;

/// A JSON value reduced to what metadata needs: numbers and booleans are not kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Json {
    Null,
    /// A number or a boolean.
    Other,
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// Parses an object; `None` for other values, duplicate members and invalid JSON.
    pub(crate) fn object(text: &[u8]) -> Option<BTreeMap<String, Json>> {
        let value: Json = serde_json::from_slice(text).ok()?;
        match value {
            Json::Object(members) => members
                .values()
                .all(|one| depth(one) < DEPTH_MAX)
                .then_some(members),
            _ => None,
        }
    }
}

fn depth(value: &Json) -> usize {
    1 + match value {
        Json::List(list) => list.iter().map(depth).max().unwrap_or(0),
        Json::Object(members) => members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value without duplicate members")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json, A::Error> {
        let mut found = Vec::new();
        while let Some(one) = list.next_element()? {
            found.push(one);
        }
        Ok(Json::List(found))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Json, A::Error> {
        let mut found = BTreeMap::new();
        while let Some((name, value)) = members.next_entry::<String, Json>()? {
            if found.insert(name, value).is_some() {
                return Err(de::Error::custom("duplicate member"));
            }
        }
        Ok(Json::Object(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_parsed_only_if_unambiguous() {
        let deep =
            |levels: usize| format!("{{\"a\":{}1{}}}", "[".repeat(levels), "]".repeat(levels));
        for (text, sound) in [
            (r#"{}"#, true),
            (r#"{"a":1,"b":[null,true,1.5,-2,"x",{"a":1}]}"#, true),
            (&*deep(DEPTH_MAX - 2), true),
            (&*deep(DEPTH_MAX), false),
            (&*deep(100_000), false),
            (r#"{"a":1,"a":1}"#, false),
            (r#"{"b":[{"a":1,"\u0061":2}]}"#, false),
            (r#"[]"#, false),
            (r#""text""#, false),
            (r#"{"a":1} x"#, false),
            (r#"{"a":}"#, false),
            ("", false),
            ("{\"a\":\"\u{0}\"}", false),
        ] {
            let shown: String = text.chars().take(60).collect();
            assert_eq!(Json::object(text.as_bytes()).is_some(), sound, "{shown}");
        }
    }
}
