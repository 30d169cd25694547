//! A database of an earlier release, whose open holds and claimed keys have times of a clock that no longer runs.
//!
//! That release stored the end of a hold, and of a claim, in microseconds of its process's monotonic clock. In another process they mean
//! nothing: they may lie years ahead or behind, and must neither keep credit reserved nor keep a key claimed.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use tollgate_clock::{Clock, Timestamp};
use tollgate_idempotency::{Idempotency, IdempotencySettings};
use tollgate_ledger::Ledger;
use tollgate_ledger::audit::audit;
use tollgate_money::{AccountId, Micros};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{
    Admission, Endpoint, IdempotencyKey, IdempotencyPart, Part, RootSecret, UnitOfWork, commit,
};

const DATABASE: &str = include_str!("earlier_release.sql");
const ACCOUNT: &str = "acct_0174876e800070009e3779b97f4a7c15";
const BALANCE: Micros = Micros::new(1_000);

/// When the next release starts: an hour after the holds were placed.
const NOW: Timestamp = Timestamp::from_secs(1_700_003_600);

#[tokio::test]
async fn holds_and_claims_of_an_earlier_release_end_and_nothing_is_charged() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.db");
    let connection = Connection::open(&path).expect("a file");
    connection.execute_batch(DATABASE).expect("the statements");
    connection.close().expect("it closes");
    let options = || Options::new(NOW, RootSecret([1; 32]));
    let store = sqlite::open(&path, options()).expect("it opens");
    let account: AccountId = ACCOUNT.parse().expect("an id");

    let (ledger, started) = Ledger::start(Arc::clone(&store), NOW).expect("the books open");
    assert_eq!((started.orphans, started.orphans_amount.get()), (2, 500));
    let balance = ledger.balance(account).expect("the account");
    assert_eq!((balance.available, balance.held), (BALANCE, Micros::ZERO));

    let (clock, _) = Clock::manual(NOW);
    let settings = IdempotencySettings::default();
    let hold = Duration::from_secs(60);
    let _filter = Idempotency::new(settings, hold, Arc::clone(&store), clock);
    for (token, key) in [(1, "claimed"), (2, "past")] {
        let claim = IdempotencyPart::Claim {
            key: IdempotencyKey {
                account,
                endpoint: Endpoint::Chat,
                key: Arc::from(key),
            },
            request_hash: [1; 32],
            token,
            at: NOW,
            expires_at: NOW + hold,
            limits: None,
        };
        let unit = UnitOfWork::of(Part::Idempotency(Box::new(claim)), Admission::Normal);
        let claimed = commit(&*store, unit).await;
        assert!(claimed.is_ok(), "`{key}` is claimed: {claimed:?}");
    }

    let report = audit(&store).expect("the audit runs");
    assert!(report.clean(), "the books balance");
    assert_eq!(report.sums.spent, Micros::ZERO, "nothing is charged");
    drop(ledger);
    store.close();
    let store = sqlite::open(&path, options()).expect("it opens again");
    let (ledger, started) = Ledger::start(Arc::clone(&store), NOW).expect("the books open");
    assert_eq!(started.orphans, 0, "the holds have ended on the disk too");
    ledger.load(account).await.expect("it can be loaded");
    assert_eq!(ledger.available(account), Some(BALANCE));
}
