//! The audit log: the record of a change, and the recorder. The recorder puts the record into the unit of work of the change.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Map, Value};
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_identity::{KeyId, redact};
use tollgate_money::{AccountId, OperationId};
use tollgate_store::{
    Admission, AuditEvent, AuditOutcome, CommitError, Done, LostCommits, Part, Receipt, Store,
    Submit, SubmitError, UnitOfWork, commit,
};

use super::changes::{Actor, Caller, ChangeError};
use super::operations::operation::Operation;

/// Maximum length of a text of the detail in characters; the rest is cut.
const TEXT_CHARS_MAX: usize = 300;

/// Time, actor and request of a change.
struct Origin {
    at: Timestamp,
    actor: Arc<str>,
    request: Arc<str>,
}

impl Origin {
    /// The effective user of the process, at the current time.
    fn of_process(clock: &Clock, entropy: &Entropy) -> Origin {
        let at = clock.now();
        Origin {
            at,
            actor: Actor::of_process().to_string().into(),
            request: OperationId::generate(at, entropy).to_string().into(),
        }
    }
}

/// The content of a change's record, without secrets and without addresses of persons.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Act {
    action: &'static str,
    subject: Option<String>,
    /// Whether the caller has named a subject by a text that is not an id. The text may be a secret, and an error may quote the text.
    has_invalid_subject: bool,
    detail: Map<String, Value>,
}

impl Act {
    /// The act of an operation.
    pub(super) fn of<O: Operation>(operation: &O) -> Act {
        let Ok(Value::Object(mut detail)) = serde_json::to_value(operation) else {
            unreachable!("an operation is an object");
        };
        let mut take = |key: &str| match detail.remove(key) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        };
        let named = O::SUBJECT.and_then(|kind| Some((kind, take(kind)?)));
        let is_named = named.is_some();
        let subject = named
            .filter(|(kind, id)| is_id(kind, id))
            .map(|(_, id)| cut(id));
        for personal in ["emails", "phones"] {
            if let Some(Value::Array(addresses)) = detail.get(personal) {
                let count = addresses.len();
                detail.insert(personal.to_owned(), count.into());
            }
        }
        detail.retain(|_, value| !value.is_null());
        for value in detail.values_mut() {
            if let Value::String(text) = value {
                *text = recordable(std::mem::take(text));
            }
        }
        Act {
            action: O::NAME,
            has_invalid_subject: is_named && subject.is_none(),
            subject,
            detail,
        }
    }

    /// The record of the act; `more` is added to the detail.
    fn part(
        &self,
        origin: &Origin,
        outcome: AuditOutcome,
        subject: Option<String>,
        more: Map<String, Value>,
    ) -> Part {
        let mut detail = self.detail.clone();
        detail.extend(more);
        Part::Audit(Box::new(AuditEvent {
            at: origin.at,
            actor: origin.actor.clone(),
            action: self.action.into(),
            subject: subject.map(Into::into),
            request: origin.request.clone(),
            outcome,
            detail: Value::Object(detail).to_string().into(),
        }))
    }
}

/// The record of an operation performed by the process itself. The actor is the effective user of the process.
pub(crate) fn record_of<O: Operation>(operation: &O, clock: &Clock, entropy: &Entropy) -> Part {
    let act = Act::of(operation);
    let origin = Origin::of_process(clock, entropy);
    act.part(&origin, AuditOutcome::Done, act.subject.clone(), Map::new())
}

/// Whether a text is the id of a subject of `kind`.
fn is_id(kind: &str, text: &str) -> bool {
    match kind {
        "account" => text.parse::<AccountId>().is_ok(),
        "key" => text.parse::<KeyId>().is_ok(),
        // Names of payments and nodes have several forms. A text with a secret is not a name.
        _ => redact(text) == text,
    }
}

/// The form of a text in records and logs: secrets are redacted, and the length is limited. The text is from the caller, or from an error
/// with a quotation of the caller's text.
fn recordable(text: String) -> String {
    match redact(&text) {
        Cow::Borrowed(_) => cut(text),
        Cow::Owned(clean) => cut(clean),
    }
}

