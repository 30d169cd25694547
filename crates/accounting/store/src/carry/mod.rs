//! Removal of exported commits from the journal, and the carried state that takes their place.
//!
//! What later commits, readers and the audit need of removed commits stays in rows of its own: how far the journal of each node is removed
//! and the hash of the last removed commit; credits, and holds that had not ended, as they were recorded; sums of the rest by account and
//! node; usage by day. A removal is a commit: it changes these rows, deletes some commits with the pages that end in them, and its record
//! seals the sum of the digests of all carried rows. So a crash leaves all of it or nothing, and the audit finds a row that was changed.
//!
//! ```text
//! journal of a node     1 ─ 2 ─ 3 ─ ... ─ n │ n + 1 ─ ... ─ m        commit m has the record of the removal
//!                       export file         │ `prev` of n + 1 is the carried hash
//!                       carried rows        │
//! ```
//!
//! The readers of the journal get carried records before its first commit, so what they derive from credits and holds needs no second way.

mod digest;
mod history;
mod removal;
mod rows;

pub(crate) use self::digest::{RecordDigest, RowDigest};
pub(crate) use self::history::History;
pub(crate) use self::removal::remove;
pub use self::rows::{CarryPart, OpeningBalances, OpeningNode, OpeningSum};
pub(crate) use self::rows::{KNOWN_FROM, OpeningRow};
use crate::commit_id;
use crate::engine::{RowError, Sql};
use crate::entries::{Body, Entry, LedgerPart};
use crate::tables;

/// Reads the carried state and compares it with what the last removal sealed.
pub(crate) fn read(sql: &dyn Sql) -> Result<OpeningBalances, RowError> {
    let (number, stored) = tables::carry::number(sql)?;
    let mut carried = OpeningBalances {
        number,
        ..OpeningBalances::default()
    };
    let mut digest = RowDigest::default();
    tables::carry::all(sql, &mut |row| {
        digest.add(&row);
        match row {
            OpeningRow::Node(node) => carried.nodes.push(node),
            OpeningRow::Sum(sum) => carried.sums.push(sum),
            OpeningRow::Record { id, body, .. } => {
                let (node, _, _) = commit_id::numbers(id);
                if commit_id::has_allotments(node) {
                    let entries = entries(&body).into_iter();
                    carried.entries.extend(entries.map(|entry| (node, entry)));
                }
            }
            OpeningRow::Day(..) => {}
        }
    })?;
    let sealed = last_record(sql)?;
    carried.problem = if digest != stored {
        Some("the carried rows of removed commits are not what the last removal wrote")
    } else if sealed.unwrap_or_default() != (number, stored) {
        Some("the carried rows of removed commits are not what the journal has sealed")
    } else {
        None
    };
    Ok(carried)
}

/// The entries of a carried record. One that cannot be read is not what was sealed.
fn entries(body: &[u8]) -> Vec<Entry> {
    let body = Body::read(body);
    let records = body.iter().flat_map(Body::records);
    let parts = records.filter_map(|record| record.ok()?.part().ok());
    parts.filter_map(|part| Entry::of(&part)).collect()
}

/// Number and digest in the record of the last removal.
fn last_record(sql: &dyn Sql) -> Result<Option<(i64, RowDigest)>, RowError> {
    let mut nodes = Vec::new();
    tables::marks::posted(sql, &mut |node, _| nodes.push(node))?;
    let mut last = None;
    for node in nodes {
        tables::journal::newest_bodies(sql, node, &mut |body| {
            let found = carries(body).last();
            match found {
                Some(found) => {
                    last = last.max(Some(found));
                    std::ops::ControlFlow::Break(())
                }
                None => std::ops::ControlFlow::Continue(()),
            }
        })?;
    }
    Ok(last)
}

fn carries(body: &[u8]) -> impl Iterator<Item = (i64, RowDigest)> {
    // An unreadable one is reported by the audit.
    let body = Body::read(body);
    let records: Vec<_> = body
        .iter()
        .flat_map(|body| body.records())
        .flatten()
        .collect();
    let parts = records.iter().filter(|record| record.is_carry());
    let found: Vec<_> = parts
        .filter_map(|record| match record.part() {
            Ok(LedgerPart::Carry { number, digest, .. }) => Some((number, RowDigest::of(digest))),
            _ => None,
        })
        .collect();
    found.into_iter()
}
