//! OpenAPI: the schema (JSON Schema 2020-12) of a Rust type.

use serde_json::Value;

/// The schema of a Rust type as serialised: optional members are absent, never null.
pub(super) fn of<T: schemars::JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    tidy(&mut schema);
    schema
}

/// Removes Rust specifics: type names, integer widths, and null for absent members.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.get("title").is_some_and(Value::is_string) {
                members.remove("title");
            }
            let width = |format: &str| format.starts_with("uint") || format.starts_with("int");
            if members
                .get("format")
                .and_then(Value::as_str)
                .is_some_and(width)
            {
                members.remove("format");
            }
            if members.get("default").is_some_and(Value::is_null) {
                members.remove("default");
            }
            if let Some(Value::Array(types)) = members.get("type")
                && let [one, null] = &types[..]
                && null == "null"
            {
                let one = one.clone();
                members.insert("type".to_owned(), one);
            }
            members.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}
