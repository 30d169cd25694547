//! Output of commands: lines for people, or with `--json` a JSON value for programs.

use std::io::Write;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::value::RawValue;
use tollgate_money::Micros;

/// The standard output of a command, in the form of the user's choice.
pub(super) struct Output<'o> {
    out: &'o mut dyn Write,
    json: bool,
}

impl Output<'_> {
    pub(super) fn new(out: &mut dyn Write, json: bool) -> Output<'_> {
        Output { out, json }
    }

    /// Prints the result of a command: `value` as a line of JSON, or the output of `text`.
    pub(super) fn show(
        &mut self,
        value: &impl Serialize,
        text: impl FnOnce(&mut dyn Write) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.json {
            return text(self.out);
        }
        let line = serde_json::to_string(value).context("cannot write JSON")?;
        writeln!(self.out, "{line}").context("cannot print")
    }

    /// Prints a result with a single line of text.
    pub(super) fn line(
        &mut self,
        value: &impl Serialize,
        line: impl std::fmt::Display,
    ) -> anyhow::Result<()> {
        self.show(value, |out| writeln!(out, "{line}").context("cannot print"))
    }

    /// The output itself, for commands that print while they run.
    pub(super) fn writer(&mut self) -> &mut dyn Write {
        self.out
    }

    /// Prints a result with a single form: a document in JSON, or a script.
    pub(super) fn document(&mut self, text: &[u8]) -> anyhow::Result<()> {
        self.out.write_all(text).context("cannot print")
    }
}

/// An amount as a JSON number of credits, exact to the last micro-credit.
pub(super) fn credits(amount: Micros) -> Box<RawValue> {
    RawValue::from_string(amount.to_string()).expect("an amount prints as a JSON number")
}

/// Prints rows under their headings. The width of a column follows from the cells.
pub(super) fn table<const N: usize>(
    out: &mut dyn Write,
    headings: [&str; N],
    rows: &[[String; N]],
) -> anyhow::Result<()> {
    let mut widths = headings.map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut line = |cells: [&str; N]| -> anyhow::Result<()> {
        let mut text = String::new();
        for (width, cell) in widths.iter().zip(cells) {
            text.push_str(cell);
            let missing = width - cell.chars().count();
            text.extend(std::iter::repeat_n(' ', missing + 2));
        }
        writeln!(out, "{}", text.trim_end()).context("cannot print")
    };
    line(headings)?;
    for row in rows {
        line(std::array::from_fn(|at| row[at].as_str()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let mut out = Vec::new();
        let rows = [
            ["a".to_owned(), "größer".to_owned(), "1".to_owned()],
            ["longer".to_owned(), String::new(), "22".to_owned()],
        ];
        table(&mut out, ["ID", "NAME", "N"], &rows).expect("memory takes it");
        let text = String::from_utf8(out).expect("text");
        assert_eq!(
            text,
            "ID      NAME    N\na       größer  1\nlonger          22\n"
        );
    }

    #[test]
    fn amounts_are_exact_numbers() {
        let mut out = Vec::new();
        let amount = credits(Micros::new(9_007_199_254_740_993));
        let mut output = Output::new(&mut out, true);
        output.line(&amount, "as text").expect("memory takes it");
        assert_eq!(out, b"9007199254.740993\n");
    }
}
