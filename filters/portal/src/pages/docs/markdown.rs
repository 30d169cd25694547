//! HTML to Markdown, for the elements of the documentation's chapters.
//!
//! The chapters are written once, as pages. The markup is our own and well-formed, so a scan of tags is enough. An element without an
//! equivalent contributes its text; buttons and form fields contribute no text.

/// Elements whose content is for a browser alone.
const SKIPPED: [&str; 4] = ["button", "legend", "label", "svg"];

/// Converts a section. `base` precedes links to paths; a link to an anchor of the page is its text.
pub(super) fn of_html(html: &str, base: &str) -> String {
    let mut writer = Writer {
        base,
        ..Writer::default()
    };
    let mut rest = html;
    while let Some(open) = rest.find('<') {
        writer.text(&rest[..open]);
        let Some(close) = rest[open..].find('>') else {
            break;
        };
        writer.tag(&rest[open + 1..open + close]);
        rest = &rest[open + close + 1..];
    }
    writer.text(rest);
    writer.out
}

#[derive(Default)]
struct Writer<'a> {
    base: &'a str,
    out: String,
    /// The text of the current block.
    block: String,
    /// The target of the link that is open.
    link: Option<String>,
    /// Inside `pre`, where white space and characters are literal.
    literal: bool,
    /// Depth inside skipped elements.
    skipped: usize,
    /// Cells of the current table row, and whether it is the first row.
    row: Option<Vec<String>>,
    is_head: bool,
}

impl Writer<'_> {
    fn text(&mut self, text: &str) {
        if self.skipped == 0 {
            self.block += &unescape(text);
        }
    }

    fn tag(&mut self, tag: &str) {
        let (is_end, tag) = match tag.strip_prefix('/') {
            Some(tag) => (true, tag),
            None => (false, tag),
        };
        let name = tag.split([' ', '\n']).next().unwrap_or_default();
        if SKIPPED.contains(&name) {
            self.skipped = match is_end {
                true => self.skipped.saturating_sub(1),
                false => self.skipped + 1,
            };
            return;
        }
        match (name, is_end) {
            ("code", _) if !self.literal => self.block.push('`'),
            ("b" | "strong", _) => self.block += "**",
            ("a", false) => {
                let href = attribute(tag, "href").filter(|href| !href.starts_with('#'));
                self.link = href.map(|href| self.absolute(href));
                if self.link.is_some() {
                    self.block.push('[');
                }
            }
            ("a", true) => {
                if let Some(target) = self.link.take() {
                    self.block += &format!("]({target})");
                }
            }
            ("pre", false) => {
                self.paragraph();
                self.literal = true;
            }
            ("pre", true) => {
                self.literal = false;
                let text = std::mem::take(&mut self.block);
                self.out += &format!("```\n{}\n```\n\n", text.trim_end());
            }
            ("li", false) => {
                self.paragraph();
                self.block += "- ";
            }
            ("li", true) => self.line("\n"),
            ("ul" | "ol", true) => self.out.push('\n'),
            ("table", false) => {
                self.paragraph();
                self.is_head = true;
            }
            ("table", true) => self.out.push('\n'),
            ("tr", false) => self.row = Some(Vec::new()),
            ("tr", true) => self.end_row(),
            ("th" | "td", true) => {
                let text = words(&std::mem::take(&mut self.block)).replace('|', "\\|");
                if let Some(row) = &mut self.row {
                    row.push(text);
                }
            }
            ("p" | "div" | "h3" | "dt" | "dd", _) if self.row.is_none() => self.paragraph(),
            _ => {}
        }
    }

    fn end_row(&mut self) {
        let cells = self.row.take().unwrap_or_default();
        self.out += &format!("| {} |\n", cells.join(" | "));
        if std::mem::take(&mut self.is_head) {
            self.out += &format!("|{}\n", "---|".repeat(cells.len()));
        }
    }

    fn paragraph(&mut self) {
        self.line("\n\n");
    }

    fn line(&mut self, end: &str) {
        let text = words(&std::mem::take(&mut self.block));
        if !text.is_empty() {
            self.out += &text;
            self.out += end;
        }
    }

    fn absolute(&self, href: String) -> String {
        match href.starts_with('/') {
            true => format!("{}{href}", self.base),
            false => href,
        }
    }
}

/// A text with single spaces.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| unescape(value))
}

/// The four characters that the pages escape.
fn unescape(text: &str) -> String {
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use maud::html;
    use tollgate_pages::parts;

    use super::*;

    #[test]
    fn paragraphs_lists_links_code_and_tables_have_their_markdown() {
        let page = html! {
            p { "Send " code { "a < b" } " to " a href="/docs/errors" { "Errors" } ", or " a href="#here" { b { "here" } } "." }
            ul.bullets { li { "one" } li { "two " code { "|" } } }
            (parts::code("x", "Sample", "GET /\n  \"a\" & b"))
            table { thead { tr { th { "Code" } th { "Means" } } } tbody { tr { th { code { "a" } } td { "x | y" } } } }
            p { "End" }
        };
        assert_eq!(
            of_html(&page.into_string(), "https://svc.example"),
            "Send `a < b` to [Errors](https://svc.example/docs/errors), or **here**.\n\n\
             - one\n- two `|`\n\n\
             ```\nGET /\n  \"a\" & b\n```\n\n\
             | Code | Means |\n|---|---|\n| `a` | x \\| y |\n\n\
             End\n\n"
        );
    }
}
