//! Rust source text, classified by its tokens: code, strings, and the part that ships.

use std::ops::Range;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// One file of Rust.
pub(crate) struct Source {
    /// The file with comments and the insides of strings blanked out; every line is where it was.
    pub(crate) code: String,
    /// `code` with everything under `#[cfg(test)]` blanked out too; nothing at all of a file of tests.
    pub(crate) shipped: String,
    /// `code` less `shipped`.
    pub(crate) tested: String,
    /// Every string literal outside tests: its line and what stands between the quotes.
    pub(crate) strings: Vec<(usize, String)>,
    /// Every string literal inside tests.
    pub(crate) test_strings: Vec<(usize, String)>,
}

impl Source {
    /// Classifies `text`; `all_tests` for a file that is nothing but tests.
    pub(crate) fn new(text: &str, all_tests: bool) -> Source {
        let Scan {
            code,
            literals,
            mut tests,
            ..
        } = Scan::new(text);
        let code = String::from_utf8(code).expect("other than ASCII is blanked");
        if all_tests {
            tests = vec![(0, code.len())];
        }
        let in_tests = |at: usize| tests.iter().any(|(from, to)| (*from..*to).contains(&at));
        let mut shipped = code.clone().into_bytes();
        let mut tested = code.clone().into_bytes();
        for (at, byte) in code.bytes().enumerate() {
            if byte != b'\n' {
                let hidden = if in_tests(at) {
                    &mut shipped
                } else {
                    &mut tested
                };
                hidden[at] = b' ';
            }
        }
        let (test_strings, strings) = literals
            .into_iter()
            .partition::<Vec<_>, _>(|(at, _)| in_tests(*at));
        let with_lines = |literals: Vec<(usize, String)>| {
            let line = |at: usize| line_of(&code, at);
            literals
                .into_iter()
                .map(|(at, text)| (line(at), text))
                .collect()
        };
        Source {
            strings: with_lines(strings),
            test_strings: with_lines(test_strings),
            // Blanks replace whole characters, so both are still text.
            shipped: String::from_utf8(shipped).expect("blanked by the byte, all of them ASCII"),
            tested: String::from_utf8(tested).expect("blanked by the byte, all of them ASCII"),
            code,
        }
    }
}

/// The lines on which `word` stands in `code` as a word of its own: `rand` is not in `operand`, and `fs::read` not in
/// `fs::read_dir`.
pub(crate) fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let in_name = |c: char| c.is_alphanumeric() || c == '_';
    let found = code.match_indices(word).filter(|(at, _)| {
        let before = code[..*at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let begun = word.starts_with(in_name) && before.is_some_and(in_name);
        let goes_on = word.ends_with(in_name) && after.is_some_and(in_name);
        !begun && !goes_on
    });
    found.map(|(at, _)| line_of(code, at)).collect()
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at]
        .iter()
        .filter(|byte| **byte == b'\n')
        .count()
}

/// A file as classified by its tokens.
struct Scan<'t> {
    text: &'t str,
    /// `text` with everything blanked that is no token: comments, documentation, the insides of literals.
    code: Vec<u8>,
    /// Each string literal with where it begins.
    literals: Vec<(usize, String)>,
    /// Where the items under `#[cfg(test)]` begin and end.
    tests: Vec<(usize, usize)>,
}

