//! The audit log of operators' changes: a record per act, chained by hash per node.
//!
//! The record of an act that changes the store is a part of the act's unit of work: the record and the act are written together or not at
//! all.

use std::sync::Arc;

use tollgate_clock::Timestamp;

/// An act, or an attempted act, of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEvent {
    /// When.
    pub at: Timestamp,
    /// The operator, such as `token NAME` for a token of the admin API, or `uid NUMBER` for a user of the machine.
    pub actor: Arc<str>,
    /// The act, such as `key_create`.
    pub action: Arc<str>,
    /// The id of the account, key or payment of the act, if any.
    pub subject: Option<Arc<str>>,
    /// The id of the request.
    pub request: Arc<str>,
    /// The outcome of the act.
    pub outcome: AuditOutcome,
    /// The act's parameters as a JSON object, without secrets and without addresses of persons.
    pub detail: Arc<str>,
}

/// The outcome of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditOutcome {
    /// The act is done.
    Done,
    /// The act was done before, under the reference: nothing was changed now.
    Repeated,
    /// The act was refused: nothing was changed.
    Refused,
    /// The act was begun by a process that cannot record its end.
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

    /// The outcome's word, as stored and shown.
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

/// A stored event, chained to the node's previous event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// The event.
    pub event: AuditEvent,
    /// The node of the record.
    pub node: i64,
    /// 1, 2, 3 ... within the node.
    pub number: i64,
    /// The hash of the node's previous record; zero for the first record.
    pub previous: [u8; 32],
    /// BLAKE3 over `previous` and all fields above.
    pub hash: [u8; 32],
}

impl AuditRecord {
    /// The record of an event as the next record of its node.
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

    /// Whether the hash matches the content: false for an edited record.
    pub fn is_intact(&self) -> bool {
        self.hash == hash(&self.event, (self.node, self.number), self.previous)
    }

    /// The record's position in the order of time.
    pub fn position(&self) -> AuditPosition {
        AuditPosition {
            at: self.event.at,
            node: self.node,
            number: self.number,
        }
    }
}

/// `previous`, then node, number and time (8 bytes each, little-endian), then every text after its length (8 bytes); a missing subject has
/// the length -1.
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
    /// The record's time.
    pub at: Timestamp,
    /// The record's node.
    pub node: i64,
    /// The record's number within the node.
    pub number: i64,
}

/// Selects records of the audit log.
#[derive(Clone, Debug, Default)]
pub struct AuditLogQuery {
    /// Only records before the position.
    pub before: Option<AuditPosition>,
    /// Only records of the actor.
    pub actor: Option<Arc<str>>,
    /// Only records of the subject.
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
            // A suffix of a text moves to the next text.
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
