//! A store whose units pass through a test on their way to the queue, for injected faults of a simulation.

use std::sync::Arc;

use super::open;
use super::options::Options;
use super::read::Pool;
use crate::error::{Failure, OpenError, SubmitError};
use crate::gauges::Gauges;
use crate::handover::Handover;
use crate::outage::Outage;
use crate::reader::{OpenedStore, Reader};
use crate::rows::RootSecret;
use crate::spool::SpooledUnit;
use crate::store::{Observer, Store, Submit};
use crate::unit::{Done, UnitOfWork};
use tollgate_postgres::Target;

/// Submits a unit to a store, or another action in its place.
pub type Submitter =
    Arc<dyn Fn(&dyn Store, UnitOfWork, Done) -> Result<(), SubmitError> + Send + Sync>;

/// The writer of an opened store, behind a test.
struct Intercepted {
    store: Arc<dyn Store>,
    submitter: Submitter,
}

/// Opens a store as [`open`] does, and passes each unit to `submitter`.
pub fn open_intercepted(
    options: Options,
    submitter: Submitter,
) -> Result<Arc<dyn Store>, OpenError> {
    let target: Target = open::target(&options)?;
    let store = open::open(options)?;
    Ok(Arc::new(OpenedStore {
        reader: Reader::new(Arc::new(Pool::new(Arc::new(target)))),
        writing: Intercepted { store, submitter },
    }))
}

impl Submit for OpenedStore<Intercepted> {
    fn submit(&self, unit: UnitOfWork, done: Done) -> Result<(), SubmitError> {
        (self.writing.submitter)(&*self.writing.store, unit, done)
    }
}

impl Store for OpenedStore<Intercepted> {
    fn admit(&self) -> Result<(), SubmitError> {
        self.writing.store.admit()
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.writing.store.observe(observer);
    }

    fn follow_changes(&self) {
        self.writing.store.follow_changes();
    }

    fn is_leader(&self) -> bool {
        self.writing.store.is_leader()
    }

    fn node(&self) -> i64 {
        self.writing.store.node()
    }

    fn epoch(&self) -> i64 {
        self.writing.store.epoch()
    }

    fn earliest_epoch(&self) -> i64 {
        self.writing.store.earliest_epoch()
    }

    fn root_secret(&self) -> RootSecret {
        self.writing.store.root_secret()
    }

    fn gauges(&self) -> &Gauges {
        self.writing.store.gauges()
    }

    fn replace_password(&self, password: Option<&[u8]>) {
        self.writing.store.replace_password(password);
    }

    fn outage(&self) -> Option<&Outage> {
        self.writing.store.outage()
    }

    fn take_spooled(&self) -> Vec<SpooledUnit> {
        self.writing.store.take_spooled()
    }

    fn spooled_is_durable(&self) {
        self.writing.store.spooled_is_durable();
    }

    fn failure(&self) -> Option<Failure> {
        self.writing.store.failure()
    }

    fn hand_over(&self) -> Result<Handover, Failure> {
        self.writing.store.hand_over()
    }

    fn close(&self) {
        self.writing.store.close();
    }
}
