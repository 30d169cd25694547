//! Holds that end in the commit they begin in.

use std::collections::HashMap;

use tollgate_money::{AccountId, Micros, OperationId};

use crate::books::LedgerPart;
use crate::queue::Item;
use crate::unit::Part;

/// What is to be done with a unit, seen together with the others of its batch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Its parts are written one after the other.
    Apply,
    /// A hold whose settlement is unit `by` of the same batch: the two are one charge, written there.
    FoldedInto { by: usize },
    /// A settlement whose hold is unit `hold` of the same batch.
    Folding { hold: usize },
    /// A hold whose release is in the same batch: its row in `holds` would be deleted before anybody could see it.
    Brief,
    /// The release of a [`Step::Brief`] hold, unit `hold` of the same batch.
    EndOfBrief { hold: usize },
}

/// Looks for holds that end in the batch they begin in.
pub(crate) fn plan(items: &[Item]) -> Vec<Step> {
    let mut steps = vec![Step::Apply; items.len()];
    if items.len() < 2 {
        return steps;
    }
    let mut holds = Holds::with_capacity(items.len());
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
            } => {
                if let Some(hold) = meets(&mut holds, operation, account, held) {
                    steps[hold] = Step::FoldedInto { by: index };
                    steps[index] = Step::Folding { hold };
                }
            }
            LedgerPart::Release {
                operation,
                account,
                held,
                ..
            } => {
                if let Some(hold) = meets(&mut holds, operation, account, held) {
                    steps[hold] = Step::Brief;
                    steps[index] = Step::EndOfBrief { hold };
                }
            }
            _ => {}
        }
    }
    steps
}

/// The holds of a batch that have not met their end: which unit, whose credit and how much.
type Holds = HashMap<OperationId, Option<(usize, AccountId, Micros)>>;

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
