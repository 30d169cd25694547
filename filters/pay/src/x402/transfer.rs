//! The life of a signed transfer as transitions of the stored row, the only way to change the state. Only the unit of work that grants the
//! plan writes a settled transfer.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_evm::TxHash;
use tollgate_purchase::Versioned;
use tollgate_purchase::plan::{DAYS, PRICE, Paid, PayOutcome, Period, PlanError, Plans};
use tollgate_store::{
    Admission, AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState,
    CommitError, Part, Route, Store, SubscriptionRow, UnitOfWork, commit,
};

use super::rows::{self, MINUTE};
use super::single_flight::FlightKey;

/// Transfers deleted by one unit of work.
const DELETED_AT_ONCE_MAX: u32 = 10_000;

/// A stored signed transfer. Its row is read through `Deref`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    row: Versioned<AuthorizationRow>,
    is_asked: bool,
}

/// A transition that is not stored yet.
#[derive(Debug)]
pub(super) struct Change {
    after: Transfer,
    part: AuthorizationPart,
}

/// The transition to settled, stored together with the paid plan.
#[derive(Debug)]
pub(super) struct Settlement {
    part: AuthorizationPart,
    paid: Paid,
}

/// The evidence of a settlement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Evidence<'a> {
    /// The transaction that has moved the money.
    pub(super) transaction: TxHash,
    /// Whether the transaction certainly has a separate transfer for this payment.
    pub(super) is_proven: bool,
    /// Author of the finding, if other than the gateway.
    pub(super) note: Option<&'a str>,
    /// Time of the block's finality, for another lookup with a node.
    pub(super) final_at: Option<Timestamp>,
}

/// A transition outside the life of a transfer. The transfer is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("payment `{payment}` in state {from:?} cannot become {event}; read it again")]
pub(super) struct IllegalTransition {
    payment: String,
    from: AuthorizationState,
    event: &'static str,
}

impl Deref for Transfer {
    type Target = AuthorizationRow;

    fn deref(&self) -> &AuthorizationRow {
        &self.row
    }
}

impl Transfer {
    /// A transfer from the store.
    pub(super) fn stored(row: AuthorizationRow) -> Transfer {
        Transfer {
            row: Versioned::stored(row),
            is_asked: false,
        }
    }

    /// A transfer looked up for another rail, or for a buyer who presents the payment again. Such a lookup is no attempt of the schedule:
    /// while the outcome is unknown, the number of attempts stays, and so does an earlier next attempt, after any number of lookups.
    pub(super) fn asked(self) -> Transfer {
        Transfer {
            is_asked: true,
            ..self
        }
    }

    pub(super) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// A new transfer after the local checks. The chain accepts the transfer before `valid_before`.
    pub(super) fn seen(
        key: AuthorizationKey,
        flight_key: FlightKey,
        valid_before: Timestamp,
        now: Timestamp,
    ) -> Change {
        let row = AuthorizationRow {
            key,
            account: flight_key.account,
            state: AuthorizationState::Seen,
            version: 0,
            digest: flight_key.digest,
            sealed: None,
            valid_before,
            transaction: None,
            receipt: None,
            note: None,
            attempts: 0,
            next_attempt_at: None,
            created_at: now,
            updated_at: now,
        };
        Change {
            after: Transfer::stored(row.clone()),
            part: AuthorizationPart::Begin(row),
        }
    }

    /// Refused before submission: no money has moved.
    pub(super) fn refused(&self, why: &str, now: Timestamp) -> Result<Change, IllegalTransition> {
        use AuthorizationState::{Refused, Seen};
        let mut row = self.next(&[Seen], Refused, "refused", now)?;
        end(&mut row, why);
        Ok(Change::of(row))
    }

    /// Submitted, or about to be: stored before the call, with the sealed body, and only at this version of the account's subscription.
    pub(super) fn sent(
        &self,
        sealed: Arc<[u8]>,
        subscription: Option<i64>,
        now: Timestamp,
    ) -> Result<Change, IllegalTransition> {
        use AuthorizationState::{RefusedAfterSubmit, Seen, Settling};
        let row = self.next(&[Seen, RefusedAfterSubmit], Settling, "submitted", now)?;
        Ok(Change::sent(row, sealed, subscription))
    }

