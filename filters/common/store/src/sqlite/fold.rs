//! Holds that are settled in the commit they begin in.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher, Micros, OperationId};

use crate::books::LedgerPart;
use crate::queue::Item;
use crate::unit::Part;

/// What is to be done with a unit, seen together with the others of its batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Its parts are written one after the other.
    Apply,
    /// A hold that is settled in the same batch: the two are one charge, written by the settlement.
    Folded,
    /// A settlement whose hold is unit `hold` of the same batch.
    Folding { hold: usize },
}

/// Looks for holds that are settled in the batch they begin in. Empty when there is none: every unit is then applied.
pub(crate) fn plan(items: &[Item]) -> Vec<Step> {
    let mut holds = Holds::default();
    let mut steps = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let [Part::Ledger(part)] = &item.unit.parts[..] else {
            continue;
        };
        match *part {
            LedgerPart::Hold {
                operation,
                account,
                amount,
                ..
            } => {
                // A second hold of one operation will be refused, and the first is then written as itself.
                holds
                    .entry(operation)
                    .and_modify(|first| *first = None)
                    .or_insert(Some((index, account, amount)));
            }
            LedgerPart::Settle {
                operation,
                account,
                held,
                ..
            } if !holds.is_empty() => {
                if let Some(hold) = meets(&mut holds, operation, account, held) {
                    if steps.is_empty() {
                        steps.resize(items.len(), Step::Apply);
                    }
                    steps[hold] = Step::Folded;
                    steps[index] = Step::Folding { hold };
                }
            }
            LedgerPart::Release { operation, .. } => {
                holds.remove(&operation);
            }
            _ => {}
        }
    }
    steps
}

/// The holds of a batch that have not met their end: which unit, whose credit and how much.
type Holds = HashMap<OperationId, Option<(usize, AccountId, Micros)>, BuildHasherDefault<IdHasher>>;

/// Takes the hold that this end belongs to out of the map, so that a second end finds none.
fn meets(
    holds: &mut Holds,
    operation: OperationId,
    account: AccountId,
    held: Micros,
) -> Option<usize> {
    let (hold, owner, amount) = (*holds.get(&operation)?)?;
    ((owner, amount) == (account, held)).then(|| {
        holds.remove(&operation);
        hold
    })
}
