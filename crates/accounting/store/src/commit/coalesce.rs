//! Write coalescing: a hold settled in the commit in which the hold starts becomes one charge.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher, Micros, OperationId};

use crate::entries::LedgerPart;
use crate::queue::Item;
use crate::unit::Part;

/// How to write a unit within its batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// The unit's parts are written in sequence.
    Apply,
    /// A hold settled in this batch: the settlement writes one charge for both.
    CoalescedHold,
    /// A settlement whose hold is unit `hold` of this batch.
    CoalescedSettlement { hold: usize },
}

/// Finds holds settled in the batch in which the holds start. Empty without such holds: every unit is applied.
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
                // A second hold of an operation will be refused, and the first hold is written unchanged.
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

/// Removes the hold of this settlement or release from the map, so that a second settlement finds no hold.
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
