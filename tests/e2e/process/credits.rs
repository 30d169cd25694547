//! The program killed between the payment and the credit.

use std::path::Path;

use tollgate_clock::{Clock, Entropy};
use tollgate_identity::{Login, SessionValue, session};
use tollgate_money::{AccountId, LoginId, MICROS_PER_CREDIT};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{Admission, NewLogin, Part, RootSecret, UnitOfWork, commit};
use tollgate_testing::paypal::{Effect, Fault, Operation, PayPal};
use tollgate_testing::within;

use super::installation::{Installation, Serving, ended};
use crate::credits::{back_from_paypal, order, order_of, settings, variables};
use crate::rig::{Browser, Setup, audited};

/// Creates a session while no gateway has the database.
pub(super) async fn sign_in(database: &Path, account: AccountId) -> SessionValue {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let now = clock.now();
    let options = Options::new(now, RootSecret(entropy.bytes()));
    let store = sqlite::open(database, options).expect("the store opens");
    let login = Login::read("mara@example.com").expect("an address");
    let id = LoginId::from_bytes(entropy.bytes());
    let part = Part::InsertLogin(Box::new(NewLogin {
        id,
        account,
        kind: login.kind(),
        address: login.address().into(),
        verified_at: None,
        created_at: now,
    }));
    let unit = UnitOfWork::of(part, Admission::Normal);
    commit(&*store, unit).await.expect("a login");
    let value = session::start_session(&store, account, id, now, |out| entropy.fill(out)).await;
    store.close();
    value.expect("a session")
}

async fn serve(installation: &Installation) -> Serving {
    let mut command = installation.command(&["serve"]);
    command.envs(variables());
    installation.serve_as(command).await
}

/// PayPal has captured the payment, the response is lost, PayPal cannot be read, and the process is killed. The next run finds the payment
/// and books the credit once, without an action of the buyer.
#[tokio::test]
async fn a_payment_interrupted_by_a_kill_is_credited_at_the_next_start() {
    let paypal = PayPal::start().await;
    let folder = tollgate_testing::tempdir().expect("a folder");
    let ca = folder.path().join("paypal-ca.pem");
    std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
    // The commands for the account run without the PayPal settings. The PayPal settings are written afterwards.
    let installation = Installation::of(Setup::with("")).await;
    let text = std::fs::read_to_string(&installation.config).expect("settings");
    let with_paypal = format!("{text}\n{}", settings(&paypal, &ca));
    std::fs::write(&installation.config, with_paypal).expect("the folder takes files");
    let account: AccountId = installation.account.parse().expect("an id");
    let session = sign_in(&installation.database(), account).await;

    let mut serving = serve(&installation).await;
    let mut browser = Browser::holding(&serving.url, &session);
    let (page, path) = order(&mut browser, "20.00").await;
    paypal.fault(Fault::once(Operation::Capture, Effect::Blackout));
    paypal.approve(&order_of(&page)).await;
    browser.get(&back_from_paypal(&path)).await;
    assert_eq!(paypal.taken_cents(), 2_000, "the money is taken");
    serving.process.signal("KILL");
    ended(&mut serving.process).await;
    let granted = 1_000 * MICROS_PER_CREDIT;
    let balance = |database: &Path| {
        let store = sqlite::open_read(database).expect("the store opens");
        let row = store.account(account).expect("readable").expect("stored");
        row.available.get()
    };
    assert_eq!(
        balance(&installation.database()),
        granted,
        "and not credited"
    );

    paypal.no_faults();
    let mut serving = serve(&installation).await;
    let credited = || balance(&installation.database()) == granted + 2_000 * MICROS_PER_CREDIT;
    within("the credit", crate::rig::poll(credited)).await;
    serving.process.signal("TERM");
    ended(&mut serving.process).await;
    assert_eq!(paypal.taken_cents(), 2_000, "taken once");
    audited(&installation.database());
    let once = || balance(&installation.database());
    assert_eq!(once(), granted + 2_000 * MICROS_PER_CREDIT);
}
