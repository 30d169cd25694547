//! One removal, in the transaction of its commit.

use super::history::wrapping;
use super::{CarryPart, History, OpeningNode, OpeningRow, OpeningSum, RecordDigest, RowDigest};
use crate::commit_id;
use crate::engine::{RowError, Sql, WriteError};
use crate::entries::{Body, DecodeError};
use crate::error::Refusal;
use crate::journal::Packer;
use crate::reads::DayTotals;
use crate::tables;

/// Maximum number of commits removed by one commit. The removal changes the accounts and days of these commits, while other commits wait.
pub(crate) const REMOVED_MAX: usize = 4096;

/// Removes commits; returns number and digest for the record of the removal.
pub(crate) fn remove(sql: &dyn Sql, part: &CarryPart) -> Result<(i64, [u8; 32]), WriteError> {
    let (node, epoch, number) = part.last;
    let last = commit_id::id(node, epoch, number);
    let mut before = None;
    tables::carry::nodes(sql, &mut |carried| {
        if carried.node == node {
            before = Some(carried);
        }
    })?;
    let after = before.map_or(commit_id::range(node).0, |carried: OpeningNode| carried.id);
    let mut posted = 0;
    tables::marks::posted(sql, &mut |marked, row| {
        if marked == node {
            posted = row;
        }
    })?;
    if last <= after || last >= posted || !tables::marks::are_days_posted(sql)? {
        return Err(invalid(
            "only commits that are followed by a posted one are removed, and each of them once",
        ));
    }
    let history = read(sql, part, before, after)?;
    let (count, stored) = tables::carry::number(sql)?;
    let mut digest = stored;
    put_state(sql, &history, before, &mut digest)?;
    remove_pages(sql, &history, node, last)?;
    tables::journal::remove_commits(sql, after, last)?;
    tables::carry::put_number(sql, count + 1, &digest)?;
    Ok((count + 1, digest.bytes()))
}

fn invalid(why: &'static str) -> WriteError {
    WriteError::Refused(Refusal::Invalid(why))
}

/// Reads the commits to remove.
fn read(
    sql: &dyn Sql,
    part: &CarryPart,
    before: Option<OpeningNode>,
    after: i64,
) -> Result<History, WriteError> {
    let (node, epoch, number) = part.last;
    let last = commit_id::id(node, epoch, number);
    let commits = tables::journal::commits_after(sql, node, after, REMOVED_MAX)?;
    let mut history = History::after(before);
    for commit in &commits {
        let seal = &commit.seal;
        let id = commit_id::id(seal.node, seal.epoch, seal.number);
        if id > last {
            break;
        }
        match history.add(sql, commit) {
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
    sql: &dyn Sql,
    history: &History,
    before: Option<OpeningNode>,
    digest: &mut RowDigest,
) -> Result<(), WriteError> {
    let mut put = |old: Option<OpeningRow>, new: OpeningRow| -> Result<(), WriteError> {
        if let Some(old) = &old {
            digest.remove(old);
        }
        digest.add(&new);
        Ok(tables::carry::put(sql, &new)?)
    };
    for node in history.nodes.values() {
        put(before.map(OpeningRow::Node), OpeningRow::Node(*node))?;
    }
    for (operation, (id, body)) in &history.records {
        let row = OpeningRow::Record {
            operation: *operation,
            id: *id,
            body: body.clone(),
        };
        put(None, row)?;
    }
    for more in history.sums.values() {
        let old = tables::carry::sum_of(sql, more.account, more.node)?;
        let new = old.map_or(*more, |old| OpeningSum {
            charged: wrapping(old.charged, more.charged),
            written_off: wrapping(old.written_off, more.written_off),
            allotted: wrapping(old.allotted, more.allotted),
            ..old
        });
        put(old.map(OpeningRow::Sum), OpeningRow::Sum(new))?;
    }
    for (account, day) in history.days.each() {
        let old = tables::usage_days::carried_day(sql, account, day)?;
        let mut total = DayTotals::default();
        total.add_day(account, day.clone());
        if let Some(old) = &old {
            total.add_day(account, old.clone());
        }
        for (account, new) in total.each() {
            let old = old.clone().map(|old| OpeningRow::Day(account, old));
            put(old, OpeningRow::Day(account, new.clone()))?;
        }
        tables::usage_days::take(sql, account, day)?;
    }
    for operation in &history.ended {
        if let Some(ended) = tables::carry::remove_record(sql, *operation)? {
            digest.remove(&ended);
        }
    }
    Ok(())
}

/// Removes the pages that end in removed commits, and counts the removed records that stay in later pages.
fn remove_pages(sql: &dyn Sql, history: &History, node: i64, last: i64) -> Result<(), WriteError> {
    let mut packer = Packer::default();
    let Some(carried) = history.nodes.get(&node) else {
        return Ok(());
    };
    for &account in &history.owners {
        let mut digest = history.visible.get(&account).copied().unwrap_or_default();
        let mut removed = Ok(());
        tables::carry::remove_pages(
            sql,
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
            tables::carry::add_pages(sql, account, digest)?;
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
