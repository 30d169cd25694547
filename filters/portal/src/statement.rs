//! Account statement: ledger entries and daily spending per key, with the running balance.

use tollgate_clock::Timestamp;
use tollgate_money::{CredentialId, Micros};
use tollgate_store::{EntryKind, Statement};

/// One line of the statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// Time; for spending, the time of the last request.
    pub(crate) at: Timestamp,
    pub(crate) kind: LineKind,
    /// Change of the balance.
    pub(crate) change: Micros,
    /// Balance after the line.
    pub(crate) after: Micros,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// A ledger entry with a reference.
    Credit { kind: EntryKind, reference: String },
    /// Requests of one day with one credential, without a credit in between.
    Spent {
        credential: Option<CredentialId>,
        /// Number of requests.
        requests: u64,
    },
}

/// The lines of a statement, newest first. Each shows the balance left at the line's time.
pub(crate) fn lines(statement: &Statement) -> Vec<Line> {
    let credits = statement.credits.iter().rev().map(|entry| Line {
        at: entry.at,
        kind: LineKind::Credit {
            kind: entry.kind,
            reference: entry.reference.as_deref().unwrap_or_default().to_owned(),
        },
        change: entry.d_available + entry.d_held,
        after: Micros::ZERO,
    });
    let spent = statement.spending.iter().rev().map(|day| Line {
        at: day.last_at,
        kind: LineKind::Spent {
            credential: day.credential,
            requests: day.requests,
        },
        change: -day.cost,
        after: Micros::ZERO,
    });
    let mut lines: Vec<Line> = credits.chain(spent).collect();
    // Sort ascending, then reverse: equal lines keep their order. Within one instant, the store counts spending after credits.
    lines.sort_by_key(|line| (line.at, matches!(line.kind, LineKind::Spent { .. })));
    lines.reverse();
    let mut after = statement.available + statement.held - statement.changed_since;
    for line in &mut lines {
        line.after = after;
        after -= line.change;
    }
    lines
}

