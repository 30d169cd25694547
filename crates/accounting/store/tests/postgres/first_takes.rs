//! The first takes of caps in a month, which come together when it begins.

use tollgate_money::{CapPeriod, CredentialId, Micros, OperationId};
use tollgate_store::{AllotmentPart, Budget, KeyCap, Part, TakeResult};
use tollgate_testing::Postgres;

use super::nodes::{node, numbered_key};
use super::proxy::Proxy;
use super::sent::submit;
use super::suite::support::{account, new_account, stop_writer, time, write};

fn operation(number: u8) -> OperationId {
    OperationId::from_parts(u64::from(number), [4; 10])
}

fn take(number: u8) -> Part {
    let credential = CredentialId::from_bytes([number; 16]);
    Part::Allotment(AllotmentPart::Take {
        operation: operation(number),
        budget: Budget::Cap(KeyCap::of(credential, CapPeriod::Month, operation(number))),
        need: Micros::new(7),
        target: Micros::new(7),
        is_owed: false,
        at: time(2),
    })
}

/// Each waited some sixteen times for the server, while what all nodes share was locked.
#[test]
fn the_first_takes_of_many_caps_wait_for_the_server_as_rarely_as_they_can() {
    const KEYS: u8 = 40;
    let server = Postgres::shared();
    let database = server.database();
    let database = database.rsplit('/').next().expect("a name");
    let proxy = Proxy::start(server.folder());
    let store = node(&proxy.url(database), "a");
    write(&store, [new_account(1)]).expect("an account");
    let keys = (1..=KEYS).map(|number| numbered_key(number, account(1), 1_000));
    write(&store, keys).expect("keys");
    let resume = stop_writer(&store);
    let answers: Vec<_> = (1..=KEYS)
        .map(|number| submit(&store, take(number)))
        .collect();
    drop(resume);
    for answer in answers {
        let taken = answer.recv().expect("an answer").expect("it is decided");
        assert!(
            matches!(taken.taken, Some(TakeResult::Amount { amount, .. }) if amount.get() == 7),
            "{taken:?}"
        );
    }
    let each = proxy.waits_with_lock() as f64 / f64::from(KEYS);
    assert!(each < 8.0, "{each} times for a take");
    let granted = "SELECT count(*), sum(granted) FROM cap_allotments WHERE node_id > 0";
    assert_eq!(server.run(database, granted), "40|280");
    store.close();
}
