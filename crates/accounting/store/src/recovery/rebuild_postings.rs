//! Rebuilds the data derived from the journal: balances, open holds, postings and references.

use std::collections::{BTreeMap, BTreeSet};

use tollgate_money::AccountId;

use crate::carry::OpeningRow;
use crate::commit::JournalTail;
use crate::commit_id;
use crate::engine::{Booking, JournalRows, RowError, Sql, WriteError};
use crate::entries::{Body, LedgerPart};
use crate::tables;

/// Verifies that every commit matches its seal, follows the previous commit, and exists if the commit was posted.
pub(crate) fn verify_seals(sql: &dyn Sql) -> Result<(), RowError> {
    let mut posted = BTreeMap::new();
    tables::marks::posted(sql, &mut |node, row| {
        posted.insert(node, row);
    })?;
    let mut missing: BTreeSet<i64> = posted.values().copied().filter(|row| *row != 0).collect();
    let mut is_lost = false;
    let mut removed = BTreeMap::new();
    tables::carry::nodes(sql, &mut |node| {
        removed.insert(node.node, node.hash);
    })?;
    let mut previous: Option<(i64, [u8; 32])> = None;
    let mut wrong = None;
    tables::journal::commits(sql, &mut |commit| {
        let seal = &commit.seal;
        is_lost |= !posted.contains_key(&seal.node);
        missing.remove(&commit_id::id(seal.node, seal.epoch, seal.number));
        let before = previous.filter(|(node, _)| *node == seal.node);
        let first = removed.get(&seal.node).copied().unwrap_or_default();
        let follows = seal.previous == before.map_or(first, |(_, hash)| hash);
        if !follows || seal.reseal(&commit.body).as_ref() != Ok(seal) {
            wrong.get_or_insert((seal.node, seal.epoch, seal.number));
        }
        previous = Some((seal.node, seal.hash));
    })?;
    if is_lost || !missing.is_empty() {
        return Err(RowError::Damaged(String::from(
            "its journal differs from its seals: the last commit or its node is missing, so nothing can be rebuilt from it; restore a backup, or see what `tollgate repair` can keep of a file",
        )));
    }
    match wrong {
        None => Ok(()),
        Some((node, epoch, number)) => Err(RowError::Damaged(format!(
            "commit {number} of node {node}, run {epoch} differs from its seal, so nothing can be rebuilt from it; restore a backup, or see what `tollgate repair` can keep of a file"
        ))),
    }
}

/// Rebuilds all data derived from the journal, in the open transaction.
pub(crate) fn rebuild(sql: &dyn Sql, records_max: usize) -> Result<(), WriteError> {
    tables::recovery::remove_derived(sql)?;
    let mut nodes = Vec::new();
    tables::marks::posted(sql, &mut |node, _| nodes.push(node))?;
    for node in nodes {
        JournalTail::rebuild(sql, node, records_max)?;
    }
    booked(sql)
}

/// Rebuilds data derived from the records of all nodes: references, and the credit taken by nodes from shared balances.
fn booked(sql: &dyn Sql) -> Result<(), WriteError> {
    let mut error = None;
    let mut taken: BTreeMap<AccountId, i64> = BTreeMap::new();
    let read = tables::journal::bodies(sql, JournalRows::All, &mut |_, body| {
        // [`verify_seals`] has read the body.
        let Ok(body) = Body::read(body) else {
            return Ok(());
        };
        for part in body.records().flatten().flat_map(|record| record.part()) {
            if let LedgerPart::Allot {
                account, amount, ..
            } = part
            {
                let sum = taken.entry(account).or_default();
                *sum = sum.wrapping_add(amount.get());
            } else if let LedgerPart::Credit {
                operation,
                account,
                kind,
                amount,
                reference,
                ..
            } = part
                && error.is_none()
            {
                let booked = tables::bookings::insert(
                    sql,
                    Booking {
                        account,
                        reference: &reference,
                        operation,
                        kind: kind.code(),
                        amount,
                    },
                );
                error = booked.err();
            }
        }
        Ok(())
    });
    if let Some(error) = error {
        return Err(error.into());
    }
    read?;
    tables::carry::all(sql, &mut |row| {
        if let OpeningRow::Sum(carried) = row {
            let sum = taken.entry(carried.account).or_default();
            *sum = sum.wrapping_add(carried.allotted.get());
        }
    })?;
    taken.values_mut().for_each(|sum| *sum = sum.wrapping_neg());
    Ok(tables::allotment::move_shared(sql, &taken)?)
}
