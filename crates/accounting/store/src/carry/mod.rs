//! Removal of exported commits from the journal, and the carried state that takes their place.
//!
//! Later commits, readers and the audit need a part of the removed commits. This part stays in separate rows: the position and the hash
//! of the last removed commit of each node; credits, and open holds, as recorded; sums of the other records by account and node; usage by
//! day. A removal is a commit. The commit changes these rows, and deletes some commits with the pages that end in these commits. The
//! record of the removal seals the sum of the digests of all carried rows. So a crash leaves a removal whole or undone, and the audit
//! finds a changed row.
//!
//! ```text
//! journal of a node     1 ─ 2 ─ 3 ─ ... ─ n │ n + 1 ─ ... ─ m        commit m has the record of the removal
//!                       export file         │ `prev` of n + 1 is the carried hash
//!                       carried rows        │
//! ```
//!
//! The readers of the journal get carried records before the journal's first commit, so readers derive credits and holds in one way.

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

/// Reads the carried state and compares it with the seal of the last removal.
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

/// The entries of a carried record. An unreadable record differs from its seal.
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
    // The audit reports an unreadable body.
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