    /// [`sent`](Self::sent) for a used nonce: submitted by another holder, with an unknown outcome.
    pub(super) fn sent_by_another(
        &self,
        sealed: Arc<[u8]>,
        subscription: Option<i64>,
        now: Timestamp,
    ) -> Result<Change, IllegalTransition> {
        use AuthorizationState::{Refused, Seen, Unknown};
        let row = self.next(&[Seen, Refused], Unknown, "submitted by another", now)?;
        Ok(Change::sent(row, sealed, subscription))
    }

    /// The outcome is not known yet: reconciled again, with exponential backoff.
    pub(super) fn unknown(
        &self,
        transaction: Option<TxHash>,
        why: &str,
        now: Timestamp,
    ) -> Result<Change, IllegalTransition> {
        let mut row = self.next(&SUBMITTED, AuthorizationState::Unknown, "unknown", now)?;
        row.transaction = transaction.map(|hash| hash.0).or(row.transaction);
        row.note = Some(Arc::from(why));
        row.attempts += u32::from(!self.is_asked);
        let next = rows::next_attempt_at(&row, now);
        // Not before the finality of the block behind the void result: the time of the second lookup is part of the proof.
        let keeps_earlier = self.is_asked && !rows::is_void_at_latest(&row);
        let earlier = self.next_attempt_at.filter(|_| keeps_earlier);
        row.next_attempt_at = earlier.into_iter().chain([next]).min();
        Ok(Change::of(row))
    }

    /// Refused by the facilitator after submission, without confirmation by a node. The sealed body is kept. Only the first call has this
    /// outcome: after a lost answer to an earlier call, a refusal proves nothing.
    pub(super) fn refused_after_submit(
        &self,
        why: &str,
        now: Timestamp,
    ) -> Result<Change, IllegalTransition> {
        use AuthorizationState::{RefusedAfterSubmit, Settling};
        let event = "refused after submission";
        let mut row = self.next(&[Settling], RefusedAfterSubmit, event, now)?;
        row.note = Some(Arc::from(why));
        row.attempts = 0;
        row.next_attempt_at = None;
        Ok(Change::of(row))
    }

    /// Has moved no money, and never can.
    pub(super) fn dead(&self, why: &str, now: Timestamp) -> Result<Change, IllegalTransition> {
        let mut row = self.next(&SUBMITTED, AuthorizationState::Dead, "dead", now)?;
        end(&mut row, why);
        Ok(Change::of(row))
    }

    /// Has moved the money.
    pub(super) fn settled(
        &self,
        evidence: Evidence<'_>,
        now: Timestamp,
    ) -> Result<Settlement, IllegalTransition> {
        let mut row = self.next(&SUBMITTED, AuthorizationState::Settled, "settled", now)?;
        let receipt: Arc<str> = Arc::from(rows::receipt(&row.key, evidence.transaction));
        row.transaction = Some(evidence.transaction.0);
        row.receipt = Some(receipt.clone());
        row.note = evidence.note.map(Arc::from);
        row.attempts = 0;
        row.next_attempt_at = evidence.final_at;
        if evidence.final_at.is_none() {
            row.sealed = None;
        }
        let paid = Paid {
            account: row.account,
            route: Route::X402,
            payment: rows::reference(&row.key).into(),
            reference: evidence.transaction.to_string().into(),
            amount: PRICE,
            period: Period::Days(DAYS),
            renews: false,
            receipt: Some(receipt),
            at: now,
        };
        Ok(Settlement {
            part: AuthorizationPart::Settle {
                row,
                is_proven: evidence.is_proven,
            },
            paid,
        })
    }

    /// Looked up without a result, and looked up again at `next`.
    pub(super) fn looked_up(
        &self,
        now: Timestamp,
        next: impl FnOnce(&AuthorizationRow) -> Timestamp,
    ) -> Result<Change, IllegalTransition> {
        use AuthorizationState::{RefusedAfterSubmit, Settled};
        let mut row = self.next(&[Settled, RefusedAfterSubmit], self.state, "looked up", now)?;
        row.attempts += 1;
        row.next_attempt_at = Some(next(&row));
        Ok(Change::of(row))
    }

