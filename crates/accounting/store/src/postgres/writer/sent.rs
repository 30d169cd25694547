//! Pipelined commits: the writer sends a commit before the server has answered earlier commits.
//!
//! The server goes on after a statement that fails. So each commit checks that what it depends on exists: a journal row is only
//! inserted after the row before it, a posting only where its last row is there (`tables::marks::set_posted`), and a transaction where the node is in
//! this epoch. What the server has made durable of rows and postings is the beginning of what was sent. Last uses and refused requests need no row,
//! and are made again by their number alone. After a lost connection the rest is sent again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use super::{JournalRow, Writer, Written};
use crate::engine::{Committed, EngineError, Fault};
use tollgate_postgres::Connection;
use tollgate_postgres::{Expected, lost};

/// For how long the server may not answer, before the connection is taken for lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// What was sent.
#[derive(Default)]
pub(super) struct SentCommits {
    /// Commits that are not known to be durable, oldest first.
    unknown: RefCell<VecDeque<SentCommit>>,
    /// Number of commits before them that are durable, which [`Writer::wait_for_sent`] has not returned.
    durable: Cell<usize>,
    /// For how long the oldest of them was waited for.
    waited: Cell<Duration>,
}

enum SentCommit {
    Row(JournalRow),
    Transaction(SentTransaction),
}

/// A transaction whose statements have no results that matter.
struct SentTransaction {
    /// The number of the transaction.
    number: i64,
    written: Vec<Written>,
}

impl Writer {
    /// Sends a commit of one statement, or a deferred one; other commits are durable when this returns.
    pub(in super::super) fn send_commit(&self) -> Result<Committed, EngineError> {
        let mut transaction = self.transaction.borrow_mut();
        if transaction.is_deferred {
            let written = std::mem::take(&mut *transaction).written;
            drop(transaction);
            return self.send_transaction(written);
        }
        let row = match transaction.is_begun {
            false => transaction.row.take(),
            true => None,
        };
        drop(transaction);
        let Some(row) = row else {
            self.finish_sent()?;
            return self.commit().map(|()| Committed::Durable);
        };
        let is_sent = self.on_link(|link| {
            self.with_row(&row, |sql, values| {
                link.send(sql, values.iter().copied(), Expected::Change)
            })
        });
        self.last.set(Some((row.id, row.seal.hash)));
        self.keep_sent(SentCommit::Row(row), is_sent)
    }

    fn send_transaction(&self, written: Vec<Written>) -> Result<Committed, EngineError> {
        // Whether a lost one has taken effect is known by the number of the last transaction alone.
        let is_transaction = |commit: &SentCommit| matches!(commit, SentCommit::Transaction(_));
        if self.sent.unknown.borrow().iter().any(is_transaction) {
            self.finish_sent()?;
        }
        let transaction = SentTransaction {
            number: self.next_number(),
            written,
        };
        let SentTransaction { number, written } = &transaction;
        let is_sent = self.on_link(|link| self.send_on(link, *number, written));
        self.keep_sent(SentCommit::Transaction(transaction), is_sent)
    }

    /// Runs `send` on the connection, which is made where there is none.
    fn on_link(
        &self,
        send: impl FnOnce(&Connection) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        if self.link.borrow().is_none() {
            self.reconnecting(&mut |_| Ok(()))?;
        }
        send(self.link.borrow().as_ref().expect("it is connected"))
    }

    fn send_on(
        &self,
        link: &Connection,
        number: i64,
        written: &[Written],
    ) -> Result<(), EngineError> {
        self.begin_on(link, number)?;
        for Written { sent, queue, .. } in written {
            queue(link, &sent.sql, &mut |run| sent.each(run))?;
        }
        link.send("COMMIT", [].into_iter(), Expected::Commit)
    }

    fn keep_sent(
        &self,
        commit: SentCommit,
        is_sent: Result<(), EngineError>,
    ) -> Result<Committed, EngineError> {
        self.sent.unknown.borrow_mut().push_back(commit);
        if let Err(error) = is_sent {
            self.send_again_after(error)?;
        }
        Ok(Committed::Sent)
    }

