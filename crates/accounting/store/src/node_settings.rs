//! Detection of different settings in a cluster. A node records a digest of the settings that all nodes must share, and reads the digests
//! of the other nodes.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::Timestamp;

/// The recorded settings of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedSettings {
    /// The form of the digest, `-`, and the digest: equal for equal settings. Digests of different forms are not comparable.
    pub digest: String,
    /// Since when the node has had the settings, by the clock of the database.
    pub since: Timestamp,
}

impl RecordedSettings {
    /// Whether the settings are known to differ.
    pub fn differ_from(&self, other: &RecordedSettings) -> bool {
        let form = |one: &RecordedSettings| one.digest.split('-').next().map(str::to_owned);
        form(self) == form(other) && self.digest != other.digest
    }
}

/// A running node whose settings differ from this node's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherSettings {
    /// The node's name.
    pub node: String,
    /// Whether the other node's settings are newer than this node's settings.
    pub are_newer: bool,
}

/// The digest of this node's settings, and the nodes with another digest.
#[derive(Default)]
pub(crate) struct NodeSettings {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    own: Option<Arc<str>>,
    others: Vec<OtherSettings>,
}

impl NodeSettings {
    /// Sets the digest to record.
    pub(crate) fn record(&self, digest: &str) {
        self.state().own = Some(Arc::from(digest));
    }

    pub(crate) fn own(&self) -> Option<Arc<str>> {
        self.state().own.clone()
    }

    pub(crate) fn set_others(&self, others: Vec<OtherSettings>) {
        self.state().others = others;
    }

    pub(crate) fn others(&self) -> Vec<OtherSettings> {
        self.state().others.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_of_different_forms_say_nothing_of_each_other() {
        for (one, other, differ) in [
            ("1-aa", "1-aa", false),
            ("1-aa", "1-ab", true),
            ("1-aa", "2-ab", false),
        ] {
            let settings = |digest: &str| RecordedSettings {
                digest: digest.to_owned(),
                since: Timestamp::UNIX_EPOCH,
            };
            let found = settings(one).differ_from(&settings(other));
            assert_eq!(found, differ, "{one} {other}");
        }
    }
}
