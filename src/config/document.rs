//! The settings file as a tree, merged with overrides from the environment.
//!
//! The tree is validated against the schema before deserialization, so one run reports every unknown key and every value of a wrong type.
//! An invalid part is recorded and removed, and the rest is checked without the part.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use tollgate_filter::settings::{At, Problems, words};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::environment::Override;
use super::schema::{Kind, Node};

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A byte range of the file.
    File(Range<usize>),
    /// A variable of the environment.
    Variable(String),
}

/// The origin of every value, by its key.
pub(crate) type Origins = BTreeMap<String, Origin>;

/// Place of a value outside the file.
const NOWHERE: Range<usize> = 0..0;

/// Parses a file; every syntax error is a problem.
pub(crate) fn parse<'a>(text: &'a str, problems: &mut Problems) -> DeTable<'a> {
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        let at = At {
            value: (),
            span: error.span(),
        };
        let message = error.message().replace('\n', ", ");
        problems.note("", &at, format_args!("is not valid TOML: {message}"));
    }
    table.into_inner()
}

/// Inserts the value of a variable into the tree.
pub(crate) fn apply_env<'a>(
    table: &mut DeTable<'a>,
    root: &Node<'_>,
    over: &Override<'a>,
    origins: &mut Origins,
    problems: &mut Problems,
) {
    let key = over.path.join(".");
    let mut note = |message: String| {
        origins.insert(key.clone(), Origin::Variable(over.variable.to_owned()));
        problems.note_missing(key.clone(), message);
    };
    let Some(node) = root.find(&over.path) else {
        return note("is not a setting; see `conf/README.md` for the names".to_owned());
    };
    let value = match typed(over.value, &node) {
        Ok(value) => value,
        Err(message) => return note(message),
    };
    match place(table, &over.path) {
        Ok(slot) => {
            *slot = Spanned::new(NOWHERE, value);
            origins.insert(key, Origin::Variable(over.variable.to_owned()));
        }
        Err(message) => note(message),
    }
}

/// Parses a variable's text by the type of the setting: text for strings, TOML for the other types.
fn typed<'a>(text: &'a str, node: &Node<'_>) -> Result<DeValue<'a>, String> {
    if node.kind() == Kind::Text {
        return Ok(DeValue::String(Cow::Borrowed(text)));
    }
    let mut value = DeValue::parse(text)
        .map_err(|_| format!("is not {} in TOML; write it as in the file", node.kind()))?
        .into_inner();
    clear_spans(&mut value);
    Ok(value)
}

/// Positions inside a variable's value are not positions of the file.
fn clear_spans(value: &mut DeValue<'_>) {
    match value {
        DeValue::Array(items) => {
            for item in items.iter_mut() {
                clear_spans(item.get_mut());
                *item = Spanned::new(NOWHERE, take(item));
            }
        }
        DeValue::Table(table) => {
            for (_, item) in table.iter_mut() {
                clear_spans(item.get_mut());
                *item = Spanned::new(NOWHERE, take(item));
            }
        }
        _ => {}
    }
}

fn take<'a>(item: &mut Spanned<DeValue<'a>>) -> DeValue<'a> {
    std::mem::replace(item.get_mut(), DeValue::Boolean(false))
}

/// The place of a key in the tree; missing tables and elements on the path are created.
fn place<'t, 'a>(
    table: &'t mut DeTable<'a>,
    path: &[String],
) -> Result<&'t mut Spanned<DeValue<'a>>, String> {
    let (first, rest) = path.split_first().ok_or("does not name a setting")?;
    let slot = table
        .entry(Spanned::new(NOWHERE, Cow::Owned(first.clone())))
        .or_insert_with(|| Spanned::new(NOWHERE, empty(rest)));
    inside(slot, rest)
}

fn inside<'t, 'a>(
    slot: &'t mut Spanned<DeValue<'a>>,
    path: &[String],
) -> Result<&'t mut Spanned<DeValue<'a>>, String> {
    let Some((first, rest)) = path.split_first() else {
        return Ok(slot);
    };
    match slot.get_mut() {
        DeValue::Table(table) => place(table, path),
        DeValue::Array(items) => {
            let count = items.len();
            let at = first
                .parse::<usize>()
                .ok()
                .filter(|&at| at <= count)
                .ok_or_else(|| format!("there is no element `{first}`; use 0 to {count}"))?;
            if at == count {
                items.push(Spanned::new(NOWHERE, empty(rest)));
            }
            let slot = items.get_mut(at).ok_or("there is no such element")?;
            inside(slot, rest)
        }
        other => Err(format!("is inside {}", other.type_str())),
    }
}

/// The type of a missing value on the path to `path`.
fn empty<'a>(path: &[String]) -> DeValue<'a> {
    match path.first() {
        Some(next) if next.bytes().all(|byte| byte.is_ascii_digit()) => {
            DeValue::Array(DeArray::new())
        }
        _ => DeValue::Table(DeTable::new()),
    }
}

/// Takes a section out of the tree, `name` or `table.name`; a missing section is returned empty.
pub(crate) fn take_table<'a>(table: &mut DeTable<'a>, name: &str) -> Spanned<DeTable<'a>> {
    let found = match name.split_once('.') {
        Some((outer, name)) => match table.get_mut(outer).map(Spanned::get_mut) {
            Some(DeValue::Table(outer)) => outer.remove(name),
            _ => None,
        },
        None => table.remove(name),
    };
    let Some(found) = found else {
        return Spanned::new(NOWHERE, DeTable::new());
    };
    let span = found.span();
    match found.into_inner() {
        DeValue::Table(section) => Spanned::new(span, section),
        _ => Spanned::new(NOWHERE, DeTable::new()),
    }
}

