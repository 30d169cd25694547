//! The audit log: what operators have changed, one record for each act, chained by hash for each node.
//!
//! The record of an act that changes the store is a part of its unit of work, so that there is none without the other.

use std::sync::Arc;

use tollgate_clock::Timestamp;

/// Something that an operator has done, or has tried to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// When.
    pub at: Timestamp,
    /// By whom, such as `token NAME` for a token of the admin API, or `uid NUMBER` for a user of the machine.
    pub actor: Arc<str>,
    /// What was done, such as `key_create`.
    pub action: Arc<str>,
    /// The id of the account, key or payment that it was done to, if to one.
    pub subject: Option<Arc<str>>,
    /// The id of the request.
    pub request: Arc<str>,
    /// What became of it.
    pub outcome: AuditOutcome,
    /// Its parameters as a JSON object, without secrets and without addresses of persons.
    pub detail: Arc<str>,
}

/// What became of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditOutcome {
    /// It is done.
    Done,
    /// It was done before, under the same reference: nothing was changed now.
    Repeated,
    /// It was refused: nothing was changed.
    Refused,
    /// It was begun by a process that cannot record its end.
    Begun,
}

impl AuditOutcome {
    /// Every outcome.
    pub const ALL: [AuditOutcome; 4] = [
        AuditOutcome::Done,
        AuditOutcome::Repeated,
        AuditOutcome::Refused,
        AuditOutcome::Begun,
    ];

    /// Its word, as stored and shown.
    pub const fn word(self) -> &'static str {
        match self {
            AuditOutcome::Done => "done",
            AuditOutcome::Repeated => "repeated",
            AuditOutcome::Refused => "refused",
            AuditOutcome::Begun => "begun",
        }
    }

    /// The outcome of a word.
    pub fn of_word(word: &str) -> Option<AuditOutcome> {
        AuditOutcome::ALL
            .into_iter()
            .find(|outcome| outcome.word() == word)
    }
}

/// A stored event, chained to the one before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// The event.
    pub event: AuditEvent,
    /// The node that has written it.
    pub node: i64,
    /// 1, 2, 3 ... within the node.
    pub number: i64,
    /// The hash of the node's record before it; zero for its first.
    pub previous: [u8; 32],
    /// BLAKE3 over `previous` and all of the above.
    pub hash: [u8; 32],
}

impl AuditRecord {
    /// The record of an event as the next of its node.
    pub fn chained(event: AuditEvent, node: i64, number: i64, previous: [u8; 32]) -> AuditRecord {
        let hash = hash(&event, (node, number), previous);
        AuditRecord {
            event,
            node,
            number,
            previous,
            hash,
        }
    }

    /// Whether the hash is that of the content: false for a record that was edited.
    pub fn is_intact(&self) -> bool {
        self.hash == hash(&self.event, (self.node, self.number), self.previous)
    }

    /// Its position in the order of time.
    pub fn position(&self) -> AuditPosition {
        AuditPosition {
            at: self.event.at,
            node: self.node,
            number: self.number,
        }
    }
}

/// `previous`, then node, number and time (8 bytes each, little-endian), then each text after its length (8 bytes); no subject has the
/// length -1.
fn hash(event: &AuditEvent, (node, number): (i64, i64), previous: [u8; 32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&previous);
    for number in [node, number, event.at.as_micros()] {
        hasher.update(&number.to_le_bytes());
    }
    for text in [
        Some(&*event.actor),
        Some(&*event.action),
        event.subject.as_deref(),
        Some(&*event.request),
        Some(event.outcome.word()),
        Some(&*event.detail),
    ] {
        let length = text.map_or(-1, |text| text.len() as i64);
        hasher.update(&length.to_le_bytes());
        hasher.update(text.unwrap_or_default().as_bytes());
    }
    *hasher.finalize().as_bytes()
}

/// The position of a record in the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditPosition {
    /// Its time.
    pub at: Timestamp,
    /// Its node.
    pub node: i64,
    /// Its number within the node.
    pub number: i64,
}

/// Selects records of the audit log.
#[derive(Clone, Debug, Default)]
pub struct AuditLogQuery {
    /// Only records before this position.
    pub before: Option<AuditPosition>,
    /// Only those of this actor.
    pub actor: Option<Arc<str>>,
    /// Only those of this subject.
    pub subject: Option<Arc<str>>,
    /// Maximum number of records.
    pub limit: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> AuditEvent {
        AuditEvent {
            at: Timestamp::from_micros(7),
            actor: Arc::from("token ops"),
            action: Arc::from("key_revoke"),
            subject: Some(Arc::from("key_1")),
            request: Arc::from("req_1"),
            outcome: AuditOutcome::Done,
            detail: Arc::from("{}"),
        }
    }

    #[test]
    fn a_hash_depends_on_every_field() {
        let first = AuditRecord::chained(event(), 1, 2, [3; 32]);
        let changed = |change: &dyn Fn(&mut AuditEvent)| {
            let mut event = event();
            change(&mut event);
            AuditRecord::chained(event, 1, 2, [3; 32])
        };
        let text = || Arc::<str>::from("other");
        for other in [
            AuditRecord::chained(event(), 2, 2, [3; 32]),
            AuditRecord::chained(event(), 1, 3, [3; 32]),
            AuditRecord::chained(event(), 1, 2, [4; 32]),
            changed(&|event| event.at = Timestamp::from_micros(8)),
            changed(&|event| event.actor = text()),
            changed(&|event| event.action = text()),
            changed(&|event| event.subject = Some(text())),
            changed(&|event| event.subject = None),
            changed(&|event| event.request = text()),
            changed(&|event| event.outcome = AuditOutcome::Refused),
            changed(&|event| event.detail = text()),
            // What one text loses, the next gains.
            changed(&|event| {
                event.actor = Arc::from("token op");
                event.action = Arc::from("skey_revoke");
            }),
        ] {
            assert_ne!(first.hash, other.hash, "{other:?}");
            assert!(other.is_intact());
            let edited = AuditRecord {
                event: other.event,
                ..first.clone()
            };
            assert_eq!(edited.is_intact(), edited == first, "{edited:?}");
        }
    }

    #[test]
    fn an_outcome_is_read_from_its_word() {
        for outcome in AuditOutcome::ALL {
            assert_eq!(AuditOutcome::of_word(outcome.word()), Some(outcome));
        }
        assert_eq!(AuditOutcome::of_word("lost"), None);
    }
}
