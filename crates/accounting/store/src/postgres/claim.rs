//! The spool folder of a node at its start: the folder's owner, and the charges left by an earlier run.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

use tollgate_clock::Timestamp;
use tollgate_money::OperationId;

use super::failure::row_open_error;
use super::options::{NodeRole, Options};
use crate::commit_id;
use crate::engine::{RowError, Select as _, values};
use crate::entries::{Body, LedgerPart};
use crate::error::OpenError;
use crate::spool::{Frame, Owner, SpoolFile, SpooledUnit, unfit};
use crate::tables::journal::{StepOrder, each_step, step};
use crate::unit::{Part, UnitOfWork};
use tollgate_postgres::Connection;

/// The locked spool of a start, if the node has a spool.
pub(super) struct Claim(Option<(SpoolFile, Vec<Frame>)>);

/// How far the wall clock may have been set back between a charge and its commit.
const CLOCK_STEP_MICROS_MAX: i64 = 60_000_000;

/// The end of an operation in the journal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Charged,
    Released,
}

impl Claim {
    /// Opens the folder of the settings. With `is_optional`, an unusable folder counts as no folder: another node may have the folder
    /// open.
    pub(super) fn open(options: &Options, is_optional: bool) -> Result<Claim, OpenError> {
        let Some(spool) = &options.spool else {
            return Ok(Claim(None));
        };
        match SpoolFile::open(&spool.folder) {
            Ok(found) => Ok(Claim(Some(found))),
            Err(_) if is_optional => Ok(Claim(None)),
            Err(error) => Err(error),
        }
    }

    /// Without a folder.
    pub(super) fn none() -> Claim {
        Claim(None)
    }

    pub(super) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// The run that the folder names.
    pub(super) fn owner(&self) -> Option<&Owner> {
        self.0.as_ref().and_then(|(file, _)| file.owner())
    }

    /// Refuses a folder with charges of another node or database: this node would lose the charges. A recovery leaves the folder alone.
    pub(super) fn check(&mut self, run: &Owner, role: NodeRole) -> Result<(), OpenError> {
        let Some((file, _)) = &self.0 else {
            return Ok(());
        };
        let is_own = file.owner().is_some_and(|owner| {
            (&owner.database, owner.node, &owner.name) == (&run.database, run.node, &run.name)
        });
        if let (NodeRole::Recovery(_), false) = (role, is_own) {
            self.0 = None;
            return Ok(());
        }
        match file.owner().filter(|_| file.bytes() > 0 && !is_own) {
            None => Ok(()),
            Some(owner) => Err(unfit(
                file.path(),
                format!(
                    "has charges of node `{}` (number {}) of database {}, and this is node `{}` (number {}) of database {}; start that node with it, or move it away: what it has is then not charged",
                    owner.name, owner.node, owner.database, run.name, run.node, run.database
                ),
            )),
        }
    }

    /// Names this run in the folder.
    pub(super) fn take_over(&mut self, run: Owner) -> Result<(), OpenError> {
        let Some((file, _)) = &mut self.0 else {
            return Ok(());
        };
        let written = file.set_owner(run);
        written.map_err(|source| OpenError::File {
            action: "write",
            path: file.path().to_owned(),
            source,
        })
    }

