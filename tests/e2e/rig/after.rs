//! The end of a test: audit of the store and the access log.

use std::path::Path;

use serde_json::Value;
use tollgate_ledger::audit::{self, Report};
use tollgate_store::{Failure, Reader, sqlite};
use tollgate_testing::within;

use super::{Rig, SECRETS};

/// Access log and audit of a stopped gateway.
pub(crate) struct After {
    /// The access log, in the order of the ends of requests.
    pub(crate) log: Vec<Value>,
    /// The findings of the audit.
    pub(crate) report: Report,
}

impl After {
    /// How the requests ended, in the words of the access log.
    pub(crate) fn endings(&self) -> Vec<&str> {
        self.each("ending")
    }

    /// The member `name` of every line; empty for a line without the member.
    pub(crate) fn each(&self, name: &str) -> Vec<&str> {
        let words = self.log.iter().map(|line| line[name].as_str());
        words.map(Option::unwrap_or_default).collect()
    }
}

impl Rig {
    /// Waits until every hold is resolved, stops the gateway, and fails unless the ledger balances and matches the clients' charges.
    pub(crate) async fn finish(mut self) -> After {
        self.quiet().await;
        let stop = self.stop.take().expect("stopped once");
        let _ = stop.send(());
        self.ended().await.expect("the store did not fail");
        self.inspect()
    }

    async fn ended(&mut self) -> Result<(), Failure> {
        let thread = self.thread.take().expect("ended once");
        let join = tokio::task::spawn_blocking(move || thread.join());
        let joined = within("the end of the gateway", join).await;
        joined
            .expect("waiting does not panic")
            .expect("the gateway does not panic")
    }

    fn inspect(&mut self) -> After {
        self.finished = true;
        let malformed = self.provider.malformed();
        assert!(
            malformed.is_empty(),
            "the gateway sent the provider what is no HTTP: {malformed:?}"
        );
        let report = audited(&self.database());
        let charged = *self.charged.lock().expect("not poisoned");
        assert_eq!(
            report.sums.spent, charged,
            "left: spent by the ledger; right: charges that clients received"
        );
        let written_off = *self.written_off.lock().expect("not poisoned");
        assert_eq!(
            report.usage_written_off, written_off,
            "usage that was not charged"
        );
        let log = std::fs::read_to_string(self.folder.path().join("access.log"));
        let log = log.expect("the access log");
        SECRETS.assert_absent("the access log", &log);
        let lines = log.lines().map(|line| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in the log: {line}"))
        });
        After {
            log: lines.collect(),
            report,
        }
    }
}

/// Audits a closed store: fails unless the ledger balances and no credit is held.
pub(crate) fn audited(database: &Path) -> Report {
    let store = sqlite::open_read(database).expect("the store opens");
    audited_store(&store)
}

/// Audits a store of any engine.
pub(crate) fn audited_store(store: &Reader) -> Report {
    let report = audit::audit(store).expect("the store can be read");
    assert!(
        report.clean(),
        "the books do not balance: {:?}",
        report.violations
    );
    assert_eq!(report.open_holds, 0, "a hold is left open");
    report
}
