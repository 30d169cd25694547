//! One removal, in the transaction of its commit.

use super::history::wrapping;
use super::{CarriedNode, CarriedRow, CarriedSum, CarryPart, History, RecordDigest, RowDigest};
use crate::commit_id;
use crate::engine::{RowError, WriteError, WriteRows};
use crate::entries::{Body, DecodeError};
use crate::error::Refusal;
use crate::journal::Packer;
use crate::reads::DayTotals;

/// Commits removed by one commit at most: all of their accounts and days are changed in it, while other commits wait.
pub(crate) const REMOVED_MAX: usize = 4096;

/// Removes commits; returns number and digest for the record of the removal.
pub(crate) fn remove(
    rows: &impl WriteRows,
    part: &CarryPart,
) -> Result<(i64, [u8; 32]), WriteError> {
    let (node, epoch, number) = part.last;
    let last = commit_id::id(node, epoch, number);
    let mut before = None;
    rows.carried_nodes(&mut |carried| {
        if carried.node == node {
            before = Some(carried);
        }
    })?;
    let after = before.map_or(commit_id::range(node).0, |carried: CarriedNode| carried.id);
    let mut posted = 0;
    rows.posted_marks(&mut |marked, row| {
        if marked == node {
            posted = row;
        }
    })?;
    if last <= after || last >= posted || !rows.are_days_posted()? {
        return Err(invalid(
            "only commits that are followed by a posted one are removed, and each of them once",
        ));
    }
    let history = read(rows, part, before, after)?;
    let (count, stored) = rows.carry()?;
    let mut digest = stored;
    put_state(rows, &history, before, &mut digest)?;
    remove_pages(rows, &history, node, last)?;
    rows.remove_commits(after, last)?;
    rows.put_carry(count + 1, &digest)?;
    Ok((count + 1, digest.bytes()))
}

fn invalid(why: &'static str) -> WriteError {
    WriteError::Refused(Refusal::Invalid(why))
}

/// Reads the commits to remove.
fn read(
    rows: &impl WriteRows,
    part: &CarryPart,
    before: Option<CarriedNode>,
    after: i64,
) -> Result<History, WriteError> {
    let (node, epoch, number) = part.last;
    let last = commit_id::id(node, epoch, number);
    let commits = rows.commits_after(node, after, REMOVED_MAX)?;
    let mut history = History::after(before);
    for commit in &commits {
        let seal = &commit.seal;
        let id = commit_id::id(seal.node, seal.epoch, seal.number);
        if id > last {
            break;
        }
        match history.add(rows, commit) {
            Err(RowError::Damaged(problem)) => {
                tracing::error!("removing exported commits failed: {problem}");
                return Err(invalid(
                    "a commit to remove differs from its seal; run `tollgate audit`",
                ));
            }
            added => added?,
        }
    }
    match history.nodes.get(&node) {
        Some(read) if (read.id, read.hash) == (last, part.hash) => Ok(history),
        _ => Err(invalid(
            "the journal does not have the last commit to remove, or more before it than one removal takes",
        )),
    }
}

/// Adds a history to the carried rows.
fn put_state(
    rows: &impl WriteRows,
    history: &History,
    before: Option<CarriedNode>,
    digest: &mut RowDigest,
) -> Result<(), WriteError> {
    let mut put = |old: Option<CarriedRow>, new: CarriedRow| -> Result<(), WriteError> {
        if let Some(old) = &old {
            digest.remove(old);
        }
        digest.add(&new);
        Ok(rows.put_carried(&new)?)
    };
    for node in history.nodes.values() {
        put(before.map(CarriedRow::Node), CarriedRow::Node(*node))?;
    }
    for (operation, (id, body)) in &history.records {
        let row = CarriedRow::Record {
            operation: *operation,
            id: *id,
            body: body.clone(),
        };
        put(None, row)?;
    }
    for more in history.sums.values() {
        let old = rows.carried_sum(more.account, more.node)?;
        let new = old.map_or(*more, |old| CarriedSum {
            charged: wrapping(old.charged, more.charged),
            written_off: wrapping(old.written_off, more.written_off),
            allotted: wrapping(old.allotted, more.allotted),
            ..old
        });
        put(old.map(CarriedRow::Sum), CarriedRow::Sum(new))?;
    }
    for (account, day) in history.days.each() {
        let old = rows.carried_day(account, day)?;
        let mut total = DayTotals::default();
        total.add_day(account, day.clone());
        if let Some(old) = &old {
            total.add_day(account, old.clone());
        }
        for (account, new) in total.each() {
            let old = old.clone().map(|old| CarriedRow::Day(account, old));
            put(old, CarriedRow::Day(account, new.clone()))?;
        }
        rows.take_usage_day(account, day)?;
    }
    for operation in &history.ended {
        if let Some(ended) = rows.remove_carried_record(*operation)? {
            digest.remove(&ended);
        }
    }
    Ok(())
}

/// Removes the pages that end in removed commits, and counts what stays in later pages.
fn remove_pages(
    rows: &impl WriteRows,
    history: &History,
    node: i64,
    last: i64,
) -> Result<(), WriteError> {
    let mut packer = Packer::default();
    let Some(carried) = history.nodes.get(&node) else {
        return Ok(());
    };
    for &account in &history.owners {
        let mut digest = history.visible.get(&account).copied().unwrap_or_default();
        let mut removed = Ok(());
        rows.remove_pages(
            account,
            (commit_id::range(node).0, last),
            carried.at,
            &mut |page| {
                if removed.is_ok() {
                    removed = subtract(&mut digest, &mut packer, page);
                }
            },
        )?;
        removed.map_err(|decode_error| {
            let problem = format!("a posting of account `{account}` {decode_error}");
            WriteError::Row(RowError::Damaged(problem))
        })?;
        if digest != RecordDigest::default() {
            rows.add_carried_pages(account, digest)?;
        }
    }
    Ok(())
}

fn subtract(
    digest: &mut RecordDigest,
    packer: &mut Packer,
    page: &[u8],
) -> Result<(), DecodeError> {
    for record in Body::read(page)?.records() {
        digest.add_record(packer, &record?, -1)?;
    }
    Ok(())
}