    /// The file, and its units that are not in the journal. No earlier run of the node commits any more.
    pub(super) fn read(
        self,
        connection: &Connection,
        node: i64,
        name: &str,
    ) -> Result<Option<(SpoolFile, Vec<SpooledUnit>)>, OpenError> {
        let Some((file, frames)) = self.0 else {
            return Ok(None);
        };
        let Some(first) = frames.iter().map(|frame| frame.last_row).min() else {
            return Ok(Some((file, Vec::new())));
        };
        let units = frames.iter().flat_map(|frame| &frame.units);
        let parts = || units.clone().filter_map(ledger_part);
        let earliest = parts().map(LedgerPart::at).min();
        let earliest = earliest.unwrap_or(Timestamp::UNIX_EPOCH);
        let wanted = parts().map(LedgerPart::operation).collect();
        let ends = ends(connection, node, &wanted, first, earliest);
        let ends = ends.map_err(|error| row_open_error(name, error))?;
        let removed = removed_until(connection, node);
        let removed = removed.map_err(|error| row_open_error(name, error))?;
        let mut left = Vec::new();
        for unit in frames.into_iter().flat_map(|frame| frame.units) {
            let part = ledger_part(&unit);
            let end = part.and_then(|part| ends.get(&part.operation()));
            let was_removed = part.is_some_and(|part| removed.is_some_and(|it| part.at() <= it));
            match (part, end) {
                (_, Some(End::Charged)) => {}
                (Some(part), None) if was_removed => log_removed(part),
                _ => left.push(SpooledUnit {
                    is_released: end == Some(&End::Released),
                    unit,
                }),
            }
        }
        if !left.is_empty() {
            tracing::warn!(units = left.len(), spool = %file.path().display(), "found charges in the spool that are not in the database");
        }
        Ok(Some((file, left)))
    }
}

/// The ends of the wanted operations in the node's journal. The search covers the rows after `after`, and the rows since the time of the
/// first charge in the spool. A database restored from an earlier backup gives known numbers to other rows. If a spool was left for days,
/// the journal since has millions of other operations.
fn ends(
    connection: &Connection,
    node: i64,
    wanted: &HashSet<OperationId>,
    after: i64,
    earliest: Timestamp,
) -> Result<HashMap<OperationId, End>, RowError> {
    let since = earliest.as_micros() - CLOCK_STEP_MICROS_MAX;
    let (sql, newest) = (step!("at, body", " DESC"), StepOrder::NewestFirst);
    let range = commit_id::range(node);
    let damaged = |error: crate::entries::DecodeError| RowError::Damaged(error.to_string());
    let mut ends = HashMap::new();
    each_step(connection, sql, newest, range, &mut |row| {
        let (id, at): (i64, i64) = (row.get(0)?, row.get(1)?);
        if id <= after && at < since {
            return Ok(ControlFlow::Break(()));
        }
        let body = Body::read(row.get(2)?).map_err(damaged)?;
        for record in body.records() {
            let part = record.and_then(|record| record.part()).map_err(damaged)?;
            let end = match part {
                LedgerPart::Settle { .. } | LedgerPart::Charge { .. } => End::Charged,
                LedgerPart::Release { .. } => End::Released,
                _ => continue,
            };
            if wanted.contains(&part.operation()) {
                ends.entry(part.operation()).or_insert(end);
            }
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(ends)
}

/// The latest time of a charge whose commit retention may have removed from the node's journal: the time of the last removed commit. If a
/// wrong clock dated that commit, the first remaining commit shows the error and gives the time.
fn removed_until(connection: &Connection, node: i64) -> Result<Option<Timestamp>, RowError> {
    let sql =
        "SELECT c.at, j.at FROM carried_nodes c LEFT JOIN journal j ON j.id > c.id AND j.id <= ?2
         WHERE c.node_id = ?1 ORDER BY j.id LIMIT 1";
    let (_, last) = commit_id::range(node);
    connection.first(sql, values![node, last], |row| {
        let (removed, left): (i64, Option<i64>) = (row.get(0)?, row.get(1)?);
        let left = left.map_or(removed, |left| left.saturating_add(CLOCK_STEP_MICROS_MAX));
        Ok(Timestamp::from_micros(removed.min(left)))
    })
}

/// Reports a charge that is not made, because the charge may already be in a removed commit.
fn log_removed(part: &LedgerPart) {
    if let LedgerPart::Settle { charged, .. } | LedgerPart::Charge { charged, .. } = part {
        tracing::error!(
            operation = %part.operation(),
            account = %part.account(),
            amount = %charged,
            at = part.at().as_micros(),
            "did not charge a unit of the spool: retention has removed the journal of its time; if the exported months do not have its operation, correct the balance of its account"
        );
    }
}

/// The part that ends the operation of a unit.
fn ledger_part(unit: &UnitOfWork) -> Option<&LedgerPart> {
    unit.parts().iter().find_map(|part| match part {
        Part::Ledger(part) => Some(part),
        _ => None,
    })
}