    /// Settled, in a block that is final.
    pub(super) fn confirmed(
        &self,
        transaction: TxHash,
        now: Timestamp,
    ) -> Result<Change, IllegalTransition> {
        use AuthorizationState::Settled;
        let mut row = self.next(&[Settled], Settled, "confirmed", now)?;
        row.transaction = Some(transaction.0);
        row.attempts += 1;
        row.next_attempt_at = None;
        row.sealed = None;
        Ok(Change::of(row))
    }

    /// Settled, and then reorganized out of the chain for good. The unit of work has to take the grant back.
    pub(super) fn revoked(&self, why: &str, now: Timestamp) -> Result<Change, IllegalTransition> {
        use AuthorizationState::{Dead, Settled};
        let mut row = self.next(&[Settled], Dead, "revoked", now)?;
        row.attempts += 1;
        end(&mut row, why);
        Ok(Change::of(row))
    }

    /// The next version of the row, in the state `to`.
    fn next(
        &self,
        allowed: &[AuthorizationState],
        to: AuthorizationState,
        event: &'static str,
        now: Timestamp,
    ) -> Result<AuthorizationRow, IllegalTransition> {
        if !allowed.contains(&self.state) {
            return Err(IllegalTransition {
                payment: rows::reference(&self.key),
                from: self.state,
                event,
            });
        }
        Ok(self.row.next(now, |row| row.state = to).into_row())
    }
}

/// The states of a transfer that was submitted and whose outcome is not proved.
const SUBMITTED: [AuthorizationState; 3] = [
    AuthorizationState::Settling,
    AuthorizationState::Unknown,
    AuthorizationState::RefusedAfterSubmit,
];

/// Closes a transfer that moves no money: no work is left.
fn end(row: &mut AuthorizationRow, why: &str) {
    row.note = Some(Arc::from(why));
    row.next_attempt_at = None;
    row.sealed = None;
}

impl Change {
    fn of(row: AuthorizationRow) -> Change {
        Change {
            after: Transfer::stored(row.clone()),
            part: AuthorizationPart::Change(row),
        }
    }

    fn sent(mut row: AuthorizationRow, sealed: Arc<[u8]>, subscription: Option<i64>) -> Change {
        row.sealed = Some(sealed);
        // After a crash of this process the next process reconciles at once; while this process runs, the submitting task knows the state.
        row.next_attempt_at = Some(row.updated_at + 2 * MINUTE);
        Change {
            after: Transfer::stored(row.clone()),
            part: AuthorizationPart::Send { row, subscription },
        }
    }

    /// The part that stores the change, and the transfer afterwards.
    pub(super) fn into_parts(self) -> (Part, Transfer) {
        (part(self.part), self.after)
    }
}

impl Settlement {
    /// The receipt for the buyer.
    pub(super) fn receipt(&self) -> &str {
        self.paid.receipt.as_deref().unwrap_or_default()
    }

    /// Gives the account the plan and stores the transfer as settled, in one unit of work with the parts built by `attached` from the
    /// subscription.
    pub(super) async fn grant(
        &self,
        (store, plans): (&dyn Store, &Plans),
        attached: impl Fn(&SubscriptionRow) -> Vec<Part> + Send + Sync,
    ) -> Result<PayOutcome, PlanError> {
        let settle = || part(self.part.clone());
        let paid = plans.pay(self.paid.clone(), |subscription| {
            let mut parts = attached(subscription);
            parts.push(settle());
            parts
        });
        let outcome = paid.await?;
        match &outcome {
            PayOutcome::New(_) => {}
            // The plan was given before, and the transfer not stored as settled.
            PayOutcome::Repeated(_) => {
                let unit = UnitOfWork::of(settle(), Admission::Always);
                commit(store, unit).await.map_err(|error| match error {
                    CommitError::Refused(refusal) => PlanError::AttachedPart(refusal),
                    error => PlanError::Store(error),
                })?;
            }
            // A transfer always adds its days, so this case does not occur. Without a grant nothing is stored.
            PayOutcome::Duplicate(_) => return Err(PlanError::Busy(self.paid.account)),
        }
        Ok(outcome)
    }
}