/// Truncates the list after the day that reaches `most` lines; returns the end day of the next page.
pub(crate) fn truncate_at_day(lines: &mut Vec<Line>, most: usize) -> Option<Timestamp> {
    let last = lines.get(most.checked_sub(1)?)?;
    let day = last.at.start_of_day();
    let end = lines.iter().position(|line| line.at.start_of_day() < day)?;
    lines.truncate(end);
    Some(day)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tollgate_money::{AccountId, OperationId};
    use tollgate_store::entries::LedgerPart;
    use tollgate_store::sqlite::{self, Durability, Options};
    use tollgate_store::{
        Admission, CacheScope, Endpoint, NewAccount, Part, RootSecret, Store, UnitOfWork,
        UsageFlags, UsageRecord, commit,
    };

    use super::*;
    use crate::usage::DAY;

    const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
    /// The credit before the first day.
    const BEFORE: i64 = 1_000_000;

    /// A change of the balance: a credit without a key, what a request cost otherwise.
    #[derive(Clone, Copy, Debug)]
    struct Move {
        at: Timestamp,
        key: Option<u8>,
        amount: i64,
    }

    fn part(number: usize, change: Move) -> Part {
        let operation = OperationId::from_bytes((number as u128 + 1).to_be_bytes());
        Part::Ledger(match change.key {
            None => LedgerPart::Credit {
                operation,
                account: ACCOUNT,
                kind: match change.amount > 0 {
                    true => EntryKind::Grant,
                    false => EntryKind::Correction,
                },
                amount: Micros::new(change.amount),
                reference: Arc::from(number.to_string()),
                at: change.at,
            },
            Some(key) => LedgerPart::Charge {
                operation,
                account: ACCOUNT,
                charged: Micros::new(-change.amount),
                written_off: Micros::ZERO,
                price_version: None,
                usage: UsageRecord {
                    credential: Some(CredentialId::from_bytes([key; 16])),
                    endpoint: Endpoint::Chat,
                    model: Arc::from("small"),
                    upstream: None,
                    prompt_tokens: 1,
                    completion_tokens: 1,
                    flags: UsageFlags::NONE,
                    http_status: 200,
                    ttfb_us: None,
                    total_us: None,
                },
                at: change.at,
            },
        })
    }

    /// A store with these changes, each committed by itself, in a folder of its own.
    fn stored(changes: &[Move]) -> (tempfile::TempDir, Arc<dyn Store>) {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options {
            durability: Durability::Process,
            // So few that some of the changes are posted and some are not.
            post_records: 5,
            ..Options::new(Timestamp::from_micros(1), RootSecret([7; 32]))
        };
        let store = sqlite::open(&folder.path().join("t.db"), options).expect("the store opens");
        let account = Part::CreateAccount(Box::new(NewAccount {
            id: ACCOUNT,
            class: Arc::from("free"),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::ZERO,
            created_at: Timestamp::from_micros(1),
        }));
        let first = Move {
            at: Timestamp::from_micros(1),
            key: None,
            amount: BEFORE,
        };
        let all = [first].into_iter().chain(changes.iter().copied());
        let parts = all.enumerate().map(|(number, change)| part(number, change));
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            for part in [account].into_iter().chain(parts) {
                let unit = UnitOfWork::of(part, Admission::Always);
                commit(&*store, unit).await.expect("it is committed");
            }
        });
        (folder, store)
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        // Few instants of three days, in any order, so that several changes share one.
        let at = (1u32..4, 0u64..4).prop_map(|(day, hour)| {
            Timestamp::UNIX_EPOCH + day * DAY + std::time::Duration::from_secs(hour * 3600)
        });
        let change = (
            at,
            prop::option::weighted(0.7, 0u8..3),
            1i64..1_000,
            any::<bool>(),
        );
        let change = change.prop_map(|(at, key, amount, is_more)| Move {
            at,
            key,
            amount: if key.is_none() && is_more {
                amount
            } else {
                -amount
            },
        });
        prop::collection::vec(change, 0..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn each_line_shows_the_balance_that_was_left_at_its_time(changes in moves()) {
            let (_folder, store) = stored(&changes);
            let from = Timestamp::UNIX_EPOCH + DAY;
            let statement = store.statement(ACCOUNT, from, Timestamp::MAX).expect("readable");
            let lines = lines(&statement.expect("an account"));
            prop_assert!(lines.is_sorted_by(|one, next| one.at >= next.at), "newest first: {lines:?}");
            let mut after = BEFORE;
            for line in lines.iter().rev() {
                after += line.change.get();
                prop_assert_eq!(line.after.get(), after, "adds up");
            }
            prop_assert_eq!(after, BEFORE + changes.iter().map(|change| change.amount).sum::<i64>());
            // Requests of one instant are after its credits, so the last credit of each shows what was left then.
            for (at, line) in lines.iter().enumerate() {
                let is_last = at == 0 || lines[at - 1].at > line.at || matches!(lines[at - 1].kind, LineKind::Spent { .. });
                if matches!(line.kind, LineKind::Credit { .. }) && is_last {
                    let before = changes.iter().filter(|change| change.at < line.at || change.at == line.at && change.key.is_none());
                    let left = BEFORE + before.map(|change| change.amount).sum::<i64>();
                    prop_assert_eq!(line.after.get(), left, "at {:?}: {:?}", line.at, lines);
                }
            }
        }
    }

    #[test]
    fn a_page_ends_with_a_day() {
        let line = |day: u32| Line {
            at: Timestamp::UNIX_EPOCH + day * DAY,
            kind: LineKind::Spent {
                credential: None,
                requests: 1,
            },
            change: Micros::ZERO,
            after: Micros::ZERO,
        };
        let all = [2, 2, 2, 1, 1].map(line);
        let mut some = all.to_vec();
        let next = truncate_at_day(&mut some, 2);
        assert_eq!(next, Some(Timestamp::UNIX_EPOCH + 2 * DAY));
        assert_eq!(some.len(), 3, "the day that has the second line is whole");
        assert_eq!(
            truncate_at_day(&mut all.to_vec(), 5),
            None,
            "nothing is left over"
        );
        assert_eq!(truncate_at_day(&mut all.to_vec(), 9), None);
    }
}