/// The record of a loss of commits. The effective user of the process has accepted the loss.
pub(crate) fn record_of_accepted_loss(lost: LostCommits, clock: &Clock, entropy: &Entropy) -> Part {
    let place = |(run, commit): (i64, i64)| serde_json::json!({ "run": run, "commit": commit });
    let mut detail = Map::new();
    detail.insert("commits".to_owned(), lost.commits.into());
    detail.insert("entries".to_owned(), lost.entries.into());
    detail.insert("last".to_owned(), lost.last.map_or(Value::Null, place));
    detail.insert("recorded".to_owned(), place(lost.recorded));
    let act = Act {
        action: "accept_loss",
        subject: None,
        has_invalid_subject: false,
        detail,
    };
    let origin = Origin::of_process(clock, entropy);
    act.part(&origin, AuditOutcome::Done, None, Map::new())
}

fn cut(text: String) -> String {
    match text.char_indices().nth(TEXT_CHARS_MAX) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// Records an act. As [`Submit`], the recorder adds the record to the submitted unit.
pub(super) struct Recorder<'s> {
    store: &'s dyn Store,
    act: Act,
    origin: Origin,
    is_recorded: Arc<AtomicBool>,
}

impl<'s> Recorder<'s> {
    /// The recorder of an act at `at`; `request` makes an id for a request without an id.
    pub(super) fn new(
        store: &'s dyn Store,
        act: Act,
        caller: Caller,
        at: Timestamp,
        request: impl FnOnce() -> String,
    ) -> Recorder<'s> {
        Recorder {
            store,
            act,
            origin: Origin {
                at,
                actor: caller.actor.to_string().into(),
                request: caller.request.unwrap_or_else(request).into(),
            },
            is_recorded: Arc::default(),
        }
    }

    /// The record as a part of the caller's unit. The caller submits the unit, and calls [`Recorder::set_recorded`] when the unit is
    /// durable.
    pub(super) fn part(&self) -> Part {
        self.part_of(AuditOutcome::Done, self.act.subject.clone(), Map::new())
    }

    /// Notes a durable record: [`Recorder::end`] writes no second record.
    pub(super) fn set_recorded(&self) {
        self.is_recorded.store(true, Relaxed);
    }

    /// Records the begin of an act, when the process cannot record the end.
    pub(super) async fn begin(&self) -> Result<(), ChangeError> {
        let begun = self.write(AuditOutcome::Begun, Map::new()).await;
        let begun = begun.inspect_err(|error| {
            let (action, request) = (self.act.action, &*self.origin.request);
            tracing::error!(action, request, %error, "operator change not begun, since it could not be recorded");
        });
        begun.map(|()| self.set_recorded())
    }

    /// Records the outcome of the act, unless the store has the record already. The outcome is logged in any case.
    pub(super) async fn end<O: Operation>(
        &self,
        result: Result<O::Output, ChangeError>,
    ) -> Result<O::Output, ChangeError> {
        let Act {
            action, subject, ..
        } = &self.act;
        let (actor, request) = (&*self.origin.actor, &*self.origin.request);
        let subject = subject.as_deref().unwrap_or_default();
        match &result {
            Ok(output) => {
                let subject = O::created(output).unwrap_or(subject);
                tracing::info!(actor, action, subject, request, "operator change");
                if !self.is_recorded.load(Relaxed) {
                    let detail = match O::detail(output) {
                        Value::Object(members) => members,
                        _ => Map::new(),
                    };
                    let written = self.write(AuditOutcome::Done, detail).await;
                    written.map_err(|error| {
                        tracing::error!(action, request, %error, "recording an operator change failed");
                        ChangeError::unavailable(format!(
                            "it is done, but not in the audit log: {error}"
                        ))
                    })?;
                }
            }
            Err(error) => {
                let is_personal = ["emails", "phones"]
                    .iter()
                    .any(|key| self.act.detail.contains_key(*key));
                let cause = match is_personal || self.act.has_invalid_subject {
                    // The message may quote an address or a secret.
                    true => error.kind.word().to_owned(),
                    false => recordable(error.message.clone()),
                };
                tracing::info!(
                    actor,
                    action,
                    subject,
                    request,
                    cause,
                    "operator change refused"
                );
                let mut detail = Map::new();
                detail.insert("error".to_owned(), cause.into());
                if let Err(error) = self.write(AuditOutcome::Refused, detail).await {
                    tracing::warn!(%error, "recording a refused operator change failed");
                }
            }
        }
        result
    }

    async fn write(
        &self,
        outcome: AuditOutcome,
        detail: Map<String, Value>,
    ) -> Result<(), ChangeError> {
        let part = self.part_of(outcome, self.act.subject.clone(), detail);
        commit(self.store, UnitOfWork::of(part, Admission::Normal)).await?;
        Ok(())
    }

    fn part_of(
        &self,
        outcome: AuditOutcome,
        subject: Option<String>,
        more: Map<String, Value>,
    ) -> Part {
        self.act.part(&self.origin, outcome, subject, more)
    }
}

