//! The audit log: records are chained by node, and are part of the unit of their act.

use std::sync::Arc;

use tollgate_money::Micros;
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    AuditEvent, AuditLogQuery, AuditOutcome, AuditRecord, EntryKind, Part, Refusal, Store,
};

use super::support::{account, new_account, open, operation, time, write};

fn event(number: i64, actor: &str, subject: Option<&str>) -> Part {
    Part::Audit(Box::new(AuditEvent {
        at: time(number),
        actor: Arc::from(actor),
        action: Arc::from("account_create"),
        subject: subject.map(Arc::from),
        request: Arc::from(format!("req_{number}")),
        outcome: AuditOutcome::Done,
        detail: Arc::from("{}"),
    }))
}

fn grant(number: u8) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: operation(number),
        account: account(1),
        kind: EntryKind::Grant,
        amount: Micros::new(5),
        reference: Arc::from("invoice 1"),
        at: time(1),
    })
}

fn all(store: &Arc<dyn Store>) -> Vec<AuditRecord> {
    let mut found = Vec::new();
    let snapshot = store.snapshot().expect("a snapshot");
    snapshot
        .audit_log(&mut |record| found.push(record))
        .expect("a read");
    found
}

#[test]
fn records_are_chained_across_units_and_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1), event(1, "uid 0", Some("a"))]).expect("written");
    write(&store, [event(2, "token ops", None)]).expect("written");
    store.close();
    let store = open(folder.path());
    // Two of one unit.
    write(
        &store,
        [event(3, "uid 0", Some("a")), event(4, "uid 0", None)],
    )
    .expect("written");
    let found = all(&store);
    let numbers: Vec<i64> = found.iter().map(|record| record.number).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    let mut previous = [0; 32];
    for record in &found {
        assert_eq!(record.previous, previous, "{record:?}");
        assert!(record.is_intact(), "{record:?}");
        previous = record.hash;
    }
    assert_eq!(
        Part::Audit(Box::new(found[1].event.clone())),
        event(2, "token ops", None)
    );
}

#[test]
fn a_refused_act_leaves_no_record_and_no_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [event(1, "uid 0", None), new_account(1)]).expect("written");
    let refused = write(&store, [event(2, "uid 0", None), new_account(1)]);
    assert_eq!(refused, Err(Refusal::AccountExists(account(1))));
    write(&store, [event(3, "uid 0", None)]).expect("written");
    let found = all(&store);
    let numbers: Vec<(i64, i64)> = found
        .iter()
        .map(|record| (record.number, record.event.at.as_micros()))
        .collect();
    assert_eq!(numbers, [(1, 1), (2, 3)]);
    assert_eq!(found[1].previous, found[0].hash);
}

#[test]
fn the_record_of_a_repeated_grant_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1)]).expect("written");
    for number in 1..=2 {
        let parts = [grant(number), event(i64::from(number), "token ops", None)];
        write(&store, parts).expect("granted");
    }
    let outcomes: Vec<AuditOutcome> = all(&store)
        .iter()
        .map(|record| record.event.outcome)
        .collect();
    assert_eq!(outcomes, [AuditOutcome::Done, AuditOutcome::Repeated]);
}

#[test]
fn pages_of_the_log_are_newest_first_and_selected_by_actor_and_subject() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    // Of one instant, so that the number decides.
    for (at, actor, subject) in [
        (1, "uid 0", Some("a")),
        (2, "token ops", Some("b")),
        (2, "uid 0", Some("b")),
        (3, "uid 0", None),
    ] {
        write(&store, [event(at, actor, subject)]).expect("written");
    }
    let numbers = |wanted: &AuditLogQuery| -> Vec<i64> {
        let found = store.audit_log(wanted).expect("a read");
        found.iter().map(|record| record.number).collect()
    };
    let first = AuditLogQuery {
        limit: 2,
        ..AuditLogQuery::default()
    };
    assert_eq!(numbers(&first), [4, 3]);
    let page = store.audit_log(&first).expect("a read");
    let next = AuditLogQuery {
        before: Some(page[1].position()),
        ..first.clone()
    };
    assert_eq!(numbers(&next), [2, 1]);
    let of_actor = AuditLogQuery {
        actor: Some(Arc::from("uid 0")),
        limit: 9,
        ..AuditLogQuery::default()
    };
    assert_eq!(numbers(&of_actor), [4, 3, 1]);
    let of_subject = AuditLogQuery {
        subject: Some(Arc::from("b")),
        before: Some(page[1].position()),
        limit: 9,
        ..AuditLogQuery::default()
    };
    assert_eq!(numbers(&of_subject), [2]);
}
