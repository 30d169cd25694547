//! Pipelined commits: the writer sends a commit before the server has answered earlier commits.
//!
//! The server goes on after a failed statement. So each commit checks its precondition. A journal row is inserted only after the
//! preceding row. A posting runs only if its last row exists (`tables::marks::set_posted`). A transaction runs only if the node is in
//! this epoch. The durable rows and postings are therefore a prefix of the sent rows and postings. Last uses and refused requests need no
//! row, and are repeated by their number alone. After a lost connection the rest is sent again.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use super::{JournalRow, Writer, Written};
use crate::engine::{Committed, EngineError, Fault};
use tollgate_postgres::Connection;
use tollgate_postgres::{Expected, lost};

/// For how long the server may stay silent before the connection counts as lost.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// The sent commits.
#[derive(Default)]
pub(super) struct SentCommits {
    /// Commits that are not known to be durable, oldest first.
    unknown: RefCell<VecDeque<SentCommit>>,
    /// Number of earlier commits that are durable and that [`Writer::wait_for_sent`] has not returned yet.
    durable: Cell<usize>,
    /// Time already waited for the oldest commit.
    waited: Cell<Duration>,
}

enum SentCommit {
    Row(JournalRow),
    Transaction(SentTransaction),
}

/// A transaction whose results are not needed.
struct SentTransaction {
    /// The number of the transaction.
    number: i64,
    written: Vec<Written>,
}

impl Writer {
    /// Sends a commit of one statement, or a deferred commit; any other commit is durable when the call returns.
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
        // The number of the last transaction is the only record of the outcome of a lost transaction.
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

    /// Runs `send` on the connection; connects first if necessary.
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

    /// Waits until the oldest sent commit is durable, at most for `within`; `false` when the commit is not yet known to be durable.
    pub(in super::super) fn wait_for_sent(
        &self,
        within: Option<Duration>,
    ) -> Result<bool, EngineError> {
        let durable = &self.sent.durable;
        if durable.get() == 0 {
            if self.sent.unknown.borrow().is_empty() {
                // An earlier commit has failed.
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

    /// Whether the server has answered, or the connection counts as lost after too long a silence.
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

    /// Reads the results of all sent commits.
    pub(super) fn finish_sent(&self) -> Result<(), EngineError> {
        while !self.sent.unknown.borrow().is_empty() {
            self.read_sent()?;
        }
        Ok(())
    }

    /// Reads the result of the oldest sent commit.
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

    /// After an error that passes, sends the unknown commits again and waits for their results; most other errors are final.
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

    /// Runs a transaction, unless the transaction has taken effect.
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

    /// Explains an error that ends the run.
    fn final_error(&self, error: EngineError) -> EngineError {
        match error.fault {
            Fault::Fenced => self.fenced(),
            // An error about the rows of a transaction: a later run may have written these rows.
            Fault::Constraint | Fault::Key => self.check_fence().err().unwrap_or(error),
            // The error refuses no single unit: the row has the units of a whole commit, and later rows follow.
            Fault::Value => EngineError {
                fault: Fault::Other,
                ..error
            },
            _ => self.explained(error),
        }
    }
}
