//! The reference page (`conf/README.md`) and the shipped file have every setting; the rows of the page follow from the types and comments of
//! the fields.

use serde_json::Value;

use super::*;

/// Walks the schema and passes every key with its description; elements of lists as `[]`, names of tables as `NAME`.
fn keys(root: &Value, here: &Value, path: &str, each: &mut dyn FnMut(&str, &Value)) {
    let here = match here["$ref"].as_str() {
        Some(target) => root
            .pointer(target.trim_start_matches('#'))
            .expect("a definition"),
        None => here,
    };
    if let Some(any) = here["anyOf"].as_array() {
        any.iter().for_each(|one| keys(root, one, path, each));
    }
    let below = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    for (name, value) in here["properties"].as_object().into_iter().flatten() {
        each(&below(name), value);
        keys(root, value, &below(name), each);
    }
    if here["additionalProperties"].is_object() {
        keys(root, &here["additionalProperties"], &below("NAME"), each);
    }
    if here["items"].is_object() {
        keys(root, &here["items"], &format!("{path}[]"), each);
    }
}

#[test]
fn the_reference_names_every_setting_and_no_other() {
    let page = std::fs::read_to_string(root().join("conf/README.md")).expect("the reference");
    let schema = schema(&modules().sections);
    let mut settings = std::collections::BTreeSet::new();
    keys(&schema, &schema, "", &mut |key, value| {
        let holds_keys = {
            let mut inner = 0;
            keys(&schema, value, "", &mut |_, _| inner += 1);
            inner > 0
        };
        if !holds_keys {
            settings.insert(key.to_owned());
        }
    });
    // A row of the reference starts with its key in backquotes.
    let rows: std::collections::BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(key, _)| key.to_owned())
        .collect();
    let missing: Vec<_> = settings.difference(&rows).collect();
    let invented: Vec<_> = rows.difference(&settings).collect();
    assert!(missing.is_empty(), "conf/README.md misses {missing:?}");
    assert!(invented.is_empty(), "conf/README.md invents {invented:?}");
}

#[test]
fn the_reference_names_what_may_differ_between_nodes() {
    let page = std::fs::read_to_string(root().join("docs/cluster.md")).expect("a page");
    let section = page.split_once("## Settings of several gateways");
    let (_, section) = section.expect("a section");
    let (table, _) = section
        .split_once("Settings are compared")
        .expect("its end");
    let schema = schema(&modules().sections);
    let mut settings = std::collections::BTreeSet::new();
    keys(&schema, &schema, "", &mut |key, _| {
        settings.insert(key.to_owned());
    });
    for key in super::super::cluster_digest::MAY_DIFFER {
        assert!(settings.contains(key), "`{key}` is no setting");
        let forms = [
            format!("`{key}`"),
            format!("`[{key}]`"),
            format!("`[[{key}]]`"),
        ];
        let is_named = forms.iter().any(|form| table.contains(form));
        assert!(
            is_named,
            "docs/cluster.md does not say that `{key}` may differ"
        );
    }
}

/// The row of a setting: type, default, range and description as its type and the comment of its field say them. The example is the page's.
fn row(key: &str, line: &str, value: &Value) -> String {
    let mut cells: Vec<String> = line.split('|').map(str::to_owned).collect();
    let comment = Comment::of(value["description"].as_str().unwrap_or_default());
    cells[5] = format!(" {} ", comment.text);
    cells[2] = format!(" {} ", type_of(key, value, &comment));
    cells[3] = format!(" {} ", default_of(value, &comment));
    cells[4] = format!(" {} ", range_of(value, &comment)).replace("  ", " ");
    if let Some(name) = key.strip_prefix("route_change[].") {
        // The same table as `[[route]]`, where a value that is not written is that of the route.
        let default = if name == "path" {
            "required"
        } else {
            "that of the route"
        };
        cells[3] = format!(" {default} ");
        cells[4] = format!(" as `route[].{name}` ");
        cells[5] = format!(" As `route[].{name}`. ");
    }
    if !value["default"].is_null() {
        cells[6] = format!(" `{}` ", example_of(cells[6].trim(), value));
    }
    cells.join("|")
}

