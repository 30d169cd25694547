//! The corpora of `fuzz/`, unchanged and with random changes, at every parser.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn folder() -> PathBuf {
    tollgate_testing::package_folder().join("fuzz/corpus")
}

/// The inputs of a corpus: an input a line, with `\r`, `\n`, `\t`, `\\` and `\x00` for bytes outside the visible characters of ASCII.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let path = folder().join(format!("{name}.txt"));
    let text = fs::read_to_string(&path);
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(unescaped).collect()
}

fn unescaped(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = line.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next() {
                Some(b'r') => b'\r',
                Some(b'n') => b'\n',
                Some(b't') => b'\t',
                Some(b'\\') => b'\\',
                Some(b'x') => {
                    let digits: String = rest.by_ref().take(2).map(char::from).collect();
                    u8::from_str_radix(&digits, 16).expect("two digits after \\x")
                }
                other => panic!("an unknown escape {other:?} in {line}"),
            },
            byte => byte,
        });
    }
    bytes
}

#[test]
fn every_parser_has_a_corpus_and_every_corpus_a_parser() {
    let files = fs::read_dir(folder()).expect("the folder");
    let files: BTreeSet<String> = files
        .map(|file| {
            file.expect("a file")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let names = TARGETS.iter().map(|(name, _)| format!("{name}.txt"));
    assert_eq!(files, names.collect());
}

#[test]
fn every_parser_takes_its_corpus() {
    for (name, target) in TARGETS {
        let inputs = corpus(name);
        assert!(inputs.len() > 1, "{name}: too few inputs");
        for input in inputs {
            target(&input);
            // An input may end at any byte.
            (0..input.len().min(400)).for_each(|end| target(&input[..end]));
        }
    }
}

/// A change of an input, at a place given as a fraction of the length.
#[derive(Clone, Debug)]
enum Change {
    Set(usize, u8),
    Insert(usize, u8),
    InsertWord(usize, usize),
    Remove(usize, usize),
    Repeat(usize, usize),
    /// The rest comes from another input.
    Join(usize, usize),
}

const WORDS: [&[u8]; 12] = [
    b"\r\n",
    b"\n\n",
    b"\xef\xbb\xbf",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\\ud800",
    b"\"\"",
    b"null",
    b"[[[[[[[[",
    b"9223372036854775808",
    b"-1e999",
    b"%00",
    b"=;,&",
];

fn change() -> impl Strategy<Value = Change> {
    let (at, length) = (any::<usize>(), 1..40usize);
    prop_oneof![
        (at, any::<u8>()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at, any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        (at, 0..WORDS.len()).prop_map(|(at, word)| Change::InsertWord(at, word)),
        (at, length.clone()).prop_map(|(at, length)| Change::Remove(at, length)),
        (at, length).prop_map(|(at, length)| Change::Repeat(at, length)),
        (at, any::<usize>()).prop_map(|(at, other)| Change::Join(at, other)),
    ]
}

impl Change {
    fn apply(&self, input: &mut Vec<u8>, all: &[Vec<u8>]) {
        let place = |at: usize| at % (input.len() + 1);
        match *self {
            Change::Set(at, byte) => {
                let at = place(at);
                if let Some(there) = input.get_mut(at) {
                    *there = byte;
                }
            }
            Change::Insert(at, byte) => input.insert(place(at), byte),
            Change::InsertWord(at, word) => {
                let at = place(at);
                input.splice(at..at, WORDS[word].iter().copied());
            }
            Change::Remove(at, length) => {
                let at = place(at);
                let end = (at + length).min(input.len());
                input.drain(at..end);
            }
            Change::Repeat(at, length) => {
                let at = place(at);
                let piece = input[at..(at + length).min(input.len())].to_vec();
                input.splice(at..at, piece);
            }
            Change::Join(at, other) => {
                let other = &all[other % all.len()];
                let at = place(at).min(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[at..]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_change_of_a_corpus_makes_a_parser_panic(
        target in 0..TARGETS.len(),
        start in any::<usize>(),
        changes in vec(change(), 1..6),
    ) {
        let (name, target) = TARGETS[target];
        let all = corpus(name);
        let mut input = all[start % all.len()].clone();
        changes.iter().for_each(|change| change.apply(&mut input, &all));
        target(&input);
    }
}