/// Deletes two kinds of transfers, by the time since when the chain accepts the transfer no more: unsubmitted (`before`), and refused after
/// submission (`refused_before`).
pub(super) fn deletion(before: Timestamp, refused_before: Timestamp) -> Part {
    part(AuthorizationPart::Forget {
        before,
        refused_before,
        limit: DELETED_AT_ONCE_MAX,
    })
}

fn part(part: AuthorizationPart) -> Part {
    Part::Authorization(Box::new(part))
}

impl fmt::Display for Transfer {
    /// The transfer's reference in the books.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&rows::reference(&self.key))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_money::AccountId;

    use super::*;

    /// What can happen to a transfer. Each is tried in every state.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Sent,
        SentByAnother,
        Refused,
        RefusedAfterSubmit,
        Unknown,
        Settled,
        Dead,
        Revoked,
        LookedUp,
        Confirmed,
    }

    const EVENTS: [Event; 10] = [
        Event::Sent,
        Event::SentByAnother,
        Event::Refused,
        Event::RefusedAfterSubmit,
        Event::Unknown,
        Event::Settled,
        Event::Dead,
        Event::Revoked,
        Event::LookedUp,
        Event::Confirmed,
    ];

    /// The stored row with every version that a writer may still hold, and the grants that were committed with it.
    #[derive(Clone)]
    struct Books {
        read: Vec<Transfer>,
        grants: u32,
        revocations: u32,
    }

    impl Books {
        fn new() -> Books {
            let key = AuthorizationKey {
                network: Arc::from("eip155:8453"),
                asset: [1; 20],
                payer: [2; 20],
                nonce: [3; 32],
            };
            let flight_key = FlightKey {
                account: AccountId::from_bytes([4; 16]),
                digest: [5; 32],
            };
            let seen = Transfer::seen(key, flight_key, time(600), time(0));
            Books {
                read: vec![seen.after],
                grants: 0,
                revocations: 0,
            }
        }

        fn stored(&self) -> &Transfer {
            self.read.last().expect("it was seen")
        }

        /// Applies an event to a version that was read `age` versions ago, and commits it as the store does: only on the version it is based
        /// on. Checks the row after it.
        fn apply(&mut self, event: Event, age: usize) {
            let at = self.read.len().saturating_sub(1 + age);
            let held = self.read[at].clone();
            let now = time(i64::try_from(self.read.len()).expect("few"));
            let sealed = || Arc::from(&b"sealed"[..]);
            let evidence = Evidence {
                transaction: TxHash([6; 32]),
                is_proven: true,
                note: None,
                final_at: Some(now),
            };
            let change = match event {
                Event::Settled => {
                    if let Ok(settlement) = held.settled(evidence, now)
                        && held.version == self.stored().version
                    {
                        // The part is private: `grant` alone writes it, with the plan.
                        self.grants += 1;
                        let AuthorizationPart::Settle { row, .. } = settlement.part else {
                            panic!("a settlement settles: {:?}", settlement.part);
                        };
                        self.read.push(Transfer::stored(row));
                        self.check(&held, event);
                    }
                    return;
                }
                Event::Sent => held.sent(sealed(), None, now),
                Event::SentByAnother => held.sent_by_another(sealed(), None, now),
                Event::Refused => held.refused("no", now),
                Event::RefusedAfterSubmit => held.refused_after_submit("no", now),
                Event::Unknown => held.unknown(None, "lost", now),
                Event::Dead => held.dead("expired", now),
                Event::Revoked => held.revoked("reorganized out", now),
                Event::LookedUp => held.looked_up(now, |_| now),
                Event::Confirmed => held.confirmed(TxHash([6; 32]), now),
            };
            let Ok(change) = change else { return };
            if held.version != self.stored().version {
                return;
            }
            self.revocations += u32::from(matches!(event, Event::Revoked));
            self.read.push(change.after);
            self.check(&held, event);
        }

        fn check(&self, before: &Transfer, event: Event) {
            use AuthorizationState::{Dead, Refused, Seen, Settled, Settling, Unknown};
            let row = self.stored();
            let step = format!("{event:?}: {:?} to {:?}", before.state, row.state);
            assert!(self.grants <= 1, "granted twice by {step}");
            let is_granted = self.grants > self.revocations;
            assert_eq!(
                row.state == Settled,
                is_granted,
                "a grant and no settlement, or the reverse, after {step}"
            );
            assert_ne!(before.state, Dead, "a dead transfer was changed by {step}");
            if row.state == Settled && before.state != Settled {
                let was_submitted = !matches!(before.state, Seen | Refused);
                assert!(was_submitted, "granted without a submission by {step}");
                assert!(row.receipt.is_some(), "no receipt after {step}");
            }
            if matches!(row.state, Settling | Unknown) {
                assert!(row.sealed.is_some(), "nothing to submit again after {step}");
                assert!(
                    row.next_attempt_at.is_some(),
                    "never reconciled after {step}"
                );
            }
            if matches!(row.state, Dead | Refused) {
                assert!(row.sealed.is_none(), "the signature is kept after {step}");
            }
            assert_eq!(row.version, before.version + 1, "{step}");
            assert_eq!(
                (&row.key, row.account, row.digest),
                (&before.key, before.account, before.digest),
                "{step}"
            );
        }
    }

    fn time(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// Every sequence of six events, each on the stored row or on one that another writer has changed meanwhile.
    #[test]
    fn no_sequence_of_events_grants_a_transfer_twice_or_without_settlement() {
        fn each(books: &Books, length: u32, seen: &mut Vec<AuthorizationState>) {
            if length == 0 {
                return;
            }
            for event in EVENTS {
                for age in [0, 1] {
                    let mut books = books.clone();
                    let before = books.read.len();
                    books.apply(event, age);
                    // One that changes nothing leads nowhere new.
                    if books.read.len() == before {
                        continue;
                    }
                    let state = books.stored().state;
                    if !seen.contains(&state) {
                        seen.push(state);
                    }
                    each(&books, length - 1, seen);
                }
            }
        }
        let mut seen = vec![AuthorizationState::Seen];
        each(&Books::new(), 6, &mut seen);
        assert_eq!(
            seen.len(),
            AuthorizationState::ALL.len(),
            "every state was reached: {seen:?}"
        );
    }

    proptest! {
        #[test]
        fn a_long_life_of_a_transfer_has_one_grant_at_most(
            events in prop::collection::vec((prop::sample::select(EVENTS.to_vec()), 0..3_usize), 1..40),
        ) {
            let mut books = Books::new();
            for (event, age) in events {
                books.apply(event, age);
            }
        }
    }

    /// The table of the README.
    #[test]
    fn each_event_is_possible_in_the_states_of_the_table() {
        for (event, possible) in [
            (Event::Sent, "Seen RefusedAfterSubmit"),
            (Event::SentByAnother, "Seen Refused"),
            (Event::Refused, "Seen"),
            (Event::RefusedAfterSubmit, "Settling"),
            (Event::Unknown, "Settling Unknown RefusedAfterSubmit"),
            (Event::Settled, "Settling Unknown RefusedAfterSubmit"),
            (Event::Dead, "Settling Unknown RefusedAfterSubmit"),
            (Event::Revoked, "Settled"),
            (Event::LookedUp, "Settled RefusedAfterSubmit"),
            (Event::Confirmed, "Settled"),
        ] {
            let applies = |state: &&AuthorizationState| {
                let mut books = Books::new();
                let mut row = (**books.stored()).clone();
                row.state = **state;
                row.sealed = Some(Arc::from(&b"sealed"[..]));
                books.read = vec![Transfer::stored(row)];
                books.grants = u32::from(**state == AuthorizationState::Settled);
                books.apply(event, 0);
                books.read.len() == 2
            };
            let states = AuthorizationState::ALL.iter().filter(applies);
            let words: Vec<_> = states.map(|state| format!("{state:?}")).collect();
            assert_eq!(words.join(" "), possible, "{event:?}");
        }
    }
}