/// The comment of a field: what it does, and after an empty line what its type cannot say.
struct Comment {
    text: String,
    labels: std::collections::BTreeMap<&'static str, String>,
}

impl Comment {
    const LABELS: [&str; 3] = ["Type", "Default", "Range"];

    fn of(description: &str) -> Comment {
        let (text, rest) = description.split_once("\n\n").unwrap_or((description, ""));
        let mut labels = std::collections::BTreeMap::new();
        let mut last = None;
        for line in rest.lines() {
            let label = line.split_once(": ").and_then(|(label, text)| {
                let label = Comment::LABELS.into_iter().find(|known| *known == label)?;
                Some((label, text))
            });
            match (label, last) {
                (Some((label, text)), _) => {
                    labels.insert(label, text.to_owned());
                    last = Some(label);
                }
                (None, Some(label)) => {
                    let value: &mut String = labels.entry(label).or_default();
                    value.push(' ');
                    value.push_str(line);
                }
                (None, None) => panic!("`{line}` is not one of {:?}", Comment::LABELS),
            }
        }
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        Comment { text, labels }
    }

    fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

/// The type of a setting. The unit of a number is in its name.
fn type_of<'c>(key: &str, value: &Value, comment: &'c Comment) -> &'c str {
    if let Some(written) = comment.label("Type") {
        return written;
    }
    let name = key.rsplit('.').next().unwrap_or(key);
    let kinds = &value["type"];
    let is = |kind: &str| {
        *kinds == kind
            || kinds
                .as_array()
                .is_some_and(|all| all.contains(&kind.into()))
    };
    match () {
        () if value["enum"].is_array() => "word",
        () if value["format"] == "credits" => "credits, decimal string",
        () if is("string") => "text",
        () if is("boolean") => "switch",
        () if is("integer") => [
            "seconds",
            "days",
            "bytes",
            "tokens",
            "millionths",
            "milliseconds",
        ]
        .into_iter()
        .zip(["secs", "days", "bytes", "tokens", "ppm", "ms"])
        .find(|(_, unit)| name.split('_').any(|part| part == *unit))
        .map_or("number", |(word, _)| word),
        () => panic!("the comment of `{key}` needs a `Type:`"),
    }
}

fn default_of(value: &Value, comment: &Comment) -> String {
    match &value["default"] {
        Value::Null => comment.label("Default").unwrap_or("none").to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(word) => format!("`{word}`"),
        other => format!("`{other}`"),
    }
}

/// The range of the type; what the comment adds relates it to another setting.
fn range_of(value: &Value, comment: &Comment) -> String {
    let (range, separator) = match (&value["minimum"], &value["maximum"], &value["enum"]) {
        (Value::Number(min), Value::Number(max), _) => (format!("{min} to {max}"), ", "),
        (_, _, Value::Array(words)) => {
            let words = words.iter().filter_map(Value::as_str);
            let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
            (words.join(", "), "; ")
        }
        _ if value["format"] == "credits" => ("0 or more".to_owned(), ", "),
        _ => (String::new(), ""),
    };
    match comment.label("Range") {
        Some(beside) => format!("{range}{separator}{beside}"),
        None => range,
    }
}

/// The example as it is where the setting accepts it and it is not the default; otherwise another value of the setting.
fn example_of(cell: &str, value: &Value) -> String {
    let default = &value["default"];
    let accepts = |example: &Value| match example {
        Value::Bool(_) => default.is_boolean(),
        Value::Number(number) => number.as_u64().is_some_and(|number| {
            let bound = |name: &str| value[name].as_u64();
            bound("minimum") <= Some(number) && Some(number) <= bound("maximum")
        }),
        word => value["enum"]
            .as_array()
            .is_some_and(|all| all.contains(word)),
    };
    let usable = |example: &Value| example != default && accepts(example);
    let written = cell.trim_matches('`').parse::<Value>().ok();
    if let Some(written) = written.filter(|written| usable(written)) {
        return written.to_string();
    }
    let others = match default {
        Value::Bool(switch) => vec![Value::Bool(!switch)],
        Value::String(_) => value["enum"].as_array().cloned().unwrap_or_default(),
        _ => vec![value["minimum"].clone(), value["maximum"].clone()],
    };
    let other = others.iter().find(|other| usable(other));
    other.expect("a setting has two values").to_string()
}

