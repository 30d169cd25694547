//! Write coalescing: a hold that is settled in the commit it starts in becomes one charge.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher, Micros, OperationId};

use crate::entries::LedgerPart;
use crate::queue::Item;
use crate::unit::Part;

/// How to write a unit, considering the others of its batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Its parts are written in sequence.
    Apply,
    /// A hold that is settled in the same batch: both become one charge, written by the settlement.
    CoalescedHold,
    /// A settlement whose hold is unit `hold` of the same batch.
    CoalescedSettlement { hold: usize },
}

/// Finds holds that are settled in the batch they start in. Empty when there is none: every unit is then applied.
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
                // A second hold of one operation will be refused, and the first is then written unchanged.
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
                if let Some(hold) = take_hold(&mut holds, operation, account, held) {
                    if steps.is_empty() {
                        steps.resize(items.len(), Step::Apply);
                    }
                    steps[hold] = Step::CoalescedHold;
                    steps[index] = Step::CoalescedSettlement { hold };
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

/// The unresolved holds of a batch: unit, account and amount.
type Holds = HashMap<OperationId, Option<(usize, AccountId, Micros)>, BuildHasherDefault<IdHasher>>;

/// Removes the hold that this settlement or release belongs to from the map, so that a second one finds none.
fn take_hold(
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
