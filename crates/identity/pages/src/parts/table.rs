//! Tables; on a phone, rows become blocks.

use maud::{Markup, html};

#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// Header; may be empty for a column of buttons.
    pub head: &'a str,
    /// Numeric, right-aligned.
    pub numeric: bool,
}

impl<'a> Column<'a> {
    pub fn text(head: &'a str) -> Column<'a> {
        Column {
            head,
            numeric: false,
        }
    }

    pub fn number(head: &'a str) -> Column<'a> {
        Column {
            head,
            numeric: true,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Cell {
    content: Markup,
    label: bool,
}

impl Cell {
    /// A value that needs no label when headers are hidden.
    pub fn new(content: Markup) -> Cell {
        Cell {
            content,
            label: false,
        }
    }

    /// A value with its column header as a label on a phone.
    pub fn labelled(content: Markup) -> Cell {
        Cell {
            content,
            label: true,
        }
    }
}

/// A table whose first cell in each row is the row header. `marked` is the index of a new row.
///
/// ARIA roles are explicit, since browsers drop table semantics when CSS turns rows into blocks.
pub fn table(
    caption: &str,
    columns: &[Column<'_>],
    rows: &[Vec<Cell>],
    marked: Option<usize>,
) -> Markup {
    html! {
        table.rows role="table" aria-label=(caption) {
            thead role="rowgroup" {
                tr role="row" {
                    @for column in columns {
                        th.number[column.numeric] role="columnheader" scope="col" {
                            @if column.head.is_empty() { span.unseen { "Actions" } } @else { (column.head) }
                        }
                    }
                }
            }
            tbody role="rowgroup" {
                @for (at, row) in rows.iter().enumerate() {
                    tr.marked[marked == Some(at)] role="row" {
                        @for (place, (cell, column)) in row.iter().zip(columns).enumerate() {
                            @let label = cell.label.then_some(column.head);
                            @if place == 0 {
                                th role="rowheader" scope="row" { (cell.content) }
                            } @else {
                                td.number[column.numeric] role="cell" data-label=[label] { (cell.content) }
                            }
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_keeps_its_roles_and_labels() {
        let columns = [
            Column::text("Name"),
            Column::number("30 days"),
            Column::text(""),
        ];
        let row = vec![
            Cell::new(html! { "ci-runner" }),
            Cell::labelled(html! { "0.00" }),
            Cell::new(html! { "Revoke" }),
        ];
        let text = table("Your keys", &columns, &[row], Some(0)).into_string();
        for piece in [
            "<th role=\"rowheader\" scope=\"row\">ci-runner</th>",
            "<td class=\"number\" role=\"cell\" data-label=\"30 days\">0.00</td>",
            "<span class=\"unseen\">Actions</span>",
            "<tr class=\"marked\" role=\"row\">",
        ] {
            assert!(text.contains(piece), "{piece} in {text}");
        }
    }
}