    /// Waits until the oldest commit that was sent is durable, at most for a time; `false` when that is not known then.
    pub(in super::super) fn wait_for_sent(
        &self,
        within: Option<Duration>,
    ) -> Result<bool, EngineError> {
        let durable = &self.sent.durable;
        if durable.get() == 0 {
            if self.sent.unknown.borrow().is_empty() {
                // One before it has failed.
                return Err(lost(ErrorKind::NotConnected.into()));
            }
            if let Some(within) = within
                && !self.is_answered_within(within)
            {
                return Ok(false);
            }
            self.read_sent()?;
        }
        durable.set(durable.get() - 1);
        Ok(true)
    }

    /// Whether the server has answered, or the connection is lost: it has not answered for too long.
    fn is_answered_within(&self, within: Duration) -> bool {
        let mut link = self.link.borrow_mut();
        let is_answered = (link.as_ref()).is_none_or(|link| link.is_answered_within(within));
        let waited = self.sent.waited.take() + within;
        if !is_answered && waited > ANSWER_WITHIN {
            *link = None;
        } else if !is_answered {
            self.sent.waited.set(waited);
        }
        is_answered || link.is_none()
    }

    /// Reads the results of all commits that were sent.
    pub(super) fn finish_sent(&self) -> Result<(), EngineError> {
        while !self.sent.unknown.borrow().is_empty() {
            self.read_sent()?;
        }
        Ok(())
    }

    /// Reads the result of the oldest commit that was sent.
    fn read_sent(&self) -> Result<(), EngineError> {
        let result = match self.link.borrow().as_ref() {
            Some(link) => link.result_of_sent(),
            None => Err(lost(ErrorKind::NotConnected.into())),
        };
        match result {
            Ok(()) => {
                if let Some(commit) = self.sent.unknown.borrow_mut().pop_front() {
                    self.record_durable(&commit);
                }
                Ok(())
            }
            Err(error) => self.send_again_after(error),
        }
    }

    fn record_durable(&self, commit: &SentCommit) {
        if let SentCommit::Row(row) = commit {
            self.outage.row_is_durable(row.id);
        }
        let durable = &self.sent.durable;
        durable.set(durable.get() + 1);
        self.is_durable();
    }

    /// Sends what is not known to be durable again, after an error that passes, and waits for it; most other errors are final.
    fn send_again_after(&self, error: EngineError) -> Result<(), EngineError> {
        *self.link.borrow_mut() = None;
        let unknown = std::mem::take(&mut *self.sent.unknown.borrow_mut());
        if !error.fault.passes() && error.fault != Fault::Key {
            return Err(self.final_error(error));
        }
        for commit in unknown {
            let done = match &commit {
                SentCommit::Row(row) => self.insert_alone(row),
                SentCommit::Transaction(transaction) => self.run_alone(transaction),
            };
            done.map_err(|error| self.final_error(error))?;
            self.record_durable(&commit);
        }
        Ok(())
    }

    /// Runs a transaction, or finds that it has been run.
    fn run_alone(&self, transaction: &SentTransaction) -> Result<(), EngineError> {
        let mut number = transaction.number;
        self.reconnecting(&mut |link| {
            if self.is_committed(link, number)? {
                return Ok(());
            }
            number = self.next_number();
            self.send_on(link, number, &transaction.written)?;
            link.result_of_sent()
        })
    }

    /// Says what an error means that ends the run.
    fn final_error(&self, error: EngineError) -> EngineError {
        match error.fault {
            Fault::Fenced => self.fenced(),
            // Of the rows of a transaction: a later run may have written them.
            Fault::Constraint | Fault::Key => self.check_fence().err().unwrap_or(error),
            // No unit can be refused for it: the row has those of a whole commit, and others follow it.
            Fault::Value => EngineError {
                fault: Fault::Other,
                ..error
            },
            _ => self.explained(error),
        }
    }
}
