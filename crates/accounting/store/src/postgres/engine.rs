//! The writer's side of an open database.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::failure::{Names, failure};
use super::ticker::Ticker;
use super::writer::Writer;
use crate::engine::{Committed, Engine, EngineError, Session, Sql, WriteError};
use crate::entries::Seal;
use crate::error::{Failure, FailureKind};
use crate::spool::Spool;

/// A database that is open for writing.
pub(super) struct PostgresEngine {
    pub(super) names: Arc<Names>,
    pub(super) writer: Writer,
    /// Stopped before the lease is released.
    pub(super) renewal: Ticker,
    pub(super) outage: Ticker,
    /// Writes the spool.
    pub(super) spooling: Option<Ticker>,
    pub(super) spool: Option<Arc<Spool>>,
    /// For one of several nodes.
    pub(super) feed: Option<Ticker>,
}

impl Engine for PostgresEngine {
    type Session<'e> = PostgresSession<'e>;

    fn session(&self) -> Result<PostgresSession<'_>, Failure> {
        Ok(PostgresSession {
            writer: &self.writer,
        })
    }

    fn failure(&self, error: EngineError) -> Failure {
        failure(&self.names, error)
    }

    fn name(&self) -> String {
        self.names.database.clone()
    }

    fn close(self, stopped: Option<&Failure>, hands_over: bool) -> Vec<File> {
        drop(self.feed);
        drop(self.outage);
        drop(self.spooling);
        drop(self.renewal);
        // After a failure, the close does not wait for the database once more.
        if stopped.is_none_or(|failure| failure.kind == FailureKind::Closed) {
            self.writer.release_lease(hands_over);
        }
        if let Some(spool) = &self.spool {
            spool.leave();
        }
        Vec::new()
    }
}

/// A writer's commits.
pub(super) struct PostgresSession<'e> {
    writer: &'e Writer,
}

impl Session for PostgresSession<'_> {
    const SENDS: bool = true;

    fn sql(&self) -> &dyn Sql {
        self.writer
    }

    /// No message is sent until the first statement that writes: most commits are one statement.
    fn begin(&mut self) -> Result<(), WriteError> {
        self.writer.begin();
        Ok(())
    }

    fn begin_write_only(&mut self) -> Result<(), WriteError> {
        self.writer.begin_deferred();
        Ok(())
    }

    fn lock_shared(&mut self) -> Result<(), WriteError> {
        Ok(self.writer.lock_shared()?)
    }

    fn insert_commit(&mut self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), EngineError> {
        self.writer.insert_commit(id, seal, body);
        Ok(())
    }

    fn commit(&mut self) -> Result<(), EngineError> {
        self.writer.commit()
    }

    fn send_commit(&mut self) -> Result<Committed, EngineError> {
        self.writer.send_commit()
    }

    fn wait_for_sent(&mut self, within: Option<Duration>) -> Result<bool, EngineError> {
        self.writer.wait_for_sent(within)
    }

    fn rollback(&mut self) {
        self.writer.rollback();
    }

    fn check_fence(&self) -> Result<(), EngineError> {
        self.writer.check_fence()
    }

    fn needs_maintenance(&self) -> bool {
        false
    }

    fn maintain(&mut self) -> Result<bool, Failure> {
        Ok(false)
    }
}