impl Scan<'_> {
    fn new(text: &str) -> Scan<'_> {
        let blank = |byte: u8| if byte == b'\n' { b'\n' } else { b' ' };
        let mut scan = Scan {
            text,
            code: text.bytes().map(blank).collect(),
            literals: Vec::new(),
            tests: Vec::new(),
        };
        let tokens = text.parse().unwrap_or_else(|error| {
            panic!("no Rust: {error}\n{text}");
        });
        scan.stream(tokens, text.len());
        // The lexer keeps every text it has parsed until they are dropped explicitly.
        proc_macro2::extra::invalidate_current_thread_spans();
        scan
    }

    /// Scans the tokens of a group that ends at `end`.
    fn stream(&mut self, tokens: TokenStream, end: usize) {
        // Where an item under `#[cfg(test)]` has begun that has not ended.
        let mut test = None;
        let mut hash = None;
        let mut tokens = tokens.into_iter();
        while let Some(token) = tokens.next() {
            let span = token.span().byte_range();
            let attribute_at = hash.take();
            match token {
                TokenTree::Group(group) => {
                    self.show(group.span_open().byte_range());
                    self.show(group.span_close().byte_range());
                    let is_test = group.delimiter() == Delimiter::Bracket
                        && group.stream().to_string() == "cfg (test)";
                    if is_test && test.is_none() {
                        test = attribute_at;
                    }
                    if group.delimiter() == Delimiter::Brace {
                        self.tests.extend(test.take().map(|from| (from, span.end)));
                    }
                    self.stream(group.stream(), span.end);
                }
                TokenTree::Literal(_) => self.literal(span),
                // A doc comment is an attribute token without its `#`.
                TokenTree::Punct(punct)
                    if punct.as_char() == '#' && self.text.as_bytes()[span.start] != b'#' =>
                {
                    tokens.find(|token| matches!(token, TokenTree::Group(_)));
                }
                TokenTree::Punct(punct) => {
                    self.show(span.clone());
                    match punct.as_char() {
                        '#' => hash = Some(span.start),
                        ';' => self.tests.extend(test.take().map(|from| (from, span.end))),
                        _ => {}
                    }
                }
                TokenTree::Ident(_) => self.show(span),
            }
        }
        self.tests.extend(test.map(|from| (from, end)));
    }

    fn show(&mut self, span: Range<usize>) {
        for at in span {
            let byte = self.text.as_bytes()[at];
            if byte.is_ascii() {
                self.code[at] = byte;
            }
        }
    }

    fn literal(&mut self, span: Range<usize>) {
        let text = &self.text[span.clone()];
        let first = text.bytes().next();
        let is_string = text
            .trim_start_matches(['b', 'c', 'r', '#'])
            .starts_with('"');
        if first.is_some_and(|byte| byte.is_ascii_digit()) {
            self.show(span);
        } else if is_string {
            let opening = 1 + text.find('"').unwrap_or(0);
            let hashes = text[..opening].matches('#').count();
            let inside = span.start + opening..span.end - hashes - 1;
            self.literals
                .push((span.start, self.text[inside.clone()].to_owned()));
            self.show(span.start..inside.start);
            self.show(inside.end..span.end);
        }
    }
}

#[test]
fn code_strings_and_tests_are_classified() {
    let text = r##"//! fs::read
fn a<'a>(x: &'a str) -> char { let _ = ("one \" two", r#"three"#, b"four", '"', '\'', '\u{e9}'); 'x' } /* b /* c */ d */
#[cfg(test)]
mod tests { fn e() { sleep("five") } }
fn f() { g("six") } // seven
struct H { #[cfg(test)] i: I, }
fn j() { k() }
"##;
    let source = Source::new(text, false);
    let strings = |literals: &[(usize, String)]| {
        literals
            .iter()
            .map(|(line, text)| format!("{line} {text}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        strings(&source.strings),
        ["2 one \\\" two", "2 three", "2 four", "5 six"]
    );
    assert_eq!(strings(&source.test_strings), ["4 five"]);
    assert_eq!(lines_with(&source.tested, "sleep"), [4]);
    assert_eq!(lines_with(&source.shipped, "sleep"), [0usize; 0]);
    assert_eq!(lines_with(&source.shipped, "g"), [5]);
    assert_eq!(lines_with(&source.tested, "i"), [6]);
    assert_eq!(lines_with(&source.shipped, "k"), [7]);
    assert_eq!(lines_with(&source.code, "fs::read"), [0usize; 0]);
    assert_eq!(lines_with("operand rand rand_core", "rand"), [1]);
    assert_eq!(source.code.lines().count(), text.lines().count());
    assert_eq!(Source::new(text, true).strings.len(), 0);
}
