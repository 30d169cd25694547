//! Prose in figures: pointing words in comments, and the length of sentences in READMEs.
//!
//! A figure is a symptom. A comment above its ceiling usually has pronouns in place of nouns, or several facts in one sentence.

use std::collections::BTreeMap;

use crate::check;

/// Words that point at another word instead of naming a thing.
const POINTING: [&str; 25] = [
    "it", "its", "them", "they", "that", "those", "this", "these", "one", "ones", "what", "which",
    "other", "others", "same", "such", "there", "then", "so", "all", "none", "nothing", "each",
    "either", "both",
];

/// Most pointing words among 1000 words of comments.
const POINTING_MAX: usize = 70;

/// Most words of a mean sentence in a README, in tenths.
const SENTENCE_MAX: usize = 140;

/// READMEs above [`SENTENCE_MAX`], or folders of such READMEs, with ceilings that only fall.
const SENTENCE_BY_README: [(&str, usize); 1] = [("conf/README.md", 190)];

/// Figures of some paragraphs.
#[derive(Default)]
struct Prose {
    words: usize,
    sentences: usize,
    pointing: usize,
}

impl Prose {
    /// Adds a paragraph. Pieces of at most three words are headings or labels.
    fn add(&mut self, paragraph: &str) {
        let mut sentence = Vec::new();
        let mut words = paragraph.split_whitespace().peekable();
        while let Some(word) = words.next() {
            sentence.push(word);
            if words.peek().is_none() || word.ends_with(['.', '!', '?']) {
                if sentence.len() > 3 {
                    self.words += sentence.len();
                    self.sentences += 1;
                    self.pointing += sentence.iter().map(|word| pointing_in(word)).sum::<usize>();
                }
                sentence.clear();
            }
        }
    }

    /// Pointing words among 1000 words.
    fn pointing_per_1000(&self) -> usize {
        (1000 * self.pointing).checked_div(self.words).unwrap_or(0)
    }

    /// Words of a mean sentence, in tenths.
    fn sentence_tenths(&self) -> usize {
        (10 * self.words).checked_div(self.sentences).unwrap_or(0)
    }
}

/// The ceiling of a path: its own, or the ceiling of a folder around it, or `default`.
fn ceiling(table: &[(&str, usize)], path: &str, default: usize) -> usize {
    let covers = |folder: &str| {
        let below = path.strip_prefix(folder);
        below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
    };
    let listed = table.iter().filter(|(folder, _)| covers(folder));
    let nearest = listed.max_by_key(|(folder, _)| folder.len());
    nearest.map_or(default, |(_, max)| *max)
}

fn pointing_in(word: &str) -> usize {
    let parts = word.split(|c: char| !c.is_alphanumeric() && c != '_');
    parts
        .filter(|part| POINTING.contains(&part.to_lowercase().as_str()))
        .count()
}

/// The comments of a Rust file outside its tests; consecutive lines are one paragraph.
fn comments(text: &str) -> Vec<String> {
    let shipped = match text.split_once("#[cfg(test)]\nmod ") {
        Some((shipped, tests)) if !tests.lines().next().is_some_and(|line| line.contains(';')) => {
            shipped
        }
        _ => text,
    };
    let mut found = vec![String::new()];
    for line in shipped.lines() {
        match line.trim_start().strip_prefix("//") {
            Some(comment) => {
                let last = found.last_mut().expect("never empty");
                last.push_str(comment.trim_start_matches(['/', '!']));
                last.push(' ');
            }
            None if found.last().is_some_and(|last| !last.is_empty()) => found.push(String::new()),
            None => {}
        }
    }
    found
}

/// The paragraphs, list items and table rows of a document, without blocks of code.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut is_code = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let begins = line.is_empty()
            || ["|", "- ", "* "]
                .iter()
                .any(|start| line.starts_with(start));
        if begins {
            found.push(String::new());
        }
        if !is_code {
            let last = found.last_mut().expect("never empty");
            last.push_str(line);
            last.push(' ');
        }
    }
    found
}

/// The crate of a shipped Rust file, or the folder of `src`; `None` for other files.
fn folder_of(path: &str) -> Option<&str> {
    let is_shipped = path.ends_with(".rs")
        && !["/tests/", "/benches/", "/examples/", "tests.rs"]
            .iter()
            .any(|part| path.contains(part))
        && !path.starts_with("crates/testing/");
    if !is_shipped {
        return None;
    }
    if let Some(below) = path.strip_prefix("src/") {
        let folder = below.split_once('/');
        let folder = folder.map(|(folder, _)| &path[.."src/".len() + folder.len()]);
        return Some(folder.unwrap_or("src/*.rs"));
    }
    let of_crate = ["crates/", "filters/"]
        .iter()
        .any(|start| path.starts_with(start));
    let (folder, _) = path.split_once("/src/").filter(|_| of_crate)?;
    Some(folder)
}

#[test]
fn comments_name_things_instead_of_pointing_at_them() {
    check(
        |tree| {
            let mut folders: BTreeMap<&str, (Prose, usize, &str)> = BTreeMap::new();
            for (path, text) in tree.files() {
                let Some(folder) = folder_of(path) else {
                    continue;
                };
                let mut own = Prose::default();
                let (whole, most, worst) = folders.entry(folder).or_default();
                for comment in comments(text) {
                    own.add(&comment);
                    whole.add(&comment);
                }
                // Above the maximum: the file to begin with.
                let excess = (1000 * own.pointing).saturating_sub(POINTING_MAX * own.words);
                if excess >= *most {
                    (*most, *worst) = (excess, path);
                }
            }
            let mut complaints = Vec::new();
            for (folder, (prose, _, worst)) in folders {
                let figure = prose.pointing_per_1000();
                if figure > POINTING_MAX {
                    complaints.push(format!(
                        "{folder}: {figure} of 1000 words in comments point (`it`, `that`, `which`, `one`, ...), at most {POINTING_MAX} may; \
                         write the noun, one fact a sentence; begin with {worst}"
                    ));
                }
            }
            complaints
        },
        &[(
            "filters/new/src/lib.rs",
            "//! What it has that others do not, which is the same for each of them.\n",
        )],
    );
}

#[test]
fn sentences_of_readmes_are_short() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, text) in tree.files().filter(|(path, _)| path.ends_with("README.md")) {
                let mut prose = Prose::default();
                for paragraph in paragraphs(text) {
                    prose.add(&paragraph);
                }
                let max = ceiling(&SENTENCE_BY_README, path, SENTENCE_MAX);
                let figure = prose.sentence_tenths();
                if figure > max {
                    complaints.push(format!(
                        "{path}: {figure} tenths of a word a sentence, at most {max}; one fact a sentence, a table for a list"
                    ));
                }
            }
            complaints
        },
        &[(
            "filters/new/README.md",
            "A filter whose description goes on and on, with a clause for every case that its author could think of, is read by no one.\n",
        )],
    );
}
