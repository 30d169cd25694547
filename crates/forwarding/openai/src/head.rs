//! The id and the model of an answer, for traces.

use crate::json::{Kind, Reader, SyntaxError};

/// The most characters of id or model. Longer texts are cut.
const CHARS_MAX: usize = 256;

/// The id and the model of an answer, or of an event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerHead {
    /// The answer's `id`, if the value is a text.
    pub id: Option<String>,
    /// The answer's `model`, if the value is a text.
    pub model: Option<String>,
}

impl AnswerHead {
    /// Reads `id` and `model`; no value for a text that is no object.
    pub fn read(text: &[u8]) -> AnswerHead {
        let mut head = AnswerHead::default();
        // The head of a broken text has the members before the break.
        let _ = head.members(text);
        head
    }

    fn members(&mut self, text: &[u8]) -> Result<(), SyntaxError> {
        let mut reader = Reader::new(text);
        if reader.kind()? != Kind::Object {
            return Ok(());
        }
        let mut first = true;
        reader.enter()?;
        while let Some(key) = reader.key(&mut first)? {
            let is_text = reader.kind()? == Kind::String;
            let place = match key.text.raw {
                b"id" if is_text => &mut self.id,
                b"model" if is_text => &mut self.model,
                _ => {
                    reader.skip()?;
                    continue;
                }
            };
            let text = reader.string()?.decode_lossy();
            *place = Some(text.chars().take(CHARS_MAX).collect());
            if self.id.is_some() && self.model.is_some() {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_and_model_are_read_from_whatever_has_them() {
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(1000));
        let cut = "x".repeat(CHARS_MAX);
        for (text, id, model) in [
            (
                r#"{"id":"a","model":"b","choices":[]}"#,
                Some("a"),
                Some("b"),
            ),
            (
                r#"{"choices":[{"id":"c"}],"model":"\u00e9"}"#,
                None,
                Some("\u{e9}"),
            ),
            (r#"{"id":7,"model":null}"#, None, None),
            (r#"{"id":"a","choices":["#, Some("a"), None),
            (r#"[{"id":"a"}]"#, None, None),
            ("", None, None),
            (&*long, Some(&*cut), None),
        ] {
            let head = AnswerHead::read(text.as_bytes());
            assert_eq!(
                (head.id.as_deref(), head.model.as_deref()),
                (id, model),
                "{text}"
            );
        }
    }
}