impl Submit for Recorder<'_> {
    fn submit(&self, unit: UnitOfWork, done: Done) -> Result<(), SubmitError> {
        let subject = created(unit.parts()).or_else(|| self.act.subject.clone());
        let part = self.part_of(AuditOutcome::Done, subject, Map::new());
        let is_recorded = self.is_recorded.clone();
        let done: Done = Box::new(move |result: Result<Receipt, CommitError>| {
            is_recorded.fetch_or(result.is_ok(), Relaxed);
            done(result);
        });
        self.store.submit(unit.with(part), done)
    }
}

/// The id of the account or key created by a unit.
fn created(parts: &[Part]) -> Option<String> {
    parts.iter().find_map(|part| match part {
        Part::CreateAccount(account) => Some(account.id.to_string()),
        Part::InsertCredential(key) => Some(KeyId(key.id).to_string()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::operations::operation::Recorded;
    use super::super::operations::{
        account, cache, credits, gateway, key, node, payment, provider, settings,
    };
    use super::*;

    #[test]
    fn an_act_has_neither_addresses_of_persons_nor_texts_of_any_length() {
        let act = Act::of(&account::Create {
            emails: vec!["a@example.net".to_owned(), "b@example.net".to_owned()],
            phones: vec!["+4930123456".to_owned()],
            class: Some("x".repeat(1000)),
            cache_scope: None,
        });
        assert_eq!(act.action, "account_create");
        assert_eq!(act.subject, None);
        let detail = Value::Object(act.detail);
        let class = "x".repeat(TEXT_CHARS_MAX);
        assert_eq!(
            detail,
            serde_json::json!({ "emails": 2, "phones": 1, "class": class })
        );
    }

    /// An operator passed a key in place of the key's id. The audit log showed the key in clear to every `read` token.
    #[test]
    fn a_secret_in_place_of_an_id_or_in_a_text_is_not_recorded() {
        const KEY: &str = "sk-svc-7Hq2mZ0cVx9LkR4sTn8YwBd1GfJp6EaUoXiCvK3M06o8FL";
        let grant = |account: &str, reference: &str| credits::Grant {
            account: account.to_owned(),
            amount: "5".to_owned(),
            reference: reference.to_owned(),
        };
        for act in [
            Act::of(&key::Revoke {
                key: KEY.to_owned(),
            }),
            Act::of(&account::Suspend {
                account: KEY.to_owned(),
                suspended: true,
            }),
            Act::of(&payment::Close {
                payment: KEY.to_owned(),
                paid: Some(KEY.to_owned()),
                shared_transaction: false,
            }),
            Act::of(&node::Recover {
                node: KEY.to_owned(),
            }),
            Act::of(&cache::Purge {
                id: Some(KEY.to_owned()),
                model: Some(format!("a model of {KEY}")),
            }),
            Act::of(&grant(KEY, KEY)),
            Act::of(&grant("acct_1", &format!("for {KEY}"))),
        ] {
            assert!(!format!("{act:?}").contains("7Hq2"), "{act:?}");
            assert_eq!(act.subject, None, "{act:?}");
        }
    }

    #[test]
    fn the_subject_of_an_act_is_not_repeated_in_its_detail() {
        let id = "acct_0123456789abcdef0123456789abcdef";
        let act = Act::of(&credits::Grant {
            account: id.to_owned(),
            amount: "5".to_owned(),
            reference: "invoice 1".to_owned(),
        });
        assert_eq!(act.subject.as_deref(), Some(id));
        assert_eq!(
            Value::Object(act.detail),
            serde_json::json!({ "amount": "5", "reference": "invoice 1" })
        );
    }

    #[test]
    fn a_question_is_not_recorded() {
        for recorded in [
            cache::Show::RECORDED,
            gateway::Show::RECORDED,
            provider::Show::RECORDED,
            settings::Diff::RECORDED,
        ] {
            assert_eq!(recorded, Recorded::Never);
        }
    }
}
