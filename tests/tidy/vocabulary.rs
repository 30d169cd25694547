//! Words and names that do not come back: each has a term of the field in its place.

use crate::check;
use crate::source::lines_with;

/// Words in names, comments, texts and documents, as whole words or as parts of a name in snake case, and what to write instead.
const WORDS: [(&str, &str); 14] = [
    (
        "anybody",
        "name the party: the client, the operator, the provider",
    ),
    (
        "somebody",
        "name the party: the client, the operator, the provider",
    ),
    (
        "nobody",
        "name the party: no client, no operator, no provider",
    ),
    (
        "whoever",
        "name the party: the client that, the operator who",
    ),
    ("told", "received, acknowledged, notified, reported"),
    ("wish", "request"),
    ("wishes", "requests"),
    ("hearsay", "an unverified report"),
    ("chore", "maintenance"),
    ("chores", "maintenance"),
    ("clerk", "service"),
    ("desk", "processor, endpoint, or the noun itself"),
    ("bookkeeper", "ledger"),
    ("crowd", "concurrency, load"),
];

/// Names in code, and what the thing is called.
const NAMES: [(&str, &str); 41] = [
    ("Asker", "BuyerState"),
    ("Beside", "AttachedPart"),
    ("Boarded", "Joined"),
    ("Crowd", "Concurrency"),
    ("Desk", "Processor"),
    ("Door", "InProcessApi"),
    ("Flights", "SingleFlight"),
    ("Heard", "RelayEvent"),
    ("House", "Services"),
    ("Inbox", "CoalescedWaker"),
    ("Looked", "Lookup"),
    ("Office", "ControlClient"),
    ("Offers", "Candidates"),
    ("Passage", "RelayStream"),
    ("Patience", "UnverifiedSignatureLimit"),
    ("Rank", "Tier"),
    ("Room", "ConcurrencyLimit"),
    ("Served", "TrackedCall"),
    ("Shop", "CheckContext"),
    ("Sight", "OnChainStatus"),
    ("Signs", "LifecycleHeaders"),
    ("Silence", "CallError"),
    ("Standing", "AccountState"),
    ("Ticket", "CallGuard"),
    ("Told", "PaymentOutcome"),
    ("Trip", "CallState"),
    ("Trouble", "WriteError"),
    ("Turning", "TextViaChat"),
    ("Wish", "PurchaseRequest"),
    ("bury", "mark_void"),
    ("call_for_help", "alert_stuck"),
    ("converse", "send_request"),
    ("lay_over", "apply_env"),
    ("nowhere", "unrouted, or without a position"),
    ("repost", "rebuild_postings"),
    ("take_crowd", "take_peak_concurrency"),
    ("time_passes", "invalidate_now"),
    ("twins", "duplicate names"),
    ("unposted", "journal_tail"),
    ("use_up", "consume"),
    ("write_late", "defer_headers"),
];

/// The list itself, files of others, the label of a stored key, and a list of words that a test parses.
const EXEMPT: [&str; 4] = [
    "tests/tidy/vocabulary.rs",
    "tests/ucp-schemas/",
    "crates/identity/identity/src/signin/keys.rs",
    "tests/golden/settings.toml",
];

/// Kinds of file whose words are ours.
const TEXTS: [&str; 8] = [".rs", ".md", ".toml", ".py", ".mjs", ".js", ".sh", ".css"];

/// The lines on which `word` stands with no letter beside it.
fn whole_words(text: &str, word: &str) -> Vec<usize> {
    let found = text.match_indices(word).filter(|(at, _)| {
        let before = text[..*at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        ![before, after]
            .into_iter()
            .flatten()
            .any(char::is_alphabetic)
    });
    found
        .map(|(at, _)| 1 + text[..at].matches('\n').count())
        .collect()
}

#[test]
fn no_word_of_the_list_comes_back() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, text) in tree.files() {
                let listed = TEXTS.iter().any(|kind| path.ends_with(kind)) || !path.contains('.');
                if !listed || EXEMPT.iter().any(|known| path.starts_with(known)) {
                    continue;
                }
                let text = text.to_lowercase();
                for (word, better) in WORDS {
                    for line in whole_words(&text, word) {
                        complaints.push(format!("{path}:{line}: `{word}`; write: {better}"));
                    }
                }
            }
            complaints
        },
        &[
            ("filters/auth/src/new.rs", "// What nobody reads.\n"),
            ("filters/auth/src/new.rs", "fn is_told() {}\n"),
            ("filters/auth/NEW.md", "Whoever pays is charged.\n"),
        ],
    );
}

#[test]
fn no_name_of_the_list_comes_back() {
    check(
        |tree| {
            let mut complaints = Vec::new();
            for (path, source) in tree.rust(&[""]) {
                for (name, better) in NAMES {
                    for line in lines_with(&source.code, name) {
                        complaints.push(format!("{path}:{line}: `{name}`; it is called {better}"));
                    }
                }
            }
            complaints
        },
        &[("filters/auth/src/new.rs", "struct Desk;\n")],
    );
}
