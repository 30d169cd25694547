//! Structure tests: rules for the layout of this repository, each a test case with its own message.
//!
//! A case is a rule over a `tree::Tree`, the repository as a map from path to text. The same case then breaks the rule on
//! purpose, in memory, and fails when the rule does not notice: a rule that cannot fail promises nothing.

#![cfg(test)]

mod crates;
mod cycles;
mod documents;
mod manners;
mod prose;
mod reach;
mod source;
mod tree;
mod vocabulary;

use tree::Tree;

/// Fails with every complaint of `rule` about the repository.
///
/// First it puts each of `breaks` (a path and its new text) into a copy, and fails when that causes no new complaint that names
/// the path.
fn check(rule: fn(&Tree) -> Vec<String>, breaks: &[(&str, &str)]) {
    let tree = Tree::read();
    let complaints = rule(&tree);
    for (path, text) in breaks {
        let broken = rule(&tree.with(path, text));
        let seen = broken
            .iter()
            .any(|complaint| complaint.contains(path) && !complaints.contains(complaint));
        assert!(
            seen,
            "the rule does not see what is wrong with `{path}`:\n{text}\nits complaints: {broken:?}"
        );
    }
    assert!(
        complaints.is_empty(),
        "{} complaints:\n  {}",
        complaints.len(),
        complaints.join("\n  ")
    );
}
