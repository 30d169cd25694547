//! Fields of filters in the access log: few, short, and in memory only for exchanges with log fields.

use std::fmt;

use tollgate_money::Micros;

/// The largest number of fields of all filters of an exchange.
const FIELDS_MAX: usize = 16;
/// The maximum length of a text in bytes; the rest is cut off.
const TEXT_BYTES_MAX: usize = 128;

/// The log fields of an exchange. Nothing is allocated before the first field.
#[derive(Clone, Debug, Default)]
pub struct LogFields(Option<Box<Fields>>);

#[derive(Clone, Debug, Default)]
struct Fields {
    fields: Vec<LogField>,
    dropped: u32,
}

/// A field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogField {
    /// The name of the filter.
    pub filter: &'static str,
    /// The name of the field.
    pub name: &'static str,
    /// The value.
    pub value: LogValue,
}

/// The value of a log field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogValue {
    /// A constant.
    Word(&'static str),
    /// A text, at most 128 bytes.
    Text(Box<str>),
    /// A whole number.
    Number(i64),
    /// A count.
    Count(u64),
    /// An amount, in credits.
    Credits(Micros),
    /// A truth value.
    Flag(bool),
}

impl LogFields {
    /// Sets a field, in place of an earlier field of the filter with the name. The seventeenth field is dropped and counted.
    pub fn set(&mut self, filter: &'static str, name: &'static str, value: LogValue) {
        let Fields { fields, dropped } = &mut **self.0.get_or_insert_default();
        let known = |field: &LogField| (field.filter, field.name) == (filter, name);
        if let Some(at) = fields.iter().position(known) {
            fields[at].value = value;
        } else if fields.len() == FIELDS_MAX {
            *dropped += 1;
        } else {
            // Fields of a filter stand together, in the order of writing.
            let behind = fields.iter().rposition(|field| field.filter == filter);
            let at = behind.map_or(fields.len(), |at| at + 1);
            let field = LogField {
                filter,
                name,
                value,
            };
            fields.insert(at, field);
        }
    }

    /// The fields, grouped by filter; empty for nearly every exchange.
    pub fn fields(&self) -> &[LogField] {
        self.0.as_ref().map_or(&[], |fields| &fields.fields)
    }

    /// The number of dropped fields.
    pub fn dropped(&self) -> u32 {
        self.0.as_ref().map_or(0, |fields| fields.dropped)
    }
}

impl LogValue {
    /// A text, cut off after 128 bytes.
    pub fn text(text: impl fmt::Display) -> LogValue {
        let mut text = text.to_string();
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        LogValue::Text(text.into())
    }
}

impl From<&'static str> for LogValue {
    fn from(word: &'static str) -> LogValue {
        LogValue::Word(word)
    }
}

impl From<i64> for LogValue {
    fn from(number: i64) -> LogValue {
        LogValue::Number(number)
    }
}

impl From<u64> for LogValue {
    fn from(count: u64) -> LogValue {
        LogValue::Count(count)
    }
}

impl From<Micros> for LogValue {
    fn from(amount: Micros) -> LogValue {
        LogValue::Credits(amount)
    }
}

impl From<bool> for LogValue {
    fn from(flag: bool) -> LogValue {
        LogValue::Flag(flag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_bounded_in_number_and_length_and_stand_by_filter() {
        let mut log = LogFields::default();
        assert!(log.0.is_none() && log.fields().is_empty());
        log.set("a", "one", 1u64.into());
        log.set("b", "one", true.into());
        log.set("a", "two", LogValue::text("é".repeat(100)));
        log.set("a", "one", 2u64.into());
        let names: Vec<_> = log
            .fields()
            .iter()
            .map(|one| (one.filter, one.name))
            .collect();
        assert_eq!(names, [("a", "one"), ("a", "two"), ("b", "one")]);
        assert_eq!(log.fields()[0].value, LogValue::Count(2));
        assert_eq!(log.fields()[1].value, LogValue::Text("é".repeat(64).into()));
        let many = [
            "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "x", "y", "z", "w", "v",
        ];
        for name in many {
            log.set("c", name, 0i64.into());
        }
        assert_eq!((log.fields().len(), log.dropped()), (FIELDS_MAX, 2));
    }
}