/// Validates the tree against the schema: records and removes invalid parts, and stores the origin of the rest.
pub(crate) fn validate(
    table: &mut DeTable<'_>,
    node: &Node<'_>,
    origins: &mut Origins,
    problems: &mut Problems,
) {
    // No key is required at the top level.
    let _ = validate_table(table, node, "", origins, problems);
}

/// Returns whether the table can be deserialized: every required key remains in the table.
fn validate_table(
    table: &mut DeTable<'_>,
    node: &Node<'_>,
    path: &str,
    origins: &mut Origins,
    problems: &mut Problems,
) -> bool {
    let mut wrong = Vec::new();
    for (name, value) in table.iter_mut() {
        let key = if path.is_empty() {
            name.get_ref().to_string()
        } else {
            format!("{path}.{}", name.get_ref())
        };
        let is_valid = match node.child(name.get_ref()) {
            Some(child) => {
                record_origin(origins, &key, value.span());
                validate_value(value, &child, &key, origins, problems)
            }
            None => {
                record_origin(origins, &key, name.span());
                let message = unknown(name.get_ref(), &node.names());
                problems.note(&key, &at(name.span()), message);
                false
            }
        };
        if !is_valid {
            wrong.push(name.get_ref().to_string());
        }
    }
    for name in wrong {
        table.remove(name.as_str());
    }
    let mut whole = true;
    for (name, kind) in node.required() {
        if !table.contains_key(name) {
            problems.note_missing(
                format!("{path}.{name}"),
                format_args!("is missing; write {kind}"),
            );
            whole = false;
        }
    }
    whole
}

fn validate_value(
    value: &mut Spanned<DeValue<'_>>,
    node: &Node<'_>,
    key: &str,
    origins: &mut Origins,
    problems: &mut Problems,
) -> bool {
    let span = value.span();
    let kind = node.kind();
    let found = match (value.get_mut(), kind) {
        (DeValue::String(_), Kind::Text) | (DeValue::Boolean(_), Kind::Switch) => return true,
        (DeValue::Integer(number), Kind::Whole) => {
            match u64::from_str_radix(number.as_str(), number.radix()) {
                Ok(number) if number <= node.greatest() => return true,
                Ok(number) => {
                    let message = format_args!("is {number}; use at most {}", node.greatest());
                    problems.note(key, &at(span), message);
                    return false;
                }
                _ => format!("is {number}"),
            }
        }
        (DeValue::Table(table), Kind::Table) => {
            return validate_table(table, node, key, origins, problems);
        }
        (DeValue::Array(items), Kind::List) => {
            let element = node.element();
            let mut kept = DeArray::new();
            for (index, item) in items.iter_mut().enumerate() {
                let key = format!("{key}.{index}");
                record_origin(origins, &key, item.span());
                // An invalid element is replaced by an empty element where possible, so that the other indices stay.
                if validate_value(item, &element, &key, origins, problems) {
                    kept.push(Spanned::new(item.span(), take(item)));
                } else if element.kind() == Kind::Table {
                    kept.push(Spanned::new(item.span(), DeValue::Table(DeTable::new())));
                }
            }
            *items = kept;
            return true;
        }
        (_, Kind::Other) => return true,
        (other, _) => format!("is {}", article(other.type_str())),
    };
    let message = match (value.get_ref(), kind) {
        (DeValue::Table(_), Kind::List) if node.element().kind() == Kind::Table => {
            format!("{found}; there may be several: write `[[{key}]]`, with two brackets")
        }
        (DeValue::String(text), Kind::Whole) => {
            let number = number_of(text, key.ends_with("_secs"));
            let unit = if key.ends_with("_secs") {
                " of seconds"
            } else {
                ""
            };
            match number {
                Some(number) => {
                    format!("{found}; write a whole number{unit} without quotes: `{number}`")
                }
                None => format!("{found}; write {kind}{unit}, without quotes"),
            }
        }
        _ => format!("{found}; write {kind}"),
    };
    problems.note(key, &at(span), message);
    false
}

/// The number that a text means: `600`, and of seconds also `600s`, `10m`, `1h` and `1d`.
fn number_of(text: &str, of_seconds: bool) -> Option<u64> {
    let text = text.trim();
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "s" if of_seconds => 1,
        "m" if of_seconds => 60,
        "h" if of_seconds => 3_600,
        "d" if of_seconds => 86_400,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn record_origin(origins: &mut Origins, key: &str, span: Range<usize>) {
    if !span.is_empty() {
        origins.entry(key.to_owned()).or_insert(Origin::File(span));
    }
}

fn at(span: Range<usize>) -> At<()> {
    At {
        value: (),
        span: (!span.is_empty()).then_some(span),
    }
}

fn article(kind: &str) -> String {
    let vowel = kind.starts_with(['a', 'e', 'i', 'o', 'u']);
    format!("{} {kind}", if vowel { "an" } else { "a" })
}

/// The message for an unknown key, with the nearest known one.
fn unknown(name: &str, known: &[&str]) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (distance(name, candidate), *candidate))
        .min()
        .filter(|(far, candidate)| *far <= 2 || (candidate.starts_with(name) && name.len() > 2));
    match nearest {
        Some((_, candidate)) => format!("is not a setting; did you mean `{candidate}`?"),
        None => format!("is not a setting; use {}", words(known)),
    }
}

/// The number of letters to change, add or drop between two words (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let cost = before + usize::from(a != *b);
            before = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(before + 1);
        }
    }
    row[other.len()]
}
