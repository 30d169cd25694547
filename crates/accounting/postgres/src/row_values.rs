//! Values of many rows in three buffers: keeping the values for a later statement costs no allocation per row.

use std::ops::Range;

use tollgate_sql::Value;

/// The values of rows of equal length.
#[derive(Debug, Default)]
pub struct RowValues {
    /// Number of values of a row; 0 for statements without parameters.
    columns: usize,
    rows: usize,
    values: Vec<StoredValue>,
    bytes: Vec<u8>,
    texts: String,
}

#[derive(Clone, Debug)]
enum StoredValue {
    Null,
    Integer(i64),
    Text(Range<usize>),
    Bytes(Range<usize>),
}

impl RowValues {
    /// The values of one row.
    pub fn of(row: &[Value<'_>]) -> RowValues {
        let mut rows = RowValues::default();
        rows.push(row);
        rows
    }

    /// Adds a row, with as many values as the earlier rows.
    pub fn push(&mut self, row: &[Value<'_>]) {
        debug_assert!(self.rows == 0 || self.columns == row.len());
        self.columns = row.len();
        self.rows += 1;
        for value in row {
            self.values.push(match *value {
                Value::Null => StoredValue::Null,
                Value::Integer(number) => StoredValue::Integer(number),
                Value::Text(text) => {
                    let begin = self.texts.len();
                    self.texts.push_str(text);
                    StoredValue::Text(begin..self.texts.len())
                }
                Value::Bytes(bytes) => {
                    let begin = self.bytes.len();
                    self.bytes.extend_from_slice(bytes);
                    StoredValue::Bytes(begin..self.bytes.len())
                }
            });
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Number of bytes of all texts and byte strings.
    pub fn size(&self) -> usize {
        self.texts.len() + self.bytes.len()
    }

    /// Removes all rows, for reuse.
    pub fn clear(&mut self) {
        let RowValues {
            columns,
            rows,
            values,
            bytes,
            texts,
        } = self;
        (*columns, *rows) = (0, 0);
        values.clear();
        bytes.clear();
        texts.clear();
    }

    /// The values of neighbouring rows, one row after another.
    pub fn of_rows(&self, rows: Range<usize>) -> impl ExactSizeIterator<Item = Value<'_>> {
        let values = &self.values[rows.start * self.columns..rows.end * self.columns];
        values.iter().map(|value| match value {
            StoredValue::Null => Value::Null,
            StoredValue::Integer(number) => Value::Integer(*number),
            StoredValue::Text(range) => Value::Text(&self.texts[range.clone()]),
            StoredValue::Bytes(range) => Value::Bytes(&self.bytes[range.clone()]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_put_in() {
        let mut kept = RowValues::default();
        let rows = [
            [Value::Integer(1), Value::Text("ä"), Value::Bytes(&[1, 2])],
            [Value::Null, Value::Text(""), Value::Bytes(&[])],
            [Value::Integer(-1), Value::Text("b"), Value::Bytes(&[3])],
        ];
        for row in &rows {
            kept.push(row);
        }
        assert_eq!((kept.len(), kept.size()), (3, 6));
        assert!(kept.of_rows(1..3).eq(rows[1..].iter().flatten().copied()));
        assert_eq!(kept.of_rows(0..3).len(), 9);
        kept.clear();
        kept.push(&[Value::Integer(7)]);
        assert!(kept.of_rows(0..1).eq([Value::Integer(7)]));
        let none = RowValues::of(&[]);
        assert_eq!((none.len(), none.of_rows(0..1).len()), (1, 0));
    }
}
