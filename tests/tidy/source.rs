//! Rust text, told apart: code, strings, and what of both ships.

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
    /// Tells `text` apart; `all_tests` for a file that is nothing but tests.
    pub(crate) fn new(text: &str, all_tests: bool) -> Source {
        let (code, literals) = blank(text);
        let tests = if all_tests {
            vec![(0, code.len())]
        } else {
            test_items(&code)
        };
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

/// The text with comments and the insides of literals as blanks, and each string literal with where it begins.
fn blank(text: &str) -> (String, Vec<(usize, String)>) {
    let bytes = text.as_bytes();
    let mut code = Vec::with_capacity(bytes.len());
    let mut literals = Vec::new();
    let mut at = 0;
    let hide = |code: &mut Vec<u8>, hidden: &[u8]| {
        code.extend(
            hidden
                .iter()
                .map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }),
        );
    };
    while at < bytes.len() {
        let rest = &text[at..];
        let in_name = code
            .last()
            .is_some_and(|byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_');
        let length = if rest.starts_with("//") {
            let length = rest.find('\n').unwrap_or(rest.len());
            hide(&mut code, &bytes[at..at + length]);
            length
        } else if rest.starts_with("/*") {
            let length = block_comment(rest);
            hide(&mut code, &bytes[at..at + length]);
            length
        } else if let Some((opening, length)) = (!in_name).then(|| string(rest)).flatten() {
            // The closing delimiter is as long as the opening one less its letters.
            let closing = rest[..opening].trim_start_matches(['b', 'c', 'r']).len();
            let (from, to) = (
                at + opening,
                at + length.saturating_sub(closing).max(opening),
            );
            literals.push((at, text[from..to].to_owned()));
            code.extend(&bytes[at..from]);
            hide(&mut code, &bytes[from..to]);
            code.extend(&bytes[to..at + length]);
            length
        } else if let Some(length) = character(rest) {
            hide(&mut code, &bytes[at..at + length]);
            length
        } else {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            if length == 1 {
                code.push(bytes[at]);
            } else {
                hide(&mut code, &bytes[at..at + length]);
            }
            length
        };
        at += length;
    }
    (
        String::from_utf8(code).expect("other than ASCII is blanked"),
        literals,
    )
}

fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut depth = 0;
    let mut at = 0;
    while at < bytes.len() {
        match &bytes[at..(at + 2).min(bytes.len())] {
            b"/*" => {
                depth += 1;
                at += 2;
            }
            b"*/" => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

/// How long the opening of the string literal at the start of `rest` is, and how long all of it.
fn string(rest: &str) -> Option<(usize, usize)> {
    let letters = rest.len() - rest.trim_start_matches(['b', 'c', 'r']).len();
    let hashes = rest[letters..].len() - rest[letters..].trim_start_matches('#').len();
    let opening = letters + hashes + 1;
    if letters > 2 || rest.as_bytes().get(opening - 1) != Some(&b'"') {
        return None;
    }
    let raw = rest[..letters].contains('r');
    if !raw && hashes > 0 {
        return None;
    }
    if raw {
        let closing = format!("\"{}", "#".repeat(hashes));
        let end = rest[opening..]
            .find(&closing)
            .map(|at| opening + at + closing.len());
        return Some((opening, end.unwrap_or(rest.len())));
    }
    let bytes = rest.as_bytes();
    let mut at = opening;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    Some((opening, (at + 1).min(bytes.len())))
}

/// How long the character literal at the start of `rest` is; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    if let Some(escaped) = inside.strip_prefix('\\') {
        let skipped = escaped.chars().next().map_or(0, char::len_utf8);
        return escaped[skipped..].find('\'').map(|at| 2 + skipped + at + 1);
    }
    let first = inside.chars().next()?.len_utf8();
    inside[first..].starts_with('\'').then_some(first + 2)
}

/// Where the items under `#[cfg(test)]` begin and end.
fn test_items(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (from, attribute) in code.match_indices("#[cfg(test)]") {
        let body = from + attribute.len();
        let end = code[body..].find(['{', ';']).map_or(code.len(), |at| {
            match code.as_bytes()[body + at] {
                b';' => body + at + 1,
                _ => closing_brace(code, body + at),
            }
        });
        found.push((from, end));
    }
    found
}

fn closing_brace(code: &str, opening: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(opening) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    code.len()
}

#[test]
fn code_strings_and_tests_are_told_apart() {
    let text = r##"//! fs::read
fn a<'a>(x: &'a str) -> char { let _ = ("one \" two", r#"three"#, b"four", '"', '\'', '\u{e9}'); 'x' } /* b /* c */ d */
#[cfg(test)]
mod tests { fn e() { sleep("five") } }
fn f() { g("six") } // seven
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
    assert_eq!(lines_with(&source.code, "fs::read"), [0usize; 0]);
    assert_eq!(lines_with("operand rand rand_core", "rand"), [1]);
    assert_eq!(source.code.lines().count(), text.lines().count());
    assert_eq!(Source::new(text, true).strings.len(), 0);
}
