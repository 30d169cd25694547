//! A price with a change between two starts.

use tollgate_store::sqlite;

use super::installation::{Installation, ended};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, audited, chat, micros};

#[tokio::test]
async fn a_price_that_changes_has_a_version_of_its_own_and_old_charges_keep_theirs() {
    let installation = Installation::new("").await;
    // The price of an output token, the charge for a chat, and the number of price versions: a start has two models.
    for (output, price, versions) in [
        ("600", PRICE_OF_A_CHAT, 2),
        ("1200", 150 + 16 * 1200, 3),
        ("600", PRICE_OF_A_CHAT, 3),
    ] {
        let mut command = installation.command(&["serve"]);
        command.env("TOLLGATE__MODEL__0__PRICE__OUTPUT", output);
        let mut serving = installation.serve_as(command).await;
        let answer = serving
            .client(&installation)
            .post(CHAT, &chat(false))
            .await
            .json();
        assert_eq!(micros(&answer["x_svc"]["credits_used"]), price);
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
        let store = sqlite::open_read(&installation.database()).expect("the store opens");
        let mut known = 0;
        store.prices(&mut |_| known += 1).expect("a read");
        assert_eq!(known, versions, "with {output}");
    }
    let report = audited(&installation.database());
    assert_eq!(
        report.priced, 3,
        "every charge was worked out again at its own version"
    );
    assert_eq!(installation.audit().await["priced"], 3);
}