#[test]
fn the_reference_follows_from_the_descriptions() {
    let file = root().join("conf/README.md");
    let page = std::fs::read_to_string(&file).expect("the reference");
    let schema = schema(&modules().sections);
    let mut described = std::collections::BTreeMap::new();
    keys(&schema, &schema, "", &mut |key, value| {
        described.insert(key.to_owned(), value.clone());
    });
    let rewritten: Vec<String> = page
        .lines()
        .map(|line| {
            let key = line
                .strip_prefix("| `")
                .and_then(|rest| rest.split_once('`'));
            let key = key.map(|(key, _)| key);
            let value = key.and_then(|key| described.get(key));
            match (key, value) {
                (Some(key), Some(value)) => row(key, line, value),
                _ => line.to_owned(),
            }
        })
        .collect();
    let rewritten = rewritten.join("\n") + "\n";
    #[expect(
        clippy::disallowed_methods,
        reason = "it selects what this test does, and is no setting"
    )]
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&file, rewritten).expect("the reference is written");
        return;
    }
    for (line, wanted) in page.lines().zip(rewritten.lines()) {
        assert_eq!(
            line, wanted,
            "conf/README.md differs from the settings; `UPDATE=1 cargo test --lib reference` rewrites it"
        );
    }
}

#[test]
fn every_row_of_the_reference_has_six_cells() {
    let page = std::fs::read_to_string(root().join("conf/README.md")).expect("the reference");
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        assert_eq!(line.matches('|').count(), 7, "a row has six cells: {line}");
    }
}

#[test]
fn the_reference_has_the_quota_of_each_built_in_rate_class() {
    let page = std::fs::read_to_string(root().join("conf/README.md")).expect("the reference");
    let quoted = |text: &str| -> Vec<String> {
        text.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let list = page
        .split_once("Rate classes: ")
        .and_then(|(_, rest)| rest.split_once(" are built in"));
    let names = quoted(list.expect("the page lists the classes").0);
    let row = page
        .lines()
        .find(|line| line.starts_with("| `limits.classes.NAME.quota`"));
    let cell = row.expect("a row").split('|').nth(3).expect("a default");
    let quotas: Vec<String> = cell
        .split(" for ")
        .next()
        .unwrap_or_default()
        .split(", ")
        .map(|quota| quota.trim().to_owned())
        .collect();
    let limits = tollgate_rate_limit::Limits::default();
    let classes = limits.classes();
    assert_eq!(names.len(), classes.len(), "{names:?}");
    let wanted: Vec<String> = names
        .iter()
        .map(|name| limits.class(name).expect("a built-in class").quota)
        .map(|quota| quota.limit().to_string())
        .collect();
    assert_eq!(quotas, wanted, "of {names:?}");
}

#[test]
fn every_key_of_the_schema_is_described() {
    let schema = schema(&modules().sections);
    keys(&schema, &schema, "", &mut |key, value| {
        let described = value["description"].is_string()
            || value["$ref"].as_str().is_some_and(|target| {
                schema
                    .pointer(target.trim_start_matches('#'))
                    .is_some_and(|definition| definition["description"].is_string())
            });
        assert!(described, "`{key}` has no description: {value}");
    });
}

#[test]
fn the_shipped_file_shows_every_setting() {
    let text = std::fs::read_to_string(root().join("conf/tollgate.toml")).expect("a text");
    let mut modules = modules();
    // The file has no route with a filter that is not built in, and so none of its settings.
    modules
        .sections
        .retain(|section| text.contains(&format!("[{}]", section.name())));
    let schema = schema(&modules.sections);
    keys(&schema, &schema, "", &mut |key, _| {
        let name = key.rsplit(['.', ']']).next().unwrap_or(key);
        let shown = text.lines().any(|line| {
            let line = line.trim_start_matches(['#', ' ']);
            line.starts_with(&format!("{name} ="))
                || line.contains(&format!("{{ {name} ="))
                || line.contains(&format!(", {name} ="))
                || (line.starts_with('[') && line.contains(name))
        });
        assert!(shown, "conf/tollgate.toml does not show `{key}`");
    });
}
