//! The writer's commits, timings and failures.

use std::sync::atomic::AtomicU64;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use super::*;
use crate::entries::LedgerPart;
use crate::gauges::Histogram;
use crate::sqlite;
use crate::unit::{Admission, UnitOfWork};
use crate::{CacheScope, EntryKind, NewAccount};

const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);

fn new_account() -> Part {
    Part::CreateAccount(Box::new(NewAccount {
        id: ACCOUNT,
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: Timestamp::from_micros(1),
    }))
}

fn grant(number: u8) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: OperationId::from_bytes([number; 16]),
        account: ACCOUNT,
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::from(number.to_string()),
        at: Timestamp::from_micros(1),
    })
}

/// No unit is committed meanwhile, so both are measured.
#[test]
fn a_posting_and_the_writers_own_checkpoint_are_timed() {
    /// The step of the clock at every reading.
    const STEP_US: u64 = 1000;
    let timed = |histogram: &Histogram| (histogram.count(), histogram.sum());
    //   records, worth posting, whether the log is long, postings, checkpoints
    for (records, post_records, log_is_long, postings, checkpoints) in [
        (0, 1, false, 0, 0),
        (1, 1, false, 1, 0),
        (1, 1, true, 1, 1),
        (1, 2, true, 0, 1),
        (2, 2, false, 1, 0),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let (engine, epoch) = sqlite::new_engine(&path);
        let session = engine.session().expect("its statements");
        let mut batch =
            Batch::load(session.sql(), 1, epoch, post_records).expect("an empty ledger");
        drop(session);
        let shared = Shared::new(8, Box::new(|_| {}));
        let parts = std::iter::once(new_account()).chain((1..=records).map(grant));
        shared
            .queue
            .push(
                UnitOfWork::of_all(parts, Admission::Always),
                Box::new(|answer| assert!(answer.is_ok(), "{answer:?}")),
            )
            .expect("an open queue");
        shared.queue.stop(Failure {
            kind: FailureKind::Closed,
            message: Arc::from("no more units"),
        });
        engine.log_is_long.store(log_is_long, Relaxed);
        let now_us = AtomicU64::new(0);
        let clock = || now_us.fetch_add(STEP_US, Relaxed);
        serve(&shared, &engine, &mut batch, 8, &clock).expect("it is written");
        let case = format!("{records} of {post_records}, {log_is_long}");
        let gauges = &shared.gauges;
        let posted = timed(&gauges.posting_us);
        // Includes the posting's commit, whose beginning and end are read too.
        assert_eq!(posted, (postings, 3 * postings * STEP_US), "{case}");
        let moved = timed(&gauges.checkpoint_us);
        assert_eq!(moved, (checkpoints, checkpoints * STEP_US), "{case}");
        // From the first clock reading to the last, including the readings of a posting in between.
        let committed = timed(&gauges.commit_us);
        assert_eq!(committed, (1, (4 + postings) * STEP_US), "{case}");
        assert_eq!(timed(&gauges.sync_us), (1, STEP_US), "{case}");
    }
}
